# SPDX-License-Identifier: Apache-2.0
"""One run: start the engine, submit the objects, follow the jobs, end everything, and report.

A run ends when every job has ended, after a signal or `--timeout`, when the reader of the output closes the pipe, or
when the engine fails. The first signal ends the replicas with their grace period, the second signal kills them, and the
third signal has the default effect in Python.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.condition import condition
from trainwright.cli.record import RunInfo, RunRecord
from trainwright.cli.run.ending import CODES, EndingInput, RunEnd, find_ending
from trainwright.cli.run.follow import Changes, RunFollower, watch
from trainwright.cli.run.from_command import FILE as COMMAND
from trainwright.cli.run.intake import RunInput
from trainwright.cli.run.model import RunModel
from trainwright.cli.show.news import OVER, JobEnding, ReplicaNews, RunView
from trainwright.cli.show.text import named
from trainwright.errors import ConflictError, NotFoundError, TrainwrightError
from trainwright.local.engine import Engine
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.units import rfc3339
from trainwright.node.devices.inventory import DeviceSet
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, EVENTS, PODS, SECRETS, Clock, jobs_of

_SIGNALS = {signal.SIGINT: RunEnd.INTERRUPTED, signal.SIGTERM: RunEnd.TERMINATED, signal.SIGHUP: RunEnd.HUNG_UP}


class EndSignals:
    """Stores the first reason why a run ends, and sets the asyncio events `over` and `kill_now`."""

    def __init__(self) -> None:
        self.reason: RunEnd | None = None
        #: The error text if the engine has failed.
        self.text = ""
        self.over = asyncio.Event()
        #: The second signal sets this event.
        self.kill_now = asyncio.Event()
        # With `nohup` the process ignores SIGHUP from its start. Do not handle it then, so that the run continues.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._handled = [number for number in _SIGNALS if not (ignored and number is signal.SIGHUP)]

    def end(self, reason: RunEnd, text: str = "") -> None:
        """End the run."""
        if self.reason is None:
            self.reason, self.text = reason, text
        self.over.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals until the end of the block."""
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.add_signal_handler(number, self._signalled, _SIGNALS[number])
        try:
            yield
        finally:
            self._release()

    def _signalled(self, reason: RunEnd) -> None:
        if self.reason is None:
            self.end(reason)
        else:
            self.kill_now.set()
            self._release()

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.remove_signal_handler(number)


_RESOURCES = {resource.kind: resource for resource in (SECRETS, CONFIG_MAPS, CLAIMS)}
#: Minimum pause between two polls of the logs. `_MAX_LOAD` is the maximum part of the time that polls take: after a
#: slow poll, the pause is longer. If the last poll left data in the logs, the pause is as long as that poll.
_POLL_SECONDS = 0.08
_MAX_LOAD = 0.05
#: The grace period if no manifest sets one, and the time that the engine needs in addition to a grace period.
_DEFAULT_GRACE_SECONDS = 30.0
_MARGIN_SECONDS = 10.0
#: Texts that say why the run ends the replicas. There is no text for Ctrl-C.
_END_REASONS = {
    RunEnd.DONE: "every job has its outcome: ",
    RunEnd.TIMED_OUT: "--timeout has passed: ",
    RunEnd.TERMINATED: "received SIGTERM: ",
    RunEnd.HUNG_UP: "the terminal was closed: ",
}


class RunOptions(Struct, frozen=True, kw_only=True):
    """The values of the options of `trainwright run`."""

    runtime: str = "auto"
    timeout: float | None = None
    grace: float | None = None
    keep: bool = False
    nodes: int = 1
    node_grace: float = 10.0
    revive: float | None = None
    devices: dict[str, DeviceSet] = {}
    env: dict[str, str] = {}
    resync: float = 15.0
    etcd_server: str = ""
    form: Literal["auto", "live", "lines", "json"] = "auto"
    logs: bool = True


class RunStart(Struct, frozen=True):
    """Facts about the start of a run. `began` is its time, as `time.monotonic` returned it."""

    began: float
    clock: Clock
    info: RunInfo


class RunConfig(Struct, frozen=True):
    """Everything that a session needs."""

    intake: RunInput
    record: RunRecord
    view: RunView
    start: RunStart
    options: RunOptions


