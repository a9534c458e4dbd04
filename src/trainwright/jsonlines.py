# SPDX-License-Identifier: Apache-2.0
"""JSON objects on a stream of bytes, one object per line: the framing of every socket of ours, and of API watches.

The supervisor imports this module, so it uses the standard library only. Code that has msgspec may encode and decode
the objects with it; the lines are the same.
"""

import json
from collections.abc import Mapping
from typing import Any

#: The end of every message. JSON has no raw line break inside a value.
END = b"\n"

_encode = json.JSONEncoder(separators=(",", ":")).encode


class LineTooLongError(ValueError):
    """A line has more bytes than the reader accepts."""


class LineSplitter:
    """Splits a stream of bytes into lines. A line may arrive in any number of pieces."""

    def __init__(self, longest: int) -> None:
        self._parts: list[bytes] = []
        self._size, self._longest = 0, longest

    @property
    def partial(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends. Raises LineTooLongError for one that does not end."""
        *lines, rest = data.split(END)
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > self._longest:
            raise LineTooLongError(f"a message of more than {self._longest:,} bytes")
        return lines


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line, with its end."""
    return _encode(message).encode() + END


def decode(line: bytes) -> dict[str, Any]:
    """The object of one line. Raises ValueError with a sentence."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ValueError(f"a line is not JSON: {error}.") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, found {type(message).__name__}.")
    return message
