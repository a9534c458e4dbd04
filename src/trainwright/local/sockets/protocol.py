# SPDX-License-Identifier: Apache-2.0
"""The messages on the socket of an engine: lines of JSON. `server` answers; `client` and `portal` ask.

    {"id": 0, "verb": "hello", "protocol": 1, "version": "…"}    →  {"id": 0, "result": {"protocol": 1, "version": "…"}}
    {"id": 1, "verb": "get", "resource": "pods", "namespace": "a", "name": "b"}    →  {"id": 1, "result": {…}}
                                                                        or  →  {"id": 1, "error": {"reason", "message"}}
    {"id": 2, "verb": "watch", "resource": "pods", "since": "7"}  →  {"id": 2, "changes": [["ADDED", "8", {…}], …]} …
    {"id": 3, "verb": "stop", "watch": 2}                         →  {"id": 3, "result": null}, and no more of 2

The first line of a connection is `hello`; see `handshake`. Requests on one connection are answered as they are done; a
watch ends with an error or with its connection. A new field that may be left out needs no new ENGINE_PROTOCOL; any
other change does.
"""

from typing import Any, Literal, NotRequired, TypedDict

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
