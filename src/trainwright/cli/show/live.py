# SPDX-License-Identifier: Apache-2.0
"""The table that stands below the log of a live run, as lines of terminal text. `live` paints it; rich draws it.

A job's line first, then a row per replica; of more than fit only those that need a look, and how many there are more.

A run for people at a terminal: the merged log scrolls, and below it stands the table of replicas (`table`).

Painted at most eight times a second, in one piece, and only when something changed; logs wait for the next painting.
"""

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainwright.cli.flags import age
from trainwright.cli.show.news import OVER, EventNews, Frame, JobNews, JobVerdict, Line, News, ReplicaNews
from trainwright.cli.show.streams import progress, told
from trainwright.cli.show.text import coloured, prefix, summary
from trainwright.cli.show.text import line as clean
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.model.child import BACKING_OFF
from trainwright.model.units import Time, parse_time

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


class TableInput(Struct, frozen=True):
    """What the table shows besides the board."""

    now: Time
    elapsed: float
    runtime: str


class TablePainter:
    """Renders frames for a screen of a given size."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, highlight=False, legacy_windows=False)

    @property
    def colour(self) -> bool:
        """Whether the terminal shows colours and the user wants them."""
        return self._console.color_system is not None and not self._console.no_color

    def paint(self, frame: Frame, parse_time: TableInput, width: int, height: int) -> list[str]:
        """The lines, none wider than the screen; they take about half of it."""
        jobs = frame.jobs()
        room = max(height // 2 - min(len(jobs), _JOBS) - 3, _LEAST)
        rows = frame.pick(room)
        with self._console.capture() as captured:
            for text in _heads(jobs, parse_time):
                self._print(text, width)
            self._print(_table(rows, parse_time.now), width)
            if len(rows) < frame.count():
                self._print(_rest(jobs, rows, frame.count()), width)
        return [line.rstrip() for line in captured.get().splitlines()]

    def _print(self, what: Table | Text, width: int) -> None:
        self._console.print(what, width=max(width, 20), no_wrap=True, overflow="ellipsis", crop=True)


def _heads(jobs: tuple[JobNews, ...], parse_time: TableInput) -> Iterator[Text]:
    for place, job in enumerate(jobs[:_JOBS]):
        text = Text.assemble((job.key.name, "bold"), "  ", (job.phase, _STYLES.get(job.phase, "")), "  ", progress(job))
        text.append(f"  {age(job.took)}" + f"  {parse_time.runtime}" * (not place), "dim")
        yield text
    if len(jobs) > _JOBS:
        phases = Counter(job.phase.lower() for job in jobs[_JOBS:])
        yield Text(f"… and {len(jobs) - _JOBS} more jobs: {_counted(phases)}", "dim")


def _table(rows: tuple[ReplicaNews, ...], now: Time) -> Table:
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


def _age(one: ReplicaNews, now: Time) -> str:
    since = parse_time(one.since) if one.since and one.phase not in OVER else None
    return age((now - since).total_seconds()) if since is not None else ""


def _rest(jobs: tuple[JobNews, ...], rows: tuple[ReplicaNews, ...], count: int) -> Text:
    """`… and 900 more: 890 running, 10 succeeded`."""
    hidden: Counter[str] = Counter()
    for job in jobs:
        hidden.update(job.counts)
    hidden.subtract(Counter(one.phase for one in rows))
    lower = Counter({phase.lower(): number for phase, number in hidden.items() if number > 0})
    return Text(f"… and {count - len(rows)} more: {_counted(lower)}", "dim")


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(numbers.items(), key=lambda one: -one[1]))


#: Seconds between two paintings.
_BETWEEN = 0.125
#: Log lines that may wait for the next painting.
_PENDING = 2000


class LiveView:
    """The view."""

    def __init__(
        self, pen: BackgroundWriter, fd: int, parse_time: Callable[[], TableInput], *, with_logs: bool = True
    ) -> None:
        self._pen = pen
        self._fd = fd
        self._moment = parse_time
        self._with_logs = with_logs
        self._painter = TablePainter()
        self._pending: list[str] = []
        self._shown: list[str] = []
        self._width = 0
        self._painted = -1.0
        self._second = -1
        self._dirty = True

    @property
    def busy(self) -> bool:
        """The screen has enough to show."""
        return self._pen.busy or len(self._pending) > _PENDING

    @property
    def gone(self) -> bool:
        """There is no terminal any more."""
        return self._pen.error is not None

    def news(self, items: list[News]) -> None:
        """The table will show it; warnings and the job's own phases are kept in the log as well."""
        self._dirty = True
        for one in items:
            if isinstance(one, JobNews | EventNews) and (text := told(one)):
                self._pending.append(self._dim(f"· {text}"))

    def logs(self, lines: list[Line]) -> None:
        """To be written above the table with the next painting."""
        if self._with_logs:
            colour = self._painter.colour
            tidy = coloured if colour else clean
            self._pending += [f"{prefix(source.label, colour=colour)} {tidy(text)}" for source, text in lines]

    def notice(self, text: str) -> None:
        """In the log."""
        self._pending.append(self._dim(f"· notice: {clean(text)}"))

    def tick(self, frame: Frame) -> None:
        """Paint, if there is something new and the last time was long enough ago."""
        parse_time = self._moment()
        due = self._pending or self._dirty or int(parse_time.elapsed) != self._second
        if due and parse_time.elapsed - self._painted >= _BETWEEN and self._pen.idle:
            self._paint(frame, parse_time)

    def end(self, endings: list[JobVerdict], folder: str) -> None:
        """The table makes room for the summary."""
        text = "\n".join(summary(endings, folder))
        self._pen.write(self._erase(self._size()[0]) + _above(self._pending) + text + "\n")
        self._pending, self._shown = [], []

    def close(self, patience: float) -> bool:
        """Write what is left; whether all of it is written."""
        return self._pen.close(patience)

    def _paint(self, frame: Frame, parse_time: TableInput) -> None:
        width, height = self._size()
        lines = self._painter.paint(frame, parse_time, width - 1, height)
        self._painted, self._second, self._dirty = parse_time.elapsed, int(parse_time.elapsed), False
        if not self._pending and lines == self._shown:
            return
        self._pen.write(self._erase(width) + _above(self._pending) + _above(lines))
        self._pending, self._shown, self._width = [], lines, width

    def _erase(self, width: int) -> str:
        """Back to where the table begins. A screen that has become narrower has broken its lines."""
        rows = len(self._shown)
        if width < self._width:
            rows = sum(max(-(-cell_len(Text.from_ansi(line).plain) // width), 1) for line in self._shown)
        return f"\r\x1b[{rows}A\x1b[J" if rows else "\r\x1b[J"

    def _size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return width or 80, height or 24

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._painter.colour else text


def _above(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
