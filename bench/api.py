# SPDX-License-Identifier: Apache-2.0
"""Measures the Kubernetes API of the background engine: lists, the cost of a watcher, and writes with 100 watchers.

Run: python bench/api.py [--quick]

The floor of a watcher is a bare asyncio server that writes the same bytes over TLS to as many connections. Clients are
in a process of their own, so that only the server's CPU time is counted.
"""

import asyncio
import json
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import aiohttp
import msgspec

import trainwright
from trainwright.api.access import AccessRole
from trainwright.api.credentials import ApiCredentials
from trainwright.api.handlers import ResourceHandlers
from trainwright.api.server import ApiAddress, ApiHttpServer
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, PODS, WallClock

QUICK = "--quick" in sys.argv
KEPT_JOBS = 500 if QUICK else 5000
WATCHERS = 10 if QUICK else 100
EVENTS = 100 if QUICK else 1000
ROUNDS = 2 if QUICK else 7
JOB, POD = JOBS["genericjob"], PODS.whole()
PATH = "/apis/batch.tensorstack.dev/v1beta1/genericjobs"
Body = dict[str, Any]


class Served:
    """A store with a journal behind the API."""

    def __init__(self, store: Store, server: ApiHttpServer, credentials: ApiCredentials) -> None:
        self.store, self.server, self.credentials = store, server, credentials
        self.cluster = LocalCluster(store)

    def client(self, part: str, path: str, number: int, events: int) -> "asyncio.Future[asyncio.subprocess.Process]":
        """Start this script as a client."""
        words = [part, self.server.url + path, self.credentials.token(AccessRole.ADMIN), str(number), str(events)]
        return asyncio.ensure_future(
            asyncio.create_subprocess_exec(sys.executable, __file__, *words, stdout=subprocess.PIPE)
        )


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    """Serve a store with a journal."""
    store = Store.open(WallClock(), folder / "store.db")
    cluster = LocalCluster(store)
    handlers = ResourceHandlers(cluster, WallClock(), folder)
    await handlers.prepare()
    credentials = ApiCredentials(folder, WallClock())
    tls = credentials.prepare()
    server = ApiHttpServer(handlers, credentials.identify)
    await server.start(ApiAddress(tls=tls))
    try:
        yield Served(store, server, credentials)
    finally:
        await server.stop()
        store.close()


