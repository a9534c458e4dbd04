# SPDX-License-Identifier: Apache-2.0
"""Measures the CPU that the client of `kube` needs per request, compared with aiohttp, on a real API server with TLS.

The requests are POSTs of 1.2 KB that the server refuses at once, because their namespace does not exist.

Run: python bench/http_client.py [ROUNDS]
"""

import asyncio
import platform
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time

sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("tests/cluster", "tests")]

import aiohttp
from cluster_plane import ControlPlane

from trainwright.errors import ApiError
from trainwright.kube.cluster import connected
from trainwright.kube.codec import Request
from trainwright.kube.config import ConnectionOptions, load

REQUESTS, AT_ONCE = 1200, 16
BODY = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"x":"' + b"y" * 1200 + b'"}'
PATH = "/api/v1/namespaces/missing/pods"


async def with_aiohttp(plane: ControlPlane) -> None:
    """Send all requests with aiohttp."""
    context = ssl.create_default_context(cafile=str(plane.authority))
    context.check_hostname = False
    headers = {"Authorization": f"Bearer {plane.tokens['admin']}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    async with aiohttp.ClientSession(plane.server, connector=connector, headers=headers) as session:

        async def send() -> None:
            async with session.post(PATH, data=BODY, timeout=aiohttp.ClientTimeout(total=5)) as response:
                await response.read()

        await _all(send)


async def with_ours(plane: ControlPlane) -> None:
    """Send all requests with our client, with its limits and retries."""
    async with connected(load(ConnectionOptions(kubeconfig=str(plane.kubeconfig())))) as cluster:

        async def send() -> None:
            with suppress(ApiError):
                await cluster.http.send(Request("create", "pods", PATH, BODY))

        await _all(send)


async def _all(send: Callable[[], Awaitable[None]]) -> None:
    pending = iter(range(REQUESTS))

    async def work() -> None:
        for _ in pending:
            await send()

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])


def main(rounds: int) -> None:
    """Run both in turn and print the medians."""
    clients = {"aiohttp": with_aiohttp, "ours": with_ours}
    found: dict[str, list[float]] = {name: [] for name in clients}
    with ControlPlane(controllers=False, scheduler=False) as plane:
        for _ in range(rounds):
            for name, client in clients.items():
                before = process_time()
                asyncio.run(client(plane))
                found[name].append(1e6 * (process_time() - before) / REQUESTS)
    print(f"CPython {platform.python_version()}, aiohttp {aiohttp.__version__}, {rounds} rounds of {REQUESTS} requests")
    for name, times in found.items():
        print(f"{name}: {median(times):.0f} µs of CPU per request [{min(times):.0f} to {max(times):.0f}]")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
