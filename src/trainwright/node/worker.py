# SPDX-License-Identifier: Apache-2.0
"""Looking after a running container: its postStart hook, then its startup, readiness and liveness probes.

`worker` runs `attend` beside a container that has any, until it ends. Only exec probes are run; others count as passed,
and one notice per job says so.

One pod's life: init containers in order, then all containers, restarts with back-off, and its end.

`agent` makes one per pod and tells it what the watch tells. A life is one task; a container has one of its own only
where there are several or where somebody looks after it.
"""

import asyncio

from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.units import due
from trainwright.node import lifecycle
from trainwright.node.context import AgentContext
from trainwright.node.lifecycle import start
from trainwright.node.link import ContainerEnd, SupervisorRefused, ends
from trainwright.node.pod import ContainerRecord, PodState, loop_time
from trainwright.node.status import PodEnd

_UNHEEDED = "{}: only exec probes are run on this node; others count as passed"
_SECONDS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1}


async def attend(charge: PodState, container: ContainerRecord) -> None:
    """From the moment it runs: hook, startup, then readiness and liveness side by side."""
    if container.begun is not None:
        await container.begun
    if not container.live:
        return
    hook = (container.body.get("lifecycle") or {}).get("postStart")
    if hook:
        wrong = await lifecycle.run_hook(charge, container, hook, f"{container.path}.lifecycle.postStart", charge.grace)
        if wrong:
            await _kill(charge, container, f"its postStart hook failed: {wrong}", charge.grace)
            return
    if not await _startup(charge, container):
        return
    container.seen.started = True
    container.seen.ready = _probe(charge, container, "readinessProbe") is None
    charge.mark()
    await asyncio.gather(_readiness(charge, container), _liveness(charge, container))


def _probe(charge: PodState, container: ContainerRecord, word: str) -> Body | None:
    """The probe, if it is one that can be run."""
    probe: Body | None = container.body.get(word)
    if probe and not probe.get("exec"):
        charge.means.notices.once(_UNHEEDED.format(f"{container.path}.{word}"), f"probes of {charge.job}")
        return None
    return probe or None


async def _startup(charge: PodState, container: ContainerRecord) -> bool:
    """Whether it has come up."""
    probe = _probe(charge, container, "startupProbe")
    if probe is None:
        return True
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    failures = 0
    while wrong := await _try(charge, container, probe):
        failures += 1
        if failures >= (probe.get("failureThreshold") or 3):
            await _kill(charge, container, f"its startup probe failed: {wrong}", _grace(charge, probe))
            return False
        await asyncio.sleep(_seconds(probe, "periodSeconds"))
    return True


async def _readiness(charge: PodState, container: ContainerRecord) -> None:
    """Follow the readiness probe up and down."""
    probe = _probe(charge, container, "readinessProbe")
    if probe is None:
        return
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    least = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
    told, times = container.seen.ready, 0
    while container.live:
        passed = not await _try(charge, container, probe)
        times = times + 1 if passed == told else 1
        told = passed
        if times >= least[passed] and container.live and container.seen.ready != passed:
            container.seen.ready = passed
            charge.mark()
        await asyncio.sleep(_seconds(probe, "periodSeconds"))


async def _liveness(charge: PodState, container: ContainerRecord) -> None:
    """End the container once its liveness probe has failed often enough."""
    probe = _probe(charge, container, "livenessProbe")
    if probe is None:
        return
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    failures = 0
    while container.live:
        wrong = await _try(charge, container, probe)
        failures = failures + 1 if wrong else 0
        if failures >= (probe.get("failureThreshold") or 3):
            await _kill(charge, container, f"its liveness probe failed: {wrong}", _grace(charge, probe))
            return
        await asyncio.sleep(_seconds(probe, "periodSeconds"))


async def _try(charge: PodState, container: ContainerRecord, probe: Body) -> str:
    """Run the probe's command once; what went wrong, or nothing."""
    argv, timeout = probe["exec"].get("command") or [], _seconds(probe, "timeoutSeconds")
    try:
        answer = await charge.means.link.exec({"container": container.id, "argv": argv, "timeout": timeout})
    except SupervisorRefused as refusal:
        return str(refusal)
    if answer["timeout"]:
        return f"no answer within {timeout:g} s"
    return f"exit code {answer['code']}: {answer['output'].strip()}" if answer["code"] else ""


async def _kill(charge: PodState, container: ContainerRecord, why: str, grace: float) -> None:
    container.why = why
    await lifecycle.halt(charge, container, loop_time() + grace)


def _grace(charge: PodState, probe: Body) -> float:
    own = probe.get("terminationGracePeriodSeconds")
    return charge.grace if own is None else float(own)


def _seconds(probe: Body, word: str) -> float:
    return float(probe.get(word) or _SECONDS[word])


