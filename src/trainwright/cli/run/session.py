# SPDX-License-Identifier: Apache-2.0
"""Why a run is to end, and how urgently: signals, `--timeout`, or that there is nothing more to come.

`session` waits for it. The first signal ends the job in good order, the second at once; a third is Python's own.

One run, from the first object to the last log line: `command` makes a session, whose `run` is the exit code.

It starts the engine, hands it the objects, has everything followed, and ends it all in good order, whatever the reason:
the outcome, Ctrl-C, `--timeout`, a reader that went away, an engine that broke.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.condition import condition
from trainwright.cli.record import RunInfo, RunRecord
from trainwright.cli.run.follow import RunFollower, watch
from trainwright.cli.run.from_command import FILE as COMMAND
from trainwright.cli.run.intake import RunInput
from trainwright.cli.run.model import RunModel
from trainwright.cli.run.verdict import CODES, RunEnd, VerdictInput, ending
from trainwright.cli.show.news import OVER, JobVerdict, ReplicaNews, RunView
from trainwright.cli.show.text import named
from trainwright.errors import ConflictError, NotFoundError, TrainwrightError
from trainwright.local.engine import Engine
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, EVENTS, PODS, SECRETS, Clock, jobs_of

_SIGNALS = {signal.SIGINT: RunEnd.INTERRUPTED, signal.SIGTERM: RunEnd.TERMINATED, signal.SIGHUP: RunEnd.HUNG_UP}


class EndSignals:
    """The first reason counts."""

    def __init__(self) -> None:
        self.why: RunEnd | None = None
        #: What to tell of it, where the reason alone does not.
        self.text = ""
        self.over = asyncio.Event()
        #: No more patience.
        self.hurry = asyncio.Event()
        #: `nohup` has the run ignore SIGHUP, so that it outlives its terminal.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._answered = [number for number in _SIGNALS if not (ignored and number is signal.SIGHUP)]

    def end(self, why: RunEnd, text: str = "") -> None:
        """The run is to end."""
        if self.why is None:
            self.why, self.text = why, text
        self.over.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals."""
        loop = asyncio.get_running_loop()
        for number in self._answered:
            loop.add_signal_handler(number, self._signalled, _SIGNALS[number])
        try:
            yield
        finally:
            self._release()

    def _signalled(self, why: RunEnd) -> None:
        if self.why is None:
            self.end(why)
        else:
            self.hurry.set()
            self._release()

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._answered:
            loop.remove_signal_handler(number)


_BESIDE = {resource.kind: resource for resource in (SECRETS, CONFIG_MAPS, CLAIMS)}
#: Seconds between two looks at the logs, and which share of that time a look may take.
_LOOK = 0.08
_EFFORT = 0.05
#: What a pod is given to end where it does not say, and what everything around it may take beyond.
_GRACE = 30.0
_MARGIN = 10.0
#: Why replicas are ended, where it was not Ctrl-C.
_WHY = {
    RunEnd.DONE: "it is decided: ",
    RunEnd.TIMED_OUT: "--timeout has passed: ",
    RunEnd.TERMINATED: "SIGTERM came: ",
    RunEnd.HUNG_UP: "the terminal is gone: ",
}


class RunConfig(Struct, frozen=True, kw_only=True):
    """What a run is made of."""

    intake: RunInput
    record: RunRecord
    view: RunView
    clock: Clock
    facts: RunInfo
    #: By `time.monotonic`.
    began: float
    timeout: float | None = None
    grace: float | None = None
    keep: bool = False


