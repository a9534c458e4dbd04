# SPDX-License-Identifier: Apache-2.0
"""Chooses the view of `trainwright run` and `trainwright attach`: a live table, plain lines, or JSON."""

import os
import time
from collections.abc import Callable

from msgspec import Struct

from trainwright.cli.show.news import RunView
from trainwright.cli.show.streams import JsonView, LinesView
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.model.units import Time

STDOUT = 1


class ViewInput(Struct, frozen=True):
    """What a view shows besides the news. `began` is the time of the start, as `time.monotonic` returned it."""

    now: Callable[[], Time]
    began: float
    runtime: Callable[[], str]
    with_logs: bool = True


def choose_view(writer: BackgroundWriter, form: str, given: ViewInput) -> RunView:
    """The view of this form; `auto` is live on a terminal, otherwise lines."""
    if form == "json":
        return JsonView(writer, given.now, with_logs=given.with_logs)
    terminal = os.isatty(STDOUT) and os.environ.get("TERM") != "dumb"
    if form == "live" or (form == "auto" and terminal):
        from trainwright.cli.show.live import LiveView, TableInput  # noqa: PLC0415 - imports rich, which only this view needs

        def table_input() -> TableInput:
            return TableInput(given.now(), time.monotonic() - given.began, given.runtime())

        return LiveView(writer, STDOUT, table_input, with_logs=given.with_logs)
    return LinesView(writer, lambda: time.monotonic() - given.began, with_logs=given.with_logs)
