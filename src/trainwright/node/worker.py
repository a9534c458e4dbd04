# SPDX-License-Identifier: Apache-2.0
"""The loop of one pod: init containers in order, then all containers, restarts with back-off, probes, and the end.

`PodWorker` decides what happens and when; `lifecycle` does it. A pod has one task. A container gets a task of its own
only if the pod has several containers, or if the container has hooks or probes (`probes`).
"""

import asyncio

from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.units import due, parse_time
from trainwright.node import lifecycle
from trainwright.node.context import AgentContext
from trainwright.node.found import ContainerEnd, read_ends
from trainwright.node.pod import ContainerRecord, PodState, loop_time
from trainwright.node.probes import run_hook_and_probes
from trainwright.node.restored import restore
from trainwright.node.status import PodFailure

_DEADLINE_EXCEEDED = PodFailure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_AGENT_STOPPED = PodFailure("Terminated", "Pod was terminated since its node agent was stopped")
_SUPERVISOR_LOST = "SupervisorLost"


class PodWorker:
    """Runs one pod until its object is gone.

    The task `before` removes an earlier pod of the same name; this pod waits for that task. A pod with a `refusal`
    fails at once.
    """

    def __init__(
        self,
        body: Body,
        context: AgentContext,
        before: asyncio.Task[None] | None = None,
        refusal: PodFailure | None = None,
    ) -> None:
        self.pod = PodState(body, context)
        restore(self.pod)
        self.pod.failure = self.pod.failure or refusal
        self._loop = asyncio.get_running_loop()
        self._run_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deleting = False
        if self.pod.failure is not None and not self.pod.ended:
            self._begin_stop(0)
        elif not self.pod.ended:
            self._run_task = self._loop.create_task(self._run(before))
            self._set_deadline()
        if self.pod.is_adopted and "deletionTimestamp" in body["metadata"]:
            self._begin_stop(self._grace_left(body["metadata"]))
        self.update(body)

    def update(self, body: Body) -> None:
        """Take a new version of the pod object, and stop the pod if it is being deleted."""
        self.pod.body = body
        meta = body["metadata"]
        if "deletionTimestamp" in meta:
            self._deleting = True
            self._begin_stop(float(meta.get("deletionGracePeriodSeconds") or 0))

    def _grace_left(self, meta: Body) -> float:
        """The seconds until a pod that is being deleted must have ended, by the wall clock."""
        due = parse_time(meta["deletionTimestamp"])
        grace = float(meta.get("deletionGracePeriodSeconds") or 0)
        left = (due - self.pod.context.clock.now()).total_seconds() if due is not None else grace
        return min(grace, max(0.0, left))

    def object_gone(self) -> asyncio.Task[None] | None:
        """Kill the pod and remove its files, since its object is gone. Returns the task to wait for, if any."""
        self.pod.report.gone = True
        if not self.pod.ended:
            self._begin_stop(0)
        if not self.pod.has_folder and not self._running_tasks() and not self.pod.context.settings.kubelet:
            return None
        return self._loop.create_task(self._remove_files())

    def agent_stopping(self, grace: float | None) -> asyncio.Task[None] | None:
        """Stop the pod within `grace` seconds (None: its own grace period), but keep its object.

        Returns the task to wait for, if any.
        """
        if self.pod.ended:
            return self._stop_task or self._run_task  # the task may still be writing the last status
        if not self.pod.context.link.alive and self.pod.failure is None:
            self.supervisor_lost(self.pod.context.link.loss)  # a pod that has asked for nothing yet does not know it
            return self._stop_task
        if self.pod.context.settings.kubelet and not self._deleting:
            self.pod.failure = self.pod.failure or _AGENT_STOPPED
        self._begin_stop(self.pod.grace_seconds if grace is None else grace)
        return self._stop_task

    def detach(self) -> set[asyncio.Task[None]]:
        """Do nothing more for this pod, and let its processes run. Returns tasks that still have to end."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        for container in self.pod.containers:
            container.kill_at(None)
        if self.pod.token_refresh is not None:
            self.pod.token_refresh.cancel()
        tasks = self._running_tasks()
        for task in tasks:
            task.cancel()
        return tasks

    def supervisor_lost(self, message: str) -> None:
        """Fail the pod, since its processes ended with the supervisor; the journal may say how some of them ended."""
        if self.pod.ended:
            return
        for task in (self._run_task, self._stop_task):
            if task is not None:
                task.cancel()
        self.pod.opened = False
        ends = read_ends(self.pod.context.link.folder)
        for container in (one for one in self.pod.containers if one.live):
            if container.id in ends:
                self.pod.container_ended(container, ends[container.id])
            else:
                now = self.pod.context.clock.now().timestamp()
                container.set_terminated(ContainerEnd(container.id, 137, 9, at=now), _SUPERVISOR_LOST, message)
        self._fail(PodFailure(_SUPERVISOR_LOST, message))
        self._stop_task = self._loop.create_task(self._stop())

    def _running_tasks(self) -> set[asyncio.Task[None]]:
        return {task for task in (self._run_task, self._stop_task) if task is not None and not task.done()}

    def _set_deadline(self) -> None:
        seconds = self.pod.body["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        left = (due(self.pod.start_time, float(seconds)) - self.pod.context.clock.now()).total_seconds()
        self._deadline_timer = self._loop.call_later(max(0.0, left), self._deadline_passed)

    def _deadline_passed(self) -> None:
        if not self.pod.ended and self._stop_task is None:
            self._fail(_DEADLINE_EXCEEDED)
            self._begin_stop(self.pod.grace_seconds)

    def _fail(self, failure: PodFailure) -> None:
        self.pod.failure = self.pod.failure or failure
        self.pod.mark_changed()

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            await self._run_containers()
            await self._finish()
        except Exception as error:  # a defect of the agent must not leave a pod running without a worker
            link = self.pod.context.link
            if not link.alive:
                self.supervisor_lost(link.loss)
                return
            self._fail(PodFailure("AgentError", f"the node agent failed at this pod: {error!r}"))
            self._begin_stop(0)

    async def _run_containers(self) -> None:
        pod = self.pod
        for container in pod.inits:
            await self._run_container(container, "Never" if pod.restart_policy == "Never" else "OnFailure")
            if container.view.code:
                return
        if len(pod.mains) == 1:
            await self._run_container(pod.mains[0], pod.restart_policy)
            return
        async with asyncio.TaskGroup() as group:
            for container in pod.mains:
                group.create_task(self._run_container(container, pod.restart_policy))

    async def _run_container(self, container: ContainerRecord, restart_policy: str) -> None:
        """Start a container, and restart it as often as the policy says."""
        while True:
            if container.view.code is None:
                if not container.live:  # a container that an earlier agent has started is live from the beginning
                    await lifecycle.start_container(self.pod, container)
                await self._wait_ended(container)
            if restart_policy == "Never" or (restart_policy == "OnFailure" and not container.view.code):
                return
            await self._back_off(container)
            lifecycle.forget_restarted(self.pod, container)
            container.prepare_restart()

    async def _wait_ended(self, container: ContainerRecord) -> None:
        """Wait until a container has ended; run its hooks and probes meanwhile."""
        if not container.has_hooks_or_probes:
            await container.ended.wait()
            return
        probing = self._loop.create_task(run_hook_and_probes(self.pod, container))
        try:
            await container.ended.wait()
        finally:
            probing.cancel()

    async def _back_off(self, container: ContainerRecord) -> None:
        """Wait before a restart. The first restart has no wait. After that, each wait is twice the previous wait.

        If a container ran for `backoff_reset` seconds, its next restart counts as its first restart.
        """
        delays, view = self.pod.context.settings.delays, container.view
        if container.ended_loop_time - container.started_loop_time >= delays.backoff_reset:
            container.backoff = 0.0
        if container.backoff:
            key = self.pod.key
            where = f"container={view.name} pod={key.name}_{key.namespace}({self.pod.uid})"
            view.last = view.state
            container.set_waiting(BACKING_OFF, f"back-off {_go_duration(container.backoff)} restarting failed {where}")
            self.pod.mark_changed()
            await asyncio.sleep(container.ended_loop_time + container.backoff - loop_time())
        longer = min(2 * container.backoff, delays.max_restart_backoff)
        container.backoff = longer if container.backoff else delays.restart_backoff

    def _begin_stop(self, grace: float) -> None:
        """Stop the pod within `grace` seconds. If an earlier call has set an earlier time, this earlier time stays."""
        self.pod.kill_by(loop_time() + grace)
        if self._stop_task is None or self._stop_task.done():
            self._stop_task = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        if self._run_task is not None and not self._run_task.done():
            self._run_task.cancel()
            await asyncio.wait({self._run_task})
        if not self.pod.ended:
            deadline = self.pod.kill_time or 0.0  # `kill_time` is None only if the supervisor is lost: nothing runs
            running = [one for one in self.pod.containers if one.live]
            await asyncio.gather(*(lifecycle.stop_container(self.pod, one, deadline) for one in running))
            self.pod.stopped = True
            await self._finish()
        elif self._deleting:  # the run task may have been cancelled while it wrote the last status
            await self.pod.context.reports.store(self.pod.report)
        if self._deleting:
            await lifecycle.delete_object(self.pod)

    async def _finish(self) -> None:
        """Release the resources of a pod without running containers, and write its last status."""
        lifecycle.release_resources(self.pod)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.pod.ended = True
        is_stored = await self.pod.context.reports.store(self.pod.report)
        if is_stored or self.pod.failure is not None:
            lifecycle.forget_ends(self.pod, *self.pod.containers)

    async def _remove_files(self) -> None:
        """Wait until the pod's processes have ended, then remove its files."""
        while tasks := self._running_tasks():
            await asyncio.wait(tasks)
        await lifecycle.remove_files(self.pod)


def _go_duration(seconds: float) -> str:
    """The duration as Go writes it, such as `10s` or `2m40s`."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
