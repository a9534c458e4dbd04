# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the API: where it listens, who sends a request, and documents that never change.

It runs in the event loop of the engine, so no client may cost much: the number of connections and the size of heads and
bodies are bounded, a head and a body must arrive within some seconds, and each client has a budget of requests.

The server also listens on a Unix socket, for the commands of the engine's owner. There it needs no TLS and no token:
the kernel lets only the owner of the folder and root connect. The listener of a connection decides this, and nothing
that a client sends.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from trainwright import open_files
from trainwright.api import access, discovery, openapi
from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.api.bodies import MAX_BODY_BYTES
from trainwright.api.budgets import RequestBudget
from trainwright.api.connections import ApiConnections, ApiListener, OwnerConnections
from trainwright.api.handlers import Call, ResourceHandlers, failed
from trainwright.errors import (
    ApiError,
    BadRequestError,
    EngineError,
    ForbiddenError,
    MethodNotAllowedError,
    NotFoundError,
    TooLargeError,
    UnauthorizedError,
)
from trainwright.local.sockets.server import listen
from trainwright.model.job import Body

_LOG = logging.getLogger(__name__)
#: So many connections can be open at the same time: each watch needs one.
MAX_CONNECTIONS = 1024
#: So many connections to the Unix socket can be open in addition: clients of TCP cannot keep the owner's commands out.
MAX_OWNER_CONNECTIONS = 128
#: The client of every request on the Unix socket. No token has this name, so the budget is separate.
OWNER = ApiIdentity("trainwright:owner", AccessRole.ADMIN)
#: The body of a request must arrive within this many seconds.
_BODY_SECONDS = 30.0
_BACKLOG = 512
#: At its end, the server waits this many seconds for requests that it answers.
_SHUTDOWN_SECONDS = 1.0
_HEALTH = ("/healthz", "/livez", "/readyz")
_JSON = "application/json"
_PORT = re.compile(r":[0-9]*$")

#: Returns the client of an Authorization header; None if the header has no valid token.
Identify = Callable[[str], ApiIdentity | None]


