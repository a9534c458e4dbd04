# SPDX-License-Identifier: Apache-2.0
"""`trainwright attach`: follow a running job with the view of `trainwright run`. The end of the view ends no job."""

import asyncio
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.completion import complete_jobs
from trainwright.cli.flags import output_option
from trainwright.cli.live_job import LiveJob, namespaced, reach
from trainwright.cli.record import STATUS, read_run_info
from trainwright.cli.run.follow import Changes, RunFollower, watch
from trainwright.cli.run.model import RunModel
from trainwright.cli.runs import Run, find
from trainwright.cli.show.choose import STDOUT, ViewInput, choose_view
from trainwright.cli.show.news import JobEnding, RunView
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.errors import ApiError, EngineError, UsageError
from trainwright.local.sockets.client import RemoteCluster
from trainwright.model.meta import JOB_UID
from trainwright.model.units import parse_time
from trainwright.runtime.ports import EVENTS, PODS, Selection, WallClock, jobs_of

_POLL_SECONDS = 0.1
#: Seconds between two tries to reach an engine that does not answer.
_RETRY_SECONDS = 0.5
_INTERRUPTED = 130
_PIPE_CLOSED = 141


@click.command("attach")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@namespaced
@output_option(
    choices=("auto", "live", "lines", "json"),
    help="Show a live table, plain lines, or JSON. auto is live on a terminal, otherwise lines.",
)
@click.option("--logs/--no-logs", default=True, show_default=True, help="Show the output of replicas.")
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Show the last N lines that each replica has written before.",
)
def command(job: str, namespace: str, form: str, logs: bool, tail: int) -> int:
    """Follow JOB like `trainwright run`, until it ends; exit with its outcome.

    Ctrl-C leaves the view; the job continues. If the engine is restarted, the view waits for the next engine.

    \b
    Examples:
      trainwright attach demo
      trainwright attach --no-logs -n lab demo
      trainwright attach -o json demo | jq -r 'select(.type == "log") | .text'

    \b
    Exit codes:
      0  the job succeeded         2  there is no such job      130  you left the view with Ctrl-C
      1  the job failed            3  the engine failed
    """
    run = find(job, namespace)
    ending = read_ending(run)
    if not run.live and ending is None and not run.background:
        raise UsageError(f"{run.key} is not running, and its last run was killed; `trainwright get {run.word}`")
    if not run.live and ending is None:
        raise EngineError(f"{run.key} is unfinished, but no engine runs; `trainwright up` continues with it")
    return run_coroutine(_attach, run, form, logs, tail)


def read_ending(run: Run) -> JobEnding | None:
    """How the job ended, if its final record exists."""
    info = read_run_info(run.folder)
    found = (
        [one for one in info.endings if (one.namespace, one.name) == (run.key.namespace, run.key.name)] if info else []
    )
    return found[0] if found else None


def check_record(run: Run) -> None:
    """Raise EngineError if the record of a job was removed while a command waits for its end."""
    if run.background and not run.folder.exists():
        raise EngineError(f"{run.key}: its record was removed, so nobody will know how it ended")


class _ReadOnlyRecord:
    """The folder of a run whose record another process writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, file: str, item: Any) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Write nothing."""


class _Attachment:
    """Follows one live job."""

    def __init__(self, reached: LiveJob, view: RunView, tail: int) -> None:
        self._run, self._view, self._kind = reached.run, view, reached.kind
        meta = reached.body["metadata"]
        self._uid = str(meta["uid"])
        self._model = RunModel([(reached.kind, reached.body)], time.time)
        created = parse_time(str(meta.get("creationTimestamp", "")))
        self._model.row(reached.run.key).started = created.timestamp() if created is not None else None
        self._follower = RunFollower(self._model, view, _ReadOnlyRecord(reached.run.folder))
        self._follower.last_lines_only = tail
        self._is_away = False

    async def follow(self) -> None:
        """Show the job until its final record is written, or until the reader closes the output."""
        key = self._run.key
        inside, own = Selection(key.namespace), Selection(key.namespace, f"{JOB_UID}={self._uid}")
        async with RemoteCluster(self._run.socket) as cluster:
            work = [
                watch(cluster, jobs_of(self._kind), self._jobs, inside, self._engine_away),
                watch(cluster, PODS.whole(), self._pods, own, self._engine_away),
                watch(cluster, EVENTS.whole(), self._follower.events, inside, self._engine_away),
            ]
            tasks = [asyncio.create_task(one) for one in work]
            try:
                while not self._over() and not self._view.gone:
                    self._follower.poll_logs()
                    for task in tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(_POLL_SECONDS)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._follower.drain()

    def _over(self) -> bool:
        """Whether the job has ended: its engine has written the final record, or has ended without it."""
        if (self._run.folder / STATUS).exists():
            return True
        check_record(self._run)
        return not self._run.background and self._is_away

    def _jobs(self, changes: Changes) -> None:
        self._is_away = False
        self._follower.jobs([one for one in changes if one[0]["metadata"]["uid"] == self._uid])

    def _pods(self, changes: Changes) -> None:
        self._follower.pods(changes)
        self._follower.last_lines_only = None  # logs of later pods are new

    async def _engine_away(self, error: ApiError) -> None:
        """Wait for the next engine."""
        if not self._is_away:
            self._is_away = True
            text = "the engine does not answer; replicas run on; waiting for `trainwright up`"
            self._view.notice(text if self._run.background else f"the run has ended: {error}")
        await asyncio.sleep(_RETRY_SECONDS)


async def _attach(run: Run, form: str, logs: bool, tail: int) -> int:
    sys.stdout.flush()
    writer = BackgroundWriter(STDOUT, sys.stdout.encoding or "utf-8")
    info = read_run_info(run.folder)
    given = ViewInput(WallClock().now, time.monotonic(), lambda: info.runtime if info is not None else "", logs)
    view = choose_view(writer, form, given)
    left = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, left.set)
    try:
        if run.live:
            await _until_left(_Attachment(reach(str(run.key)), view, tail), left)
        return _report(run, view, is_left=left.is_set())
    finally:
        with suppress(OSError):
            view.close(1.0)


async def _until_left(attachment: _Attachment, left: asyncio.Event) -> None:
    """Follow until the job ends or the user presses Ctrl-C."""
    following, leaving = asyncio.create_task(attachment.follow()), asyncio.create_task(left.wait())
    await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if not following.done():
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    else:
        following.result()


def _report(run: Run, view: RunView, *, is_left: bool) -> int:
    ending = read_ending(run)
    if view.gone:
        return _PIPE_CLOSED
    if ending is None and is_left:
        view.notice(f"{run.key} continues; `trainwright attach {run.word}` shows it again")
        view.end([], str(run.folder))
        return _INTERRUPTED
    if ending is None:
        raise EngineError(f"{run.key}: the run has ended without a final status; its files are in {run.folder}")
    view.end([ending], str(run.folder))
    return ending.exit_code
