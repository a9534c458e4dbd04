# SPDX-License-Identifier: Apache-2.0
"""What `server`, `client` and `portal` agree on: lines of JSON on a private Unix socket. The standard library only.

    {"id": 1, "verb": "get", "resource": "pods", "namespace": "a", "name": "b"}    →  {"id": 1, "result": {…}}
                                                                        or  →  {"id": 1, "error": {"reason", "message"}}
    {"id": 2, "verb": "watch", "resource": "pods", "since": "7"}  →  {"id": 2, "changes": [["ADDED", "8", {…}], …]} …
    {"id": 3, "verb": "stop", "watch": 2}                         →  {"id": 3, "result": null}, and no more of 2

Requests on one connection are answered as they are done; a watch ends with an error or with its connection.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.errors import API_ERRORS, ApiError, EngineError, TrainwrightError

#: What the address of a Unix socket may be long, with its final zero: 108 on Linux, 104 elsewhere.
_LONGEST = 103
_SELF = "/proc/self/fd"


class Lines:
    """Cuts a stream of bytes into lines, however it comes in."""

    def __init__(self, most: int = 1 << 30) -> None:
        self._parts: list[bytes] = []
        self._size, self._most = 0, most

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now; EngineError if one is too long to be meant."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > self._most:
            raise EngineError(f"a message of more than {self._most:,} bytes")
        return lines


def failure(error: TrainwrightError) -> dict[str, Any]:
    """An error as it is sent."""
    if not isinstance(error, ApiError):
        return {"reason": ApiError.reason, "message": str(error)}
    told: dict[str, Any] = {"reason": error.reason, "message": str(error)}
    return told if error.retry_after is None else {**told, "retryAfter": error.retry_after}


def raised(told: dict[str, Any]) -> ApiError:
    """An error as it was sent."""
    kind = API_ERRORS.get(str(told.get("reason")), ApiError)
    return kind(str(told.get("message", "no reason given")), retry_after=told.get("retryAfter"))


def connect(path: Path) -> socket.socket:
    """A connection to the socket at that path; OSError if nobody listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def short(path: Path) -> Iterator[str]:
    """The path as a socket address can hold it: through a descriptor of its folder where it is too long itself."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
    elif Path(_SELF).is_dir():
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{_SELF}/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:
        import tempfile  # noqa: PLC0415 - 5 ms that no command on Linux should pay

        with tempfile.TemporaryDirectory() as place:
            link = Path(place, "s")
            link.symlink_to(path.parent.absolute())
            yield str(link / path.name)
