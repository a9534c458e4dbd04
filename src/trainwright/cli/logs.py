# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs`: print the logs of replicas. The run of the job can be live or can have ended.

The command reads the log files and the record of the run's pods; it needs no engine. The files are
RUN/logs/<pod>/<first 8 characters of the uid>-<container>-<restarts>.log; rotated files have `.1`, `.2` … at the end.
The command prints the name of the replica before each line. But if it prints only one replica, and the output is not a
terminal, then the output is the content of the files, byte for byte.
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
from trainwright.cli.record import RecordedPod, read_pods
from trainwright.cli.runs import Run, find, latest, near_replica
from trainwright.cli.show.text import coloured, prefix
from trainwright.cli.show.text import line as clean
from trainwright.cli.state import home, job_folder, runs_in
from trainwright.cli.tail import Tail
from trainwright.errors import UsageError
from trainwright.model.problem import nearest


class LogSelection(Struct, frozen=True):
    """The logs that the user wants. Without replicas, it means all replicas; without a container, all containers."""

    job: str
    replicas: tuple[str, ...] = ()
    container: str = ""


class LogFile(Struct, frozen=True):
    """One log file: its path, the label to print before its lines, and its size in bytes when it was found."""

    path: str
    label: str
    inode: int
    size: int

    def lines(self) -> Iterator[bytes]:
        """All lines, oldest first: the lines of rotated files, then the lines of the file itself."""
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
    """The selected pods, replica by replica, oldest first. The case of letters in names of replicas is ignored."""
    words = {word.lower() for word in wanted.replicas}
    found = [
        one
        for one in read_pods(folder)
        if one.job == wanted.job
        and (not words or one.replica.lower() in words or one.pod in words)
        and (not wanted.container or wanted.container in one.containers)
    ]
    roles = list(dict.fromkeys(one.replica.rpartition("-")[0] for one in found))

    def place(one: RecordedPod) -> tuple[int, int, int]:
        role, _, index = one.replica.rpartition("-")
        return roles.index(role), int(index), one.attempt

    return sorted(found, key=place)


def files(folder: Path, found: Iterable[RecordedPod], container: str = "") -> list[LogFile]:
    """The log files of these pods, in the order in which the containers ran."""
    return [file for pod in found for file in _files_of(folder / "logs" / pod.pod, pod, container)]


def _files_of(directory: Path, pod: RecordedPod, container: str) -> Iterator[LogFile]:
    try:
        names = set(os.listdir(directory))  # noqa: PTH208 - only names are needed
    except OSError:
        return
    for name in [name for name in pod.containers if container in ("", name)]:
        label = pod.replica if len(pod.containers) == 1 else f"{pod.replica}/{name}"
        pattern = re.compile(rf"{pod.uid[:8]}-{re.escape(name)}-(\d+)\.log")
        numbers = sorted(int(match[1]) for one in names if (match := pattern.fullmatch(one)))
        for number in numbers:
            path = directory / f"{pod.uid[:8]}-{name}-{number}.log"
            stat = path.stat()
            yield LogFile(str(path), label, stat.st_ino, stat.st_size)


_POLL_SECONDS = 0.08
#: `--follow` looks for new files only in every sixth poll.
_POLLS_PER_SCAN = 6


@click.command("logs")
@click.argument("job", metavar="JOB")
@click.argument("replicas", metavar="[REPLICA]...", nargs=-1)
@namespaced
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends.")
@click.option(
    "--tail", "last", type=click.IntRange(0), metavar="N", help="Print only the last N lines of each replica."
)
@click.option("-c", "--container", metavar="NAME", default="", help="Print only the logs of the container NAME.")
@click.option(
    "--run", "run_id", metavar="ID", default="", help="Print the logs of the run ID.  [default: the live or last run]"
)
def command(
    job: str, replicas: tuple[str, ...], namespace: str, last: int | None, container: str, **more: str | bool
) -> None:
    """Print the logs of all replicas of JOB, or of each REPLICA: worker-0, or the name of a pod.

    The logs of a restarted replica are printed in order. The logs of the last five runs of a job are kept.

    \b
    Examples:
      trainwright logs demo
      trainwright logs -f demo worker-0
      trainwright logs --tail 20 lab/demo worker-0 worker-1
    """
    run = _select_run(find(job, namespace), str(more["run_id"]))
    wanted = LogSelection(str(run.key), replicas, container)
    found = chosen(run.folder, wanted)
    if not found and not (more["follow"] and run.live and not replicas):
        raise UsageError(_nothing_found(run, wanted))
    logs = files(run.folder, found, container)
    printer = _Printer(several=len({one.label for one in logs}) > 1 or (run.live and not replicas))
    followed: Tail[str] = Tail()
    printer.show(logs, last)
    for one in logs:
        followed.add(one.path, one.label, inode=one.inode, offset=one.size)
    if more["follow"] and run.live:
        _follow(run, wanted, followed, printer)


