# SPDX-License-Identifier: Apache-2.0
"""The verbs of a cluster as other processes ask for them: a request of `protocol` in, plain JSON out.

Objects go over the socket whole; whoever asked decodes what it wants of them.

The private socket of an engine: the verbs of a cluster, and its own, for other processes (`protocol`).

The engine opens it with `serve`; node agents come with `client`, the command line with `blocking`. Whoever can open the
file may do everything, so its mode is 0600, and its folder's 0700 if it is made here.
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
    CHUNK,
    HELLO,
    BindRequest,
    Body,
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
    connect,
    failure,
    short,
)
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import BY_ID, Propagation, Resource, Selection, WatchEvent

RequestT = TypeVar("RequestT")


class Verb(Struct, Generic[RequestT], frozen=True):
    """One verb: the type of its requests, and what answers them."""

    request: type[RequestT]
    answer: Callable[[RequestT], Awaitable[Any]]

    async def __call__(self, request: dict[str, Any]) -> Any:
        """Check a request and answer it. Raises InvalidError."""
        return await self.answer(checked(request, self.request))


def checked(request: dict[str, Any], kind: type[RequestT]) -> RequestT:
    """The request as what it should be; InvalidError if it is not."""
    try:
        return convert(request, kind)
    except ValidationError as error:
        raise InvalidError(f"the request cannot be read: {error}") from None


def watch(cluster: LocalCluster, request: dict[str, Any]) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
    """The batches of a watch."""
    wanted = checked(request, WatchRequest)
    return cluster.watch(_resource(wanted["resource"]), _scope(wanted), since=wanted.get("since", ""))


def verbs(cluster: LocalCluster) -> Mapping[str, Verb[Any]]:
    """The verbs that have one answer."""

    async def listing(request: ListRequest) -> ListResult:
        resource, limit = _resource(request["resource"]), request.get("notOlderThan", "")
        page = await cluster.list(resource, _scope(request), not_older_than=limit)
        return {"items": [*page.items], "version": page.version}

    async def get(request: ObjectRequest) -> Body:
        found: Body = await cluster.get(_resource(request["resource"]), _key(request))
        return found

    async def create(request: CreateRequest) -> Body:
        made: Body = await cluster.create(_resource(request["resource"]), request["body"])
        return made

    async def patch(request: PatchRequest) -> Body:
        changed: Body = await cluster.patch(
            _resource(request["resource"]),
            _key(request),
            request["body"],
            uid=request.get("uid", ""),
            version=request.get("version", ""),
            status=request.get("status", False),
        )
        return changed

    async def delete(request: DeleteRequest) -> Body | None:
        left: Body | None = await cluster.delete(
            _resource(request["resource"]),
            _key(request),
            uid=request.get("uid", ""),
            grace=request.get("grace"),
            propagation=Propagation(request.get("propagation", Propagation.BACKGROUND)),
        )
        return left

    async def bind(request: BindRequest) -> Body:
        uid, version = request.get("uid", ""), request.get("version", "")
        return cluster.store.bind(_key(request), request["node"], uid=uid, version=version)

    return {
        "list": Verb(ListRequest, listing),
        "get": Verb(ObjectRequest, get),
        "create": Verb(CreateRequest, create),
        "patch": Verb(PatchRequest, patch),
        "delete": Verb(DeleteRequest, delete),
        "bind": Verb(BindRequest, bind),
    }


def _resource(name: str) -> Resource:
    """The resource of that id; NotFoundError if there is none."""
    resource = BY_ID.get(name)
    if resource is None:
        hint = nearest(name, BY_ID)
        meant = f"; did you mean `{hint}`?" if hint else ""
        raise NotFoundError(f"there is no resource {name!r}{meant}")
    return resource.whole()


def _scope(request: ScopeRequest) -> Selection:
    return Selection(request.get("namespace", ""), request.get("labels", ""), request.get("fields", ""))


def _key(request: ObjectRequest | BindRequest) -> Key:
    return Key(request.get("namespace", ""), request["name"])


#: Bytes of one request.
_LONGEST = 64 << 20

Request = dict[str, Any]


@asynccontextmanager
async def serve(path: Path, cluster: LocalCluster, extra: Mapping[str, Verb[Any]] | None = None) -> AsyncIterator[None]:
    """Listen at that path for as long as the context lasts; then every connection is cut and the file removed."""
    known = {**verbs(cluster), **(extra or {})}
    tasks: set[Task[None]] = set()
    writers: WeakSet[StreamWriter] = WeakSet()

    def welcome(reader: StreamReader, writer: StreamWriter) -> None:
        writers.add(writer)
        _keep(asyncio.create_task(_Session(cluster, known, writer, tasks).run(reader)), tasks)

    server = await asyncio.start_unix_server(welcome, sock=_listen(path))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()
        for writer in writers:
            writer.transport.abort()
        while tasks:
            await _end(tasks)
        await asyncio.sleep(0)  # The transports close at the next turn of the loop.


def _keep(task: Task[None], *among: set[Task[None]]) -> None:
    """Hold on to a task until it is done."""
    for tasks in among:
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _end(tasks: set[Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _listen(path: Path) -> socket.socket:
    """A socket that is never open to others, in the place of one that nobody listens at any more."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _answers(path):
            raise EngineError(f"{path}: an engine listens there already")
        path.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)
        with short(path) as address:
            listener.bind(address)
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise EngineError(f"{path}: cannot listen there: {error.strerror or error}") from None
    except EngineError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    try:
        connect(path).close()
    except OSError:
        return False
    return True


