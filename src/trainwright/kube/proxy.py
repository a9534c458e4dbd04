# SPDX-License-Identifier: Apache-2.0
"""Requests through a proxy. They use aiohttp, which supports every kind of proxy.

The operator imports this module and aiohttp only if there is a proxy: the import takes 0.2 s and 14 MiB. So errors of
aiohttp become errors of `connection` and of Python here.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import (
    BytesPayload,
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientOSError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from trainwright.errors import ApiError
from trainwright.kube.certificates import AuthHeaders
from trainwright.kube.codec import Request
from trainwright.kube.connection import AnswerStream, ConnectError, HttpAnswer, ProxyError

_READ_BUFFER_BYTES = 1 << 18


class ProxyTransport:
    """The connections to one server through a proxy. `connector` opens them."""

    def __init__(
        self, server: str, proxy: str, server_name: str, headers: list[tuple[str, str]], connector: TCPConnector
    ) -> None:
        self._server = server
        self._options: dict[str, Any] = {"proxy": proxy} | ({"server_hostname": server_name} if server_name else {})
        self._session = ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            headers=CIMultiDict(headers),
            read_bufsize=_READ_BUFFER_BYTES,
        )
        # Forbid retries by aiohttp: it would send some requests again, even deletions, without a new call of `check`.
        self._session._retry_connection = False

    async def exchange(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float], check: Callable[[], None] | None
    ) -> HttpAnswer:
        """Send a request and return the whole answer. `seconds`: for the connection, and in total."""
        with _translated_errors():
            async with self._request(request, auth, seconds, check) as response:
                return HttpAnswer(response.status, await response.read(), response.headers.get("Retry-After", ""))

    @asynccontextmanager
    async def stream(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float]
    ) -> AsyncIterator[AnswerStream]:
        """Send a request; the body of the answer arrives in parts."""
        with _translated_errors():
            async with self._request(request, auth, seconds, None) as response:
                yield _Stream(response)

    def _request(
        self, request: Request, auth: AuthHeaders, seconds: tuple[float, float], check: Callable[[], None] | None
    ) -> Any:
        data = _CheckedBody(request.body, check) if request.body is not None and check is not None else request.body
        return self._session.request(
            request.method,
            URL(f"{self._server}{request.path}", encoded=True),
            headers={**request.headers, **auth.headers},
            data=data,
            timeout=ClientTimeout(total=seconds[1], sock_connect=seconds[0]),
            allow_redirects=False,
            **self._options,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


class _Stream:
    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.code, self.retry_after = response.status, response.headers.get("Retry-After", "")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        with _translated_errors():
            async for chunk in self._response.content.iter_any():
                yield chunk


class _CheckedBody(BytesPayload):
    """A request body that calls `check` before it is sent. aiohttp sends the headers together with the body."""

    def __init__(self, body: bytes, check: Callable[[], None]) -> None:
        super().__init__(body)
        self._check = check

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Check, then write at once. The connection exists already, so nothing delays the write after the check."""
        self._check()
        await super().write_with_length(writer, content_length)


# -- errors ------------------------------------------------------------------------------------------------------------


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        # If `check` has refused the request, the cause says why.
        cause = error.__cause__
        raise translated(error) from (cause if isinstance(cause, ApiError) else None)


def translated(error: ClientError) -> Exception:
    """The same error without aiohttp's types."""
    match error:
        case ClientHttpProxyError():  # the text of the error contains the proxy's URL with the password
            return ProxyError(f"the proxy says {error.status} {error.message}".rstrip())
        case ConnectionTimeoutError():
            return ConnectError(TimeoutError(), "")
        case ClientConnectorCertificateError():
            return ConnectError(error.certificate_error, error.host)
        case ClientConnectorError():
            return ConnectError(error.os_error, error.host)
        case TimeoutError():
            return TimeoutError()
        case ClientOSError():
            return OSError(*error.args)
        case _:
            return ConnectionError(str(error) or type(error).__name__)
