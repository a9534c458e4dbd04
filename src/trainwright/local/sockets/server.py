# SPDX-License-Identifier: Apache-2.0
"""The private socket of an engine, through which other processes use the verbs of a cluster and of the engine.

The server sends whole objects; the client decodes the parts that it needs. Every process that can open the socket can
use all verbs, so the socket has mode 0600. A folder that is created for the socket has mode 0700.
"""

import asyncio
import os
import socket
from asyncio import StreamReader, StreamWriter, Task
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import msgspec
from msgspec import Struct, ValidationError, convert

from trainwright.errors import ApiError, EngineError, InvalidError, NotFoundError, TrainwrightError
from trainwright.jsonlines import END, ENGINE_PROTOCOL, LineSplitter, LineTooLongError, hello, mismatch
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.protocol import (
    CHUNK_BYTES,
    HELLO,
    BindRequest,
    CreateRequest,
    DeleteRequest,
    ListRequest,
    ListResult,
    ObjectRequest,
    PatchRequest,
    Reply,
    ScopeRequest,
    StopRequest,
    WatchRequest,
    error_body,
)
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import BY_ID, PODS, Propagation, Resource, Selection, WatchEvent
from trainwright.unix_sockets import connect, socket_address

#: The maximum length of a request in bytes.
_MAX_REQUEST_BYTES = 64 << 20
Request = dict[str, Any]
RequestT = TypeVar("RequestT")


class Verb(Struct, Generic[RequestT], frozen=True):
    """One verb: the type of its requests, and the function that answers a request."""

    request: type[RequestT]
    answer: Callable[[RequestT], Awaitable[Any]]

    async def __call__(self, request: Request) -> Any:
        """Check a request and answer it. Raises InvalidError if the request has wrong fields."""
        return await self.answer(checked(request, self.request))


def checked(request: Request, kind: type[RequestT]) -> RequestT:
    """The request, checked against its type. Raises InvalidError."""
    try:
        return convert(request, kind)
    except ValidationError as error:
        raise InvalidError(f"the request cannot be read: {error}") from None


def watch(cluster: LocalCluster, request: Request) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
    """The batches of a watch."""
    wanted = checked(request, WatchRequest)
    return cluster.watch(_resource(wanted["resource"]), _scope(wanted), since=wanted.get("since", ""))


def verbs(cluster: LocalCluster) -> Mapping[str, Verb[Any]]:
    """The verbs that have one answer: all except `watch`."""

    async def listing(request: ListRequest) -> ListResult:
        resource, version = _resource(request["resource"]), request.get("notOlderThan", "")
        page = await cluster.list(resource, _scope(request), not_older_than=version)
        return {"items": [*page.items], "version": page.version}

    async def patch(request: PatchRequest) -> Any:
        uid, version, status = request.get("uid", ""), request.get("version", ""), request.get("status", False)
        resource, body = _resource(request["resource"]), request["body"]
        return await cluster.patch(resource, _key(request), body, uid=uid, version=version, status=status)

    async def replace_status(request: CreateRequest) -> Any:
        return await cluster.replace_status(_resource(request["resource"]), request["body"])

    async def delete(request: DeleteRequest) -> Any:
        uid, grace = request.get("uid", ""), request.get("grace")
        propagation = Propagation(request.get("propagation", Propagation.BACKGROUND))
        resource = _resource(request["resource"])
        return await cluster.delete(resource, _key(request), uid=uid, grace=grace, propagation=propagation)

    async def bind(request: BindRequest) -> Any:
        uid, version = request.get("uid", ""), request.get("version", "")
        return await cluster.bind(_key(request), request["node"], uid=uid, version=version, resource=PODS.whole())

    return {
        "list": Verb(ListRequest, listing),
        "get": Verb(ObjectRequest, lambda request: cluster.get(_resource(request["resource"]), _key(request))),
        "create": Verb(CreateRequest, lambda request: cluster.create(_resource(request["resource"]), request["body"])),
        "patch": Verb(PatchRequest, patch),
        "replaceStatus": Verb(CreateRequest, replace_status),
        "delete": Verb(DeleteRequest, delete),
        "bind": Verb(BindRequest, bind),
    }


def _resource(name: str) -> Resource:
    """The resource with the ID `name`. Raises NotFoundError if there is none."""
    if name not in BY_ID:
        raise _unknown("resource", name, BY_ID)
    return BY_ID[name].whole()


def _unknown(what: str, name: str, known: Mapping[str, object]) -> NotFoundError:
    hint = nearest(name, known)
    return NotFoundError(f"there is no {what} {name!r}" + (f"; did you mean `{hint}`?" if hint else ""))


def _scope(request: ScopeRequest) -> Selection:
    return Selection(request.get("namespace", ""), request.get("labels", ""), request.get("fields", ""))


def _key(request: ObjectRequest | BindRequest) -> Key:
    return Key(request.get("namespace", ""), request["name"])


