# SPDX-License-Identifier: Apache-2.0
"""Whether a pod that was put on this node can be had: room, and nothing that this agent cannot do. Pure.

`agent` asks where it stands in for a kubelet: a pod may name its node itself, and schedulers may be behind. The reasons
are a kubelet's.

The node agent: one node of any cluster. Watches the pods that are bound to it; each gets a `worker`.

The engine (or `main`, in a process of its own) makes one with a `Link` to a supervisor. Nothing here knows what is
behind the `Cluster`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from trainwright.errors import ApiError, ForbiddenError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node import logs
from trainwright.node.context import AgentContext, OnceNotices, StatusReports, Tokens
from trainwright.node.devices.pool import DevicePool
from trainwright.node.hosts import HostsFiles
from trainwright.node.link import SupervisorLink, SupervisorLost, SupervisorRefused
from trainwright.node.network.pools import SubnetPool
from trainwright.node.node_object import AgentNode
from trainwright.node.pod_devices import NodeDevices
from trainwright.node.requests import amounts, asks, needed, present, total
from trainwright.node.settings import AgentSettings
from trainwright.node.status import PodEnd
from trainwright.node.supervisor import tree
from trainwright.node.supervisor.launch import Process
from trainwright.node.volumes import SUPPORTED
from trainwright.node.watchdog import Watchdog, described, fence, unkillable
from trainwright.node.watches import ConfigMapWaiter, ResourceFollower
from trainwright.node.worker import PodWorker
from trainwright.runtime.ports import PODS, Clock, Cluster, ListPage, Selection, WatchEventType

_UNSUPPORTED = "UnsupportedPod"


def admission_order(pod: Body) -> tuple[bool, str, str]:
    """In which order pods are judged: those that were taken before, then by age."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return not status.get("startTime"), str(meta.get("creationTimestamp") or ""), str(meta["name"])


def admission_refusal(pod: Body, others: Iterable[Body], settings: AgentSettings) -> PodEnd | None:
    """Why not, if it cannot."""
    problem = _unsupported(pod["spec"], sandboxed=settings.sandboxed) or _other_user(pod["spec"], settings.user)
    if problem:
        return PodEnd(_UNSUPPORTED, f"Pod was rejected: {problem}")
    offered = amounts(settings.capacity if settings.allocatable is None else settings.allocatable)
    used = total(asks(other["spec"]) for other in others)
    for name, amount in asks(pod["spec"]).items():
        free = max(0, offered.get(name, 0) - used.get(name, 0))
        if amount > free:
            wanted, there = needed(name, amount), present(name, free)
            text = f"Node didn't have enough resource: {name}, requested: {wanted}, free: {there}"
            return PodEnd(f"OutOf{name}", f"Pod was rejected: {text}")
    return None


def _unsupported(spec: Body, *, sandboxed: bool) -> str:
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") == "Always":
            path = f"spec.initContainers[{index}].restartPolicy"
            return f"{path}: Always is not supported: an init container must end before the next one begins"
    for word in ("hostPID", "hostIPC"):
        if spec.get(word) and sandboxed:
            return f"spec.{word}: not supported in the sandbox runtime"
    containers = (*(spec.get("initContainers") or ()), *spec["containers"])
    mounted = {mount.get("name") for container in containers for mount in container.get("volumeMounts") or ()}
    for index, volume in enumerate(spec.get("volumes") or ()):
        kinds = [word for word in volume if word != "name"]
        if volume["name"] in mounted and kinds and kinds[0] not in SUPPORTED:
            return f"spec.volumes[{index}].{kinds[0]}: not supported here; expected one of {', '.join(SUPPORTED)}"
    return ""


def _other_user(spec: Body, user: int) -> str:
    """Who asks not to be root must not be, nor somebody else than they asked to be."""
    whole = spec.get("securityContext") or {}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            asked = whole | (container.get("securityContext") or {})
            path, wanted = f"spec.{group}[{index}].securityContext", asked.get("runAsUser")
            if wanted is not None and wanted != user:
                return f"{path}.runAsUser: {wanted} cannot be had: every process of this node is user {user}'s"
            if asked.get("runAsNonRoot") and user == 0:
                return f"{path}.runAsNonRoot: cannot be had: every process of this node is root's"
    return ""


