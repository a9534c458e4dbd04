# SPDX-License-Identifier: Apache-2.0
"""A simulation as text: the assumptions, the timeline, and the result with budgets and times."""

from collections.abc import Iterable, Iterator

import click

from trainwright.cli.simulate.timeline import EntryKind, Timeline
from trainwright.cli.simulate.words import budget_lines, clock

_COLOURS = {
    EntryKind.FAULT: "red",
    EntryKind.RESTART: "yellow",
    EntryKind.BUDGET: "yellow",
    EntryKind.PHASE: "cyan",
    EntryKind.END: "green",
}


def as_text(timeline: Timeline) -> str:
    """Everything for people."""
    return "\n".join([*_head(timeline), "", *_entries(timeline), "", *_result(timeline)]) + "\n"


def _head(timeline: Timeline) -> Iterator[str]:
    name = f"{timeline.kind} {timeline.namespace}/{timeline.name}"
    yield click.style(name, bold=True) + f"  ({timeline.file})"
    for role in timeline.roles:
        takes = f"run for {clock(role.duration)}" if role.duration is not None else "run until they are ended"
        yield f"  {role.name}: {role.replicas} replica{'s' * (role.replicas != 1)}, programs {takes}"
    yield f"  {timeline.nodes} node{'s' * (timeline.nodes != 1)}; a pod starts in {clock(timeline.start_time)}"


def _entries(timeline: Timeline) -> Iterator[str]:
    times = [clock(entry.at) for entry in timeline.timeline]
    width = max(map(len, times))
    before = ""
    for time, entry in zip(times, timeline.timeline, strict=True):
        what = click.style(f"{entry.what:<9}", fg=_COLOURS.get(entry.what))
        yield f"  {(time if time != before else '').rjust(width)}  {what}  {' '.join(entry.text.split())}"
        before = time


def _result(timeline: Timeline) -> Iterator[str]:
    end, time = timeline.end, timeline.time
    if end is not None:
        message, *because = (" ".join(text.split()) for text in end.reasons)
        yield from _labelled("Result", [f"{end.phase} after {clock(end.at)}: {message}"])
        yield from _labelled("Because", because)
        yield from _labelled("Action", [end.verdict.action] * bool(end.verdict.action))
    yield from _labelled("Budgets", budget_lines(timeline.budgets))
    lost = ", ".join(f"{why} {clock(seconds)}" for why, seconds in time.lost.items() if seconds)
    share = f" ({100 * time.goodput:.1f} %)" if time.goodput is not None else ""
    parts = f"{clock(time.wall)}, of which {clock(time.productive)} productive{share}"
    yield from _labelled("Time", [parts + (f"; lost: {lost}" if lost else "")])
    yield from _labelled("Notes", timeline.notes)


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines with a label before the first of them."""
    for number, line in enumerate(lines):
        yield f"  {' ' * 9 if number else click.style(f'{label:<9}', bold=True)}{line}"
