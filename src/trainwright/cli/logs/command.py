# SPDX-License-Identifier: Apache-2.0
"""The command `trainwright logs`: its options, the runs that it prints, and `--follow`."""

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from msgspec import Struct

from trainwright.cli.completion import complete_jobs, complete_replicas
from trainwright.cli.flags import MAX_SECONDS, ClusterOptions, cluster_choice
from trainwright.cli.live_job import namespaced, reach
from trainwright.cli.logs.merge import LineFilter, LogPiece, merged
from trainwright.cli.logs.printer import Printer, Style
from trainwright.cli.logs.select import LogFile, LogSelection, chosen, files, nothing_found, previous
from trainwright.cli.runs import Run, find, is_open, kept_runs, latest, select_run
from trainwright.cli.state import home
from trainwright.cli.tail import Tail
from trainwright.errors import UsageError
from trainwright.model.units import parse_duration, parse_time
from trainwright.node import log_segments
from trainwright.node.log_segments import Piece

_POLL_SECONDS = 0.08
#: `--follow` looks for new files only in every sixth poll.
_POLLS_PER_SCAN = 6
_SECOND = 1_000_000_000


class SinceTime(click.ParamType[int]):
    """An option that takes a time, or a duration before now. Its value is in nanoseconds since 1970."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time."""
        now = time.time_ns()
        seconds = parse_duration(value)
        if seconds is not None and seconds <= MAX_SECONDS:
            return now - round(seconds * _SECOND)
        point = parse_time(value) if seconds is None else None
        if point is None:
            self.fail(f"{value!r} is neither a duration (10m, 2h30m) nor a time (2026-11-17T09:30:00Z)", param, ctx)
        if point.timestamp() * _SECOND > now:
            self.fail(f"{value!r} is in the future; a time without an offset such as +01:00 means UTC", param, ctx)
        return round(point.timestamp() * _SECOND)


