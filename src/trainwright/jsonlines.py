# SPDX-License-Identifier: Apache-2.0
"""JSON objects in a stream of bytes, one per line, and the version check between two of our processes.

All our sockets and the watches of API servers use this framing. Each protocol has a number: the side that connects
sends its number first, and the other side refuses a different number. Raise the number with every change of
`sockets.protocol` or `supervisor.protocol` that an older version would misunderstand.

The supervisor imports this module, so this module uses only the standard library. Other code may encode with msgspec.
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
        """Whether a line has begun, but its line break has not arrived."""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Add data and return the complete lines. Raises LineTooLongError if the incomplete line is too long."""
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
    """Return one message as a line that ends with a line break."""
    return _encode(message).encode() + END


def decode(line: bytes) -> dict[str, Any]:
    """Return the object that a line contains. Raises ValueError if the line is not a JSON object."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ValueError(f"a line is not JSON: {error}.") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, found {type(message).__name__}.")
    return message


#: The protocol between clients (commands, agents) and the socket of an engine.
ENGINE_PROTOCOL = 1
#: The protocol between an agent or `trainwright exec` and a supervisor.
SUPERVISOR_PROTOCOL = 1


class Hello(TypedDict):
    """The first message: the number of the protocol, and the version of Trainwright for error messages."""

    protocol: int
    version: str


def hello(protocol: int) -> Hello:
    """Return the first message that this process sends."""
    return {"protocol": protocol, "version": __version__}


def mismatch(message: Mapping[str, Any], protocol: int, other: str, this: str) -> str | None:
    """Return why the two processes cannot communicate; None if they can. The text calls them `other` and `this`.

    `message` is the Hello of the other process, or the first message of an old version that sends no Hello.
    """
    number = message.get("protocol")
    if number == protocol and type(number) is int:
        return None
    theirs = f"version {message.get('version')} (protocol {number})" if number is not None else "an older version"
    return (
        f"{other} is of {theirs}, {this} of version {__version__} (protocol {protocol}); "
        "both must come from the same version of trainwright"
    )
