# SPDX-License-Identifier: Apache-2.0
"""The engine's socket for the command line: blocking, and quick to import. `wire` has the language.

Resources go by their id (`pods`), objects by (namespace, name), both as plain values: what `runtime` knows of them
takes longer to import than most commands run.
"""

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from trainwright.errors import EngineError, UnavailableError
from trainwright.local.sockets.wire import Lines, connect, raised

Body = dict[str, Any]
Key = tuple[str, str]
_CHUNK = 1 << 18


class Portal:
    """A connection to the engine that listens at that path; UnavailableError when there is none, or no more."""

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

    def call(self, verb: str, **says: Any) -> Any:
        """Any verb of the socket, the engine's own too. What is None is not said."""
        self._number += 1
        self._link.send({"id": self._number, "verb": verb, **says})
        while (answer := self._link.receive())["id"] not in (self._number, None):
            pass  # What an earlier call did not wait for.
        return _checked(answer).get("result")

    def list(self, resource: str, **scope: str) -> tuple[list[Body], str]:
        """The objects of a scope (`namespace`, `labels`, `fields`), and their version."""
        page = self.call("list", resource=resource, **scope)
        return page["items"], page["version"]

    def get(self, resource: str, key: Key) -> Body:
        """One object."""
        found: Body = self.call("get", resource=resource, **_on(key))
        return found

    def create(self, resource: str, body: Body) -> Body:
        """Make an object."""
        made: Body = self.call("create", resource=resource, body=body)
        return made

    def patch(self, resource: str, key: Key, body: Body, **says: Any) -> Body:
        """Merge-patch an object; `status=True`: its status alone; `uid`, `version`: only if it is still that one."""
        changed: Body = self.call("patch", resource=resource, **_on(key), body=body, **says)
        return changed

    def delete(self, resource: str, key: Key, **says: Any) -> Body | None:
        """Delete an object (`uid`, `grace`, `propagation`); what is left of it if it lingers."""
        left: Body | None = self.call("delete", resource=resource, **_on(key), **says)
        return left

    def watch(
        self, resource: str, *, since: str = "", timeout: float | None = None, **scope: str
    ) -> Iterator[tuple[str, str, Body]]:
        """What happens, as (what, version, object), on a connection of its own; with no version, what there is first.

        It goes on until the engine ends, or nothing has come for so many seconds: UnavailableError.
        """
        link = _Link(self._path, timeout)
        try:
            link.send({"id": 1, "verb": "watch", "resource": resource, "since": since, **scope})
            while True:
                for what, version, body in _checked(link.receive())["changes"]:
                    if body is not None:
                        yield what, version, body
        finally:
            link.close()


def _on(key: Key) -> dict[str, str]:
    return {"namespace": key[0], "name": key[1]}


def _checked(message: Body) -> Body:
    """A message that is no error; one that is, is raised."""
    if "error" in message:
        raise raised(message["error"])
    return message


class _Link:
    """One connection."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        self._path, self._lines, self._ready = path, Lines(), deque[bytes]()
        try:
            self._socket = connect(path)
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        self._socket.settimeout(timeout)

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def send(self, message: Body) -> None:
        """Ask for something."""
        said = {name: value for name, value in message.items() if value is not None}
        try:
            self._socket.sendall(json.dumps(said, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise self._gone(error) from None

    def receive(self) -> Body:
        """The next message."""
        while not self._ready:
            self._ready.extend(self._read())
        message: Body = json.loads(self._ready.popleft())
        return message

    def _read(self) -> list[bytes]:
        try:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("it has ended")
            return self._lines.feed(data)
        except (OSError, EngineError) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError(f"the engine at {self._path} does not answer; is its process stopped (Ctrl-Z)?")
        return UnavailableError(f"the connection to the engine at {self._path} is gone: {error}")
