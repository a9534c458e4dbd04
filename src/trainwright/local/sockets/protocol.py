# SPDX-License-Identifier: Apache-2.0
"""The messages on the socket of an engine, which are lines of JSON.

    {"id": 0, "verb": "hello", "protocol": 1, "version": "…"}    →  {"id": 0, "result": {"protocol": 1, "version": "…"}}
    {"id": 1, "verb": "get", "resource": "pods", "namespace": "a", "name": "b"}    →  {"id": 1, "result": {…}}
                                                                        or  →  {"id": 1, "error": {"reason", "message"}}
    {"id": 2, "verb": "watch", "resource": "pods", "since": "7"}  →  {"id": 2, "changes": [["ADDED", "8", {…}], …]} …
    {"id": 3, "verb": "stop", "watch": 2}                         →  {"id": 3, "result": null}; no more replies to 2

The first request of a connection is `hello`. The server sends an answer as soon as its request is done, so
answers can have another order than requests. A watch ends by an error, by `stop` or with its connection. Every change
of the messages, except a new optional field, needs a new number ENGINE_PROTOCOL. This module imports no large package,
so that commands start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from trainwright.errors import API_ERRORS, ApiError, EngineError, NotFoundError, TrainwrightError
from trainwright.jsonlines import ENGINE_PROTOCOL, mismatch

#: The verb of the first request of every connection, and the id of this request.
HELLO, HELLO_ID = "hello", 0
#: The maximum number of bytes of one read, and the maximum length of an engine's answer in bytes.
CHUNK_BYTES, MAX_ANSWER_BYTES = 1 << 18, 1 << 30


def check_hello(reply: Reply, path: Path) -> None:
    """Check the answer to `hello`. Raises EngineError if the engine has another version."""
    error = reply.get("error")
    if error is None:
        problem = mismatch(reply.get("result") or {}, ENGINE_PROTOCOL, f"the engine at {path}", "this process")
    elif error["reason"] == NotFoundError.reason:  # an older engine does not know `hello`
        problem = mismatch({}, ENGINE_PROTOCOL, f"the engine at {path}", "this process")
    else:
        problem = error["message"]
    if problem is not None:
        raise EngineError(problem)


def error_body(error: TrainwrightError) -> ErrorBody:
    """The error as a part of a message."""
    if not isinstance(error, ApiError):
        return {"reason": ApiError.reason, "message": str(error)}
    body: ErrorBody = {"reason": error.reason, "message": str(error)}
    if error.retry_after is not None:
        body["retryAfter"] = error.retry_after
    return body


def api_error(body: ErrorBody) -> ApiError:
    """The error from a message."""
    kind = API_ERRORS.get(body["reason"], ApiError)
    return kind(body["message"], retry_after=body.get("retryAfter"))


Body = dict[str, Any]
#: The type (ADDED, MODIFIED, DELETED, BOOKMARK), the version, and the object after the change.
Change = tuple[str, str, Body | None]
Propagation = Literal["Background", "Foreground", "Orphan"]

# -- requests; each also has an `id` and a `verb` ---------------------------------------------------------------------


class ScopeRequest(TypedDict):
    """Selects objects of a resource."""

    resource: str
    namespace: NotRequired[str]
    labels: NotRequired[str]
    fields: NotRequired[str]


class ListRequest(ScopeRequest):
    """`list`: the objects of the scope."""

    notOlderThan: NotRequired[str]


class WatchRequest(ScopeRequest):
    """`watch`: without a version, the watch begins with the existing objects."""

    since: NotRequired[str]


class StopRequest(TypedDict):
    """`stop`: end the watch whose request had the id `watch`."""

    watch: int


class ObjectRequest(TypedDict):
    """`get`: one object."""

    resource: str
    namespace: NotRequired[str]
    name: str


class CreateRequest(TypedDict):
    """`create`: a new object."""

    resource: str
    body: Body


class PatchRequest(ObjectRequest):
    """`patch`: a merge patch. If a UID or a version is given, the object must have it."""

    body: Body
    uid: NotRequired[str]
    version: NotRequired[str]
    #: Whether to patch only the status.
    status: NotRequired[bool]


class DeleteRequest(ObjectRequest):
    """`delete`: `grace` is in seconds."""

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
    """`heartbeat`: an agent in its own process sends its node, its process ID and its supervisor's process ID.

    The ID of the supervisor is 0 before the agent has one. `start` is the supervisor's start time, see `tree`.
    """

    node: str
    pid: int
    supervisor: int
    start: NotRequired[str]


class MetricsRequest(TypedDict):
    """`metrics`: the engine's metrics, as text."""


# -- answers ----------------------------------------------------------------------------------------------------------


class ListResult(TypedDict):
    """The result of `list`."""

    items: list[Body]
    version: str


class ErrorBody(TypedDict):
    """An error: a reason as in Kubernetes, a sentence, and the seconds after which the client can retry."""

    reason: str
    message: str
    retryAfter: NotRequired[float]


class Reply(TypedDict):
    """Any message of the engine. `id` is None if the engine could not read the request."""

    id: int | None
    result: NotRequired[Any]
    error: NotRequired[ErrorBody]
    changes: NotRequired[list[Change]]
