# SPDX-License-Identifier: Apache-2.0
"""The node agent: watches the pods that are bound to its node and gives each pod a `PodWorker`.

An agent that replaces a kubelet also checks whether a pod can run on its node, because the author of a pod can set
`spec.nodeName`, and a scheduler can work with old data. A refusal has the reason that a kubelet would give.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainwright.errors import ApiError, ForbiddenError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import adoption, logs
from trainwright.node.context import AgentContext, OnceNotices, StatusReport, StatusWriter, Tokens
from trainwright.node.devices.pool import DevicePool
from trainwright.node.found import ContainerEnd
from trainwright.node.hosts import HostsFiles
from trainwright.node.link import SupervisorLink, SupervisorLost, SupervisorRefused
from trainwright.node.network.pools import SubnetPool
from trainwright.node.node_object import AgentNode
from trainwright.node.pod_devices import NodeDevices
from trainwright.node.requests import amounts, asks, needed, present, total
from trainwright.node.settings import AgentSettings
from trainwright.node.status import PodFailure
from trainwright.node.supervisor import tree
from trainwright.node.volumes import SUPPORTED
from trainwright.node.watchdog import Watchdog, described, fence, unkillable
from trainwright.node.watches import ConfigMapWaiter, ResourceFollower, end_tasks, object_key
from trainwright.node.worker import PodWorker
from trainwright.runtime.ports import NODES, PODS, Clock, Cluster, ListPage, Selection, WatchEventType

#: After the grace period, a supervisor must end its pods within this many seconds.
_STOP_TIMEOUT_SECONDS = 3.0
#: The agent searches for processes to kill at most this many times. If a process forks during one search, the next
#: search finds the new process.
_MAX_KILL_ROUNDS = 10


class Agent:
    """Runs the pods of one node. `notify` receives messages for the user."""

    def __init__(  # noqa: PLR0913 - the parts of a node
        self,
        cluster: Cluster,
        link: SupervisorLink,
        clock: Clock,
        settings: AgentSettings,
        notify: Callable[[str], None],
        tokens: Tokens | None = None,
        *,
        leases: DevicePool | None = None,
    ) -> None:
        notices = OnceNotices(notify)
        folder = Path(settings.folder, "nodes", settings.node, "hosts")
        self.context = AgentContext(
            cluster,
            link,
            clock,
            settings,
            reports=StatusWriter(cluster, settings.delays, notices.send_once),
            devices=NodeDevices(settings.devices, settings.node, leases, scheduled=settings.scheduled),
            notices=notices,
            config_maps=ConfigMapWaiter(cluster, settings.delays, by_name=settings.kubelet),
            hosts=HostsFiles(cluster, folder, settings, notices.send_once) if settings.sandboxed else None,
            addresses=SubnetPool(settings.range) if settings.range else None,
            tokens=tokens,
        )
        self.node = AgentNode(cluster, clock, settings)
        self._workers: dict[str, PodWorker] = {}
        #: Tasks that remove pods whose objects are gone. A new pod of the same name waits for the task of the old pod.
        self._removing: dict[Key, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Tasks that watch the supervisor. `stop` ends these tasks last: a supervisor can also hang during `stop`.
        self._watchdog_tasks: tuple[asyncio.Task[None], ...] = ()
        self._stale_files_removed = False
        #: Whether the agent has taken over what earlier agents have started.
        self._adopted = False
        #: Called when the agent can run no more pods: its supervisor is lost, or one of its tasks has failed.
        self.on_failed: Callable[[], None] = lambda: None
        link.on_notice = notices.send_once
        link.on_lost = self._supervisor_lost

    async def start(self) -> None:
        """Register the node and begin to watch its pods."""
        await self.node.register()
        context, settings = self.context, self.context.settings
        if context.hosts is not None:
            await context.hosts.start()
        scope = Selection(fields=f"spec.nodeName={settings.node}")
        follower = ResourceFollower(context.cluster, PODS.whole(), scope, settings.delays)
        follower.on_forbidden = lambda error: context.notices.send_once(
            f"the API server forbids the agent to watch the pods of this node: {error}"
        )
        self._spawn(follower.run(self._pods_listed, self._pod_changed))
        loop, watchdog = asyncio.get_running_loop(), Watchdog(context.link.process.pid, settings.silence_grace)
        self._watchdog_tasks = (
            loop.create_task(self._ping_supervisor(watchdog)),
            loop.create_task(self._fence_silent_supervisor(watchdog)),
        )
        for task in self._watchdog_tasks:
            task.add_done_callback(self._task_done)
        if settings.heartbeat:
            self._spawn(self._send_heartbeats(settings.heartbeat))
        else:
            scope = Selection(fields=f"metadata.name={settings.node}")
            own_node = ResourceFollower(context.cluster, NODES.whole(), scope, settings.delays)
            self._spawn(own_node.run(self._node_listed, self._node_changed))

    async def stop(self, grace: float | None = 0.0) -> None:
        """Stop watching, end all pods within `grace` seconds, and end the supervisor.

        If `grace` is None, each pod has its own grace period.
        """
        self.context.reports.closing = True
        await end_tasks(*self._tasks)
        workers = self._workers.values()
        tasks = [*(worker.agent_stopping(grace) for worker in workers), *self._removing.values()]
        if ending := [task for task in tasks if task is not None]:
            await asyncio.wait(ending)
        await self._close(end=self.context.settings.orphans == "keep")

    async def stop_within(self, grace: float) -> None:
        """Like `stop`, but if the supervisor does not answer in time, kill it with all its pods."""
        stopping = asyncio.ensure_future(self.stop(grace))
        done, _ = await asyncio.wait({stopping}, timeout=grace + _STOP_TIMEOUT_SECONDS)
        if not done:
            link, name, send = self.context.link, self.context.settings.node, self.context.notices.send
            await fence(link.process.handle, link.folder, lambda left: send(unkillable(name, left)))
        await stopping

    async def detach(self) -> None:
        """Stop watching, write all statuses, and leave the supervisor with its pods to the next agent.

        If the supervisor is lost, its pods are lost, too; this waits until their statuses are written.
        """
        self.context.reports.closing = True
        await end_tasks(*self._tasks)
        workers = self._workers.values()
        if self.context.link.alive:
            tasks = {task for worker in workers for task in worker.detach()}
        else:
            tasks = {task for worker in workers if (task := worker.agent_stopping(0)) is not None}
        if tasks := tasks | {*self._removing.values()}:
            await asyncio.wait(tasks, timeout=_STOP_TIMEOUT_SECONDS)
        await self._close(end=False)

    async def _close(self, *, end: bool) -> None:
        context = self.context
        await context.config_maps.close()
        await context.reports.close()
        if context.hosts is not None:
            await context.hosts.close()
        await context.link.close(end=end)
        await end_tasks(*self._watchdog_tasks)

    async def leave(self, grace: float | None, *, remove: bool) -> None:
        """Set the node to not ready, so that it gets no new pods; stop the agent; if `remove`, delete the Node."""
        link = self.context.link
        cause = ("AgentStopped", "the node agent was stopped") if link.alive else ("SupervisorLost", link.loss)
        failing = asyncio.get_running_loop().create_task(self.node.fail(*cause))
        await self.stop(grace)
        await failing
        if remove:
            try:
                await self.node.remove()
            except ForbiddenError as error:  # API servers forbid nodes to delete their Nodes, to protect the taints
                name = self.context.settings.node
                self.context.notices.send(
                    f"the agent may not delete the Node {name}; `kubectl delete node {name}` deletes it: {error}"
                )

    def worker(self, key: Key) -> PodWorker | None:
        """The worker of the pod with that key; None if there is no worker."""
        return next((one for one in self._workers.values() if one.pod.key == key), None)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.context.notices.send_once(f"the agent of {self.context.settings.node} has failed: {error!r}")
            self.on_failed()

    def _node_listed(self, page: ListPage) -> None:
        if not page.items:
            self._spawn(self._restore_node())

    def _node_changed(self, what: WatchEventType, _body: Body, _version: str) -> None:
        if what is WatchEventType.DELETED:
            self._spawn(self._restore_node())

    async def _restore_node(self) -> None:
        """Register the node again, because the Node was deleted and the machine is still there.

        An agent with heartbeats finds out at its next heartbeat.
        """
        with suppress(ApiError):  # if the API server cannot be reached, the next list shows that the Node is missing
            await self.node.restore()
            self.context.notices.send(f"the Node {self.context.settings.node} was deleted and is registered again")

    def _pods_listed(self, page: ListPage) -> None:
        settings = self.context.settings
        present = {pod["metadata"]["uid"] for pod in page.items}
        for uid in [uid for uid in self._workers if uid not in present]:
            self._remove(uid)
        if settings.kubelet and not self._stale_files_removed:
            self._stale_files_removed = True
            logs.remove_stale_files(Path(settings.folder), present)
        for pod in sorted(page.items, key=admission_order) if settings.kubelet else page.items:
            self._put(pod)
        if not self._adopted:
            self._adopted = True
            self._end_unclaimed()
            pods = [worker.pod for worker in self._workers.values()]
            self._spawn(self._store_adopted([pod.report for pod in pods if not pod.ended]))

    def _end_unclaimed(self) -> None:
        """End what an earlier agent has started for pods that are gone or have ended."""
        link = self.context.link
        living = {uid for uid, worker in self._workers.items() if not worker.pod.ended}
        for pod in (link.open_pods | link.found.keys()) - living:
            for one in link.claim(pod):
                if one.ended is None and not one.gone:
                    link.on_ended[one.container] = partial(_forget, link)
                else:
                    link.forget({"container": one.container})
            link.close_pod({"pod": pod})

    async def _store_adopted(self, reports: list[StatusReport]) -> None:
        """Drop the journal of an earlier supervisor, after the statuses that come from it are stored."""
        folder = self.context.link.folder
        if self.context.settings.orphans == "keep" and adoption.has_old_journal(folder):
            for report in reports:
                await self.context.reports.store(report)
            adoption.drop_old_journal(folder)

    def _pod_changed(self, event: WatchEventType, pod: Body, version: str) -> None:  # noqa: ARG002 - see `Changed`
        if event is WatchEventType.DELETED:
            self._remove(pod["metadata"]["uid"])
        else:
            self._put(pod)

    def _put(self, pod: Body) -> None:
        """Give the pod to its worker; make a worker for a new pod."""
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        key, settings, refusal = object_key(pod), self.context.settings, None
        try:
            is_admitted = (pod.get("status") or {}).get("startTime")  # an earlier agent has admitted the pod
            if settings.kubelet and not is_admitted:
                others = [worker.pod.body for worker in self._workers.values() if not worker.pod.ended]
                refusal = admission_refusal(pod, others, settings)
            self._workers[uid] = PodWorker(pod, self.context, self._removing.get(key), refusal)
        except (LookupError, TypeError, AttributeError) as error:  # the API server did not check the pod object
            self.context.notices.send_once(f"pod {key} cannot be run, since its object is malformed: {error!r}")

    def _remove(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is not None and (task := worker.object_gone()) is not None:
            key = worker.pod.key
            self._removing[key] = task
            task.add_done_callback(lambda done: self._removing.get(key) is done and self._removing.pop(key))

    def _supervisor_lost(self) -> None:
        """Kill the processes that the supervisor left running, and fail all pods and the node."""
        loss = self.context.link.loss
        self.context.notices.send_once(f"node {self.context.settings.node} can no longer run pods: {loss}")
        running = {one.id for worker in self._workers.values() for one in worker.pod.containers if one.live}
        if self.context.settings.orphans == "keep":
            running.update(adoption.running_containers(self.context.link.folder))
        for _ in range(_MAX_KILL_ROUNDS if running else 0):
            if not tree.kill_marked(running):
                break
        for worker in self._workers.values():
            worker.supervisor_lost(loss)
        self._spawn(self.node.fail("SupervisorLost", loss))
        self.on_failed()

    async def _ping_supervisor(self, watchdog: Watchdog) -> None:
        while True:
            try:
                await self.context.link.ping()
            except SupervisorLost:
                return
            except SupervisorRefused:
                pass  # a supervisor that refuses the ping does answer
            watchdog.answered()
            await asyncio.sleep(watchdog.limits.interval)

    async def _fence_silent_supervisor(self, watchdog: Watchdog) -> None:
        """Kill a supervisor that no longer answers, and its pods. The link then calls `_supervisor_lost`."""
        link, send, name = self.context.link, self.context.notices.send, self.context.settings.node
        supervisor = f"the supervisor (process {watchdog.pid})"
        silence = await watchdog.run(lambda seen: send(f"{name}: {supervisor} {described(seen)}"))
        if not link.alive:
            return
        link.loss = f"{supervisor} {described(silence)}; it and its pods were killed"
        await fence(link.process.handle, link.folder, lambda left: send(unkillable(name, left)))

    async def _send_heartbeats(self, interval: float) -> None:
        send, name, is_failing = self.context.notices.send, self.context.settings.node, False
        while self.context.link.alive:
            await asyncio.sleep(interval)
            try:
                await self.node.beat()
            except ApiError as error:
                if not is_failing:
                    send(f"heartbeats of node {name} do not reach the API server, pods continue to run: {error}")
                is_failing = True
            else:
                if is_failing:
                    send(f"heartbeats of node {name} reach the API server again")
                is_failing = False


def _forget(link: SupervisorLink, end: ContainerEnd) -> None:
    link.forget({"container": end.container})


def admission_order(pod: Body) -> tuple[bool, str, str]:
    """The sort key of pods at admission: first pods that an earlier agent admitted, then by age."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return not status.get("startTime"), str(meta.get("creationTimestamp") or ""), str(meta["name"])


