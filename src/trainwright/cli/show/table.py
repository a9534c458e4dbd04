# SPDX-License-Identifier: Apache-2.0
"""The table that stands below the log of a live run, as lines of terminal text. `live` paints it; rich draws it.

A job's line first, then a row per replica; of more than fit only those that need a look, and how many there are more.
"""

import io
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainwright.cli.duration import age
from trainwright.cli.show.clean import line as clean
from trainwright.cli.show.lines import progress
from trainwright.cli.show.news import OVER, Frame, JobState, Replica
from trainwright.model.child import BACKING_OFF
from trainwright.model.units import Time, moment

_STYLES = {
    "Running": "green",
    "Succeeded": "dim green",
    "Failed": "bold red",
    "Unknown": "red",
    BACKING_OFF: "red",
    "Terminating": "yellow",
    "Pending": "yellow",
    "Paused": "yellow",
    "Starting": "cyan",
    "Waiting": "dim",
    "Stopped": "dim",
}
#: Jobs that have a line of their own.
_JOBS = 4
#: Rows that the table has at least, however low the screen.
_LEAST = 3


class Moment(Struct, frozen=True):
    """What the table shows besides the board."""

    now: Time
    elapsed: float
    runtime: str


class Painter:
    """Renders frames for a screen of a given size."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, highlight=False, legacy_windows=False)

    @property
    def colour(self) -> bool:
        """Whether the terminal shows colours and the user wants them."""
        return self._console.color_system is not None and not self._console.no_color

    def paint(self, frame: Frame, moment: Moment, width: int, height: int) -> list[str]:
        """The lines, none wider than the screen; they take about half of it."""
        jobs = frame.jobs()
        room = max(height // 2 - min(len(jobs), _JOBS) - 3, _LEAST)
        rows = frame.pick(room)
        with self._console.capture() as captured:
            for text in _heads(jobs, moment):
                self._print(text, width)
            self._print(_table(rows, moment.now), width)
            if len(rows) < frame.count():
                self._print(_rest(jobs, rows, frame.count()), width)
        return [line.rstrip() for line in captured.get().splitlines()]

    def _print(self, what: Table | Text, width: int) -> None:
        self._console.print(what, width=max(width, 20), no_wrap=True, overflow="ellipsis", crop=True)


def _heads(jobs: tuple[JobState, ...], moment: Moment) -> Iterator[Text]:
    for place, job in enumerate(jobs[:_JOBS]):
        text = Text.assemble((job.key.name, "bold"), "  ", (job.phase, _STYLES.get(job.phase, "")), "  ", progress(job))
        text.append(f"  {age(job.took)}" + f"  {moment.runtime}" * (not place), "dim")
        yield text
    if len(jobs) > _JOBS:
        phases = Counter(job.phase.lower() for job in jobs[_JOBS:])
        yield Text(f"… and {len(jobs) - _JOBS} more jobs: {_counted(phases)}", "dim")


def _table(rows: tuple[Replica, ...], now: Time) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("REPLICA", "PHASE", "NODE"):
        table.add_column(name, no_wrap=True)
    for name in ("RESTARTS", "AGE"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("REASON", no_wrap=True, overflow="ellipsis")
    for one in rows:
        restarts = Text(str(one.restarts), "yellow" if one.restarts else "dim")
        phase = Text(one.phase, _STYLES.get(one.phase, ""))
        table.add_row(Text(one.label), phase, Text(one.node), restarts, _age(one, now), Text(clean(one.reason), "dim"))
    return table


def _age(one: Replica, now: Time) -> str:
    since = moment(one.since) if one.since and one.phase not in OVER else None
    return age((now - since).total_seconds()) if since is not None else ""


def _rest(jobs: tuple[JobState, ...], rows: tuple[Replica, ...], count: int) -> Text:
    """`… and 900 more: 890 running, 10 succeeded`."""
    hidden: Counter[str] = Counter()
    for job in jobs:
        hidden.update(job.counts)
    hidden.subtract(Counter(one.phase for one in rows))
    lower = Counter({phase.lower(): number for phase, number in hidden.items() if number > 0})
    return Text(f"… and {count - len(rows)} more: {_counted(lower)}", "dim")


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(numbers.items(), key=lambda one: -one[1]))