@asynccontextmanager
async def serve(path: Path, cluster: LocalCluster, extra: Mapping[str, Verb[Any]] | None = None) -> AsyncIterator[None]:
    """Listen at `path` until the end of the block; then close every connection and remove the socket file."""
    all_verbs = {**verbs(cluster), **(extra or {})}
    tasks: set[Task[None]] = set()
    writers: WeakSet[StreamWriter] = WeakSet()

    def accept(reader: StreamReader, writer: StreamWriter) -> None:
        writers.add(writer)
        _track(asyncio.create_task(_ClientSession(cluster, all_verbs, writer, tasks).run(reader)), tasks)

    server = await asyncio.start_unix_server(accept, sock=listen(path))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()
        for writer in writers:
            writer.transport.abort()
        while tasks:
            await _cancel(tasks)
        await asyncio.sleep(0)  # wait one iteration of the event loop, in which the transports close


def _track(task: Task[None], *sets: set[Task[None]]) -> None:
    """Keep a reference to a task until it is done."""
    for tasks in sets:
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _cancel(tasks: set[Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user can open. It replaces an old socket file if no process listens there."""
    if _answers(path):
        raise EngineError(f"{path}: another engine listens there already")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise EngineError(f"{path}: cannot listen there: {error.strerror or error}") from None
    return listener


def _answers(path: Path) -> bool:
    try:
        connect(path).close()
    except OSError:
        return False
    return True


class _ClientSession:
    """One connection. Requests are started in their order, but each request is answered as soon as it is done."""

    def __init__(
        self,
        cluster: LocalCluster,
        all_verbs: Mapping[str, Verb[Any]],
        writer: StreamWriter,
        all_tasks: set[Task[None]],
    ) -> None:
        self._cluster, self._verbs, self._writer, self._all_tasks = cluster, all_verbs, writer, all_tasks
        self._tasks: set[Task[None]] = set()
        self._hello_done = False
        self._watches: dict[int | None, Task[None]] = {}

    async def run(self, reader: StreamReader) -> None:
        """Answer requests until the client closes the connection."""
        lines = LineSplitter(_MAX_REQUEST_BYTES)
        try:
            while data := await reader.read(CHUNK_BYTES):
                for line in lines.feed(data):
                    if not self._hello_done and not await self._check_version(line):
                        return
                    self._start(line)
        except ConnectionError:
            pass  # The client has closed the connection.
        except LineTooLongError as error:
            await self._refuse(None, InvalidError(str(error)))
        finally:
            self._writer.close()
            await _cancel(self._tasks)

    async def _check_version(self, line: bytes) -> bool:
        """Compare versions before the first request is answered. Returns False if the connection must be closed.

        An old client that does not send `hello` gets the error as the answer to its first request.
        """
        request, error = _read(line)
        if error is None:
            versions = request if request["verb"] == HELLO else {}
            problem = mismatch(versions, ENGINE_PROTOCOL, "this process", "the engine")
            if problem is not None:
                await self._refuse(request["id"], InvalidError(problem))
                return False
            self._hello_done = True
        return True

    def _start(self, line: bytes) -> None:
        request, error = _read(line)
        number = request.get("id")
        task = asyncio.create_task(self._answer(request) if error is None else self._refuse(None, error))
        _track(task, self._tasks, self._all_tasks)
        if request.get("verb") == "watch":
            self._watches[number] = task
            task.add_done_callback(lambda _: self._watches.pop(number, None))

    async def _refuse(self, number: int | None, error: TrainwrightError) -> None:
        await self._send({"id": number, "error": error_body(error)})

    async def _answer(self, request: Request) -> None:
        number = request["id"]
        try:
            await self._send({"id": number, "result": await self._result(request)})
        except ConnectionError:
            return
        except TrainwrightError as error:
            await self._refuse(number, error)
        except RecursionError:
            await self._refuse(number, InvalidError("the request is nested too deeply"))
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            await self._refuse(number, ApiError(f"the engine failed: {error!r}"))

    async def _result(self, request: Request) -> Any:
        verb = request["verb"]
        if verb == HELLO:
            return hello(ENGINE_PROTOCOL)
        if verb == "watch":
            return await self._watch(request)
        if verb == "stop":
            return self._stop(request)
        if verb not in self._verbs:
            raise _unknown("verb", verb, self._verbs)
        return await self._verbs[verb](request)

    async def _watch(self, request: Request) -> None:
        async with aclosing(watch(self._cluster, request)) as batches:
            async for batch in batches:
                changes = [(change.what.value, change.version, change.item) for change in batch]
                await self._send({"id": request["id"], "changes": changes})

    def _stop(self, request: Request) -> None:
        task = self._watches.get(checked(request, StopRequest)["watch"])
        if task is not None:
            task.cancel()

    async def _send(self, reply: Reply) -> None:
        self._writer.write(msgspec.json.encode(reply) + END)
        await self._writer.drain()


class _RequestHead(msgspec.Struct):
    """The fields of every request."""

    id: int
    verb: str


def _read(line: bytes) -> tuple[Request, InvalidError | None]:
    """The request, or an error if the line cannot be read."""
    try:
        request = msgspec.json.decode(line, type=dict[str, Any])
        msgspec.convert(request, _RequestHead)
    except (msgspec.DecodeError, RecursionError) as error:
        return {}, InvalidError(f"the request cannot be read: {error}")
    return request, None
