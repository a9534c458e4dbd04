# SPDX-License-Identifier: Apache-2.0
"""A `BlockingHttpClient` for servers behind a proxy. Its thread runs aiohttp, which supports every kind of proxy."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError
from threading import Lock, Thread

from trainwright.errors import UnavailableError
from trainwright.kube.blocking_http import BlockingHttpClient, BlockingHttpPolicy, NoAnswerInTimeError
from trainwright.kube.certificates import AuthHeaders
from trainwright.kube.codec import Request
from trainwright.kube.config import Access
from trainwright.kube.http import HttpClient, RequestPolicy
from trainwright.kube.session import ApiSession

#: The longest stream, about a month.
_STREAM_SECONDS = 30 * 86400.0


class ProxiedHttpClient(BlockingHttpClient):
    """Reads from one server through the proxy of `access`."""

    def __init__(self, access: Access, policy: BlockingHttpPolicy | None = None) -> None:
        policy = policy or BlockingHttpPolicy()
        self._session = ApiSession(access)
        self._http = HttpClient(
            self._session, RequestPolicy(policy.timeout, policy.retry_seconds, policy.max_concurrent)
        )
        #: Held while a request is handed to the event loop, so that none reaches the loop after it has ended.
        self._lock = Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def send(self, request: Request, seconds: float | None = None) -> bytes:
        """The body of the answer. Raises ApiError; NoAnswerInTimeError if there is none within `seconds`."""
        with self._lock:
            if self._closed:
                raise self._closed_error()
            waiting = asyncio.run_coroutine_threadsafe(self._http.send(request), self._loop)
        try:
            return waiting.result(seconds)
        except CancelledError:
            raise self._closed_error() from None
        except TimeoutError:
            waiting.cancel()
            raise NoAnswerInTimeError(f"no answer from {self._session.server}: none within {seconds:g} s") from None

    def stream(self, request: Request) -> Iterator[bytes]:
        """The body of the answer in parts, as they arrive, without a time limit. Raises ApiError."""
        parts = self._http.stream(request, _STREAM_SECONDS)
        while True:
            with self._lock:
                if self._closed:
                    raise self._closed_error()
                waiting = asyncio.run_coroutine_threadsafe(_next(parts), self._loop)
            try:
                part = waiting.result()
            except CancelledError:
                raise self._closed_error() from None
            if part is None:
                return
            yield part

    def current_auth(self) -> AuthHeaders:
        """The credentials of the next request, for a connection of another client."""
        return self._session.credentials.current()

    def _closed_error(self) -> UnavailableError:
        return UnavailableError(f"nothing is read from {self._session.server}: the client is closed")

    def close(self) -> None:
        """Cancel the requests of other threads and close every connection."""
        with self._lock:
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        requests = asyncio.all_tasks() - {asyncio.current_task()}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self._session.close()


async def _next(parts: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next part; None after the last one."""
    return await anext(parts, None)
