# SPDX-License-Identifier: Apache-2.0
"""A `Cluster` in another process: the engine's socket, spoken by node agents that are processes of their own.

One connection carries everything, and is made when it is needed. When it breaks, all that waits for an answer gets
UnavailableError, and so does every watch; the next call connects again.
"""

import asyncio
from asyncio import Future, Queue, StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from trainwright.errors import ApiError, EngineError, GoneError, UnavailableError
from trainwright.local.sockets.wire import Lines, connect, raised
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import EVERYTHING, Change, Happened, Page, Propagation, Resource, Scope
from trainwright.runtime.resources import PODS

_CHUNK = 1 << 18
#: So many batches may wait for a reader; one that is further behind must list again.
_BEHIND = 1024
_Batches = Queue[list[Any] | ApiError]


class RemoteCluster:
    """The `Cluster` behind the socket at that path."""

    def __init__(self, path: Path) -> None:
        self._path, self._opening = path, asyncio.Lock()
        self._link: _Link | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; a later call would make a new one."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def call(self, verb: str, **says: Any) -> Any:
        """Any verb of the socket, the engine's own too."""
        return await (await self._connected()).ask({"verb": verb, **says})

    async def list(self, resource: Resource, scope: Scope = EVERYTHING, *, not_older_than: str = "") -> Page:
        """Everything in the scope, at least as new as that version."""
        page = await self.call("list", **_about(resource, scope), notOlderThan=not_older_than)
        return Page(tuple([resource.decode(item) for item in page["items"]]), page["version"])

    async def watch(
        self, resource: Resource, scope: Scope = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[Change, ...], None]:
        """What happened after that version, in batches."""
        link = await self._connected()
        number, batches = link.subscribe({"verb": "watch", **_about(resource, scope), "since": since})
        try:
            while True:
                batch = await batches.get()
                if isinstance(batch, ApiError):
                    raise batch
                yield tuple([_change(resource, *told) for told in batch])
        finally:
            link.unsubscribe(number)

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        return resource.decode(await self.call("get", **_on(resource, key)))

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object."""
        return resource.decode(await self.call("create", resource=resource.id, body=body))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        says = {"body": body, "uid": uid, "version": version, "status": status}
        return resource.decode(await self.call("patch", **_on(resource, key), **says))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        """Delete an object."""
        left = await self.call("delete", **_on(resource, key), uid=uid, grace=grace, propagation=propagation)
        return None if left is None else resource.decode(left)

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Put a pod on a node."""
        return PODS.decode(await self.call("bind", **_on(PODS, key), node=node, uid=uid, version=version))

    async def _connected(self) -> "_Link":
        async with self._opening:
            if self._link is None or self._link.lost:
                self._link = await _Link.open(self._path)
            return self._link


def _about(resource: Resource, scope: Scope) -> dict[str, str]:
    return {"resource": resource.id, "namespace": scope.namespace, "labels": scope.labels, "fields": scope.fields}


def _on(resource: Resource, key: Key) -> dict[str, str]:
    return {"resource": resource.id, "namespace": key.namespace, "name": key.name}


def _change(resource: Resource, what: str, version: str, item: Body | None) -> Change:
    return Change(Happened(what), version, None if item is None else resource.decode(item))


class _Link:
    """One connection: who waits for which answer."""

    def __init__(self, path: Path, reader: StreamReader, writer: StreamWriter) -> None:
        self._path, self._writer, self.lost = path, writer, False
        self._numbers = count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._watches: dict[int, _Batches] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Connect; UnavailableError if nobody listens."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connect(path))
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        return cls(path, reader, writer)

    async def close(self) -> None:
        """Let go of everything."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, request: dict[str, Any]) -> Any:
        """One answer."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, request)
            return await answer
        finally:
            del self._answers[number]

    def subscribe(self, request: dict[str, Any]) -> tuple[int, _Batches]:
        """A stream of answers, and its number."""
        number = next(self._numbers)
        batches = self._watches[number] = Queue()
        self._send(number, request)
        return number, batches

    def unsubscribe(self, number: int) -> None:
        """No more of those."""
        if self._watches.pop(number, None) is not None and not self.lost:
            self._send(next(self._numbers), {"verb": "stop", "watch": number})

    def _send(self, number: int, request: dict[str, Any]) -> None:
        if self.lost:
            raise self._gone()
        self._writer.write(msgspec.json.encode({"id": number, **request}) + b"\n")

    async def _read(self, reader: StreamReader) -> None:
        lines = Lines()
        try:
            while data := await reader.read(_CHUNK):
                for line in lines.feed(data):
                    self._deliver(msgspec.json.decode(line))
        except (OSError, EngineError, msgspec.DecodeError):
            pass  # Whatever is wrong with it, there is nothing more to be had from this connection.
        finally:
            self._lose()

    def _deliver(self, message: dict[str, Any]) -> None:
        number = message["id"]
        batches, answer = self._watches.get(number), self._answers.get(number)
        if batches is not None:
            self._stream(number, batches, message)
        elif answer is not None and not answer.done():
            if "error" in message:
                answer.set_exception(raised(message["error"]))
            else:
                answer.set_result(message.get("result"))

    def _stream(self, number: int, batches: _Batches, message: dict[str, Any]) -> None:
        if "changes" not in message:
            batches.put_nowait(raised(message.get("error") or {"message": "the watch has ended"}))
        elif batches.qsize() < _BEHIND:
            batches.put_nowait(message["changes"])
        else:
            self.unsubscribe(number)
            batches.put_nowait(GoneError("the watch fell behind what is remembered; list again"))

    def _lose(self) -> None:
        self.lost = True
        self._writer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone())
        for batches in self._watches.values():
            batches.put_nowait(self._gone())

    def _gone(self) -> UnavailableError:
        return UnavailableError(f"the connection to the engine at {self._path} is gone")