class RunSession:
    """One run."""

    def __init__(self, engine: Engine, config: RunConfig) -> None:
        self._engine = engine
        self._config = config
        self._view = config.view
        self._model = RunModel((task.kind, task.body) for task in config.intake.tasks)
        self._follower = RunFollower(self._model, config.view, config.record)
        self._end_signals = EndSignals()
        #: The state of the replicas at the time at which the run began to stop.
        self._last_replicas: dict[Key, list[ReplicaNews]] = {}
        #: The replicas whose pods the run itself has ended, after the controller was stopped.
        self._terminated: dict[Key, list[str]] = {}
        #: Set when a job or a pod has changed.
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, ready: Callable[[], Awaitable[None]]) -> int:
        """Run and return the exit code. After the engine has started, the callback `ready` can refuse the jobs."""
        with self._end_signals.listening():
            try:
                if await self._start():
                    await ready()
                    await self._submit()
                    await self._end_signals.over.wait()
                    await self._wind_down()
            finally:
                await self._stop()
            return await self._report()

    # -- start -------------------------------------------------------------------------------------------------------

    async def _start(self) -> bool:
        """Start the engine. Return False if a signal ends the run before the engine has started."""
        start = asyncio.create_task(self._engine.start())
        over = asyncio.create_task(self._end_signals.over.wait())
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
        """Start the watches, then create the objects that the jobs need, then the jobs."""
        cluster = self._engine.cluster
        follow = self._follower
        kinds = {task.kind.id: jobs_of(task.kind) for task in self._config.intake.tasks}
        self._spawn(*(watch(cluster, resource, self._jobs) for resource in kinds.values()))
        self._spawn(watch(cluster, PODS.whole(), self._pods), watch(cluster, EVENTS.whole(), follow.events))
        self._spawn(self._poll())
        self._engine.broken.add_done_callback(self._task_ended)
        self._config.record.write_info(replace(self._config.start.info, runtime=self._engine.runtime))
        self._config.record.write_manifest([task.body for task in self._config.intake.tasks])
        for body in self._config.intake.beside:
            await cluster.create(_RESOURCES[body["kind"]].whole(), body)
        for task in self._config.intake.tasks:
            self._jobs([(await cluster.create(jobs_of(task.kind), task.body), False)])
        if self._config.options.timeout is not None:
            asyncio.get_running_loop().call_later(self._config.options.timeout, self._end_signals.end, RunEnd.TIMED_OUT)

    def _jobs(self, changes: Changes) -> None:
        self._follower.jobs(changes)
        self._changed.set()
        if self._model.over:
            self._end_signals.end(RunEnd.DONE)

    def _pods(self, changes: Changes) -> None:
        self._follower.pods(changes)
        self._changed.set()

    async def _poll(self) -> None:
        while True:
            begun = time.monotonic()
            behind = self._follower.poll_logs()
            if self._view.gone:
                self._end_signals.end(RunEnd.READER_GONE)
            spent = time.monotonic() - begun
            await asyncio.sleep(spent if behind else max(_POLL_SECONDS, spent / _MAX_LOAD))

    def _spawn(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    def _task_ended(self, task: asyncio.Future[None]) -> None:
        """End the run if a task has failed. A task ends only by an error or by a cancellation."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = str(error) if isinstance(error, TrainwrightError) else f"{type(error).__name__}: {error}"
            self._end_signals.end(RunEnd.BROKEN, text)

    # -- end ---------------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Wait until the controller has cleaned up ended jobs according to their policies, then end the other pods."""
        self._follower.poll_logs()
        self._last_replicas = {task.key: self._model.replicas(task.key) for task in self._config.intake.tasks}
        if self._end_signals.reason is RunEnd.BROKEN:
            return
        alive = self._model.alive()
        if alive:
            count = f"{len(alive)} replica{'s' * (len(alive) != 1)}"
            reason = _END_REASONS.get(self._end_signals.reason or RunEnd.INTERRUPTED, "")
            key = "Ctrl-C" if reason else "a second Ctrl-C"
            self._view.notice(f"{reason}ending {count}, each with its grace period; {key} kills at once")
        await self._clean_up()
        # Stop the controller before the other pods are ended, because their end must not change the status of a job.
        await self._engine.stop_controller()
        await self._end_pods()

    async def _clean_up(self) -> None:
        """Wait until every ended job has the final status that it would have on a cluster."""
        if await self._wait_for(self._end_timeout, self._cleaned_up):
            return
        # Some pods that the clean-up deletes have not ended in time. Kill them; this does not change the final status.
        late: dict[str, None] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_MARGIN_SECONDS):
                while not self._cleaned_up():
                    for one in self._model.alive():
                        if one.phase == "Terminating" and self._decided(one.job):
                            late[one.label] = None
                            await self._delete(one, grace=0)
                    await asyncio.sleep(_POLL_SECONDS)
        if late and not self._end_signals.kill_now.is_set():
            self._view.notice(f"killed, because they had not ended after {self._end_timeout:g}s: {named(list(late))}")

    def _cleaned_up(self) -> bool:
        ended = [task for task in self._config.intake.tasks if self._decided(task.key)]
        return all(self._engine.cleaned_up(task.kind.id, task.key) for task in ended)

    def _decided(self, key: Key) -> bool:
        return self._model.row(key).ledger.outcome is not None

    async def _end_pods(self) -> None:
        """End the pods that still run: pods of interrupted jobs, and pods that a clean-up policy keeps."""
        for task in self._config.intake.tasks:
            with suppress(NotFoundError):
                self._jobs([(await self._engine.cluster.get(jobs_of(task.kind), task.key), False)])
        kept = []
        for one, pod in await self._running_pods():
            self._terminated.setdefault(one.job, []).append(one.name)
            if self._decided(one.job):
                self._pods([(pod, False)])
                self._model.freeze(one)
                kept.append(one.label)
        if kept:
            count = f"{len(kept)} replica{'s' * (len(kept) != 1)}"
            self._view.notice(f"the end of the run ends {count} that a clean-up policy keeps: {named(kept)}")
        for one in self._model.alive():
            await self._delete(one)
        await self._wait_for(self._end_timeout, lambda: not self._model.alive())

    async def _running_pods(self) -> list[tuple[ReplicaNews, Body]]:
        """The replicas with a running pod that is not being deleted. Reads the store, because the model can be late."""
        pods = {pod["metadata"]["uid"]: pod for pod in (await self._engine.cluster.list(PODS.whole())).items}
        alive = [(one, pods[one.uid]) for one in self._model.alive() if one.uid in pods]
        return [(one, pod) for one, pod in alive if condition(pod).phase not in (*OVER, "Terminating")]

    async def _delete(self, one: ReplicaNews, grace: int | None = None) -> None:
        with suppress(NotFoundError, ConflictError):
            key = Key(one.job.namespace, one.pod)
            await self._engine.cluster.delete(PODS.whole(), key, uid=one.uid, grace=grace)

    @property
    def _end_timeout(self) -> float:
        """Seconds after which replicas are killed: `--grace`, or the longest grace period of a pod plus a margin."""
        if self._config.options.grace is not None:
            return self._config.options.grace
        pods = [role.template.get("spec") or {} for task in self._config.intake.tasks for role in task.loaded.job.roles]
        given = [pod.get("terminationGracePeriodSeconds") for pod in pods]
        return (
            max([float(one) for one in given if isinstance(one, int)], default=_DEFAULT_GRACE_SECONDS) + _MARGIN_SECONDS
        )

    async def _wait_for(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait at most `seconds` until `done()` is true or a second signal arrives. Return the last `done()`."""
        end = time.monotonic() + seconds
        kill_now = asyncio.create_task(self._end_signals.kill_now.wait())
        while not (over := done()) and not self._end_signals.kill_now.is_set() and time.monotonic() < end:
            self._changed.clear()
            change = asyncio.create_task(self._changed.wait())
            await asyncio.wait({kill_now, change}, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        kill_now.cancel()
        return over

    async def _stop(self) -> None:
        """Stop the engine, which kills the remaining pods; then read the rest of the logs and remove working files."""
        await self._engine.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._follower.drain()
        if self._end_signals.reason is not RunEnd.BROKEN:
            self._config.record.remove_working_files(keep_pods=self._config.options.keep)

    # -- report ------------------------------------------------------------------------------------------------------

    async def _report(self) -> int:
        config, reason = self._config, self._end_signals.reason or RunEnd.INTERRUPTED
        endings = [self._ending(task.key, reason) for task in config.intake.tasks]
        config.record.close([self._model.row(task.key).body for task in config.intake.tasks], self._final_info(endings))
        if self._end_signals.text:
            self._view.notice(f"the engine failed: {self._end_signals.text}")
        if config.record.trouble:
            self._view.notice(config.record.trouble)
        self._view.end(endings, str(config.record.folder))
        if not await self._close_view():
            return CODES[RunEnd.INTERRUPTED]
        return CODES.get(reason) or max(one.exit_code for one in endings)

    async def _close_view(self) -> bool:
        """Wait until all output is written. If the reader of the output is stopped, a second signal ends the wait."""
        while not self._view.close(_POLL_SECONDS):
            await asyncio.sleep(0)
            if self._end_signals.kill_now.is_set():
                return self._view.close(1.0)
        return True

    def _ending(self, key: Key, reason: RunEnd) -> JobEnding:
        context = EndingInput(
            end=reason,
            runtime=self._engine.runtime,
            took=self._model.took(key),
            replicas=self._last_replicas.get(key, []),
            last_lines=self._follower.last_lines,
            pods=tuple(self._model.restart_counts(key)),
            by_command=any(task.key == key and task.document.file == COMMAND for task in self._config.intake.tasks),
        )
        return replace(find_ending(self._model.row(key), context), terminated=tuple(self._terminated.get(key, ())))

    def _final_info(self, endings: list[JobEnding]) -> RunInfo:
        ended = rfc3339(self._config.start.clock.now())
        return replace(self._config.start.info, runtime=self._engine.runtime, ended=ended, endings=tuple(endings))
