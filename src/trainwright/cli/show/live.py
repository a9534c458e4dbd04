# SPDX-License-Identifier: Apache-2.0
"""The view for people at a terminal: the logs of all replicas scroll above a table of jobs and replicas.

The table has a line per job and a row per replica. If the screen is too small, the table shows the replicas that need
attention and the number of the other replicas. The view draws at most eight times a second and only after a change.
It collects log lines until it draws the next time.
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
from trainwright.cli.show.news import OVER, EventNews, Frame, JobEnding, JobNews, Line, News, ReplicaNews
from trainwright.cli.show.streams import news_line, progress
from trainwright.cli.show.text import coloured, prefix, summary
from trainwright.cli.show.text import line as clean
from trainwright.cli.show.writer import BackgroundWriter, WriterView
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
#: Maximum number of jobs with their own line in the table.
_MAX_JOBS = 4
#: The table has at least this many rows, even on a small screen.
_MIN_ROWS = 3


class TableInput(Struct, frozen=True):
    """What the table shows in addition to the jobs and replicas."""

    now: Time
    elapsed: float
    runtime: str


class TablePainter:
    """Draws the table as lines of terminal text, with rich."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, highlight=False, legacy_windows=False)

    @property
    def colour(self) -> bool:
        """Whether the terminal shows colours and the user wants colours."""
        return self._console.color_system is not None and not self._console.no_color

    def paint(self, frame: Frame, given: TableInput, width: int, height: int) -> list[str]:
        """The lines of the table. They fit the width of the screen and take about half of its height."""
        jobs = frame.jobs()
        rows = frame.pick(max(height // 2 - min(len(jobs), _MAX_JOBS) - 3, _MIN_ROWS))
        with self._console.capture() as captured:
            for text in _job_lines(jobs, given):
                self._print(text, width)
            self._print(_table(rows, given.now), width)
            if len(rows) < frame.count():
                self._print(_hidden_replicas(jobs, rows, frame.count()), width)
        return [line.rstrip() for line in captured.get().splitlines()]

    def _print(self, what: Table | Text, width: int) -> None:
        self._console.print(what, width=max(width, 20), no_wrap=True, overflow="ellipsis", crop=True)


def _job_lines(jobs: tuple[JobNews, ...], given: TableInput) -> Iterator[Text]:
    for place, job in enumerate(jobs[:_MAX_JOBS]):
        text = Text.assemble((job.key.name, "bold"), "  ", (job.phase, _STYLES.get(job.phase, "")), "  ", progress(job))
        text.append(f"  {age(job.took)}" + f"  {given.runtime}" * (not place), "dim")
        yield text
    if len(jobs) > _MAX_JOBS:
        phases = Counter(job.phase.lower() for job in jobs[_MAX_JOBS:])
        yield Text(f"… and {len(jobs) - _MAX_JOBS} more jobs: {_counted(phases)}", "dim")


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


def _hidden_replicas(jobs: tuple[JobNews, ...], rows: tuple[ReplicaNews, ...], count: int) -> Text:
    """A text about hidden replicas, for example `… and 900 more: 890 running, 10 succeeded`."""
    hidden: Counter[str] = Counter()
    for job in jobs:
        hidden.update(job.counts)
    hidden.subtract(Counter(one.phase for one in rows))
    lower = Counter({phase.lower(): number for phase, number in hidden.items() if number > 0})
    return Text(f"… and {count - len(rows)} more: {_counted(lower)}", "dim")


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {phase}" for phase, number in sorted(numbers.items(), key=lambda one: -one[1]))


_DRAW_INTERVAL_SECONDS = 0.125
#: Maximum number of log lines that wait for the next drawing.
_MAX_PENDING_LINES = 2000


class LiveView(WriterView):
    """Scrolling logs above a table."""

    def __init__(
        self, writer: BackgroundWriter, fd: int, table_input: Callable[[], TableInput], *, with_logs: bool = True
    ) -> None:
        super().__init__(writer, with_logs=with_logs)
        self._fd = fd
        self._table_input = table_input
        self._painter = TablePainter()
        self._pending: list[str] = []
        self._shown: list[str] = []
        self._width = 0
        self._painted = -1.0
        self._second = -1
        self._dirty = True

    @property
    def busy(self) -> bool:
        """Whether much output waits to be shown."""
        return self._writer.busy or len(self._pending) > _MAX_PENDING_LINES

    @property
    def gone(self) -> bool:
        """Whether the terminal is closed."""
        return self._writer.error is not None

    def news(self, items: list[News]) -> None:
        """Draw the table again later; also write warnings and new phases of jobs above the table."""
        self._dirty = True
        for one in items:
            if isinstance(one, JobNews | EventNews) and (text := news_line(one)):
                self._pending.append(self._dim(f"· {text}"))

    def logs(self, lines: list[Line]) -> None:
        """Write log lines above the table when the view draws the next time."""
        if self._with_logs:
            colour = self._painter.colour
            tidy = coloured if colour else clean
            self._pending += [f"{prefix(source.label, colour=colour)} {tidy(text)}" for source, text in lines]

    def notice(self, text: str) -> None:
        """Write a notice above the table."""
        self._pending.append(self._dim(f"· notice: {clean(text)}"))

    def tick(self, frame: Frame) -> None:
        """Draw if something has changed, but not too often."""
        given = self._table_input()
        is_due = self._pending or self._dirty or int(given.elapsed) != self._second
        if is_due and given.elapsed - self._painted >= _DRAW_INTERVAL_SECONDS and self._writer.idle:
            self._paint(frame, given)

    def end(self, endings: list[JobEnding], folder: str) -> None:
        """Replace the table by the summary."""
        text = "\n".join(summary(endings, folder))
        self._writer.write(self._erase(self._size()[0]) + _joined(self._pending) + text + "\n")
        self._pending, self._shown = [], []

    def _paint(self, frame: Frame, given: TableInput) -> None:
        width, height = self._size()
        lines = self._painter.paint(frame, given, width - 1, height)
        self._painted, self._second, self._dirty = given.elapsed, int(given.elapsed), False
        if not self._pending and lines == self._shown:
            return
        self._writer.write(self._erase(width) + _joined(self._pending) + _joined(lines))
        self._pending, self._shown, self._width = [], lines, width

    def _erase(self, width: int) -> str:
        """Move the cursor to the first row of the table and clear the screen from there.

        If the screen has become narrower, the terminal has wrapped long lines, so the table takes more rows.
        """
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


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
