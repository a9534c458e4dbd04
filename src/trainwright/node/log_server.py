# SPDX-License-Identifier: Apache-2.0
"""The node's HTTPS server: what `kubectl logs` asks the API server for, the API server asks here.

Only clients with a certificate that the cluster trusts are listened to, and each request is put to the API server: may
this user? Nobody else reads logs.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from aiohttp import web

from trainwright.errors import ApiError, InvalidError, NotFoundError, UsageError
from trainwright.model.meta import Key
from trainwright.runtime.ports import Clock, LogPart

_LOGS = "/containerLogs/{namespace}/{pod}/{container}"
#: Of the API's numbers; and seconds before which there was no log.
_DIGITS, _LONGEST = 19, 10**9
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: What a container wrote; NotFoundError and InvalidError before it begins.
Logs = Callable[[Key, str, LogPart], AsyncGenerator[bytes, None]]
#: Whether a user with these groups may read it.
Allowed = Callable[[str, list[str]], Awaitable[bool]]


class NodeServer:
    """The server of one node."""

    def __init__(self, logs: Logs, allowed: Allowed, clock: Clock) -> None:
        self._logs, self._allowed, self._clock = logs, allowed, clock

    @asynccontextmanager
    async def serving(self, host: str, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
        """Answer there until the end of the block; the port, which may have been any."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get("/healthz", _healthz), web.get(_LOGS, self._log)])
        # Who follows a silent log and goes is noticed at once.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls)
            try:
                await site.start()
            except OSError as error:
                why = f"{host}:{port} cannot be listened at: {error.strerror or error}"
                raise UsageError(f"{why}; --port 0 takes any port that is free") from None
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who is it, and may they?"""
        user, groups = _peer(request)
        if not user:
            return web.Response(text="Unauthorized\n", status=401)
        try:
            allowed = await self._allowed(user, groups)
        except ApiError as error:
            return web.Response(text=f"nobody could say whether {user} may: {error}\n", status=503)
        if not allowed:
            return web.Response(text=f"Forbidden (user={user}, verb=get, resource=nodes/proxy)\n", status=403)
        return await handler(request)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        try:
            part = wanted(request.query, self._clock.now())
            pieces = self._logs(Key(where["namespace"], where["pod"]), where["container"], part)
        except NotFoundError as error:
            return web.Response(text=str(error), status=404)
        except InvalidError as error:
            return web.Response(text=str(error), status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        with suppress(ConnectionResetError):  # nobody reads on
            async with aclosing(pieces):
                async for piece in pieces:
                    await response.write(piece)
            await response.write_eof()
        return response


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _peer(request: web.Request) -> tuple[str, list[str]]:
    """User and groups by the certificate, as Kubernetes reads it: common name and organisations."""
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    pairs = [pair for name in (certificate or {}).get("subject", ()) for pair in name]
    users = [value for key, value in pairs if key == "commonName"]
    groups = [value for key, value in pairs if key == "organizationName"]
    return (users[0] if users else ""), [*groups, "system:authenticated"]


def wanted(query: Mapping[str, str], now: datetime) -> LogPart:
    """The part of a log that a request asks for; InvalidError."""
    since = _moment(query["sinceTime"]) if "sinceTime" in query else None
    seconds = _number(query, "sinceSeconds", 1)
    if seconds is not None:
        since = now - timedelta(seconds=min(seconds, _LONGEST))
    return LogPart(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail=_number(query, "tailLines", 0),
        since=since,
        limit=_number(query, "limitBytes", 1),
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1")


def _number(query: Mapping[str, str], name: str, least: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < least:
        raise InvalidError(f"{name}: {text!r}; expected a number from {least} on")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidError(f"sinceTime: {text!r}; expected a time such as 2026-11-16T09:30:00Z") from None
