# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs`: what replicas printed, in a live run or the last one. The files are enough; no engine is asked.

`logfiles` finds them. Several replicas are told apart by their names before each line; one alone comes byte for byte.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain

import click

from trainwright.cli.logfiles import LogFile, Wanted, chosen, files
from trainwright.cli.reach import namespaced
from trainwright.cli.runs import Run, find, latest
from trainwright.cli.show.clean import coloured
from trainwright.cli.show.clean import line as clean
from trainwright.cli.show.colours import prefix
from trainwright.cli.state import home, place, runs_in
from trainwright.cli.tail import Tail
from trainwright.errors import UsageError
from trainwright.model.problem import nearest

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
    wanted = Wanted(str(run.key), replicas, container)
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


def _none(run: Run, wanted: Wanted) -> str:
    every = chosen(run.folder, Wanted(wanted.job))
    if not every:
        return f"{run.key} has no logs (yet): none of its replicas was started"
    known = {one.replica for one in every} | {one.pod for one in every}
    for word in wanted.replicas:
        if word.lower() not in {name.lower() for name in known}:
            meant = nearest(word, known)
            hint = (
                f"did you mean `{meant}`?" if meant else f"it has {', '.join(sorted({o.replica for o in every})[:8])}"
            )
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


def _follow(run: Run, wanted: Wanted, followed: Tail[str], printer: _Printer) -> None:
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
