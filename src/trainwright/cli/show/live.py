# SPDX-License-Identifier: Apache-2.0
"""A run for people at a terminal: the merged log scrolls, and below it stands the table of replicas (`table`).

Painted at most eight times a second, in one piece, and only when something changed; logs wait for the next painting.
"""

import os
from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

from trainwright.cli.show.clean import coloured
from trainwright.cli.show.clean import line as clean
from trainwright.cli.show.colours import prefix
from trainwright.cli.show.lines import told
from trainwright.cli.show.news import Ending, Frame, Happening, JobState, Line, News
from trainwright.cli.show.pen import Pen
from trainwright.cli.show.summary import summary
from trainwright.cli.show.table import Moment, Painter

#: Seconds between two paintings.
_BETWEEN = 0.125
#: Log lines that may wait for the next painting.
_PENDING = 2000


class Live:
    """The view."""

    def __init__(self, pen: Pen, fd: int, moment: Callable[[], Moment], *, with_logs: bool = True) -> None:
        self._pen = pen
        self._fd = fd
        self._moment = moment
        self._with_logs = with_logs
        self._painter = Painter()
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
            if isinstance(one, JobState | Happening) and (text := told(one)):
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
        moment = self._moment()
        due = self._pending or self._dirty or int(moment.elapsed) != self._second
        if due and moment.elapsed - self._painted >= _BETWEEN and self._pen.idle:
            self._paint(frame, moment)

    def end(self, endings: list[Ending], folder: str) -> None:
        """The table makes room for the summary."""
        text = "\n".join(summary(endings, folder))
        self._pen.write(self._erase(self._size()[0]) + _above(self._pending) + text + "\n")
        self._pending, self._shown = [], []

    def close(self, patience: float) -> bool:
        """Write what is left; whether all of it is written."""
        return self._pen.close(patience)

    def _paint(self, frame: Frame, moment: Moment) -> None:
        width, height = self._size()
        lines = self._painter.paint(frame, moment, width - 1, height)
        self._painted, self._second, self._dirty = moment.elapsed, int(moment.elapsed), False
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
