# SPDX-License-Identifier: Apache-2.0
"""The engine's socket for the command line: blocking, and quick to import. `protocol` has the messages.

Resources go by their id (`pods`), objects by (namespace, name), both as plain values: what `runtime` knows of them
takes longer to import than most commands run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from trainwright.errors import UnavailableError
from trainwright.jsonlines import ENGINE_PROTOCOL, LineSplitter, LineTooLongError, decode, encode, hello
from trainwright.local.sockets.protocol import CHUNK, HELLO, HELLO_ID, LONGEST_ANSWER, connect, raised, welcomed

if TYPE_CHECKING:
    from trainwright.local.sockets.protocol import Body, CreateRequest, ListResult, ObjectRequest, Reply

Key = tuple[str, str]


class BlockingClient:
    """A connection to the engine that listens at that path; UnavailableError when there is none, or no more.

    Raises EngineError if the engine is of another version.
    """

    def __init__(self, path: Path, *, timeout: float | None = 30) -> None:
        self._path, self._number = path, 0
        self._link = _Link(path, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def call(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Any verb of the socket, the engine's own too; `protocol` has the requests. What is None is not said."""
        self._number += 1
        self._link.send(self._number, verb, request)
        while (answer := self._link.receive())["id"] not in (self._number, None):
            pass  # What an earlier call did not wait for.
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
        """Make an object."""
        request: CreateRequest = {"resource": resource, "body": body}
        made: Body = self.call("create", request)
        return made

    def patch(self, resource: str, key: Key, body: Body, **says: Any) -> Body:
        """Merge-patch an object; `status=True`: its status alone; `uid`, `version`: only if it is still that one."""
        changed: Body = self.call("patch", {**_object(resource, key), "body": body, **says})
        return changed

    def delete(self, resource: str, key: Key, **says: Any) -> Body | None:
        """Delete an object (`uid`, `grace`, `propagation`); what is left of it if it lingers."""
        left: Body | None = self.call("delete", {**_object(resource, key), **says})
        return left

    def watch(
        self, resource: str, *, since: str = "", timeout: float | None = None, **scope: str
    ) -> Iterator[tuple[str, str, Body]]:
        """What happens, as (what, version, object), on a connection of its own; with no version, what there is first.

        It goes on until the engine ends, or nothing has come for so many seconds: UnavailableError.
        """
        link = _Link(self._path, timeout)
        try:
            link.send(1, "watch", {"resource": resource, "since": since, **scope})
            while True:
                for what, version, body in _checked(link.receive())["changes"]:
                    if body is not None:
                        yield what, version, body
        finally:
            link.close()


def _object(resource: str, key: Key) -> ObjectRequest:
    return {"resource": resource, "namespace": key[0], "name": key[1]}


def _checked(reply: Reply) -> Reply:
    """A reply that is no error; one that is, is raised."""
    if "error" in reply:
        raise raised(reply["error"])
    return reply


class _Link:
    """One connection."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        self._path, self._lines, self._ready = path, LineSplitter(LONGEST_ANSWER), deque[bytes]()
        try:
            self._socket = connect(path)
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        self._socket.settimeout(timeout)
        try:
            self.send(HELLO_ID, HELLO, hello(ENGINE_PROTOCOL))
            welcomed(self.receive(), path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def send(self, number: int, verb: str, request: Mapping[str, Any]) -> None:
        """Ask for something."""
        said = {name: value for name, value in request.items() if value is not None}
        try:
            self._socket.sendall(encode({"id": number, "verb": verb, **said}))
        except OSError as error:
            raise self._gone(error) from None

    def receive(self) -> Reply:
        """The next reply."""
        while not self._ready:
            self._ready.extend(self._read())
        return cast("Reply", decode(self._ready.popleft()))

    def _read(self) -> list[bytes]:
        try:
            data = self._socket.recv(CHUNK)
            if not data:
                raise ConnectionResetError("it has ended")
            return self._lines.feed(data)
        except (OSError, LineTooLongError) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError(f"the engine at {self._path} does not answer; is its process stopped (Ctrl-Z)?")
        return UnavailableError(f"the connection to the engine at {self._path} is gone: {error}")