#: Processes that fork while they are looked for are found in the next round.
_ROUNDS = 10


class Agent:
    """Runs the pods of one node. `notify` is told what people should know, each thing once."""

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
        reports = StatusReports(cluster, settings.pace, notices.once)
        folder = Path(settings.folder, "nodes", settings.node, "hosts")
        hosts = HostsFiles(cluster, folder, settings, notices.once) if settings.sandboxed else None
        devices = NodeDevices(settings.devices, settings.node, leases, scheduled=settings.scheduled)
        pool = SubnetPool(settings.range) if settings.range else None
        awaited = ConfigMapWaiter(cluster, settings.pace, by_name=settings.kubelet)
        self.means = AgentContext(
            cluster, link, clock, settings, reports, devices, notices, awaited, hosts, pool, tokens
        )
        self.node = AgentNode(cluster, clock, settings)
        self._workers: dict[str, PodWorker] = {}
        #: What is still to be cleared away of a pod that has gone, by its name: another of that name waits for it.
        self._clearing: dict[Key, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Watch the supervisor; to the very end, since an agent that stops waits for answers, too.
        self._watching: tuple[asyncio.Task[None], ...] = ()
        self._swept = False
        #: Called when a defect of ours has ended what this agent does all the time.
        self.failed: Callable[[], None] = lambda: None
        link.notice = notices.once
        link.lost = self._lose

    async def start(self) -> None:
        """Register the node and begin to watch."""
        await self.node.register()
        means, settings = self.means, self.means.settings
        if means.hosts is not None:
            await means.hosts.start()
        scope = Selection(fields=f"spec.nodeName={settings.node}")
        follower = ResourceFollower(means.cluster, PODS.whole(), scope, settings.pace)
        follower.forbidden = lambda error: means.notices.once(f"the pods of this node cannot be followed: {error}")
        self._spawn(follower.run(self._listed, self._changed))
        loop, watchdog = asyncio.get_running_loop(), Watchdog(means.link.process.pid, settings.node_grace)
        self._watching = (loop.create_task(self._ping(watchdog)), loop.create_task(self._watch(watchdog)))
        for task in self._watching:
            task.add_done_callback(self._done)
        if settings.heartbeat:
            self._spawn(self._beat(settings.heartbeat))

    async def stop(self, grace: float | None = 0.0) -> None:
        """Watch no more, and hang up. Pods that are not to outlive the agent have so much time to end.

        None is as much as each of them asks for.
        """
        self.means.reports.closing = True
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.means.settings.orphans == "end":
            await self._retire(grace)
        if self._clearing:
            await asyncio.wait(self._clearing.values())
        await self.means.awaited.close()
        await self.means.reports.close()
        if self.means.hosts is not None:
            await self.means.hosts.close()
        await self.means.link.close()
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def leave(self, grace: float | None, *, remove: bool) -> None:
        """Stop, as a node of somebody else's cluster does: nothing new may come meanwhile, and it is said why."""
        link = self.means.link
        why = ("AgentStopped", "the node agent was stopped") if link.alive else ("SupervisorLost", link.loss)
        telling = asyncio.get_running_loop().create_task(self._fail(*why))
        await self.stop(grace)
        await telling
        if remove:
            try:
                await self.node.remove()
            except ForbiddenError as error:  # a node that could delete itself could get rid of its taints
                name = self.node.name
                self.means.notices.tell(f"the Node {name} stays, `kubectl delete node {name}` removes it: {error}")

    def worker(self, key: Key) -> PodWorker | None:
        """Whoever looks after the pod of that name."""
        return next((one for one in self._workers.values() if one.charge.key == key), None)

    async def _retire(self, grace: float | None) -> None:
        ending = {task for worker in self._workers.values() if (task := worker.retire(grace)) is not None}
        if ending:
            await asyncio.wait(ending)

    def _spawn(self, what: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.means.notices.once(f"the agent of {self.means.settings.node} has failed: {error!r}")
            self.failed()

    def _listed(self, page: ListPage) -> None:
        present = {pod["metadata"]["uid"] for pod in page.items}
        for uid in [uid for uid in self._workers if uid not in present]:
            self._remove(uid)
        if self.means.settings.kubelet and not self._swept:
            self._swept = True
            logs.remove_stale_logs(Path(self.means.settings.folder), present)
        for pod in sorted(page.items, key=admission_order) if self.means.settings.kubelet else page.items:
            self._put(pod)

    def _changed(self, what: WatchEventType, pod: Body, version: str) -> None:  # noqa: ARG002 - the watch passes it
        if what is WatchEventType.DELETED:
            self._remove(pod["metadata"]["uid"])
        else:
            self._put(pod)

    def _put(self, pod: Body) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        key = Key(pod["metadata"].get("namespace", ""), pod["metadata"]["name"])
        try:
            refusal = self._refusal(pod) if self.means.settings.kubelet else None
            self._workers[uid] = PodWorker(pod, self.means, self._clearing.get(key), refusal)
        except (LookupError, TypeError, AttributeError) as error:  # no API server lets such a pod pass
            self.means.notices.once(f"pod {key} is not one that can be run: {error!r}")

    def _refusal(self, pod: Body) -> PodEnd | None:
        """Why it cannot be had here, beside those that are."""
        if (pod.get("status") or {}).get("startTime"):
            return None  # an agent before us has taken it
        others = [worker.charge.pod for worker in self._workers.values() if not worker.charge.ended]
        return admission_refusal(pod, others, self.means.settings)

    def _remove(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        task = worker.vanish() if worker is not None else None
        if worker is None or task is None:
            return
        key = worker.charge.key
        self._clearing[key] = task
        task.add_done_callback(lambda done: self._clearing.get(key) is done and self._clearing.pop(key))

    def _lose(self) -> None:
        """The supervisor has gone: no pod runs any more, and none can."""
        loss = self.means.link.loss
        self.means.notices.once(f"node {self.means.settings.node} can run nothing any more: {loss}")
        left = {one.id for worker in self._workers.values() for one in worker.charge.containers if one.live}
        for _ in range(_ROUNDS if left else 0):
            if not tree.kill_marked(left):
                break
        for worker in self._workers.values():
            worker.lose(loss)
        self._spawn(self._fail("SupervisorLost", loss))

    async def _ping(self, watchdog: Watchdog) -> None:
        """Ask the supervisor for an answer now and then."""
        while True:
            try:
                await self.means.link.ping()
            except SupervisorLost:
                return
            except SupervisorRefused:
                pass  # an answer, too
            watchdog.answered()
            await asyncio.sleep(watchdog.limits.interval)

    async def _watch(self, watchdog: Watchdog) -> None:
        """Kill a supervisor that does not answer any more; its end is then noticed as any other (`_lose`)."""
        link, tell, who = self.means.link, self.means.notices.tell, f"the supervisor (process {watchdog.pid})"
        silence = await watchdog.run(lambda seen: tell(f"{self.node.name}: {who} {described(seen)}"))
        if not link.alive:
            return
        link.loss = f"{who} {described(silence)}; it and its pods were killed"
        with contextlib.closing(Process(watchdog.pid)) as supervisor:
            await fence(supervisor, link.folder, lambda left: tell(unkillable(self.node.name, left)))

    async def _fail(self, reason: str, message: str) -> None:
        with contextlib.suppress(ApiError):
            await self.node.fail(reason, message)

    async def _beat(self, seconds: float) -> None:
        tell, lost = self.means.notices.tell, False
        while self.means.link.alive:
            await asyncio.sleep(seconds)
            try:
                await self.node.beat()
            except ApiError as error:
                if not lost:
                    tell(f"no sign of life of node {self.node.name} arrives, pods go on: {error}")
                lost = True
            else:
                if lost:
                    tell(f"signs of life of node {self.node.name} arrive again")
                lost = False
