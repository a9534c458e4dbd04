# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the operator: health checks and metrics, and clients that do not behave."""

import asyncio
import socket
import subprocess
import sys
from contextlib import AbstractAsyncContextManager

import pytest
from aiohttp import ClientSession

from patience import PATIENCE
from trainwright.errors import UsageError
from trainwright.kube import health
from trainwright.kube.health import HealthAddresses, serve_health


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


def served(port: int, problem: str = "") -> AbstractAsyncContextManager[None]:
    addresses = HealthAddresses(everything=f"127.0.0.1:{port}")
    return serve_health(addresses, lambda: problem, lambda: "", lambda: "jobs 3\n# é\n")


@pytest.mark.parametrize(
    ("method", "path", "code", "text"),
    [
        ("GET", "/healthz", 503, "stuck\n"),
        ("GET", "/readyz", 200, "ok\n"),
        ("GET", "/readyz?verbose", 200, "ok\n"),
        ("GET", "/metrics", 200, "jobs 3\n# é\n"),
        ("HEAD", "/metrics", 200, ""),
        ("GET", "/", 404, "not found; try /metrics or /healthz or /readyz\n"),
        ("POST", "/metrics", 405, "expected GET\n"),
    ],
)
async def test_what_is_answered(port: int, method: str, path: str, code: int, text: str) -> None:
    async with served(port, "stuck"), ClientSession() as session:
        async with session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
            assert (answer.status, await answer.text()) == (code, text)
        if code == 200 and path == "/metrics":
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def ask(port: int, data: bytes) -> bytes:
    """What the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /healthz HTTP/2.0\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b""),
    ],
    ids=["no HTTP", "HTTP/2", "HTTP/1.0", "too long"],
)
async def test_odd_requests(port: int, data: bytes, answer: bytes) -> None:
    async with served(port):
        assert (await ask(port, data)).partition(b"\r\n")[0] == answer
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")


async def test_slow_and_many_clients_do_not_stop_the_server(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(health, "_MAX_CONNECTIONS", 3)
    async with served(port):
        slow = [asyncio.create_task(ask(port, b"GET /healthz HTTP/1.1\r\n")) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        assert await asyncio.gather(*slow) == [b""] * 3
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")


async def test_the_end_closes_open_connections(port: int) -> None:
    async with served(port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
    writer.close()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_in_use_is_a_clear_error(port: int) -> None:
    async with served(port):
        with pytest.raises(UsageError, match=rf"cannot listen at 127\.0\.0\.1:{port}: "):
            async with served(port):
                pass


def test_the_operator_does_not_load_aiohttp() -> None:
    program = "import sys, trainwright.kube.operator; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
