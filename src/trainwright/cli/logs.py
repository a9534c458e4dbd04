# SPDX-License-Identifier: Apache-2.0
"""The log files of a run, found by what the run has noted of its pods (`record`). Called by `logs`.

RUN/logs/<pod>/<first 8 of uid>-<container>-<restarts>.log; what was rotated away has `.1`, `.2` … behind it.

`trainwright logs`: what replicas printed, in a live run or the last one. The files are enough; no engine is asked.

Several replicas are told apart by their names before each line; one alone comes byte for byte.
"""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import click
from msgspec import Struct

from trainwright.cli.live_job import namespaced
from trainwright.cli.record import RecordedPod, pods
from trainwright.cli.runs import Run, find, latest, near_replica
from trainwright.cli.show.text import coloured, prefix
from trainwright.cli.show.text import line as clean
from trainwright.cli.state import home, place, runs_in
from trainwright.cli.tail import Tail
from trainwright.errors import UsageError
from trainwright.model.problem import nearest

_INDEX = re.compile(r"(.*)-(\d+)")


class LogSelection(Struct, frozen=True):
    """Whose logs: of which job, of which replicas and containers; nothing said means all."""

    job: str
    replicas: tuple[str, ...] = ()
    container: str = ""


class LogFile(Struct, frozen=True):
    """One log, with the name of its replica before it, as large as it was when it was found."""

    path: str
    label: str
    inode: int
    size: int

    def parts(self) -> Iterator[bytes]:
        """Its lines, those that were rotated away first."""
        older = [f"{self.path}.{number}" for number in range(15, 0, -1)]
        for path in older:
            if Path(path).exists():
                with Path(path).open("rb") as file:
                    yield from file
        with Path(self.path).open("rb") as file:
            left = self.size
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                yield line


def chosen(folder: Path, wanted: LogSelection) -> list[RecordedPod]:
    """The pods that are meant, replica by replica, oldest first; in any case, for so some kinds write their types."""
    words = {word.lower() for word in wanted.replicas}
    found = [
        one
        for one in pods(folder)
        if one.job == wanted.job
        and (not words or one.replica.lower() in words or one.pod in words)
        and (not wanted.container or wanted.container in one.containers)
    ]
    order = {one: place for place, one in enumerate(dict.fromkeys(_role(pod) for pod in found))}
    return sorted(found, key=lambda one: (order[_role(one)], _index(one), one.attempt))


def _role(pod: RecordedPod) -> str:
    match = _INDEX.fullmatch(pod.replica)
    return match[1] if match is not None else pod.replica


def _index(pod: RecordedPod) -> int:
    match = _INDEX.fullmatch(pod.replica)
    return int(match[2]) if match is not None else 0


def files(folder: Path, found: Iterable[RecordedPod], container: str = "") -> list[LogFile]:
    """Their logs, in the order in which containers ran."""
    return [file for pod in found for file in _of(folder / "logs" / pod.pod, pod, container)]


def _of(place: Path, pod: RecordedPod, container: str) -> Iterator[LogFile]:
    try:
        names = set(os.listdir(place))  # noqa: PTH208 - only names are needed
    except OSError:
        return
    for name in [name for name in pod.containers if container in ("", name)]:
        label = pod.replica if len(pod.containers) == 1 else f"{pod.replica}/{name}"
        pattern = re.compile(rf"{pod.uid[:8]}-{re.escape(name)}-(\d+)\.log")
        numbers = sorted(int(match[1]) for one in names if (match := pattern.fullmatch(one)))
        for number in numbers:
            path = place / f"{pod.uid[:8]}-{name}-{number}.log"
            stat = path.stat()
            yield LogFile(str(path), label, stat.st_ino, stat.st_size)


_LOOK = 0.08
#: New files are looked for every so many looks.
_SELDOM = 6


