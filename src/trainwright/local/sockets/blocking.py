# SPDX-License-Identifier: Apache-2.0
"""The blocking client of an engine's socket, for commands.

The import of this module must be fast, and an import of the types of `runtime` takes longer than most commands run. So
a resource is given by its ID (for example `pods`), and an object by a tuple (namespace, name).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
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
)
from trainwright.unix_sockets import connect

if TYPE_CHECKING:
    from trainwright.local.sockets.protocol import Body, ListResult, ObjectRequest, Reply

Key = tuple[str, str]


class BlockingClient:
    """A connection to the engine that listens at `path`. Methods raise UnavailableError if there is no answer.

    The constructor raises EngineError if the engine has another version.
    """

    def __init__(self, path: Path, *, timeout: float | None = 30) -> None:
        self._path, self._number = path, HELLO_ID
        self._lines, self._received = LineSplitter(MAX_ANSWER_BYTES), deque[bytes]()
        try:
            self._socket = connect(path)
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        self._socket.settimeout(timeout)
        self._timeout = timeout
        try:
            check_hello(self._exchange(HELLO, hello(ENGINE_PROTOCOL)), path)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Call any verb of the socket, including the engine's own verbs. Fields that are None are not sent."""
        reply = self._exchange(verb, {name: value for name, value in request.items() if value is not None})
        if "error" in reply:
            raise api_error(reply["error"])
        return reply.get("result")

    def call_slow(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Call a verb whose answer can take long, because pods get their grace periods: wait without a time limit."""
        self._socket.settimeout(None)
        try:
            return self.call(verb, request)
        finally:
            self._socket.settimeout(self._timeout)

    def list(self, resource: str, **scope: str) -> tuple[list[Body], str]:
        """The objects of a scope (`namespace`, `labels`, `fields`), and the version of the list."""
        page: ListResult = self.call("list", {"resource": resource, **scope})
        return page["items"], page["version"]

    def get(self, resource: str, key: Key) -> Body:
        """One object."""
        return cast("Body", self.call("get", _object(resource, key)))

    def patch(self, resource: str, key: Key, body: Body, **options: Any) -> Body:
        """Merge-patch an object. `status=True` patches only its status. A given `uid` or `version` must match."""
        return cast("Body", self.call("patch", {**_object(resource, key), "body": body, **options}))

    def delete(self, resource: str, key: Key, **options: Any) -> Body | None:
        """Delete an object. Options: `uid`, `grace`, `propagation`. Returns the object if it still exists."""
        return cast("Body | None", self.call("delete", {**_object(resource, key), **options}))

    def _exchange(self, verb: str, request: Mapping[str, Any]) -> Reply:
        """Send a request and wait for its reply. Ignore late replies to earlier calls that stopped waiting."""
        number, self._number = self._number, self._number + 1
        try:
            self._socket.sendall(encode({"id": number, "verb": verb, **request}))
            while (reply := self._receive())["id"] not in (number, None):
                pass
        except TimeoutError:
            message = f"the engine at {self._path} does not answer; is its process stopped (Ctrl-Z)?"
            raise UnavailableError(message) from None
        except (OSError, LineTooLongError) as error:
            raise UnavailableError(f"the connection to the engine at {self._path} is gone: {error}") from None
        return reply

    def _receive(self) -> Reply:
        while not self._received:
            data = self._socket.recv(CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("the engine has closed it")
            self._received.extend(self._lines.feed(data))
        return cast("Reply", decode(self._received.popleft()))


def _object(resource: str, key: Key) -> ObjectRequest:
    return {"resource": resource, "namespace": key[0], "name": key[1]}
