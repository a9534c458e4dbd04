# SPDX-License-Identifier: Apache-2.0
"""HTTP for registries: GET with redirects, proxies, and connections that stay open. It blocks; threads can share it.

It uses `http.client` and not aiohttp: see docs/decisions/0012-registries-by-http-client.md.
"""

from __future__ import annotations

import base64
import ssl
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from threading import Lock
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlencode, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from trainwright import __version__

_REDIRECTS = {301, 302, 303, 307, 308}
_MAX_REDIRECTS = 5
_TIMEOUT_SECONDS = 30.0
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "::1")
_AGENT = f"trainwright/{__version__}"


class BrokenHttpError(OSError):
    """The server sent something that is not HTTP, or ended the connection too early."""


class UnsafeRedirectError(Exception):
    """A redirect leads to a place where we do not go; the text says why."""


class Origin(NamedTuple):
    """Where a connection goes to."""

    scheme: str
    host: str
    port: int


class RegistryAnswer:
    """The answer to a request. The caller reads it to its end, or closes it."""

    def __init__(
        self, url: str, response: HTTPResponse, transport: HttpTransport, connection: RegistryConnection
    ) -> None:
        self.url, self.status, self.headers = url, response.status, response.headers
        self._response, self._transport, self._connection = response, transport, connection

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes of the body into the buffer and return their number; 0 at the end. Raises OSError."""
        try:
            return self._response.readinto(buffer)
        except HTTPException as error:
            raise BrokenHttpError(str(error) or type(error).__name__) from None

    def body(self, limit: int) -> bytes:
        """The whole body. Raises OSError; BrokenHttpError if it is longer than the limit, or incomplete."""
        try:
            data = self._response.read(limit + 1)
            if len(data) > limit:
                raise BrokenHttpError(f"the answer is longer than {limit} bytes")
            if self._response.length:
                raise BrokenHttpError("the answer is incomplete")
        except HTTPException as error:
            raise BrokenHttpError(str(error) or type(error).__name__) from None
        finally:
            self.close()
        return data

    def close(self) -> None:
        """Keep the connection for the next request if the answer was read to its end; otherwise close it."""
        done = self._response.isclosed() and not self._response.will_close
        self._response.close()
        self._transport.release(self._connection, reusable=done)


class RegistryConnection(NamedTuple):
    """An open connection, and the origin that it leads to."""

    origin: Origin
    http: HTTPConnection


class HttpTransport:
    """Sends requests."""

    def __init__(self, timeout: float = _TIMEOUT_SECONDS) -> None:
        self.timeout = timeout
        self._idle: list[RegistryConnection] = []
        self._lock = Lock()
        self._context: ssl.SSLContext | None = None

    def get(self, url: str, headers: dict[str, str]) -> RegistryAnswer:
        """Send a request and follow redirects. Raises OSError and UnsafeRedirectError.

        The header Authorization goes only to the origin of `url`: a redirect to another server does not get it.
        """
        first = origin_of(url)
        for _ in range(_MAX_REDIRECTS + 1):
            own = origin_of(url) == first
            sent = headers if own else {key: value for key, value in headers.items() if key != "Authorization"}
            answer = self._ask(url, sent)
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            answer.close()
            target = urljoin(url, location)
            if urlsplit(target).scheme not in _PORTS:
                raise UnsafeRedirectError(f"found a redirect to {target[:80]!r}, expected one to https://")
            if first.scheme == "https" and urlsplit(target).scheme == "http":
                raise UnsafeRedirectError(f"found a redirect from https:// to {target[:80]!r}")
            url = target
        raise UnsafeRedirectError(f"found more than {_MAX_REDIRECTS} redirects")

    def post_form(self, url: str, fields: dict[str, str]) -> RegistryAnswer:
        """Send a form, without following redirects. Raises OSError."""
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        return self._ask(url, headers, urlencode(fields).encode())

    def release(self, connection: RegistryConnection, *, reusable: bool) -> None:
        """Take a connection back."""
        if not reusable:
            connection.http.close()
            return
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            while self._idle:
                self._idle.pop().http.close()

    def _ask(self, url: str, headers: dict[str, str], form: bytes | None = None) -> RegistryAnswer:
        origin = origin_of(url)
        while (kept := self._take(origin)) is not None:
            try:
                return self._exchange(kept, url, headers, form)
            except OSError:
                continue  # the server has closed the connection in the meantime
        return self._exchange(RegistryConnection(origin, self._open(origin, _proxy(origin))), url, headers, form)

    def _exchange(
        self, connection: RegistryConnection, url: str, headers: dict[str, str], form: bytes | None
    ) -> RegistryAnswer:
        parts = urlsplit(url)
        target, extra = (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), {}
        if parts.scheme == "http" and (proxy := _proxy(connection.origin)) is not None:
            target, extra = url, _proxy_headers(proxy)  # TLS has a tunnel instead
        method = "GET" if form is None else "POST"
        try:
            connection.http.request(method, target, form, {"User-Agent": _AGENT, **headers, **extra})
            response = connection.http.getresponse()
        except HTTPException as error:
            connection.http.close()
            raise BrokenHttpError(f"the answer is not HTTP ({error or type(error).__name__})") from None
        except OSError:
            connection.http.close()
            raise
        return RegistryAnswer(url, response, self, connection)

    def _take(self, origin: Origin) -> RegistryConnection | None:
        with self._lock:
            for index, connection in enumerate(self._idle):
                if connection.origin == origin:
                    return self._idle.pop(index)
        return None

    def _open(self, origin: Origin, proxy: SplitResult | None) -> HTTPConnection:
        host, port = (proxy.hostname or "", proxy.port or _PORTS["http"]) if proxy else (origin.host, origin.port)
        if origin.scheme == "http":
            return HTTPConnection(host, port, timeout=self.timeout)
        if self._context is None:
            self._context = ssl.create_default_context()
        connection = HTTPSConnection(host, port, timeout=self.timeout, context=self._context)
        if proxy:
            connection.set_tunnel(origin.host, origin.port, _proxy_headers(proxy))
        return connection


def origin_of(url: str) -> Origin:
    """The origin of a URL. Raises BrokenHttpError."""
    parts = urlsplit(url)
    try:
        return Origin(parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0))
    except ValueError as error:
        raise BrokenHttpError(f"found the URL {url[:80]!r}: {error}") from None


def is_loopback(host: str) -> bool:
    """Whether a host without its port is this machine."""
    return host in _LOOPBACK or host.startswith("127.")


def header_values(headers: HTTPMessage, name: str) -> list[str]:
    """All values of a header."""
    return headers.get_all(name) or []


def _proxy(origin: Origin) -> SplitResult | None:
    """The proxy of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`); None without one."""
    if is_loopback(origin.host) or proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    url = getproxies_environment().get(origin.scheme, "")
    return urlsplit(url if "://" in url else f"http://{url}") if url else None


def _proxy_headers(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
