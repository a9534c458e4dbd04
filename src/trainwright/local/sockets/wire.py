# SPDX-License-Identifier: Apache-2.0
"""What `server`, `client` and `portal` share: connecting, errors, and the version of the other side.

It uses the standard library only, so that commands that ask an engine start quickly.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import API_ERRORS, ApiError, EngineError, NotFoundError, TrainwrightError
from trainwright.local.handshake import ENGINE_PROTOCOL, mismatch

if TYPE_CHECKING:
    from trainwright.local.sockets.protocol import ErrorBody, Reply

#: The verb that every connection begins with, and the id of that request.
HELLO, HELLO_ID = "hello", 0
#: Bytes of one read, and of one answer of an engine.
CHUNK, LONGEST_ANSWER = 1 << 18, 1 << 30

#: What the address of a Unix socket may be long, with its final zero: 108 on Linux, 104 elsewhere.
_LONGEST = 103
_SELF = "/proc/self/fd"


def welcomed(reply: Reply, path: Path) -> None:
    """Check the answer to `hello`; EngineError if the engine is of another version."""
    error = reply.get("error")
    if error is None:
        problem = mismatch(reply.get("result") or {}, ENGINE_PROTOCOL, f"the engine at {path}", "this process")
    elif error["reason"] == NotFoundError.reason:  # an engine that does not know the verb
        problem = mismatch({}, ENGINE_PROTOCOL, f"the engine at {path}", "this process")
    else:
        problem = error["message"]
    if problem is not None:
        raise EngineError(problem)


def failure(error: TrainwrightError) -> ErrorBody:
    """An error as it is sent."""
    if not isinstance(error, ApiError):
        return {"reason": ApiError.reason, "message": str(error)}
    told: ErrorBody = {"reason": error.reason, "message": str(error)}
    if error.retry_after is not None:
        told["retryAfter"] = error.retry_after
    return told


def raised(told: ErrorBody) -> ApiError:
    """An error as it was sent."""
    kind = API_ERRORS.get(told["reason"], ApiError)
    return kind(told["message"], retry_after=told.get("retryAfter"))


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
