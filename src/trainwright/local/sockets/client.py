# SPDX-License-Identifier: Apache-2.0
"""A `Cluster` in another process: the engine's socket, spoken by node agents that are processes of their own.

One connection carries everything, and is made when it is needed. When it breaks, all that waits for an answer gets
UnavailableError, and so does every watch; the next call connects again.
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
from trainwright.local.sockets.protocol import CHUNK, HELLO, HELLO_ID, LONGEST_ANSWER, connect, raised, welcomed
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

#: So many batches may wait for a reader; one that is further behind must list again.
_BEHIND = 1024
_Batches = Queue[list[protocol.Change] | ApiError]
_reply = msgspec.json.Decoder(protocol.Reply).decode


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

    async def call(self, verb: str, request: Mapping[str, Any]) -> Any:
        """Any verb of the socket, the engine's own too; `protocol` has the requests."""
        return await (await self._connected()).ask(verb, request)

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        """Everything in the scope, at least as new as that version."""
        request: protocol.ListRequest = {**_scope(resource, scope), "notOlderThan": not_older_than}
        page: protocol.ListResult = await self.call("list", request)
        return ListPage(tuple([resource.decode(item) for item in page["items"]]), page["version"])

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        """What happened after that version, in batches."""
        link = await self._connected()
        number, batches = link.subscribe({**_scope(resource, scope), "since": since})
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
        return resource.decode(await self.call("get", _object(resource, key)))

    async def create(self, resource: Resource, body: Body) -> Any:
        """Make an object."""
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
        request: protocol.DeleteRequest = {
            **_object(resource, key),
            "uid": uid,
            "grace": grace,
            "propagation": propagation.value,
        }
        left = await self.call("delete", request)
        return None if left is None else resource.decode(left)

    async def bind(self, key: Key, node: str, *, uid: str = "", version: str = "") -> Any:
        """Put a pod on a node."""
        where: protocol.BindRequest = {"namespace": key.namespace, "name": key.name, "node": node}
        return PODS.decode(await self.call("bind", {**where, "uid": uid, "version": version}))

    async def _connected(self) -> "_Link":
        async with self._opening:
            if self._link is None or self._link.lost:
                self._link = link = await _Link.open(self._path)
                await link.greet()
            return self._link


def _scope(resource: Resource, scope: Selection) -> protocol.ScopeRequest:
    return {"resource": resource.id, "namespace": scope.namespace, "labels": scope.labels, "fields": scope.fields}


def _object(resource: Resource, key: Key) -> protocol.ObjectRequest:
    return {"resource": resource.id, "namespace": key.namespace, "name": key.name}


def _change(resource: Resource, what: str, version: str, item: Body | None) -> WatchEvent:
    return WatchEvent(WatchEventType(what), version, None if item is None else resource.decode(item))


class _Link:
    """One connection: who waits for which answer."""

    def __init__(self, path: Path, reader: StreamReader, writer: StreamWriter) -> None:
        self._path, self._writer, self.lost = path, writer, False
        self._numbers = count(1)
        self._answers: dict[int, Future[protocol.Reply]] = {}
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

    async def greet(self) -> None:
        """Say our version, and check the engine's. Raises EngineError; the connection is closed then."""
        try:
            welcomed(await self._exchange(HELLO_ID, HELLO, hello(ENGINE_PROTOCOL)), self._path)
        except BaseException:
            self._reading.cancel()
            self._lose()
            raise

    async def ask(self, verb: str, request: Mapping[str, Any]) -> Any:
        """One answer."""
        reply = await self._exchange(next(self._numbers), verb, request)
        if "error" in reply:
            raise raised(reply["error"])
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
        """A stream of answers, and its number."""
        number = next(self._numbers)
        batches = self._watches[number] = Queue()
        self._send(number, "watch", request)
        return number, batches

    def unsubscribe(self, number: int) -> None:
        """No more of those."""
        if self._watches.pop(number, None) is not None and not self.lost:
            stop: protocol.StopRequest = {"watch": number}
            self._send(next(self._numbers), "stop", stop)

    def _send(self, number: int, verb: str, request: Mapping[str, Any]) -> None:
        if self.lost:
            raise self._gone()
        self._writer.write(msgspec.json.encode({"id": number, "verb": verb, **request}) + END)

    async def _read(self, reader: StreamReader) -> None:
        lines = LineSplitter(LONGEST_ANSWER)
        try:
            while data := await reader.read(CHUNK):
                for line in lines.feed(data):
                    self._deliver(_reply(line))
        except (OSError, LineTooLongError, msgspec.DecodeError):
            pass  # Whatever is wrong with it, there is nothing more to be had from this connection.
        finally:
            self._lose()

    def _deliver(self, reply: protocol.Reply) -> None:
        number = reply["id"]
        if number is None:
            return
        batches, answer = self._watches.get(number), self._answers.get(number)
        if batches is not None:
            self._stream(number, batches, reply)
        elif answer is not None and not answer.done():
            answer.set_result(reply)

    def _stream(self, number: int, batches: _Batches, reply: protocol.Reply) -> None:
        if "error" in reply:
            batches.put_nowait(raised(reply["error"]))
        elif "changes" not in reply:
            batches.put_nowait(ApiError("the watch has ended"))
        elif batches.qsize() < _BEHIND:
            batches.put_nowait(reply["changes"])
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
