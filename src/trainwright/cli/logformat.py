# SPDX-License-Identifier: Apache-2.0
"""The operator's log: one line per record on stderr, as `key=value` or as JSON, and no floods. `cli.operator` opens it.

A server that is away makes thousands of passes fail alike. After some lines of one text the rest are held back, and the
next line that is let through says how many there were.
"""

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from math import inf
from typing import Any

import msgspec

from trainwright.runtime.telemetry import LogMessage, quoted

#: So many warnings of one text are let through at once, and one more every so many seconds.
_BURST, _EVERY = 10, 10.0
_JSON = msgspec.json.Encoder()
#: What JSON has as well.
_KEPT = (str, int, float)


class _Fields(logging.Formatter):
    """The parts of a line, in order."""

    def fields(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        """Time, level, text, what it is about, and how many others there were."""
        yield "time", time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        yield "level", record.levelname.lower()
        line = record.msg
        if isinstance(line, LogMessage):
            yield "msg", line.text
            yield from line.about.items()
        else:
            yield "msg", record.getMessage()
        if held := getattr(record, "held", 0):
            yield "held_back", held


class LogfmtFormatter(_Fields):
    """`key=value`, as logfmt has it; a traceback follows in lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = " ".join(f"{key}={quoted(value)}" for key, value in self.fields(record))
        return line + ("\n" + _traceback(record) if record.exc_info else "")


class JsonFormatter(_Fields):
    """An object a line, a traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        fields = {key: value if isinstance(value, _KEPT) else str(value) for key, value in self.fields(record)}
        fields["logger"] = record.name
        if record.exc_info:
            fields["traceback"] = _traceback(record)
        return _JSON.encode(fields).decode()


class RateLimitFilter(logging.Filter):
    """Lets through what is new, and of what repeats itself a little."""

    def __init__(self) -> None:
        super().__init__()
        #: By text: since when there is room, and how many were held back.
        self._room: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is written; only warnings and worse are ever held back."""
        if record.levelno < logging.WARNING:
            return True
        text = record.msg.text if isinstance(record.msg, LogMessage) else str(record.msg)
        room = max(self._room.get(text, -inf), record.created - _BURST * _EVERY) + _EVERY
        if room > record.created:
            self._held[text] = self._held.get(text, 0) + 1
            return False
        self._room[text] = room
        record.held = self._held.pop(text, 0)
        return True


def open_journal(form: str, level: int) -> None:
    """From here on, everything that is logged goes to stderr so. Other libraries are heard from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    handler.addFilter(RateLimitFilter())
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, level), force=True)
    logging.raiseExceptions = False  # a full disk is no reason to stop
    logging.getLogger("trainwright").setLevel(level)


def _traceback(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""