def _select_run(run: Run, run_id: str) -> Run:
    if not run_id:
        return run
    known = {folder.name: folder for folder in runs_in(job_folder(home(), run.key))}
    if run_id not in known:
        meant = nearest(run_id, known)
        hint = f"did you mean `{meant}`?" if meant else f"these runs are kept: {', '.join(known)}"
        raise UsageError(f"{run.key} has no run {run_id!r}; {hint}")
    folder = known[run_id].resolve()
    return Run(run.key, folder, live=run.live and folder == run.folder, pid=run.pid)


def _nothing_found(run: Run, wanted: LogSelection) -> str:
    every = chosen(run.folder, LogSelection(wanted.job))
    if not every:
        return f"{run.key} has no logs yet: none of its replicas was started"
    known = {one.replica for one in every} | {one.pod for one in every}
    for word in wanted.replicas:
        if word.lower() not in {name.lower() for name in known}:
            hint = near_replica(word, known) or f"it has {', '.join(sorted({o.replica for o in every})[:8])}"
            return f"{run.key} has no replica {word!r}; {hint}"
    names = sorted({name for one in every for name in one.containers})
    meant = nearest(wanted.container, names)
    hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(names)}"
    return f"{run.key} has no container {wanted.container!r} in these replicas; {hint}"


class _Printer:
    """Writes lines with or without labels and colours."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._terminal = sys.stdout.isatty()
        self._colour = self._terminal and not os.environ.get("NO_COLOR")

    def show(self, logs: list[LogFile], last: int | None) -> None:
        """Print the files. With `last`, print only this many lines per replica, from the end of all its files."""
        if last is None:
            for one in logs:
                for line in one.lines():
                    self.line(one.label, line)
            return
        for label in dict.fromkeys(one.label for one in logs):
            lines = chain.from_iterable(one.lines() for one in logs if one.label == label)
            for line in deque(lines, maxlen=last):
                self.line(label, line)

    def line(self, label: str, data: bytes) -> None:
        """Print one line. `data` includes the newline character, if the line has one."""
        if not self._several and not self._terminal:
            sys.stdout.buffer.write(data)
            return
        text = data.decode(errors="replace").rstrip("\r\n")
        tidy = coloured(text) if self._colour else clean(text)
        sys.stdout.write(f"{prefix(label, colour=bool(self._colour))} {tidy}\n" if self._several else f"{tidy}\n")


def _follow(run: Run, wanted: LogSelection, followed: Tail[str], printer: _Printer) -> None:
    """Print new lines until the run ends."""
    for poll in _polls(run):
        if poll % _POLLS_PER_SCAN == 0:
            for one in files(run.folder, chosen(run.folder, wanted), wanted.container):
                followed.add(one.path, one.label)
        for label, text in followed.poll(time.monotonic()):
            printer.line(label, text.encode() + b"\n")
        sys.stdout.flush()
    for label, text in followed.drain(time.monotonic()):
        printer.line(label, text.encode() + b"\n")


def _polls(run: Run) -> Iterator[int]:
    poll = 0
    alive = True
    while alive:
        if poll % _POLLS_PER_SCAN == 0:
            now = latest(home(), run.key)
            alive = now is not None and now.live and now.folder == run.folder
        yield poll
        poll += 1
        time.sleep(_POLL_SECONDS * alive)
