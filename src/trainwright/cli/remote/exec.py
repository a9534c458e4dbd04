# SPDX-License-Identifier: Apache-2.0
"""Run a command in a pod of a cluster: a WebSocket with the protocol v5.channel.k8s.io or v4.channel.k8s.io.

Each message is one byte for the channel, and data. At the end, the server sends a Status with the exit code on its own
channel. Only version 5 has a message for the end of the standard input: with version 4, a command that reads its input
to the end does not notice the end.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Semaphore, Thread
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import (
    ClientError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    ClientWSTimeout,
    DummyCookieJar,
    WSMsgType,
    WSServerHandshakeError,
)
from multidict import CIMultiDict
from yarl import URL

from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.exec import raw_terminal, wants_terminal
from trainwright.cli.live_job import LiveJob
from trainwright.cli.remote.connection import client_of
from trainwright.errors import ApiError, ForbiddenError, NotFoundError, UnavailableError
from trainwright.kube.auth import user_headers
from trainwright.kube.blocking import ClusterClient
from trainwright.kube.certificates import ssl_context
from trainwright.kube.codec import object_path
from trainwright.kube.http import advice, describe
from trainwright.kube.proxy import translated
from trainwright.kube.unreachable import no_answer
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.exec_client import CommandNotStarted
from trainwright.runtime.ports import PODS

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_CHUNK_BYTES = 32 * 1024
#: So many parts of our standard input can wait in memory until they are sent.
_MAX_UNSENT_PARTS = 4
_CONNECT_SECONDS, _CLOSE_SECONDS = 10.0, 2.0
#: The texts of container runtimes about a command that they cannot start, and the exit codes of a shell for that.
_NOT_STARTED = {"executable file not found": 127, "no such file or directory": 127, "permission denied": 126}
#: Proxies and load balancers close a connection without traffic, often after a minute.
_PING_SECONDS = 30.0


def run_in_pod(reached: LiveJob, pod: Body, container: str, argv: list[str], *, tty: bool | None) -> int:
    """Run the command and return its exit code. With `tty=None`, the command gets a terminal if we have a terminal."""
    terminal = wants_terminal(tty)
    meta = pod["metadata"]
    query = [("container", container), ("stdin", "true"), ("stdout", "true")]
    query += [("tty", "true")] if terminal else [("stderr", "true")]
    words = urlencode([*query, *(("command", word) for word in argv)], quote_via=quote)
    path = f"{object_path(PODS, Key(meta['namespace'], meta['name']), 'exec')}?{words}"
    with raw_terminal() if terminal else nullcontext():
        return run_coroutine(_run, client_of(reached), path, meta["namespace"], terminal)


async def _run(client: ClusterClient, path: str, namespace: str, terminal: bool) -> int:
    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    async with ClientSession(cookie_jar=DummyCookieJar(), timeout=timeout) as session:
        try:
            socket = await session.ws_connect(**_options(client, path))
        except WSServerHandshakeError as error:
            raise _refused(client, namespace, error) from None
        except ClientError as error:
            problem, access = translated(error), client.access
            text = no_answer(access.server, access.origin, describe(problem, _CONNECT_SECONDS), advice(problem))
            raise UnavailableError(text) from None
        async with socket:
            with _window_sizes(socket) if terminal else nullcontext():
                sending = asyncio.create_task(_send_input(socket))
                try:
                    return await _relay(socket)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)


def _options(client: ClusterClient, path: str) -> dict[str, Any]:
    """How to connect: the same server, user, certificates and proxy as for all other requests."""
    access, auth = client.access, client.http.current_auth()
    value = access.cluster.value
    secure = any(url.startswith("https:") for url in (access.server, access.proxy))
    return {
        "url": URL(f"{access.server}{path}", encoded=True),
        "protocols": (_V5, _V4),
        "headers": CIMultiDict([*user_headers(access.user), *auth.headers.items()]),
        "ssl": ssl_context(access.cluster, access.user, auth.key_pair) if secure else True,
        "proxy": access.proxy or None,
        "server_hostname": value.tls_server_name,
        "heartbeat": _PING_SECONDS,
        "timeout": ClientWSTimeout(ws_close=_CLOSE_SECONDS),
        "max_msg_size": 0,
    }


def _refused(client: ClusterClient, namespace: str, error: WSServerHandshakeError) -> ApiError:
    """aiohttp does not read the server's text about the error."""
    if error.status in (401, 403):
        reason = ForbiddenError("the role `edit` contains this right")
        return client.refused("create", "pods/exec", namespace, reason)
    if error.status == 404:
        return NotFoundError("the pod does not exist any more")
    return UnavailableError(f"{client.place} does not connect to the pod: HTTP {error.status}")


# -- streams ----------------------------------------------------------------------------------------------------------


async def _relay(socket: ClientWebSocketResponse) -> int:
    """Write the output of the command until it has ended. Return its exit code."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel in (_STDOUT, _STDERR):
            _write(channel, data)
        elif channel == _STATUS and data:
            return _exit_code(json.loads(data))
    raise UnavailableError("the connection to the pod ended before the command, so its exit code is not known")


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _exit_code(status: Body) -> int:
    """The exit code in a Status. Raises CommandNotStarted or UnavailableError if the command did not run."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    for cause in causes:
        if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdecimal():
            return int(cause["message"])
    text = " ".join(str(status.get("message") or "the command was not started").split())
    for part, code in _NOT_STARTED.items():
        if part in text.lower():
            raise CommandNotStarted(text, code)
    raise UnavailableError(f"the node of the replica did not run the command: {text}")


async def _send_input(socket: ClientWebSocketResponse) -> None:
    """Send our standard input until it ends."""
    parts, free = asyncio.Queue[bytes](), Semaphore(_MAX_UNSENT_PARTS)
    Thread(target=_read_input, args=(parts, free, asyncio.get_running_loop()), daemon=True).start()
    while data := await parts.get():
        await socket.send_bytes(bytes((_STDIN,)) + data)
        free.release()
    if socket.protocol == _V5:
        await socket.send_bytes(bytes((_CLOSE, _STDIN)))


def _read_input(parts: asyncio.Queue[bytes], free: Semaphore, loop: asyncio.AbstractEventLoop) -> None:
    """Read our standard input in a thread, because an event loop cannot wait for a file. Empty data is its end."""
    data = b"more"
    with suppress(RuntimeError):  # the command has ended, and with it the event loop
        while data:
            free.acquire()
            try:
                data = os.read(0, _CHUNK_BYTES)
            except OSError:  # the terminal is gone
                data = b""
            loop.call_soon_threadsafe(parts.put_nowait, data)


@contextmanager
def _window_sizes(socket: ClientWebSocketResponse) -> Iterator[None]:
    """Tell the server the size of our terminal, now and after each change."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def send() -> None:
        with suppress(OSError, ClientError):  # no terminal any more, or no connection
            size = os.get_terminal_size(0)
            data = json.dumps({"Width": size.columns, "Height": size.lines}).encode()
            await socket.send_bytes(bytes((_RESIZE,)) + data)

    def tell() -> None:
        task = asyncio.ensure_future(send())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    tell()
    loop.add_signal_handler(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