class _Session:
    """One connection: requests are begun in the order they come in, and answered as they are done."""

    def __init__(
        self, cluster: LocalCluster, known: Mapping[str, Verb[Any]], writer: StreamWriter, all_tasks: set[Task[None]]
    ) -> None:
        self._cluster, self._known, self._writer, self._all_tasks = cluster, known, writer, all_tasks
        self._tasks: set[Task[None]] = set()
        self._greeted = False
        self._watches: dict[int | None, Task[None]] = {}

    async def run(self, reader: StreamReader) -> None:
        """Until the other side has gone."""
        lines = LineSplitter(_LONGEST)
        try:
            while data := await reader.read(CHUNK):
                for line in lines.feed(data):
                    if not self._greeted and not await self._greet(line):
                        return
                    self._begin(line)
        except ConnectionError:
            pass  # It has gone without a word.
        except LineTooLongError as error:
            await self._send({"id": None, "error": failure(InvalidError(str(error)))})
        finally:
            self._writer.close()
            await _end(self._tasks)

    async def _greet(self, line: bytes) -> bool:
        """Compare versions, before anything is done; False: nothing more is read of this connection.

        A client that did not know `hello` yet gets the refusal as the answer to its first request.
        """
        request, error = _read(line)
        if error is None:
            said = request if request["verb"] == HELLO else {}
            problem = mismatch(said, ENGINE_PROTOCOL, "this process", "the engine")
            if problem is not None:
                await self._send({"id": request["id"], "error": failure(InvalidError(problem))})
                return False
            self._greeted = True
        return True

    def _begin(self, line: bytes) -> None:
        request, error = _read(line)
        number = request.get("id")
        task = asyncio.create_task(self._answer(request) if error is None else self._refuse(error))
        _keep(task, self._tasks, self._all_tasks)
        if request.get("verb") == "watch":
            self._watches[number] = task
            task.add_done_callback(lambda _: self._watches.pop(number, None))

    async def _refuse(self, error: InvalidError) -> None:
        await self._send({"id": None, "error": failure(error)})

    async def _answer(self, request: Request) -> None:
        number = request["id"]
        try:
            await self._send({"id": number, "result": await self._do(request)})
        except ConnectionError:
            return
        except TrainwrightError as error:
            await self._send({"id": number, "error": failure(error)})
        except RecursionError:
            await self._send({"id": number, "error": failure(InvalidError("the request is nested too deeply"))})
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            await self._send({"id": number, "error": failure(ApiError(f"the engine failed at it: {error!r}"))})

    async def _do(self, request: Request) -> Any:
        verb = request["verb"]
        if verb == HELLO:
            return hello(ENGINE_PROTOCOL)
        if verb == "watch":
            return await self._watch(request)
        if verb == "stop":
            return self._stop(request)
        if verb not in self._known:
            hint = nearest(verb, self._known)
            raise NotFoundError(f"there is no verb {verb!r}" + (f"; did you mean `{hint}`?" if hint else ""))
        return await self._known[verb](request)

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


class _Head(msgspec.Struct):
    """What every request must say."""

    id: int
    verb: str


def _read(line: bytes) -> tuple[Request, InvalidError | None]:
    """A request, or what is wrong with it."""
    try:
        request = msgspec.json.decode(line, type=dict[str, Any])
        msgspec.convert(request, _Head)
    except (msgspec.DecodeError, RecursionError) as error:
        return {}, InvalidError(f"the request cannot be read: {error}")
    return request, None
