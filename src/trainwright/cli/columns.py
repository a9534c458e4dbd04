# SPDX-License-Identifier: Apache-2.0
"""Text in columns, as `kubectl get` prints it. Called by `get`."""

from collections.abc import Iterator, Sequence


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; the last column is as wide as it likes."""
    every = [head, *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(head) - 1)]
    for row in every:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        yield "   ".join([*cells, row[-1]]).rstrip()
