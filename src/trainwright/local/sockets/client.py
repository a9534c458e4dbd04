# SPDX-License-Identifier: Apache-2.0
"""The asyncio client of an engine's socket: a `Cluster` for node agents that run in their own processes.

All calls share one connection, which the first call opens. When the connection breaks, every waiting call and every
watch raises UnavailableError; the next call connects again.
"""

import asyncio
from asyncio import Future, Queue, StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from trainwright.errors import ApiError, GoneError, UnavailableError
from trainwright.jsonlines import END, ENGINE_PROTOCOL, LineSplitter, LineTooLongError, hello
from trainwright.local.sockets import protocol
from trainwright.local.sockets.protocol import (
    CHUNK_BYTES,
    HELLO,
    HELLO_ID,
    MAX_ANSWER_BYTES,
    api_error,
    check_hello,
)
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import (
    EVERYTHING,
    PODS,
    ListPage,
    Propagation,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
)
from trainwright.unix_sockets import connect

#: Maximum number of batches that wait for the reader of a watch. If more batches wait, the reader must list again.
_MAX_QUEUED_BATCHES = 1024
_Batches = Queue[list[protocol.Change] | ApiError]
_decode_reply = msgspec.json.Decoder(protocol.Reply).decode


class RemoteCluster:
    """A `Cluster` that uses the engine's socket at `path`."""

    def __init__(self, path: Path) -> None:
        self._path, self._opening = path, asyncio.Lock()
        self._connection: _AsyncConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. A later call opens a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def call(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Call any verb of the socket, including the engine's own verbs; `protocol` defines the requests."""
        return await (await self._connected()).ask(verb, request)

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """The objects in the scope, at least as new as the version `not_older_than`."""
        request: protocol.ListRequest = {**_scope(resource, scope), "notOlderThan": not_older_than}
        page: protocol.ListResult = await self.call("list", request)
        return ListPage(tuple([resource.decode(item) for item in page["items"]]), page["version"])

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """The events after the version `since`, in batches."""
        connection = await self._connected()
        number, batches = connection.subscribe({**_scope(resource, scope), "since": since})
        try:
            while True:
                batch = await batches.get()
                if isinstance(batch, ApiError):
                    raise batch
                yield tuple([_watch_event(resource, *change) for change in batch])
        finally:
            connection.unsubscribe(number)

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object."""
        return resource.decode(await self.call("get", _object(resource, key)))

    async def create(self, resource: Resource, body: Body) -> Any:
        """Create an object."""
        request: protocol.CreateRequest = {"resource": resource.id, "body": body}
        return resource.decode(await self.call("create", request))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Merge-patch an object, or its status alone."""
        request: protocol.PatchRequest = {
            **_object(resource, key),
            "body": body,
            "uid": uid,
            "version": version,
            "status": status,
        }
        return resource.decode(await self.call("patch", request))

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Replace the status of an object."""
        request: protocol.CreateRequest = {"resource": resource.id, "body": document}
        return resource.decode(await self.call("replaceStatus", request))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> Any:
        """Delete an object. Returns the object if it still exists because of a grace period or a finalizer."""
        request: protocol.DeleteRequest = {
            **_object(resource, key),
            "uid": uid,
            "grace": grace,
            "propagation": propagation.value,
        }
        remaining = await self.call("delete", request)
        return None if remaining is None else resource.decode(remaining)

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Put a pod on a node."""
        request: protocol.BindRequest = {"namespace": key.namespace, "name": key.name, "node": node}
        return PODS.decode(await self.call("bind", {**request, "uid": uid, "version": version}))

    async def _connected(self) -> "_AsyncConnection":
        async with self._opening:
            if self._connection is None or self._connection.lost:
                self._connection = await _AsyncConnection.open(self._path)
            return self._connection


def _scope(resource: Resource, scope: Selection) -> protocol.ScopeRequest:
    return {"resource": resource.id, "namespace": scope.namespace, "labels": scope.labels, "fields": scope.fields}


def _object(resource: Resource, key: Key) -> protocol.ObjectRequest:
    return {"resource": resource.id, "namespace": key.namespace, "name": key.name}


def _watch_event(resource: Resource, kind: str, version: str, item: Body | None) -> WatchEvent:
    return WatchEvent(WatchEventType(kind), version, None if item is None else resource.decode(item))


class _AsyncConnection:
    """One connection, with the calls and watches that wait for answers."""

    def __init__(self, path: Path, reader: StreamReader, writer: StreamWriter) -> None:
        self._path, self._writer, self.lost = path, writer, False
        self._numbers = count(1)
        self._answers: dict[int, Future[protocol.Reply]] = {}
        self._watches: dict[int, _Batches] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Connect and compare versions. UnavailableError: no engine listens; EngineError: the versions differ."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connect(path))
        except OSError as error:
            raise UnavailableError(f"no engine answers at {path}: {error.strerror or error}") from None
        connection = cls(path, reader, writer)
        try:
            check_hello(await connection._exchange(HELLO_ID, HELLO, hello(ENGINE_PROTOCOL)), path)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Send a request and return its result."""
        reply = await self._exchange(next(self._numbers), verb, request)
        if "error" in reply:
            raise api_error(reply["error"])
        return reply.get("result")

    async def _exchange(self, number: int, verb: str, request: Mapping[str, Any]) -> protocol.Reply:
        answer: Future[protocol.Reply] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._send(number, verb, request)
            return await answer
        finally:
            del self._answers[number]

    def subscribe(self, request: protocol.WatchRequest) -> tuple[int, _Batches]:
        """Begin a watch; returns its number and the queue of its batches."""
        number = next(self._numbers)
        batches = self._watches[number] = Queue()
        self._send(number, "watch", request)
        return number, batches

    def unsubscribe(self, number: int) -> None:
        """End a watch."""
        if self._watches.pop(number, None) is not None and not self.lost:
            stop: protocol.StopRequest = {"watch": number}
            self._send(next(self._numbers), "stop", stop)

    def _send(self, number: int, verb: str, request: Mapping[str, Any]) -> None:
        if self.lost:
            raise self._lost_error()
        self._writer.write(msgspec.json.encode({"id": number, "verb": verb, **request}) + END)

    async def _read(self, reader: StreamReader) -> None:
        lines = LineSplitter(MAX_ANSWER_BYTES)
        try:
            while data := await reader.read(CHUNK_BYTES):
                for line in lines.feed(data):
                    self._deliver(_decode_reply(line))
        except (OSError, LineTooLongError, msgspec.DecodeError):
            pass  # After such an error the connection cannot be used.
        finally:
            self._set_lost()

    def _deliver(self, reply: protocol.Reply) -> None:
        number = reply["id"]
        if number is None:
            return
        batches, answer = self._watches.get(number), self._answers.get(number)
        if batches is not None:
            self._queue_batch(number, batches, reply)
        elif answer is not None and not answer.done():
            answer.set_result(reply)

    def _queue_batch(self, number: int, batches: _Batches, reply: protocol.Reply) -> None:
        if "error" in reply:
            batches.put_nowait(api_error(reply["error"]))
        elif "changes" not in reply:
            batches.put_nowait(ApiError("the watch has ended"))
        elif batches.qsize() < _MAX_QUEUED_BATCHES:
            batches.put_nowait(reply["changes"])
        else:
            self.unsubscribe(number)
            batches.put_nowait(GoneError("the watch fell behind what is remembered; list again"))

    def _set_lost(self) -> None:
        self.lost = True
        self._writer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost_error())
        for batches in self._watches.values():
            batches.put_nowait(self._lost_error())

    def _lost_error(self) -> UnavailableError:
        return UnavailableError(f"the connection to the engine at {self._path} is gone")
