# SPDX-License-Identifier: Apache-2.0
"""Fits text into a terminal. In a pipe or file, nothing is changed, so that each line stays whole."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator

#: A narrower terminal is treated as if it had this many columns.
_LEAST_WIDTH = 60


def wrapped(lines: Iterable[str], width: int | None = None) -> Iterator[str]:
    """Lines of prose. In a terminal, a long line is continued on the next one, indented. `width` is for tests."""
    width = _terminal_width() if width is None else width
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if not width or len(line) <= width:
            yield line
        else:
            later = f"{indent}    "
            yield from textwrap.wrap(
                line.lstrip(),
                width,
                initial_indent=indent,
                subsequent_indent=later,
                break_long_words=False,
                break_on_hyphens=False,
            )


def cut(lines: Iterable[str], width: int | None = None) -> Iterator[str]:
    """Lines of a table. In a terminal, a long line is cut, so that the columns stay readable. `width` is for tests."""
    width = _terminal_width() if width is None else width
    return (line if not width or len(line) <= width else f"{line[: width - 1]}…" for line in lines)


def _terminal_width() -> int:
    """The columns of the terminal; 0: the output is no terminal."""
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else 0
