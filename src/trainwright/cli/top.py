# SPDX-License-Identifier: Apache-2.0
"""`trainwright top`: the CPU time and the memory that running replicas use now.

The supervisor's journal names the first process of each container. The numbers are sums over all processes of the
container, as the kernel reports them in /proc: this process and its descendants. Memory that processes share is counted
several times.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct, to_builtins

from trainwright.cli.background.size import spell_size
from trainwright.cli.completion import complete_jobs
from trainwright.cli.flags import duration_option, output_option
from trainwright.cli.live_job import NO_ENGINE, namespaced, reach
from trainwright.cli.output import as_json, columns
from trainwright.cli.runs import Run, find, is_open, jobs, latest
from trainwright.cli.state import home
from trainwright.errors import EngineError, UsageError
from trainwright.model.meta import INDEX, ROLE
from trainwright.node.supervisor import journal, tree

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The fields of /proc/PID/stat after the name: user time, system time, resident pages.
_UTIME, _STIME, _RSS = 11, 12, 21
#: Clears the rest of the line, and moves the cursor to the first column of the first row.
_CLEAR_LINE, _HOME, _CLEAR_REST = "\x1b[K", "\x1b[H", "\x1b[J"


class ReplicaUsage(Struct, frozen=True, rename="camel"):
    """What one replica uses: CPUs (1.0 is one whole CPU), bytes of memory, and the number of its processes."""

    job: str
    replica: str
    node: str
    cpus: float
    memory: int
    processes: int


@click.command("top")
@click.argument("names", metavar="[JOB]...", nargs=-1, shell_complete=complete_jobs)
@namespaced
@duration_option("--interval", default="2s", help="Measure the CPU time over TIME, and show new numbers after TIME.")
@click.option("--once", is_flag=True, help="Print the table once. This is the default if the output is not a terminal.")
@output_option(choices=("table", "json"), help="Print a table, or JSON once.")
def command(
    names: tuple[str, ...], namespace: str, interval: float, once: bool, form: Literal["table", "json"]
) -> None:
    """Show the CPU time and the memory of all running replicas, or of the replicas of each JOB; Ctrl-C ends.

    \b
    Examples:
      trainwright top
      trainwright top demo
      trainwright top --once --interval 10s
      trainwright top -o json | jq '.[] | select(.memory > 1e9)'
    """
    if sys.platform != "linux":
        raise UsageError("top reads /proc, which only Linux has")
    live = sys.stdout.isatty() and not once and form == "table"
    usage = _measure(names, namespace, min(interval, 0.5) if live else interval)
    if form == "json":
        click.echo(as_json(to_builtins(usage)), nl=False)
        return
    if not live:
        click.echo("\n".join(_table(usage)))
        return
    try:
        click.echo(_HOME + "\x1b[2J", nl=False)
        while True:
            text = "".join(f"{line}{_CLEAR_LINE}\n" for line in _fitting(list(_table(usage))))
            click.echo(_HOME + text + _CLEAR_REST, nl=False)
            usage = _measure(names, namespace, interval)
    except KeyboardInterrupt:
        click.echo()


def _fitting(lines: list[str]) -> list[str]:
    """As many lines as the terminal has rows."""
    rows = os.get_terminal_size(1).lines - 1
    more = len(lines) - rows
    return lines if more <= 0 else [*lines[: rows - 1], f"… and {more + 1} more replicas"]


def _table(usage: list[ReplicaUsage]) -> Iterator[str]:
    if not usage:
        yield "no replica runs now"
        return
    rows = [
        [one.job, one.replica, one.node, f"{one.cpus:.2f}", spell_size(one.memory), str(one.processes)] for one in usage
    ]
    total = ["total", "", "", f"{sum(one.cpus for one in usage):.2f}", spell_size(sum(one.memory for one in usage))]
    yield from columns([["JOB", "REPLICA", "NODE", "CPU", "MEMORY", "PROCESSES"], *rows, [*total, ""]])


class _Container(Struct, frozen=True):
    job: str
    replica: str
    node: str
    pid: int


def _measure(names: tuple[str, ...], namespace: str, seconds: float) -> list[ReplicaUsage]:
    """The usage of all replicas, measured over this many seconds; the largest use of CPU first."""
    runs = [find(name, namespace) for name in names] if names else _live_runs(namespace)
    for run in runs:
        if not run.live:
            raise EngineError(f"{run.key}: {NO_ENGINE}") if is_open(run) else UsageError(f"{run.key} is not running")
    containers = [one for run in runs for one in _containers(run)]
    members = {one.pid: _with_descendants(one.pid) for one in containers}
    before, began = {pid: _usage(pid) for own in members.values() for pid in own}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in containers:
        sums = found.setdefault((one.job, one.replica, one.node), [0.0, 0, 0])
        for pid in members[one.pid]:
            now = _usage(pid)
            if now is not None:
                earlier = before.get(pid)
                sums[0] += (now[0] - (earlier[0] if earlier is not None else now[0])) / passed
                sums[1] += now[1]
                sums[2] += 1
    usage = [ReplicaUsage(*who, round(sums[0], 3), int(sums[1]), int(sums[2])) for who, sums in found.items()]
    return sorted((one for one in usage if one.processes), key=lambda one: (-one.cpus, one.job, one.replica))


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        found += tree.children(one)
    return found


def _live_runs(namespace: str) -> list[Run]:
    state = home()
    found = [latest(state, key) for key in jobs(state) if namespace in ("", key.namespace)]
    return [run for run in found if run is not None and run.live]


def _containers(run: Run) -> Iterator[_Container]:
    """The running containers of a job, each with its first process."""
    try:
        reached = reach(str(run.key))
    except (UsageError, EngineError):  # the job has just ended
        return
    with reached.client:
        pods = {pod["metadata"]["uid"]: pod for pod in reached.pods()}
    for folder in sorted((run.engine_folder / "nodes").glob("*")):
        for entry in journal.read(str(folder / "journal")).values():
            pod = pods.get(entry["pod"])
            if pod is not None and not entry["ended"]:
                labels = pod["metadata"]["labels"]
                yield _Container(str(run.key), f"{labels[ROLE]}-{labels[INDEX]}", folder.name, entry["pid"])


def _usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds and bytes of memory of a process; None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_SECOND, int(fields[_RSS]) * _PAGE_BYTES
    return None