@click.command("logs")
@click.argument("job", metavar="JOB")
@click.argument("replicas", metavar="[REPLICA]...", nargs=-1)
@namespaced
@click.option("-f", "--follow", is_flag=True, help="Go on as long as the run lives.")
@click.option("--tail", "last", type=click.IntRange(0), metavar="N", help="Only the last N lines of each replica.")
@click.option("-c", "--container", metavar="NAME", default="", help="Only this container.")
@click.option("--run", "run_id", metavar="ID", default="", help="An earlier run.  [default: the live one, or the last]")
def command(
    job: str, replicas: tuple[str, ...], namespace: str, last: int | None, container: str, **more: str | bool
) -> None:
    """Print what the replicas of JOB printed, or each REPLICA alone: worker-0, or the name of its pod.

    A replica that was restarted has all its logs in order. They are kept after the run, for the last runs of a job.

    \b
    Examples:
      trainwright logs demo
      trainwright logs -f demo worker-0
      trainwright logs --tail 20 lab/demo worker-0 worker-1
    """
    run = _earlier(find(job, namespace), str(more["run_id"]))
    wanted = LogSelection(str(run.key), replicas, container)
    found = chosen(run.folder, wanted)
    if not found and not (more["follow"] and run.live and not replicas):
        raise UsageError(_none(run, wanted))
    there = files(run.folder, found, container)
    printer = _Printer(several=len({one.label for one in there}) > 1 or (run.live and not replicas))
    followed: Tail[str] = Tail()
    printer.show(there, last)
    for one in there:
        followed.add(one.path, one.label, inode=one.inode, offset=one.size)
    if more["follow"] and run.live:
        _follow(run, wanted, followed, printer)


def _earlier(run: Run, run_id: str) -> Run:
    if not run_id:
        return run
    known = {folder.name: folder for folder in runs_in(place(home(), run.key))}
    if run_id not in known:
        meant = nearest(run_id, known)
        hint = f"did you mean `{meant}`?" if meant else f"kept are {', '.join(known)}"
        raise UsageError(f"{run.key} has no run {run_id!r}; {hint}")
    folder = known[run_id].resolve()
    return Run(run.key, folder, live=run.live and folder == run.folder, pid=run.pid)


def _none(run: Run, wanted: LogSelection) -> str:
    every = chosen(run.folder, LogSelection(wanted.job))
    if not every:
        return f"{run.key} has no logs (yet): none of its replicas was started"
    known = {one.replica for one in every} | {one.pod for one in every}
    for word in wanted.replicas:
        if word.lower() not in {name.lower() for name in known}:
            hint = near_replica(word, known) or f"it has {', '.join(sorted({o.replica for o in every})[:8])}"
            return f"{run.key} has no replica {word!r}; {hint}"
    names = sorted({name for one in every for name in one.containers})
    meant = nearest(wanted.container, names)
    hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(names)}"
    return f"{run.key} has no container {wanted.container!r} there; {hint}"


class _Printer:
    """Writes lines the way this reader wants them."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._terminal = sys.stdout.isatty()
        self._colour = self._terminal and not os.environ.get("NO_COLOR")

    def show(self, there: list[LogFile], last: int | None) -> None:
        """What the files hold by now; of each replica, however many it has, only its last lines if so asked."""
        if last is None:
            for one in there:
                for line in one.parts():
                    self.line(one.label, line)
            return
        for label in dict.fromkeys(one.label for one in there):
            parts = chain.from_iterable(one.parts() for one in there if one.label == label)
            for line in deque(parts, maxlen=last):
                self.line(label, line)

    def line(self, label: str, data: bytes) -> None:
        """One line, with its end if it has one."""
        if not self._several and not self._terminal:
            sys.stdout.buffer.write(data)
            return
        text = data.decode(errors="replace").rstrip("\r\n")
        tidy = coloured(text) if self._colour else clean(text)
        sys.stdout.write(f"{prefix(label, colour=bool(self._colour))} {tidy}\n" if self._several else f"{tidy}\n")


def _follow(run: Run, wanted: LogSelection, followed: Tail[str], printer: _Printer) -> None:
    """Until the run is over."""
    for turn in _turns(run):
        if turn % _SELDOM == 0:
            for one in files(run.folder, chosen(run.folder, wanted), wanted.container):
                followed.add(one.path, one.label)
        for label, text in followed.poll(time.monotonic()):
            printer.line(label, text.encode() + b"\n")
        sys.stdout.flush()
    for label, text in followed.drain(time.monotonic()):
        printer.line(label, text.encode() + b"\n")


def _turns(run: Run) -> Iterator[int]:
    turn = 0
    alive = True
    while alive:
        if turn % _SELDOM == 0:
            now = latest(home(), run.key)
            alive = now is not None and now.live and now.folder == run.folder
        yield turn
        turn += 1
        time.sleep(_LOOK * alive)