class ApiAddress(Struct, frozen=True):
    """Where the server listens. Without TLS only for tests."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None


class ApiHttpServer:
    """The server. `start` begins to listen."""

    def __init__(self, handlers: ResourceHandlers, identify: Identify) -> None:
        self._handlers, self._identify = handlers, identify
        self._budget = RequestBudget(asyncio.get_running_loop().time)
        self._listeners: list[ApiListener] = []
        self._socket: Path | None = None
        self._address = ApiAddress()
        #: The URL and the port; `start` sets both.
        self.url, self.port = "", 0
        # The engine itself needs files too, so clients get at most five eighths of what this process may open.
        files = open_files.raise_limit()
        self._connections = ApiConnections(self._handle_tcp, min(MAX_CONNECTIONS, files // 2))
        self._owner_connections = OwnerConnections(self._handle_owner, min(MAX_OWNER_CONNECTIONS, files // 8))

    async def start(self, address: ApiAddress) -> str:
        """Listen. Returns the URL. Raises EngineError if the address cannot be used."""
        self._address = address
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            listener = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise EngineError(f"the API cannot listen at {where}: {error.strerror or error}") from None
        self.port = listener.getsockname()[1]
        self._listeners.append(ApiListener(listener, self._connections, address.tls))
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"{'https' if address.tls is not None else 'http'}://{host}:{self.port}"
        return self.url

    async def start_socket(self, path: Path) -> None:
        """Listen also at `path`, for the owner of its folder. A socket file of a killed engine is replaced.

        Raises EngineError if the path cannot be used.
        """
        listener = listen(path)
        listener.listen(_BACKLOG)
        self._socket = path
        self._listeners.append(ApiListener(listener, self._owner_connections, None))

    async def stop(self) -> None:
        """End all watches and connections."""
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        for listener in self._listeners:
            listener.close()
        self._handlers.watches.close()
        await asyncio.gather(*(one.shutdown(_SHUTDOWN_SECONDS) for one in (self._connections, self._owner_connections)))

    async def _handle_tcp(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._handle(request, self._connections, self._authenticate)

    async def _handle_owner(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._handle(request, self._owner_connections, lambda _: OWNER)

    async def _handle(
        self,
        request: web.BaseRequest,
        connections: ApiConnections,
        authenticate: Callable[[web.BaseRequest], ApiIdentity | None],
    ) -> web.StreamResponse:
        call: Call | None = None
        try:
            self._check_host(request)
            identity = authenticate(request)
            if identity is not None:
                connections.prove(request.protocol, identity)
            self._budget.take(identity.name if identity is not None else "")
            static = self._static(request, identity)
            if static is not None:
                return static
            if identity is None:
                raise UnauthorizedError("Unauthorized")
            await _read_body(request)
            call = self._handlers.find(request, identity)
            if call is None:
                raise NotFoundError("the server could not find the requested resource")
            return await self._handlers.answer(call)
        except ApiError as error:
            return failed(call, error)
        except web.HTTPRequestEntityTooLarge:
            return failed(call, TooLargeError(f"the body has more than {MAX_BODY_BYTES} bytes"))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except RecursionError:
            return failed(call, BadRequestError("the request is nested too deeply"))
        except Exception as error:
            _LOG.exception("a request failed: %s %s", request.method, request.path)
            return failed(call, ApiError(f"the engine failed: {error!r}"))

    def _check_host(self, request: web.BaseRequest) -> None:
        """Refuse a browser that was led to us by a foreign name (DNS rebinding)."""
        host = _PORT.sub("", request.headers.get("Host", ""))
        if host not in ("127.0.0.1", "localhost", "[::1]", self._address.host):
            raise ForbiddenError(f"the header Host names {host[:80]!r}, which is not this server")

    def _authenticate(self, request: web.BaseRequest) -> ApiIdentity | None:
        """The client of a request over TCP; None if the request has no token."""
        header = request.headers.get("Authorization", "")
        if not header:
            return None
        identity = self._identify(header)
        if identity is None:
            self._budget.take("")  # whoever guesses tokens has a small budget
            raise UnauthorizedError("Unauthorized")
        return identity

    def _static(self, request: web.BaseRequest, identity: ApiIdentity | None) -> web.Response | None:
        """The answer to a request for discovery, OpenAPI, version or health; None if the path is another one."""
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in _HEALTH:
            return web.Response(text="ok")
        document = _document(path, request)
        if document is None:
            return None
        if identity is None:
            raise UnauthorizedError("Unauthorized")
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError("the server does not allow this method on the requested resource")
        if not access.allows_path(identity, "get", path):
            raise ForbiddenError(f'User "{identity.name}" cannot get path "{path}"')
        content, kind = document
        return web.Response(body=content, headers={"Content-Type": kind})


async def _read_body(request: web.BaseRequest) -> None:
    """Read the body, which must arrive in time. A slow client cannot keep anything open for long."""
    if not request.body_exists:
        return
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            await request.read()
    except TimeoutError:
        raise BadRequestError(f"the body did not arrive within {_BODY_SECONDS:g} s") from None


def _document(path: str, request: web.BaseRequest) -> tuple[bytes, str] | None:
    """A document that does not depend on the objects, and its media type; None if there is no such document."""
    accepted = request.headers.get("Accept", "")
    aggregated = "as=APIGroupDiscoveryList" in accepted
    first, *rest = path.strip("/").split("/")
    found: Body | bytes | None = None
    kind = _JSON
    if first in ("api", "apis") and not rest:
        found = discovery.core(aggregated) if first == "api" else discovery.groups(aggregated)
        kind = discovery.AGGREGATED if aggregated else _JSON
    elif first in ("api", "apis"):
        found = _discovered(first, rest)
    elif first == "openapi" and rest == ["v2"]:
        protobuf = any(one in accepted for one in openapi.ACCEPTS_PROTOBUF_V2)
        found, kind = openapi.second_version(protobuf), openapi.PROTOBUF_V2 if protobuf else _JSON
    elif first == "openapi":
        found = _schemas(rest)
    elif not rest and first in _PLAIN:
        found = _PLAIN[first]()
    if found is None:
        return None
    return (found if isinstance(found, bytes) else msgspec.json.encode(found)), kind


def _paths() -> Body:
    return {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}


_PLAIN: dict[str, Callable[[], Body]] = {"": _paths, "version": discovery.version}


def _discovered(first: str, rest: list[str]) -> Body | None:
    match (first, rest):
        case ("api", [version]):
            return discovery.group_version("", version)
        case ("apis", [group]):
            return discovery.group(group)
        case ("apis", [group, version]):
            return discovery.group_version(group, version)
    return None


def _schemas(rest: list[str]) -> Body | bytes | None:
    match rest:
        case ["v3"]:
            return openapi.root()
        case ["v3", "api", version]:
            return openapi.document("", version)
        case ["v3", "apis", group, version]:
            return openapi.document(group, version)
    return None
