# SPDX-License-Identifier: Apache-2.0
"""Shows pulls and loads: bars on a terminal, otherwise one line when an image begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import click

from trainwright.cli.background.size import spell_size
from trainwright.images.progress import ImageProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def shown_progress() -> Iterator[ImageProgress]:
    """What shows the progress of images, one after the other. It writes to standard error."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        yield BarProgress(bars)


class LineProgress:
    """One line for each image that is not complete."""

    def begin(self, image: str, layers: int, missing: int, size: int) -> None:
        """Say what is missing."""
        if missing:
            have = f"{missing} of {layers} layers" if missing < layers else f"{layers} layer{'s' * (layers != 1)}"
            click.echo(f"{image}: {have}, {spell_size(size)}", err=True)

    def downloaded(self, number: int) -> None:
        """Show nothing."""

    def unpacked(self, number: int) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Print the text."""
        click.echo(f"notice: {text}", err=True)


class BarProgress:
    """Two bars for each image: what is downloaded, and what is unpacked."""

    def __init__(self, bars: Progress) -> None:
        self._bars, self._lock = bars, Lock()
        self._download: TaskID | None = None
        self._unpack: TaskID | None = None
        self._done = [0, 0]

    def begin(self, image: str, layers: int, missing: int, size: int) -> None:
        """Begin two new bars."""
        if missing and layers:
            self._done = [0, 0]
            self._download = self._bars.add_task(f"{image}: downloaded", total=size)
            self._unpack = self._bars.add_task(f"{image}: unpacked", total=size)

    def downloaded(self, number: int) -> None:
        """Move the first bar."""
        self._move(0, self._download, number)

    def unpacked(self, number: int) -> None:
        """Move the second bar."""
        self._move(1, self._unpack, number)

    def note(self, text: str) -> None:
        """Print the text above the bars."""
        self._bars.console.print(f"notice: {text}", markup=False, highlight=False)

    def _move(self, which: int, task: TaskID | None, number: int) -> None:
        if task is not None:
            with self._lock:
                self._done[which] += number
                self._bars.update(task, completed=self._done[which])
