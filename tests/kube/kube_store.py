# SPDX-License-Identifier: Apache-2.0
"""The embedded store behind HTTP, as far as an operator asks: an API server that is up in a moment, without TLS.

Pods run for a moment and end well. `server.before` sees every request first, and may answer, delay or refuse it.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from trainwright.crd.schema import crds
from trainwright.errors import AlreadyExistsError, ApiError, NotFoundError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import (
    AUTOSCALERS,
    JOBS,
    LEASES,
    PODS,
    RESOURCES,
    Resource,
    Selection,
    WallClock,
    WatchEventType,
)

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<ns>[^/]+))?/(?P<plural>[^/]+)"
                   r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?")  # fmt: skip
_SERVED = [one for one in (*RESOURCES, AUTOSCALERS) if one.plural not in ("podgroups", "queues")]
_RESOURCES = {(one.group, one.plural): one.whole() for one in _SERVED}
JOB = JOBS["genericjob"]
Before = Callable[[web.Request], Awaitable[web.Response | None]]


def status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return web.json_response({**body, "code": code}, status=code)


async def nothing(_: web.Request) -> web.Response | None:
    """Most requests are just answered."""
    return None


class StoreServer:
    """One that listens at `address`."""

    def __init__(self) -> None:
        self.store = Store(WallClock())
        self.before: Before = nothing
        self.asked: list[str] = []
        self.address = ""
        #: Whether pods run for a moment and end well; otherwise they stay as the test makes them.
        self.pods_run = True
        #: The installed CRDs by name.
        self._definitions: dict[str, Any] = {}
        self.install(KINDS)
        self._cluster = LocalCluster(self.store)

    def install(self, kinds: Iterable[Kind]) -> list[Any]:
        """Install the CRDs of these kinds, and return them. The server serves the kinds at once."""
        established = {"conditions": [{"type": "Established", "status": "True"}]}
        bodies = [{**body, "status": established} for body in crds(tuple(kinds))]
        self._definitions |= {body["metadata"]["name"]: body for body in bodies}
        return bodies

    def uninstall(self, kind: Kind) -> Any:
        """Remove the CRD of a kind, and return it."""
        return self._definitions.pop(f"{kind.plural}.{kind.group}")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        answer = await self.before(request)
        if answer is not None:
            return answer
        try:
            return await self._answer(request)
        except ApiError as error:
            return status(error.status, error.reason, str(error))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        assert match, request.path
        if match["plural"] == "customresourcedefinitions":
            if match["name"] not in self._definitions:
                raise NotFoundError(f'customresourcedefinitions "{match["name"]}" not found')
            return web.json_response(self._definitions[match["name"]])
        resource = _RESOURCES.get((match["group"] or "", match["plural"]))
        if resource is None:
            raise NotFoundError("the server could not find the requested resource")
        if request.method == "GET" and match["name"] is None:
            return await self._listed(request, resource, match["ns"] or "")
        body = json.loads(await request.read() or b"{}")
        return web.json_response(await self._one(request.method, resource, match, body), dumps=_dumps)

    async def _one(self, method: str, resource: Resource, match: "re.Match[str]", body: Any) -> Any:
        key = Key(match["ns"] or "", match["name"] or "")
        if method == "GET":
            return await self._cluster.get(resource, key)
        if method == "POST":
            return await self._cluster.create(resource, body)
        if method == "DELETE":
            uid = (body.get("preconditions") or {}).get("uid", "")
            left = await self._cluster.delete(resource, key, uid=uid, grace=body.get("gracePeriodSeconds"))
            return left or {"kind": "Status", "status": "Success", "metadata": {}}
        if method == "PUT":
            assert match["part"] == "status", "an operator replaces only the status of an object"
            return await self._cluster.replace_status(resource, body)
        pins = body.pop("metadata", {})
        uid, version = pins.get("uid", ""), pins.get("resourceVersion", "")
        whole = match["part"] == "status"
        return await self._cluster.patch(resource, key, body, uid=uid, version=version, status=whole)

    async def _listed(self, request: web.Request, resource: Resource, namespace: str) -> web.StreamResponse:
        query = request.query
        scope = Selection(namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if "watch" not in query:
            page = await self._cluster.list(resource, scope)
            body = {"kind": "List", "metadata": {"resourceVersion": page.version}, "items": list(page.items)}
            return web.json_response(body, dumps=_dumps)
        response = web.StreamResponse()
        await response.prepare(request)
        async for batch in self._cluster.watch(resource, scope, since=query["resourceVersion"]):
            for change in batch:
                if change.what is not WatchEventType.BOOKMARK:
                    await response.write(f'{{"type":"{change.what.value}","object":{_dumps(change.item)}}}\n'.encode())
        return response

    # -- the world around it -----------------------------------------------------------------------------------------

    def submit(self, name: str, replicas: int = 1) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
        spec = {"replicaSpecs": [{"type": "worker", "replicas": replicas, "template": template}]}
        meta = {"name": name, "namespace": "default"}
        self.store.create(JOB, {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": meta, "spec": spec})

    def phase(self, name: str) -> str:
        return str((self.store.get(JOB, Key("default", name)).get("status") or {}).get("phase", ""))

    def holder(self, lease: Key = Key("trainwright", "operator")) -> str | None:  # noqa: B008 - a value
        try:
            return str(self.store.get(LEASES, lease)["spec"]["holderIdentity"])
        except NotFoundError:
            return None

    async def run_pods(self) -> None:
        """Every pod runs, and ends well a moment later."""
        async for batch in self._cluster.watch(PODS.whole(), since="0"):
            for change in batch:
                if change.what is WatchEventType.ADDED and self.pods_run:
                    key = Key(change.item["metadata"]["namespace"], change.item["metadata"]["name"])
                    loop = asyncio.get_running_loop()
                    loop.call_later(0.05, self._state, key, "Running")
                    loop.call_later(0.3, self._state, key, "Succeeded")

    def _state(self, key: Key, phase: str) -> None:
        with suppress(NotFoundError, AlreadyExistsError):
            self.store.patch(PODS, key, {"status": {"phase": phase}}, status=True)


def _dumps(value: Any) -> str:
    return json.dumps(value, default=str)


@asynccontextmanager
async def api(port: int = 0) -> AsyncIterator[StoreServer]:
    """One, until the end of the block."""
    one, app = StoreServer(), web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", one.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    one.address = f"127.0.0.1:{runner.addresses[0][1]}"
    pods = asyncio.create_task(one.run_pods())
    try:
        yield one
    finally:
        pods.cancel()
        await asyncio.gather(pods, return_exceptions=True)
        await runner.cleanup()
