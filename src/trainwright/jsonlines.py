# SPDX-License-Identifier: Apache-2.0
"""JSON objects on a stream of bytes, one object per line: the framing of every socket of ours, and of API watches.

The supervisor imports this module, so it uses the standard library only. Code that has msgspec may encode and decode
the objects with it; the lines are the same.

How two processes of ours find out that they come from different versions of Trainwright.

Each protocol has a number. Raise it with every change of `sockets.protocol` or `supervisor.protocol` that the other
side would misunderstand. The side that connects says its number first; the other side refuses a different one. The
supervisor imports this module, so it uses the standard library only.
"""

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from trainwright import __version__

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


#: Between clients (commands, agents) and the socket of an engine.
ENGINE_PROTOCOL = 1
#: Between an agent, or `trainwright exec`, and a supervisor.
SUPERVISOR_PROTOCOL = 1


class Hello(TypedDict):
    """What a process says of itself: the number of the protocol, and its version of Trainwright, for people."""

    protocol: int
    version: str


def hello(protocol: int) -> Hello:
    """What this process says of itself."""
    return {"protocol": protocol, "version": __version__}


def mismatch(said: Mapping[str, Any], protocol: int, other: str, this: str) -> str | None:
    """Why the two cannot talk, or None if they can. `other` and `this` name the two processes in the text.

    `said` is the other side's Hello, or any message of a version that did not know of it yet.
    """
    number = said.get("protocol")
    if number == protocol and type(number) is int:
        return None
    theirs = f"version {said.get('version')} (protocol {number})" if number is not None else "an older version"
    return (
        f"{other} is of {theirs}, {this} of version {__version__} (protocol {protocol}); "
        "both must come from the same version of trainwright"
    )