def admission_refusal(pod: Body, others: Iterable[Body], settings: AgentSettings) -> PodFailure | None:
    """Why the pod cannot run on this node beside the other pods; None if the pod can run."""
    problem = _unsupported(pod["spec"], sandboxed=settings.sandboxed) or _wrong_user(pod["spec"], settings.user)
    if problem:
        return PodFailure("UnsupportedPod", f"Pod was rejected: {problem}")
    offered = amounts(settings.offered)
    used = total(asks(other["spec"]) for other in others)
    for name, amount in asks(pod["spec"]).items():
        free = max(0, offered.get(name, 0) - used.get(name, 0))
        if amount > free:
            requested, available = needed(name, amount), present(name, free)
            text = f"Node didn't have enough resource: {name}, requested: {requested}, free: {available}"
            return PodFailure(f"OutOf{name}", f"Pod was rejected: {text}")
    return None


def _unsupported(spec: Body, *, sandboxed: bool) -> str:
    """The error about the first field that this agent does not support; empty if the agent supports all fields."""
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") == "Always":
            path = f"spec.initContainers[{index}].restartPolicy"
            return f"{path}: Always is not supported: an init container must end before the next one begins"
    for field in ("hostPID", "hostIPC"):
        if spec.get(field) and sandboxed:
            return f"spec.{field}: not supported in the sandbox runtime"
    containers = (*(spec.get("initContainers") or ()), *spec["containers"])
    mounted = {mount.get("name") for container in containers for mount in container.get("volumeMounts") or ()}
    for index, volume in enumerate(spec.get("volumes") or ()):
        types = [field for field in volume if field != "name"]
        if volume["name"] in mounted and types and types[0] not in SUPPORTED:
            return f"spec.volumes[{index}].{types[0]}: not supported here; expected one of {', '.join(SUPPORTED)}"
    return ""


def _wrong_user(spec: Body, user: int) -> str:
    """The error if the pod cannot run as `user`, the user ID of all processes of this node; empty if it can."""
    pod_context = spec.get("securityContext") or {}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            security = pod_context | (container.get("securityContext") or {})
            path, wanted = f"spec.{group}[{index}].securityContext", security.get("runAsUser")
            if wanted is not None and wanted != user:
                return f"{path}.runAsUser: {wanted} is not possible: every process of this node runs as user {user}"
            if security.get("runAsNonRoot") and user == 0:
                return f"{path}.runAsNonRoot: not possible: every process of this node runs as root"
    return ""
