# SPDX-License-Identifier: Apache-2.0
"""The format of the operator's log: one line per record on stderr, as `key=value` or as JSON, with a rate limit.

If the API server does not answer, thousands of passes fail with the same text. The filter drops most of these lines.
The next line with the same text contains the number of dropped lines.
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

#: Records with the same text: the filter writes the first `_BURST`, then at most one per `_PERIOD_SECONDS`.
_BURST, _PERIOD_SECONDS = 10, 10.0
_JSON = msgspec.json.Encoder()
#: Types of values that are written to JSON without conversion to text.
_JSON_TYPES = (str, int, float)


class _FieldFormatter(logging.Formatter):
    """Splits a record into fields."""

    def fields(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        """Time, level, text, the fields of the message, and the number of dropped lines."""
        yield "time", time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        yield "level", record.levelname.lower()
        message = record.msg
        if isinstance(message, LogMessage):
            yield "msg", message.text
            yield from message.about.items()
        else:
            yield "msg", record.getMessage()
        if dropped := getattr(record, "dropped", 0):
            yield "held_back", dropped


class LogfmtFormatter(_FieldFormatter):
    """The logfmt format: `key=value`. If there is a traceback, its lines follow the line of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = " ".join(f"{key}={quoted(value)}" for key, value in self.fields(record))
        return line + ("\n" + _traceback(record) if record.exc_info else "")


class JsonFormatter(_FieldFormatter):
    """One JSON object per line. If there is a traceback, the object contains it."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        fields = {key: value if isinstance(value, _JSON_TYPES) else str(value) for key, value in self.fields(record)}
        fields["logger"] = record.name
        if record.exc_info:
            fields["traceback"] = _traceback(record)
        return _JSON.encode(fields).decode()


class RateLimitFilter(logging.Filter):
    """Limits the rate of records with the same text, for warnings and higher levels."""

    def __init__(self) -> None:
        super().__init__()
        #: By text: a time. Each written record adds one period to this time. If the sum would be in the future, the
        #: record is dropped. A time that is more than `_BURST` periods ago is first moved to `_BURST` periods ago.
        #: `_dropped` counts the dropped records by text.
        self._next: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this record. Records below a warning are always written."""
        if record.levelno < logging.WARNING:
            return True
        text = record.msg.text if isinstance(record.msg, LogMessage) else str(record.msg)
        next_ = max(self._next.get(text, -inf), record.created - _BURST * _PERIOD_SECONDS) + _PERIOD_SECONDS
        if next_ > record.created:
            self._dropped[text] = self._dropped.get(text, 0) + 1
            return False
        self._next[text] = next_
        record.dropped = self._dropped.pop(text, 0)
        return True


def configure_logging(log_format: str, level: int) -> None:
    """Write logs to stderr in this format: our records from `level` on, but only warnings and errors of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LogfmtFormatter())
    handler.addFilter(RateLimitFilter())
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, level), force=True)
    logging.raiseExceptions = False  # no traceback if a record cannot be written (full disk)
    logging.getLogger("trainwright").setLevel(level)


def _traceback(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""
