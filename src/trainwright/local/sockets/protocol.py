# SPDX-License-Identifier: Apache-2.0
"""What `server`, `client` and `blocking` share: connecting, errors, and the version of the other side.

It uses the standard library only, so that commands that ask an engine start quickly.

The messages on the socket of an engine: lines of JSON. `server` answers; `client` and `blocking` ask.

    {"id": 0, "verb": "hello", "protocol": 1, "version": "…"}    →  {"id": 0, "result": {"protocol": 1, "version": "…"}}
    {"id": 1, "verb": "get", "resource": "pods", "namespace": "a", "name": "b"}    →  {"id": 1, "result": {…}}
                                                                        or  →  {"id": 1, "error": {"reason", "message"}}
    {"id": 2, "verb": "watch", "resource": "pods", "since": "7"}  →  {"id": 2, "changes": [["ADDED", "8", {…}], …]} …
    {"id": 3, "verb": "stop", "watch": 2}                         →  {"id": 3, "result": null}, and no more of 2

The first line of a connection is `hello`; see `handshake`. Requests on one connection are answered as they are done; a
watch ends with an error or with its connection. A new field that may be left out needs no new ENGINE_PROTOCOL; any
other change does.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from trainwright.errors import API_ERRORS, ApiError, EngineError, NotFoundError, TrainwrightError
from trainwright.jsonlines import ENGINE_PROTOCOL, mismatch

if TYPE_CHECKING:
    pass

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


Body = dict[str, Any]
#: What happened (ADDED, MODIFIED, DELETED, BOOKMARK), the version, and the object as it then was.
Change = tuple[str, str, Body | None]
Propagation = Literal["Background", "Foreground", "Orphan"]

# -- requests, each with an `id` and a `verb` besides -----------------------------------------------------------------


class HelloRequest(TypedDict):
    """`hello`: the version of whoever connects."""

    protocol: int
    version: str


class ScopeRequest(TypedDict):
    """Some objects of a resource."""

    resource: str
    namespace: NotRequired[str]
    labels: NotRequired[str]
    fields: NotRequired[str]


class ListRequest(ScopeRequest):
    """`list`."""

    notOlderThan: NotRequired[str]


class WatchRequest(ScopeRequest):
    """`watch`: without a version it begins with what there is."""

    since: NotRequired[str]


class StopRequest(TypedDict):
    """`stop`: end the watch whose request had that id."""

    watch: int


class ObjectRequest(TypedDict):
    """`get`: one object."""

    resource: str
    namespace: NotRequired[str]
    name: str


class CreateRequest(TypedDict):
    """`create`."""

    resource: str
    body: Body


class PatchRequest(ObjectRequest):
    """`patch`: merge, only if the object still has that UID and version, where they are given."""

    body: Body
    uid: NotRequired[str]
    version: NotRequired[str]
    #: The status alone.
    status: NotRequired[bool]


class DeleteRequest(ObjectRequest):
    """`delete`; `grace` is in seconds."""

    uid: NotRequired[str]
    grace: NotRequired[int | None]
    propagation: NotRequired[Propagation]


class BindRequest(TypedDict):
    """`bind`: put a pod on a node."""

    namespace: NotRequired[str]
    name: str
    node: str
    uid: NotRequired[str]
    version: NotRequired[str]


class HeartbeatRequest(TypedDict):
    """`heartbeat`: what an agent in a process of its own says of itself: its node, its process, its supervisor's."""

    node: str
    pid: int
    supervisor: int


class MetricsRequest(TypedDict):
    """`metrics`: the engine's metrics, as text."""


# -- answers ----------------------------------------------------------------------------------------------------------


class ListResult(TypedDict):
    """The result of `list`."""

    items: list[Body]
    version: str


class ErrorBody(TypedDict):
    """An error: Kubernetes' word for it, a sentence, and the seconds after which to ask again."""

    reason: str
    message: str
    retryAfter: NotRequired[float]


class Reply(TypedDict):
    """Anything that the engine says. `id` is None where the request could not be read."""

    id: int | None
    result: NotRequired[Any]
    error: NotRequired[ErrorBody]
    changes: NotRequired[list[Change]]
