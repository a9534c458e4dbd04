# SPDX-License-Identifier: Apache-2.0
"""Why a run is to end, and how urgently: signals, `--timeout`, or that there is nothing more to come.

`session` waits for it. The first signal ends the job in good order, the second at once; a third is Python's own.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from trainwright.cli.run.verdict import End

_SIGNALS = {signal.SIGINT: End.INTERRUPTED, signal.SIGTERM: End.TERMINATED, signal.SIGHUP: End.HUNG_UP}


class Ends:
    """The first reason counts."""

    def __init__(self) -> None:
        self.why: End | None = None
        #: What to tell of it, where the reason alone does not.
        self.text = ""
        self.over = asyncio.Event()
        #: No more patience.
        self.hurry = asyncio.Event()
        #: `nohup` has the run ignore SIGHUP, so that it outlives its terminal.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._answered = [number for number in _SIGNALS if not (ignored and number is signal.SIGHUP)]

    def end(self, why: End, text: str = "") -> None:
        """The run is to end."""
        if self.why is None:
            self.why, self.text = why, text
        self.over.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals."""
        loop = asyncio.get_running_loop()
        for number in self._answered:
            loop.add_signal_handler(number, self._signalled, _SIGNALS[number])
        try:
            yield
        finally:
            self._release()

    def _signalled(self, why: End) -> None:
        if self.why is None:
            self.end(why)
        else:
            self.hurry.set()
            self._release()

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._answered:
            loop.remove_signal_handler(number)
