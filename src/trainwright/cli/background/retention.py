# SPDX-License-Identifier: Apache-2.0
"""Removes finished jobs and old logs of the background engine, so that its folder does not grow without limit.

A finished job is removed when it is older than `keep_time`, when more than `keep_jobs` have finished, or when the logs
of all jobs exceed `all_logs`. If the logs of one job exceed `job_logs`, the logs of its oldest attempts are removed.
The logs of the newest attempt of a replica are never removed while the job runs: the supervisor rotates them.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct

from trainwright.cli.background.jobs import is_over
from trainwright.cli.background.options import EngineOptions
from trainwright.cli.record import read_run_info
from trainwright.cli.runs import jobs as known_jobs
from trainwright.cli.state import job_folder, point_to, runs_in
from trainwright.errors import ApiError, NotFoundError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.local.storage.retention import RetentionLimits, prune_events, surplus
from trainwright.model.meta import RUN, Key
from trainwright.model.units import parse_time
from trainwright.node.submission import JOBS, run_of
from trainwright.runtime.ports import Clock, Cluster, jobs_of

#: Seconds between two checks. A check reads the sizes of all log files of unfinished jobs.
_CHECK_SECONDS = 60.0
_LOGS = "logs"


class JobFiles(Struct, frozen=True):
    """The folder of one job, named after its run: when the job ended, and the size of its logs in bytes."""

    name: str
    ended: datetime
    size: int


class LogFileSize(Struct, frozen=True):
    """One log file of a job. Files of the newest attempt of a container are `newest`."""

    path: str
    size: int
    changed: float
    newest: bool


def surplus_logs(files: Iterable[LogFileSize], limit: int) -> list[str]:
    """The log files of one job to remove, oldest first, so that the rest has at most `limit` bytes."""
    every = list(files)
    total, chosen = sum(one.size for one in every), []
    for one in sorted((one for one in every if not one.newest), key=lambda one: (one.changed, one.path)):
        if total <= limit:
            break
        chosen.append(one.path)
        total -= one.size
    return chosen


class Retention:
    """Checks from time to time what can be removed. `state` is the state folder, `folder` the folder of the engine."""

    def __init__(self, cluster: Cluster, clock: Clock, state: Path, folder: Path, options: EngineOptions) -> None:
        self._cluster, self._clock, self._state, self._options = cluster, clock, state, options
        self._jobs = folder / JOBS
        #: The files of finished jobs, by run. These files do not change.
        self._finished: dict[str, JobFiles] = {}
        #: The size of the logs of unfinished jobs in bytes.
        self._unfinished_size = 0

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            with suppress(ApiError, OSError):  # for example a full disk: the next check tries again
                await self.check()
                await prune_events(self._cluster, self._clock.now())
            await asyncio.sleep(_CHECK_SECONDS)

    async def check(self) -> list[str]:
        """Remove what the limits do not allow. Return the removed runs."""
        stored = await self._stored()
        chosen = await asyncio.to_thread(self._examine, {run for run, (_, _, _, over) in stored.items() if not over})
        for run in chosen:
            if run in stored:
                kind, key, uid, _ = stored[run]
                with suppress(NotFoundError):
                    await self._cluster.delete(jobs_of(kind), key, uid=uid)
        await asyncio.to_thread(self._remove_folders, chosen)
        return chosen

    async def _stored(self) -> dict[str, tuple[Kind, Key, str, bool]]:
        """The jobs of the engine by run: kind, key, UID, and whether the job has its outcome."""
        found = {}
        for kind in KINDS:
            for body in (await self._cluster.list(jobs_of(kind))).items:
                meta = body["metadata"]
                run = run_of(meta.get("annotations"), RUN)
                found[run] = kind, Key(meta["namespace"], meta["name"]), meta["uid"], is_over(body)
        return found

    def _examine(self, unfinished: set[str]) -> list[str]:
        """Remove the surplus logs of unfinished jobs, and return the runs to remove. Runs in a thread."""
        options, found = self._options, _names(self._jobs)
        self._unfinished_size = 0
        for run in found:
            if run not in self._finished:
                self._measure(run, is_unfinished=run in unfinished)
        limits = RetentionLimits(
            age=timedelta(seconds=options.keep_time),
            jobs=options.keep_jobs,
            size=max(0, options.all_logs - self._unfinished_size),
        )
        return [one.name for one in surplus(self._finished.values(), limits, self._clock.now())]

    def _measure(self, run: str, *, is_unfinished: bool) -> None:
        """Remove the surplus logs of a job, and remember the size of the rest."""
        files = list(_log_files(self._jobs / run / _LOGS))
        size = sum(one.size for one in files)
        for path in surplus_logs(files, self._options.job_logs):
            with suppress(OSError):
                size -= Path(path).stat().st_size
                Path(path).unlink()
        info = None if is_unfinished else read_run_info(self._jobs / run)
        ended = parse_time(info.ended) if info is not None else None
        if ended is not None:
            self._finished[run] = JobFiles(run, ended, size)
        else:
            self._unfinished_size += size

    def _remove_folders(self, runs: list[str]) -> None:
        """Remove the folders of these runs and the links to them."""
        gone = set(runs)
        for run in runs:
            shutil.rmtree(self._jobs / run, ignore_errors=True)
            self._finished.pop(run, None)
        for key in known_jobs(self._state) if gone else ():
            _remove_links(job_folder(self._state, key), gone)


def _remove_links(folder: Path, runs: set[str]) -> None:
    """Remove the links to runs that are gone, and the folder of the name if no run is left."""
    found = [run for run in runs if (folder / run).is_symlink()]
    for run in found:
        (folder / run).unlink(missing_ok=True)
    if not found:
        return
    left = runs_in(folder)
    if left:
        point_to(folder, left[-1].name)
        return
    with suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _log_files(logs: Path) -> Iterator[LogFileSize]:
    """All files below the folder of logs: LOGS/POD/UID-CONTAINER-RESTARTS.log, rotated files, and files with times."""
    for pod in _names(logs):
        names = _names(logs / pod)
        newest: dict[str, int] = {}
        for name in names:
            base, number = _attempt(name)
            newest[base] = max(number, newest.get(base, 0))
        for name in names:
            base, number = _attempt(name)
            with suppress(OSError):
                stat = (logs / pod / name).stat()
                yield LogFileSize(str(logs / pod / name), stat.st_size, stat.st_mtime, number >= newest[base])


def _attempt(name: str) -> tuple[str, int]:
    """The container and the number of restarts in the name of a log file."""
    stem = name.partition(".")[0]
    base, _, number = stem.rpartition("-")
    return base, int(number) if number.isdecimal() else 0


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:
        return []
