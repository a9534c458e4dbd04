# SPDX-License-Identifier: Apache-2.0
"""The node's HTTPS server for container logs: for `kubectl logs`, the API server sends a request to this server.

The server accepts only clients with a certificate that the cluster trusts. For each request, it asks the API server
whether the user of the certificate is allowed to read the logs.
"""

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from aiohttp import web

from trainwright.errors import ApiError, BadRequestError, InvalidError, NotFoundError, UsageError
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock, LogPart

_LOGS = "/containerLogs/{namespace}/{pod}/{container}"
#: A number in a request. It has at most 19 digits, because numbers of the API have 64 bits.
_NUMBER = re.compile(r"-?[0-9]{1,19}")
#: Maximum of `sinceSeconds`: about 32 years. Every log is younger, and the value is safe to subtract from a date.
_MAX_SINCE_SECONDS = 10**9
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: A function that returns the log of a container. The call raises NotFoundError or InvalidError, before the iteration.
Logs = Callable[[Key, str, LogPart], AsyncGenerator[bytes, None]]
#: A function that returns whether a user with these groups may read logs.
Authorizer = Callable[[str, list[str]], Awaitable[bool]]


class NodeServer:
    """The server of one node."""

    def __init__(self, logs: Logs, is_allowed: Authorizer, clock: Clock) -> None:
        self._logs, self._is_allowed, self._clock = logs, is_allowed, clock

    @asynccontextmanager
    async def serving(self, host: str, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
        """Serve until the end of the block. Yields the port, which the system chooses if `port` is 0."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get("/healthz", _healthz), web.get(_LOGS, self._log)])
        # handler_cancellation ends a handler as soon as its client disconnects, even if the followed log does not grow.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls)
            try:
                await site.start()
            except OSError as error:
                reason = f"cannot listen at {host}:{port}: {error.strerror or error}"
                raise UsageError(f"{reason}; --port 0 takes any free port") from None
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate and authorize each request."""
        user, groups = _peer(request)
        if not user:
            return web.Response(text="Unauthorized\n", status=401)
        try:
            allowed = await self._is_allowed(user, groups)
        except ApiError as error:
            return web.Response(text=f"the API server did not say whether {user} may read logs: {error}\n", status=503)
        if not allowed:
            return web.Response(text=f"Forbidden (user={user}, verb=get, resource=nodes/proxy)\n", status=403)
        return await handler(request)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info
        try:
            part = log_part(request.query, self._clock.now())
            chunks = self._logs(Key(path["namespace"], path["pod"]), path["container"], part)
        except NotFoundError as error:
            return web.Response(text=str(error), status=404)
        except InvalidError as error:
            return web.Response(text=str(error), status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the client has disconnected
            async with aclosing(chunks):
                async for chunk in chunks:
                    await response.write(chunk)
            await response.write_eof()
        return response


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _peer(request: web.Request) -> tuple[str, list[str]]:
    """User and groups from the client certificate: its common name and its organisations, as in Kubernetes."""
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    pairs = [pair for name in (certificate or {}).get("subject", ()) for pair in name]
    users = [value for key, value in pairs if key == "commonName"]
    groups = [value for key, value in pairs if key == "organizationName"]
    return (users[0] if users else ""), [*groups, "system:authenticated"]


def log_part(query: Mapping[str, str], now: datetime) -> LogPart:
    """The part of a log that a request asks for. Raises InvalidError, or BadRequestError if a value cannot be read."""
    if query.get("sinceTime") and "sinceSeconds" in query:
        raise InvalidError("at most one of `sinceTime` or `sinceSeconds` may be specified")
    since = _time(query["sinceTime"]) if query.get("sinceTime") else None
    seconds = _number(query, "sinceSeconds", 1)
    if seconds is not None:
        since = now - timedelta(seconds=min(seconds, _MAX_SINCE_SECONDS))
    return LogPart(
        follow=flag(query, "follow"),
        previous=flag(query, "previous"),
        timestamps=flag(query, "timestamps"),
        tail=_number(query, "tailLines", 0),
        since=since,
        limit=_number(query, "limitBytes", 1),
    )


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean parameter. As in API servers, only `false` and `0` mean no; the Python client writes `True`."""
    return name in query and query[name].lower() not in ("false", "0")


def _number(query: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    problem = f"{name}: {text!r}; expected a number from {minimum} on"
    if not _NUMBER.fullmatch(text):
        raise BadRequestError(problem)
    if int(text) < minimum:
        raise InvalidError(problem)
    return int(text)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequestError(f"sinceTime: {text!r}; expected a time such as 2026-11-16T09:30:00Z") from None