_OVERDUE = PodEnd("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_RETIRED = PodEnd("Terminated", "Pod was terminated since its node agent was stopped")
_LOST = "SupervisorLost"


class PodWorker:
    """Looks after one pod until its object has gone. `before`: what still runs of an earlier pod of its name."""

    def __init__(
        self,
        pod: Body,
        means: AgentContext,
        before: asyncio.Task[None] | None = None,
        refusal: PodEnd | None = None,
    ) -> None:
        self.charge = PodState(pod, means)
        self.charge.over = self.charge.over or refusal
        self._loop = asyncio.get_running_loop()
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._deleting = False
        if self.charge.over is not None and not self.charge.ended:
            self._end(0)
        elif not self.charge.ended:
            self._life = self._loop.create_task(self._live(before))
            self._set_deadline()
        self.update(pod)

    def update(self, pod: Body) -> None:
        """The object is now this one."""
        self.charge.pod = pod
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self._deleting = True
            self._end(float(meta.get("deletionGracePeriodSeconds") or 0))

    def vanish(self) -> asyncio.Task[None] | None:
        """The object has gone: nothing of the pod may stay. Returns what is still to be waited for."""
        self.charge.report.gone = True
        if not self.charge.ended:
            self._end(0)
        if not self.charge.housed and not self._busy() and not self.charge.means.settings.kubelet:
            return None
        return self._loop.create_task(self._clear())

    def retire(self, grace: float | None) -> asyncio.Task[None] | None:
        """The agent ends: end the pod within so many seconds, but leave its object. What is to be waited for."""
        if self.charge.ended:
            return self._ending or self._life  # which may be about to tell it
        if self.charge.means.settings.kubelet and not self._deleting:
            self.charge.over = self.charge.over or _RETIRED
        self._end(self.charge.grace if grace is None else grace)
        return self._ending

    def _busy(self) -> set[asyncio.Task[None]]:
        return {task for task in (self._life, self._ending) if task is not None and not task.done()}

    def lose(self, text: str) -> None:
        """The supervisor has died and taken the pod's processes along; some ends it may still have written down."""
        if self.charge.ended:
            return
        for task in (self._life, self._ending):
            if task is not None:
                task.cancel()
        self.charge.opened = False
        known = ends(self.charge.means.link.folder)
        for container in self.charge.containers:
            if not container.live:
                continue
            if container.id in known:
                self.charge.finished(container, known[container.id])
            else:
                now = self.charge.means.clock.now().timestamp()
                container.end(ContainerEnd(container.id, 137, 9, at=now), _LOST, text)
        self._fail(PodEnd(_LOST, text))
        self._ending = self._loop.create_task(self._stop())

    def _set_deadline(self) -> None:
        seconds = self.charge.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        left = (due(self.charge.begun, float(seconds)) - self.charge.means.clock.now()).total_seconds()
        self._deadline = self._loop.call_later(max(0.0, left), self._overdue)

    def _overdue(self) -> None:
        if not self.charge.ended and self._ending is None:
            self._fail(_OVERDUE)
            self._end(self.charge.grace)

    def _fail(self, over: PodEnd) -> None:
        self.charge.over = self.charge.over or over
        self.charge.mark()

    async def _live(self, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            await self._run()
            await self._finish()
        except Exception as error:  # a defect of ours must not leave a pod without an end
            link = self.charge.means.link
            if not link.alive:
                self.lose(link.loss)
                return
            self._fail(PodEnd("AgentError", f"the node agent failed at this pod: {error!r}"))
            self._end(0)

    async def _run(self) -> None:
        """All containers, to their end."""
        charge = self.charge
        for container in charge.inits:
            await self._keep(container, "Never" if charge.policy == "Never" else "OnFailure")
            if container.seen.code:
                return
        if len(charge.mains) == 1:
            await self._keep(charge.mains[0], charge.policy)
            return
        async with asyncio.TaskGroup() as group:
            for container in charge.mains:
                group.create_task(self._keep(container, charge.policy))

    async def _keep(self, container: ContainerRecord, policy: str) -> None:
        """Keep a container running for as long as the policy wants it to."""
        while True:
            if container.seen.code is None:
                await start(self.charge, container)
                await self._accompany(container)
            if policy == "Never" or (policy == "OnFailure" and not container.seen.code):
                return
            await self._back_off(container)
            lifecycle.forget(self.charge, container)
            container.renew()

    async def _accompany(self, container: ContainerRecord) -> None:
        """Until it has ended."""
        if not container.attended:
            await container.over()
            return
        beside = self._loop.create_task(attend(self.charge, container))
        try:
            await container.over()
        finally:
            beside.cancel()

    async def _back_off(self, container: ContainerRecord) -> None:
        """The first restart is at once; the next ones wait, each twice as long, until it has run for a while."""
        pace, seen = self.charge.means.settings.pace, container.seen
        if loop_time() - container.since >= pace.calm:
            container.pause = 0.0
        if container.pause:
            key = self.charge.key
            where = f"container={seen.name} pod={key.name}_{key.namespace}({self.charge.uid})"
            seen.last = seen.state
            container.wait(BACKING_OFF, f"back-off {_span(container.pause)} restarting failed {where}")
            self.charge.mark()
            await asyncio.sleep(container.pause)
        container.pause = min(2 * container.pause, pace.longest) if container.pause else pace.backoff

    def _end(self, grace: float) -> None:
        """End everything within so many seconds."""
        self.charge.hasten(loop_time() + grace)
        if self._ending is None or self._ending.done():
            self._ending = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        if self._life is not None and not self._life.done():
            self._life.cancel()
            await asyncio.wait({self._life})
        if not self.charge.ended:
            await lifecycle.stop(self.charge)
            self.charge.final = True
            await self._finish()
        elif self._deleting:  # its life may just have been telling how it ended
            await self.charge.means.reports.store(self.charge.report)
        if self._deleting:
            await lifecycle.remove(self.charge)

    async def _finish(self) -> None:
        """Nothing runs any more: give back what it held, and say so."""
        lifecycle.close(self.charge)
        if self._deadline is not None:
            self._deadline.cancel()
        self.charge.ended = True
        told = await self.charge.means.reports.store(self.charge.report)
        if told or self.charge.over is not None:
            lifecycle.forget(self.charge, *self.charge.containers)

    async def _clear(self) -> None:
        """After the object has gone: its processes, then its files."""
        while tasks := self._busy():
            await asyncio.wait(tasks)
        await lifecycle.clear(self.charge)


def _span(seconds: float) -> str:
    """`10s`, `2m40s`: as Go writes durations."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
