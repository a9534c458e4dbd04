# SPDX-License-Identifier: Apache-2.0
"""A served store for tests of the API: the real server on a real socket, without an engine behind it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.api.credentials import ApiCredentials
from trainwright.api.handlers import ResourceHandlers
from trainwright.api.server import ApiAddress, ApiHttpServer
from trainwright.local.checks import admission
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.runtime.ports import WallClock

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/default/genericjobs"
_TOKENS = {f"Bearer {role}": ApiIdentity(f"test:{role}", role) for role in AccessRole}


class Answer(Struct):
    """The answer to one request."""

    code: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        """The reason of a Status; empty for another body."""
        return str(self.body.get("reason", "")) if self.body.get("kind") == "Status" else ""


class ServedStore:
    """The server, its store, and a client."""

    def __init__(self, server: ApiHttpServer, store: Store, session: aiohttp.ClientSession) -> None:
        self.server, self.store, self.session = server, store, session

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = "", accept: str = "", role: str = "admin"
    ) -> Answer:
        """Send a request. A body that is not bytes is sent as JSON."""
        headers = {"Authorization": f"Bearer {role}"} if role else {}
        headers |= {"Content-Type": kind} if kind else {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Accept": accept} if accept else {}
        data = None if body is None else BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.request(method, self.server.url + path, data=data, headers=headers) as answer:
            text = await answer.read()
            content = json.loads(text) if answer.content_type == "application/json" else text.decode()
            return Answer(answer.status, content, dict(answer.headers))

    async def get(self, path: str, **more: Any) -> Any:
        """The body of an answer to GET, which must succeed."""
        answer = await self.ask("GET", path, **more)
        assert answer.code == 200, answer
        return answer.body

    async def make(self, path: str, body: Body) -> Body:
        """Create an object, which must succeed."""
        answer = await self.ask("POST", path, body)
        assert answer.code == 201, answer
        made: Body = answer.body
        return made

    @asynccontextmanager
    async def watch(self, path: str, accept: str = "", role: str = "admin") -> AsyncIterator["WatchReader"]:
        """The events of a watch."""
        headers = {"Authorization": f"Bearer {role}"} | ({"Accept": accept} if accept else {})
        async with self.session.get(self.server.url + path, headers=headers) as answer:
            yield WatchReader(answer)


class WatchReader:
    """Reads the events of a watch, one after the other."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, Body]:
        """The type and the object of the next event. Raises EOFError at the end of the watch."""
        line = await self.answer.content.readline()
        if not line:
            raise EOFError
        event = json.loads(line)
        return event["type"], event["object"]

    async def rest(self) -> list[tuple[str, Body]]:
        """All events until the end of the watch."""
        found = []
        while True:
            try:
                found.append(await self.next())
            except EOFError:
                return found

    async def names(self, count: int) -> list[tuple[str, str]]:
        """The types and names of the next events."""
        found = [await self.next() for _ in range(count)]
        return [(what, body["metadata"]["name"]) for what, body in found]


def config_map(name: str, **data: str) -> Body:
    """A ConfigMap without a namespace."""
    return {"metadata": {"name": name}, "data": data}


def generic_job(name: str, replicas: int = 1) -> Body:
    """A small valid job."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}}
    roles = [{"type": "worker", "replicas": replicas, "template": template}]
    return {"metadata": {"name": name}, "spec": {"replicaSpecs": roles}}


@asynccontextmanager
async def served(
    folder: Path, *, history: int = 8192, tls: bool = False, journal: bool = False
) -> AsyncIterator[ServedStore]:
    """Serve an empty store. The tokens are the names of the roles."""
    clock = WallClock()
    store = Store.open(clock, folder / "store.db", history=history) if journal else Store(clock, history=history)
    admission.install(store)
    cluster = LocalCluster(store)
    handlers = ResourceHandlers(cluster, WallClock(), folder)
    await handlers.prepare()
    server = ApiHttpServer(handlers, _TOKENS.get)
    await server.start(ApiAddress(tls=ApiCredentials(folder, clock).prepare() if tls else None))
    connector = aiohttp.TCPConnector(limit=0, ssl=False)  # nobody checks the certificate here
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            yield ServedStore(server, store, session)
        finally:
            await session.close()
            await server.stop()
            store.close()
