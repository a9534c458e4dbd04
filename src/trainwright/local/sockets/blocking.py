# SPDX-License-Identifier: Apache-2.0
"""The blocking client of an engine's socket, for commands.

It must be quick to import. Resources are therefore given by their ID (`pods`) and objects by (namespace, name): to
import the types of `runtime` takes longer than most commands run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from trainwright.errors import UnavailableError
from trainwright.jsonlines import ENGINE_PROTOCOL, LineSplitter, LineTooLongError, decode, encode, hello
from trainwright.local.sockets.protocol import (
    CHUNK_BYTES,
    HELLO,
    HELLO_ID,
    MAX_ANSWER_BYTES,
    api_error,
    check_hello,
    connect,
)

if TYPE_CHECKING:
    from trainwright.local.sockets.protocol import Body, CreateRequest, ListResult, ObjectRequest, Reply

Key = tuple[str, str]


class BlockingClient:
    """A connection to the engine that listens at that path. All methods raise UnavailableError if it does not answer.

    The constructor raises EngineError if the engine has another version.
    """

    def __init__(self, path: Path, *, timeout: float | None = 30) -> None:
        self._path, self._number = path, 0
        self._connection = _BlockingConnection(path, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Call any verb of the socket, including the engine's own; fields of the request that are None are left out."""
        self._number += 1
        self._connection.send(self._number, verb, request)
        while (answer := self._connection.receive())["id"] not in (self._number, None):
            pass  # The answer to an earlier call that did not wait for it.
        return _checked(answer).get("result")

    def list(self, resource: str, **scope: str) -> tuple[list[Body], str]:
        """The objects of a scope (`namespace`, `labels`, `fields`), and their version."""
        page: ListResult = self.call("list", {"resource": resource, **scope})
        return page["items"], page["version"]

    def get(self, resource: str, key: Key) -> Body:
        """One object."""
        found: Body = self.call("get", _object(resource, key))
        return found

    def create(self, resource: str, body: Body) -> Body:
        """Create an object."""
        request: CreateRequest = {"resource": resource, "body": body}
        made: Body = self.call("create", request)
        return made

    def patch(self, resource: str, key: Key, body: Body, **options: Any) -> Body:
        """Merge-patch an object. `status=True` patches only its status; `uid` and `version` must match if given."""
        changed: Body = self.call("patch", {**_object(resource, key), "body": body, **options})
        return changed

    def delete(self, resource: str, key: Key, **options: Any) -> Body | None:
        """Delete an object (`uid`, `grace`, `propagation`); returns it if a grace period or a finalizer keeps it."""
        remaining: Body | None = self.call("delete", {**_object(resource, key), **options})
        return remaining

    def watch(
        self, resource: str, *, since: str = "", timeout: float | None = None, **scope: str
    ) -> Iterator[tuple[str, str, Body]]:
        """The events as (type, version, object), on a separate connection; without `since` the existing objects first.

        Raises UnavailableError when the engine ends, or when no event has come for `timeout` seconds.
        """
        connection = _BlockingConnection(self._path, timeout)
        try:
            connection.send(1, "watch", {"resource": resource, "since": since, **scope})
            while True:
                for kind, version, body in _checked(connection.receive())["changes"]:
                    if body is not None:
                        yield kind, version, body
        finally:
            connection.close()


def _object(resource: str, key: Key) -> ObjectRequest:
    return {"resource": resource, "namespace": key[0], "name": key[1]}


def _checked(reply: Reply) -> Reply:
    """The reply; raises its error."""
    if "error" in reply:
        raise api_error(reply["error"])
    return reply


class _BlockingConnection:
    """One connection."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        self._path, self._lines, self._received = path, LineSplitter(MAX_ANSWER_BYTES), deque[bytes]()
        try:
            self._socket = connect(path)
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        self._socket.settimeout(timeout)
        try:
            self.send(HELLO_ID, HELLO, hello(ENGINE_PROTOCOL))
            check_hello(self.receive(), path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, number: int, verb: str, request: Mapping[str, Any]) -> None:
        """Send a request."""
        fields = {name: value for name, value in request.items() if value is not None}
        try:
            self._socket.sendall(encode({"id": number, "verb": verb, **fields}))
        except OSError as error:
            raise self._lost_error(error) from None

    def receive(self) -> Reply:
        """Wait for the next reply and return it."""
        while not self._received:
            self._received.extend(self._read())
        return cast("Reply", decode(self._received.popleft()))

    def _read(self) -> list[bytes]:
        try:
            data = self._socket.recv(CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("the engine has closed it")
            return self._lines.feed(data)
        except (OSError, LineTooLongError) as error:
            raise self._lost_error(error) from None

    def _lost_error(self, error: Exception) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError(f"the engine at {self._path} does not answer; is its process stopped (Ctrl-Z)?")
        return UnavailableError(f"the connection to the engine at {self._path} is gone: {error}")