class RegularExpression(click.ParamType[re.Pattern[str]]):
    """An option that takes a regular expression."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        """Return the compiled expression."""
        try:
            return re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}; `\\` before a character quotes it", param, ctx)


class LogOptions(Struct, frozen=True, kw_only=True):
    """The options of the command that say what to print and how."""

    follow: bool
    previous: bool
    all_runs: bool
    run_id: str
    container: str
    timestamps: bool
    since: int | None
    grep: re.Pattern[str] | None
    last: int | None

    def lines(self) -> LineFilter:
        """The lines to print."""
        return LineFilter(self.since or 0, self.grep, self.last)

    def limits(self) -> str:
        """What a line must fulfil, as the end of a sentence; empty if nothing."""
        limits = [f"matches {self.grep.pattern!r}"] if self.grep else []
        limits += ["was written since the time of --since"] if self.since else []
        return " and ".join(limits)


@click.command("logs")
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.argument("replicas", metavar="[REPLICA]...", nargs=-1, shell_complete=complete_replicas)
@namespaced
@cluster_choice
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends.")
@click.option("-p", "--previous", is_flag=True, help="Print only the attempt before the last one of each replica.")
@click.option(
    "--since", type=SinceTime(), metavar="TIME", help="Print only lines since TIME: 10m, or 2026-11-17T09:30:00Z."
)
@click.option(
    "--grep",
    type=RegularExpression(),
    metavar="REGEX",
    help="Print only lines that match REGEX; (?i) at its start ignores case.",
)
@click.option(
    "--tail", "last", type=click.IntRange(0), metavar="N", help="Print only the last N of these lines of each replica."
)
@click.option("--timestamps", is_flag=True, help="Print the time before each line.")
@click.option("-c", "--container", metavar="NAME", default="", help="Print only the logs of the container NAME.")
@click.option(
    "--run", "run_id", metavar="ID", default="", help="Print the logs of the run ID.  [default: the live or last run]"
)
@click.option("--all-runs", is_flag=True, help="Print the logs of all kept runs, oldest first.")
def command(job: str, replicas: tuple[str, ...], namespace: str, cluster: ClusterOptions, **given: Any) -> int:
    """Print the logs of all replicas of JOB, or of each REPLICA: worker-0, or the name of a pod.

    The lines of all attempts of all replicas are printed in the order of time. worker-0#2 is worker-0 after its second
    restart. The logs of one replica are printed byte for byte if the output is not a terminal. The logs of the last
    five runs of a job are kept. A cluster keeps a log as long as its pod, and of a container that was restarted inside
    its pod the log before that.

    \b
    Examples:
      trainwright logs demo
      trainwright logs -f demo worker-0
      trainwright logs --tail 20 lab/demo worker-0 worker-1
      trainwright logs --previous demo
      trainwright logs --since 10m --grep 'loss|error' demo
      trainwright logs -f --context production demo
    """
    options = LogOptions(**given)
    _check(options)
    if cluster.given:
        return _print_from_cluster(job, replicas, namespace, cluster, options)
    run = find(job, namespace)
    runs = kept_runs(run) if options.all_runs else [select_run(run, options.run_id)]
    wanted = [(one, LogSelection(str(one.key), replicas, options.container)) for one in runs]
    # A run without the replica is no error if another run has it.
    having = [(one, what) for one, what in wanted if chosen(one.folder, what)] or wanted[-1:]
    printed = [_print_run(one, what, options) for one, what in having]
    if not any(printed):
        _say_nothing_printed(run, options)
    return 0


def _print_from_cluster(
    job: str, replicas: tuple[str, ...], namespace: str, cluster: ClusterOptions, options: LogOptions
) -> int:
    if options.all_runs or options.run_id:
        raise UsageError("--run and --all-runs name runs on this machine; they do not work with --context")
    from trainwright.cli.remote.logs import print_logs  # noqa: PLC0415 - this machine needs no HTTP

    reached = reach(job, namespace, cluster)
    return print_logs(reached, LogSelection(str(reached.job), replicas, options.container), options)


def _check(options: LogOptions) -> None:
    if options.all_runs and options.run_id:
        raise UsageError("--run and --all-runs exclude each other")
    if options.previous and options.follow:
        raise UsageError("--previous and --follow exclude each other: a previous attempt gets no new lines")


def _print_run(run: Run, wanted: LogSelection, options: LogOptions) -> bool:
    """Print the logs of a run, and follow them. Return whether there was a line."""
    found = chosen(run.folder, wanted)
    following = options.follow and is_open(run)
    if not found and not (following and not wanted.replicas):
        raise UsageError(nothing_found(run, wanted))
    logs = files(run.folder, found, options.container)
    several = options.all_runs or len({one.label for one in logs}) > 1 or (run.live and not wanted.replicas)
    if options.previous:
        logs = previous(logs, found)
        if not logs and not options.all_runs:
            raise UsageError(_no_previous(run, wanted))
    if following:
        logs = [_up_to_last_line(one) for one in logs]
    printer = Printer(Style(several, options.timestamps, run.folder.name if options.all_runs else ""))
    _warn_without_times(run, logs, options)
    for one in merged(logs, options.lines()):
        printer.show(one)
    if following:
        _follow(run, wanted, options, printer, logs)
    return printer.any


def _no_previous(run: Run, wanted: LogSelection) -> str:
    """The error text if no selected replica was restarted: the last run with an earlier attempt, if there is one."""
    for other in reversed(kept_runs(run)):
        pods = chosen(other.folder, wanted)
        if found := previous(files(other.folder, pods, wanted.container), pods):
            words = " ".join((run.word, *wanted.replicas))
            return (
                f"{run.key} has no previous attempt in this run, but {found[0].label} has one in another run: "
                f"`trainwright logs --previous --run {other.folder.name} {words}`"
            )
    return f"{run.key} has no previous attempt: none of these replicas was restarted in any of its kept runs"


def _warn_without_times(run: Run, logs: list[LogFile], options: LogOptions) -> None:
    asked = options.since is not None or options.timestamps
    if asked and any(one.size for one in logs) and not any(log_segments.has_times(one.path) for one in logs):
        whole = "; files that were written to after the time of --since are printed as a whole" * bool(options.since)
        text = f"an earlier version wrote the logs of run {run.folder.name}, without the times of lines{whole}"
        click.echo(text, err=True)


def _say_nothing_printed(run: Run, options: LogOptions) -> None:
    if limits := options.limits():
        click.echo(f"no line of {run.key} {limits}", err=True)


def _up_to_last_line(one: LogFile) -> LogFile:
    """The log without an unfinished last line. The follower prints that line when it is complete."""
    size = log_segments.end_of_lines(one.path, one.inode, one.size)
    return msgspec.structs.replace(one, size=size)


def _follow(run: Run, wanted: LogSelection, options: LogOptions, printer: Printer, logs: list[LogFile]) -> None:
    """Print new lines until the run ends."""
    followed: Tail[LogFile] = Tail()
    lines = options.lines()

    def show(found: list[tuple[LogFile, str]]) -> None:
        for file, text in found:
            data = text.encode() + b"\n"
            if lines.matches(data):
                printer.show(LogPiece(file, Piece(time.time_ns(), data)))

    for one in logs:
        followed.add(one.path, one, inode=one.inode, offset=one.size)
    for poll in _polls(run):
        if poll % _POLLS_PER_SCAN == 0:
            for one in files(run.folder, chosen(run.folder, wanted), wanted.container):
                followed.add(one.path, one)
        show(followed.poll(time.monotonic()))
        sys.stdout.flush()
    show(followed.drain(time.monotonic()))


def _polls(run: Run) -> Iterator[int]:
    poll = 0
    alive = True
    while alive:
        if poll % _POLLS_PER_SCAN == 0:
            now = latest(home(), run.key)
            alive = now is not None and is_open(now) and now.folder == run.folder
        yield poll
        poll += 1
        time.sleep(_POLL_SECONDS * alive)