def job(index: int) -> Body:
    """Return a job with a status, about 2 KB of JSON."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value {i} of job {index}"} for i in range(12)]
    container = {"name": "main", "image": "python:3.12-slim", "command": ["python", "/train.py"], "env": env}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template}]}
    return {"metadata": {"name": f"job-{index:05}", "namespace": "default"}, "spec": spec}


# -- lists ------------------------------------------------------------------------------------------------------------


async def lists(folder: Path) -> None:
    """List all jobs from another process, as JSON and as a Table."""
    async with served(folder) as api:
        for index in range(KEPT_JOBS):
            api.store.create(JOB, job(index))
        for accept, name in (("application/json", "JSON"), ("application/json;as=Table;v=v1;g=meta.k8s.io", "Table")):
            process = await api.client(f"--list={accept}", PATH, ROUNDS, 0)
            found = json.loads((await process.communicate())[0])
            times = sorted(found["seconds"])
            print(
                f"list of {KEPT_JOBS:,} jobs as {name}: {statistics.median(times) * 1e3:.0f} ms"
                f" ({times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f}), {found['bytes'] / 1e6:.1f} MB",
                flush=True,
            )


async def list_client(accept: str, url: str, token: str, count: int) -> None:
    """Print the seconds of each list."""
    headers, seconds, size = {"Authorization": f"Bearer {token}", "Accept": accept}, [], 0
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(count):
            began = perf_counter()
            async with session.get(url, ssl=_unverified()) as answer:
                size = len(await answer.read())
            seconds.append(perf_counter() - began)
    print(json.dumps({"seconds": seconds, "bytes": size}))


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# -- watchers ---------------------------------------------------------------------------------------------------------


async def watchers(folder: Path) -> None:
    """Compare the CPU time of the server per event and watcher with a bare TLS write of the same bytes."""
    own, bare = [], []
    for number in range(ROUNDS):
        place = folder / str(number)
        place.mkdir()
        own.append(await _own_watchers(place))
        bare.append(await _bare_watchers(place))
    ratios = [one / other for one, other in zip(own, bare, strict=True)]
    middle = statistics.median
    print(
        f"{WATCHERS} watchers, {EVENTS:,} events: {middle(own):.1f} µs of CPU per event and watcher, a bare TLS write"
        f" {middle(bare):.1f} µs, ratio {middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


async def _own_watchers(folder: Path) -> float:
    """The cost of a watcher: the CPU time with watchers minus the CPU time of the writes alone."""
    async with served(folder) as api:
        made = [await api.cluster.create(JOB, job(index)) for index in range(10)]
        alone = await _changes(api, made)
        process = await api.client(
            "--watch", f"{PATH}?watch=true&resourceVersion={api.store.version}", WATCHERS, EVENTS
        )
        await process.stdout.readline()  # type: ignore[union-attr]
        began = process_time()
        await _changes(api, made)
        await process.communicate()
        return (process_time() - began - alone) / WATCHERS / EVENTS * 1e6


async def _changes(api: Served, made: list[Body]) -> float:
    """Change jobs one after the other, so that each change is an event of its own. Returns the CPU time."""
    began = process_time()
    for number in range(EVENTS):
        key = Key("default", made[number % len(made)]["metadata"]["name"])
        await api.cluster.patch(JOB, key, {"metadata": {"annotations": {"n": f"{number}-{began}"}}})
    return process_time() - began


async def _bare_watchers(folder: Path) -> float:
    credentials = ApiCredentials(folder / "bare", WallClock())
    tls, writers = credentials.prepare(), list[StreamWriter]()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    words = ["--watch", url, "none", str(WATCHERS), str(EVENTS)]
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *words, stdout=subprocess.PIPE)
    await process.stdout.readline()  # type: ignore[union-attr]
    event = msgspec.json.encode({"type": "MODIFIED", "object": _stored_size()}) + b"\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    began = process_time()
    for _ in range(EVENTS):
        for writer in writers:
            writer.transport.write(chunk)
        await asyncio.sleep(0)
    await process.communicate()
    used = (process_time() - began) / WATCHERS / EVENTS * 1e6
    server.close()
    return used


def _stored_size() -> Body:
    store = Store(WallClock())
    made = store.create(JOB, job(0))
    return store.patch(JOB, Key("default", made["metadata"]["name"]), {"metadata": {"annotations": {"n": "1-1.0"}}})


async def watch_client(url: str, token: str, number: int, events: int) -> None:
    """Open watches, say so, and read until each has got all events."""
    connector = aiohttp.TCPConnector(limit=0, ssl=_unverified())
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}, connector=connector) as session:
        answers = [await session.get(url, timeout=aiohttp.ClientTimeout(None)) for _ in range(number)]
        print("ready", flush=True)

        async def read(answer: aiohttp.ClientResponse) -> None:
            left = events
            while left > 0 and (data := await answer.content.readany()):
                left -= data.count(b"\n")

        await asyncio.gather(*[read(one) for one in answers])


# -- writes with watchers ---------------------------------------------------------------------------------------------


async def writes(folder: Path) -> None:
    """Compare the durable writes/s of 32 writers with and without watchers."""
    ratios, alone_rates, with_rates = [], [], []
    for number in range(ROUNDS):
        async with served(folder / f"w{number}") as api:
            alone = await _write_rate(api)
            process = await api.client("--drain", f"{PATH}?watch=true&resourceVersion={api.store.version}", WATCHERS, 0)
            await process.stdout.readline()  # type: ignore[union-attr]
            beside = await _write_rate(api)
            process.kill()
            await process.wait()
        alone_rates.append(alone)
        with_rates.append(beside)
        ratios.append(beside / alone)
    middle = statistics.median
    print(
        f"durable writes/s: {middle(alone_rates):,.0f} alone, {middle(with_rates):,.0f} with {WATCHERS} watchers of all"
        f" of them, ratio {middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


async def _write_rate(api: Served) -> float:
    names = [f"load-{index}" for index in range(32)]
    for name in names:
        if Key("default", name) not in api.store.keys(JOB):
            await api.cluster.create(JOB, {**job(0), "metadata": {"name": name, "namespace": "default"}})
    began = perf_counter()

    async def write(name: str) -> None:
        for number in range(EVENTS // 2):
            patch = {"metadata": {"annotations": {"n": f"{number}-{began}"}}}
            await api.cluster.patch(JOB, Key("default", name), patch)

    await asyncio.gather(*[write(name) for name in names])
    return len(names) * (EVENTS // 2) / (perf_counter() - began)


async def drain_client(url: str, token: str, number: int) -> None:
    """Open watches, say so, and read until killed. A watch that ends, because it was too slow, begins anew."""
    connector = aiohttp.TCPConnector(limit=0, ssl=_unverified())
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}, connector=connector) as session:
        answers = [await session.get(url, timeout=aiohttp.ClientTimeout(None)) for _ in range(number)]
        print("ready", flush=True)

        async def read(answer: aiohttp.ClientResponse) -> None:
            while True:
                while await answer.content.readany():
                    pass
                answer = await session.get(url.partition("&")[0], timeout=aiohttp.ClientTimeout(None))

        await asyncio.gather(*[read(one) for one in answers])


def main() -> None:
    """Print all figures."""
    versions = f"trainwright {trainwright.__version__}, aiohttp {aiohttp.__version__}, {ssl.OPENSSL_VERSION}"
    print(f"{datetime.now(UTC):%Y-%m-%d}: {versions}, Python {platform.python_version()}")  # noqa: TID251
    for part in (lists, watchers, writes):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(part(Path(folder)))


if __name__ == "__main__":
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first.startswith("--list="):
        asyncio.run(list_client(first.removeprefix("--list="), sys.argv[2], sys.argv[3], int(sys.argv[4])))
    elif first == "--watch":
        asyncio.run(watch_client(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    elif first == "--drain":
        asyncio.run(drain_client(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        main()
