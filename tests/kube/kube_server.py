# SPDX-License-Identifier: Apache-2.0
"""An API server that does as it is told, on loopback: for what a real one does once a year.

`server.says` are answers, given one after the other, the last one for ever; `server.asked` is what came in.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer as Loopback

from trainwright.kube.config import Access, ClusterEntry, Located, UserEntry
from trainwright.kube.http import RequestPolicy
from trainwright.model.meta import Key
from trainwright.runtime.ports import Resource

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRETS = Resource("", "v1", "secrets", "Secret")
#: Quick to give up, so that tests are.
BRISK = RequestPolicy(timeout=2.0, retry_seconds=1.5)
HERE = Key("ns", "a")


class Asked:
    """A request, as it came in."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method, self.path, self.query = request.method, request.path, dict(request.query)
        self.raw, self.headers = request.raw_path, request.headers
        self.body: Any = json.loads(body) if body else None
        self.at = asyncio.get_running_loop().time()


class Server:
    """One that listens at `url`."""

    def __init__(self) -> None:
        self.says: list[Answer] = []
        self.asked: list[Asked] = []
        self.url = ""
        self._served: Loopback | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._served = Loopback(app, scheme="https" if context else "http", host="127.0.0.1")
        await self._served.start_server(ssl=context)
        self.url = str(self._served.make_url("")).rstrip("/")
        return self

    async def stop(self) -> None:
        if self._served is not None:
            await self._served.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request, await request.read()))
        answer = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return await answer(request)


def access(url: str, user: UserEntry | None = None, **cluster: Any) -> Access:
    return Access(
        url,
        Located("file", "clusters[0].cluster", ClusterEntry(**cluster)),
        Located("file", "users[0].user", user or UserEntry()),
    )


# -- answers ----------------------------------------------------------------------------------------------------------


def says(body: Any, code: int = 200, **headers: str) -> Answer:
    """An object, as JSON."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=code, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    return answer


def refuses(code: int, reason: str = "", message: str = "no", *, details: Any = None, **headers: str) -> Answer:
    """A Status."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return says({**body, "reason": reason, "details": details}, code, **headers)


def text(body: str, code: int = 200) -> Answer:
    """No JSON at all."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=code)

    return answer


def streams(chunks: Iterable[bytes | float], *, cut: bool = False) -> Answer:
    """Bytes as they come, with pauses of so many seconds; `cut`: and then the connection is gone."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            if isinstance(chunk, bytes):
                await response.write(chunk)
            else:
                await asyncio.sleep(chunk)
        if cut:
            hang_up(request)
        return response

    return answer


async def drops(request: web.Request) -> web.StreamResponse:
    """The connection goes away without an answer."""
    hang_up(request)
    return web.Response()


def hang_up(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def a_secret(name: str = "a", version: str = "1", **metadata: Any) -> dict[str, Any]:
    """As an item of a list: it does not say what it is."""
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": version, **metadata}}


def a_list(*items: dict[str, Any] | None, version: str = "9", more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"kind": "SecretList", "apiVersion": "v1", "metadata": metadata, "items": list(items) or None}


def event(what: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": what, "object": body}).encode() + b"\n"
