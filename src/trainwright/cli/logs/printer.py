# SPDX-License-Identifier: Apache-2.0
"""Print lines of logs: with the names of the replicas, or byte for byte."""

import os
import sys
from datetime import UTC, datetime

from msgspec import Struct

from trainwright.cli.logs.merge import LogPiece
from trainwright.cli.show.text import coloured, prefix
from trainwright.cli.show.text import line as clean


class Style(Struct, frozen=True):
    """How to print lines. Without names, and if the output is not a terminal, lines are printed byte for byte."""

    names: bool
    timestamps: bool = False
    #: The id of the run, if several runs are printed.
    run: str = ""


class Printer:
    """Writes lines to the standard output."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._terminal = sys.stdout.isatty()
        self._colour = self._terminal and not os.environ.get("NO_COLOR")
        self._attempt = 0
        #: Whether a line was printed.
        self.any = False

    def show(self, one: LogPiece) -> None:
        """Print the lines. If necessary, print a heading with the run or the attempt before its first line."""
        if self._style.run and not self.any:
            sys.stdout.write(f"==> run {self._style.run} <==\n")
        self.any = True
        if self._style.names or self._terminal:
            self._show_text(one)
            return
        stamp = f"{_spell(one)} ".encode() if self._style.timestamps else b""
        data = b"".join(stamp + line for line in one.piece.lines()) if stamp else one.piece.data
        sys.stdout.buffer.write(data)

    def _show_text(self, one: LogPiece) -> None:
        if not self._style.names and one.file.attempt != self._attempt:
            self._attempt = one.file.attempt
            sys.stdout.write(f"==> {one.file.name} <==\n")
        head = f"{prefix(one.file.name, colour=bool(self._colour))} " if self._style.names else ""
        if self._style.timestamps:
            head += f"{_spell(one)} "
        tidy = coloured if self._colour else clean
        lines = one.piece.data.removesuffix(b"\n").decode(errors="replace").split("\n")
        sys.stdout.write("".join(f"{head}{tidy(line.rstrip(chr(13)))}\n" for line in lines))


def _spell(one: LogPiece) -> str:
    """The time in UTC with milliseconds, which is the precision of the marks; `-` if it is not known."""
    if not one.piece.exact:
        return "-"
    seconds, rest = divmod(one.piece.time, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03}Z"