class RunSession:
    """A run that goes on."""

    def __init__(self, engine: Engine, order: RunConfig) -> None:
        self._engine = engine
        self._order = order
        self._view = order.view
        self._board = RunModel((task.kind, task.body) for task in order.intake.tasks)
        self._follower = RunFollower(self._board, order.view, order.record)
        self._ends = EndSignals()
        #: The replicas as they were when the end began.
        self._last: dict[Key, list[ReplicaNews]] = {}
        #: The replicas whose pods this run has ended itself, when their jobs had no more to say.
        self._terminated: dict[Key, list[str]] = {}
        #: Set whenever a job or a pod has changed.
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, ready: Callable[[], Awaitable[None]]) -> int:
        """The exit code. `ready` is called once the engine is up, and may still refuse the run."""
        with self._ends.listening():
            try:
                if await self._start():
                    await ready()
                    await self._submit()
                    await self._ends.over.wait()
                    await self._wind_down()
            finally:
                await self._stop()
            return await self._report()

    # -- the way up --------------------------------------------------------------------------------------------------

    async def _start(self) -> bool:
        """The engine, unless somebody changes their mind meanwhile."""
        start = asyncio.create_task(self._engine.start())
        over = asyncio.create_task(self._ends.over.wait())
        await asyncio.wait({start, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not start.done():
            start.cancel()
            with suppress(asyncio.CancelledError):
                await start
            return False
        await start
        return True

    async def _submit(self) -> None:
        """Watch first, so that nothing is missed; then what jobs need, then the jobs."""
        cluster = self._engine.cluster
        follow = self._follower
        kinds = {task.kind.singular: jobs_of(task.kind) for task in self._order.intake.tasks}
        self._spawn(*(watch(cluster, resource, self._jobs) for resource in kinds.values()))
        self._spawn(watch(cluster, PODS.whole(), self._pods), watch(cluster, EVENTS.whole(), follow.events))
        self._spawn(self._look())
        self._engine.broken.add_done_callback(self._broke)
        self._order.record.facts(replace(self._order.facts, runtime=self._engine.runtime))
        self._order.record.submitted([task.body for task in self._order.intake.tasks])
        for body in self._order.intake.beside:
            await cluster.create(_BESIDE[body["kind"]].whole(), body)
        for task in self._order.intake.tasks:
            self._jobs([(await cluster.create(jobs_of(task.kind), task.body), False)])
        if self._order.timeout is not None:
            asyncio.get_running_loop().call_later(self._order.timeout, self._ends.end, RunEnd.TIMED_OUT)

    def _jobs(self, seen: list[Any]) -> None:
        self._follower.jobs(seen)
        self._changed.set()
        if self._board.over:
            self._ends.end(RunEnd.DONE)

    def _pods(self, seen: list[Any]) -> None:
        self._follower.pods(seen)
        self._changed.set()

    async def _look(self) -> None:
        while True:
            begun = time.monotonic()
            behind = self._follower.look()
            if self._view.gone:
                self._ends.end(RunEnd.READER_GONE)
            spent = time.monotonic() - begun
            await asyncio.sleep(spent if behind else max(_LOOK, spent / _EFFORT))

    def _spawn(self, *works: Any) -> None:
        for work in works:
            task = asyncio.create_task(work)
            task.add_done_callback(self._broke)
            self._tasks.append(task)

    def _broke(self, task: asyncio.Future[None]) -> None:
        """None of these ends by itself."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = str(error) if isinstance(error, TrainwrightError) else f"{type(error).__name__}: {error}"
            self._ends.end(RunEnd.BROKEN, text)

    # -- the way down ------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Let the jobs be cleaned up as their policies say, then end what still runs, for as long as that may take."""
        self._follower.look()
        self._last = {task.key: self._board.replicas(task.key) for task in self._order.intake.tasks}
        if self._ends.why is RunEnd.BROKEN:
            return
        alive = self._board.alive()
        if alive:
            what = f"{len(alive)} replica{'s' * (len(alive) != 1)}"
            why = _WHY.get(self._ends.why or RunEnd.INTERRUPTED, "")
            self._view.notice(f"{why}ending {what} in good order; Ctrl-C{' again' * (not why)} kills at once")
        await self._clean_up()
        # From here on pods end because the run does. That is no part of what a job has to say.
        await self._engine.stop_controller()
        await self._end_pods()

    async def _clean_up(self) -> None:
        """Wait until every job that has ended has the final status that a cluster would store."""
        if await self._within(self._patience, self._cleaned_up):
            return
        # A pod that the clean-up removes may not outstay its time: it is killed, which leads to the same status.
        late: dict[str, None] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_MARGIN):
                while not self._cleaned_up():
                    for one in self._board.alive():
                        if one.phase == "Terminating" and self._decided(one.job):
                            late[one.label] = None
                            await self._delete(one, grace=0)
                    await asyncio.sleep(_LOOK)
        if late and not self._ends.hurry.is_set():
            self._view.notice(f"killed, since they had not ended after {self._patience:g}s: {named(list(late))}")

    def _cleaned_up(self) -> bool:
        ended = [task for task in self._order.intake.tasks if self._decided(task.key)]
        return all(self._engine.cleaned_up(task.kind.singular, task.key) for task in ended)

    def _decided(self, key: Key) -> bool:
        return self._board.sheet(key).ledger.outcome is not None

    async def _end_pods(self) -> None:
        """End the pods that are left: those of jobs that were interrupted, and those that a clean-up policy keeps."""
        for task in self._order.intake.tasks:
            with suppress(NotFoundError):
                self._jobs([(await self._engine.cluster.get(jobs_of(task.kind), task.key), False)])
        kept = []
        for one, pod in await self._left():
            self._terminated.setdefault(one.job, []).append(one.name)
            if self._decided(one.job):
                self._pods([(pod, False)])
                self._board.keep(one)
                kept.append(one.label)
        if kept:
            many = f"{len(kept)} replica{'s' * (len(kept) != 1)}"
            self._view.notice(f"run itself ends {many} that a clean-up policy keeps: {named(kept)}")
        for one in self._board.alive():
            await self._delete(one)
        await self._within(self._patience, lambda: not self._board.alive())

    async def _left(self) -> list[tuple[ReplicaNews, Body]]:
        """The replicas whose pods live and are not being removed. The store knows; the board may be behind it."""
        pods = {pod["metadata"]["uid"]: pod for pod in (await self._engine.cluster.list(PODS.whole())).items}
        alive = [(one, pods[one.uid]) for one in self._board.alive() if one.uid in pods]
        return [(one, pod) for one, pod in alive if condition(pod).phase not in (*OVER, "Terminating")]

    async def _delete(self, one: ReplicaNews, grace: int | None = None) -> None:
        with suppress(NotFoundError, ConflictError):
            key = Key(one.job.namespace, one.pod)
            await self._engine.cluster.delete(PODS.whole(), key, uid=one.uid, grace=grace)

    @property
    def _patience(self) -> float:
        """Seconds that replicas may take to end: as `--grace` says, else the longest grace period that one has."""
        if self._order.grace is not None:
            return self._order.grace
        pods = [role.template.get("spec") or {} for task in self._order.intake.tasks for role in task.loaded.job.roles]
        given = [pod.get("terminationGracePeriodSeconds") for pod in pods]
        return max([float(one) for one in given if isinstance(one, int)], default=_GRACE) + _MARGIN

    async def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until that is so, for so long at most, or until a second signal comes; whether it is so."""
        end = time.monotonic() + seconds
        hurry = asyncio.create_task(self._ends.hurry.wait())
        while not (over := done()) and not self._ends.hurry.is_set() and time.monotonic() < end:
            self._changed.clear()
            change = asyncio.create_task(self._changed.wait())
            await asyncio.wait({hurry, change}, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        hurry.cancel()
        return over

    async def _stop(self) -> None:
        """The engine kills what is left; then the logs are complete, and only they and the record are kept."""
        await self._engine.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._follower.drain()
        if self._ends.why is not RunEnd.BROKEN:
            self._order.record.tidy(keep=self._order.keep)

    # -- the report --------------------------------------------------------------------------------------------------

    async def _report(self) -> int:
        order, why = self._order, self._ends.why or RunEnd.INTERRUPTED
        endings = [self._ending(task.key, why) for task in order.intake.tasks]
        order.record.close([self._board.sheet(task.key).body for task in order.intake.tasks], self._facts(endings))
        if self._ends.text:
            self._view.notice(f"the engine broke: {self._ends.text}")
        if order.record.trouble:
            self._view.notice(order.record.trouble)
        self._view.end(endings, str(order.record.folder))
        if not await self._read_out():
            return CODES[RunEnd.INTERRUPTED]
        return CODES.get(why) or max(one.exit_code for one in endings)

    async def _read_out(self) -> bool:
        """Until the last line is read; nobody has to wait for a reader who has fallen asleep."""
        while not self._view.close(_LOOK):
            await asyncio.sleep(0)
            if self._ends.hurry.is_set():
                return self._view.close(1.0)
        return True

    def _ending(self, key: Key, why: RunEnd) -> JobVerdict:
        replicas = self._last.get(key, [])
        pods = tuple(self._board.counted(key))
        by_command = any(task.key == key and task.document.file == COMMAND for task in self._order.intake.tasks)
        took, words = self._board.took(key), self._follower.words
        scene = VerdictInput(why, self._engine.runtime, took, replicas, words, pods, by_command)
        found = ending(self._board.sheet(key), scene)
        return replace(found, terminated=tuple(self._terminated.get(key, ())))

    def _facts(self, endings: list[JobVerdict]) -> RunInfo:
        ended = rfc3339(self._order.clock.now())
        return replace(self._order.facts, runtime=self._engine.runtime, ended=ended, endings=tuple(endings))
