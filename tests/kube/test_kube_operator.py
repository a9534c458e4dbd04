# SPDX-License-Identifier: Apache-2.0
"""The operator as a process, against the embedded store behind HTTP: its start, its probes and numbers, its end."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, web
from kube_server import access
from kube_store import StoreServer, api, status

from closed_crds import close_status, ledger_of, status_of
from patience import PATIENCE
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.health import HealthAddresses
from trainwright.kube.operator import OperatorOptions, _Operator, operate
from trainwright.kube.session import ApiSession
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime import purity
from trainwright.runtime.controller import Controller

DOCUMENTED_FLAGS = [
    "--v",
    "4",
    "--thread-num",
    "1000",
    "--logtostderr",
    "--leader-elect=true",
    "--enable-creating-failed=true",
]
QUICK = ["--lease-duration", "40", "--renew-deadline", "3", "--retry-period", "0.2"]

OPENSSL = shutil.which("openssl")


class Operator:
    """One process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, address: str) -> None:
        self.process, self._log, self._address = process, log, address

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def get(self, path: str) -> tuple[int, str]:
        async with ClientSession() as session, session.get(f"http://{self._address}{path}") as response:
            return response.status, await response.text()

    async def says(self, path: str) -> tuple[int, str]:
        """As soon as anybody answers there."""
        try:
            return await self.get(path)
        except ClientError:
            return 0, ""

    async def end(self, *signals: int) -> tuple[int, float]:
        """Its exit code, and how long it took."""
        began = time.monotonic()
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
            await asyncio.sleep(0.1)
        return await asyncio.wait_for(self.process.wait(), PATIENCE), time.monotonic() - began


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@asynccontextmanager
async def operator(folder: Path, master: str, *words: str, name: str = "one") -> AsyncIterator[Operator]:
    address, log = f"127.0.0.1:{free_port()}", folder / f"{name}.log"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "TRAINWRIGHT"))}
    clean[purity.VARIABLE] = os.environ[purity.VARIABLE]
    argv = ["-m", "trainwright", "operator", "--master", master, "--address", address, *words]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdout=file, stderr=file, env={**clean, "HOME": str(folder)}
        )
    try:
        yield Operator(process, log, address)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        await asyncio.sleep(0.03)


async def test_the_start_line_of_the_originals_works(tmp_path: Path) -> None:
    async with api() as server, operator(tmp_path, server.address, *DOCUMENTED_FLAGS) as one:
        server.submit("train", 2)
        await until(lambda: server.phase("train") == "Succeeded", "the job succeeds")
        told = (await one.get("/metrics"))[1]
        probes = [await one.get(path) for path in ("/healthz", "/readyz")]
        server.asked.clear()
        code, _ = await one.end()

        assert code == 0, one.log
        assert server.holder() == ""
        assert [word for word in server.asked if "leases" not in word] == []
    assert probes == [(200, "ok\n"), (200, "ok\n")]
    for metric in (
        "leader",
        'jobs{kind="genericjob",phase="Succeeded"}',
        'jobs_finished_total{kind="genericjob",result="Succeeded"}',
        'time_to_running_seconds_count{kind="genericjob"}',
        'api_calls_total{code="200",resource="leases.coordination.k8s.io",verb="create"}',
    ):
        assert f"trainwright_{metric} 1.0" in told.splitlines()
    assert 'trainwright_api_calls_total{code="200",resource="pods",verb="create"} 2.0' in told
    assert 'trainwright_api_seconds_count{resource="pods",verb="create"} 2.0' in told
    lines = [line for line in one.log.splitlines() if "job=default/train" in line]
    assert [line for line in lines if "msg=write" in line and "resource=pods" in line and "verb=create" in line]
    assert [line for line in lines if "msg=phase" in line and "now=Succeeded" in line and "reason=Rule" in line]


async def test_it_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    port = free_port()
    async with operator(tmp_path, f"127.0.0.1:{port}") as one:

        async def refused() -> bool:
            code, text = await one.says("/readyz")
            return code == 503 and "it waits for the API server: no answer from" in text

        await until(refused, "it says what it waits for")
        assert await one.get("/healthz") == (200, "ok\n")
        async with api(port):

            async def ready() -> bool:
                return (await one.get("/readyz"))[0] == 200

            await until(ready, "it is ready")
            assert "level=warning" in one.log
            assert (await one.end())[0] == 0


async def test_one_that_stands_by_is_ready_and_takes_over_at_once(tmp_path: Path) -> None:
    async with api() as server, operator(tmp_path, server.address, *QUICK) as one:
        await until(lambda: bool(server.holder()), "the first leads")
        first = server.holder()
        async with operator(tmp_path, server.address, *QUICK, name="two") as two:

            async def standing_by() -> bool:
                return (await two.says("/readyz"))[0] == 200

            await until(standing_by, "the second stands by")
            assert "trainwright_leader 0.0" in (await two.get("/metrics"))[1]
            assert f"leader={first}" in two.log
            assert (await one.end())[0] == 0
            await until(
                lambda: server.holder() not in ("", first), "the second leads", 20
            )  # and not when the lease expires
            server.submit("train")
            await until(lambda: server.phase("train") == "Succeeded", "the job succeeds")
            assert "trainwright_leader 1.0" in (await two.get("/metrics"))[1]


async def test_a_write_that_was_sent_is_waited_for(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def slow(request: web.Request) -> web.Response | None:
        if request.method == "POST" and request.path.endswith("/pods"):
            seen.set()
            await asyncio.sleep(1)
        return None

    async with api() as server, operator(tmp_path, server.address) as one:
        server.before = slow
        server.submit("train")
        await asyncio.wait_for(seen.wait(), PATIENCE)
        code, took = await one.end()

        assert (code, took > 0.7) == (0, True)
        assert server.holder() == ""
        assert "Traceback" not in one.log


async def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def never(request: web.Request) -> web.Response | None:
        if request.method == "POST" and request.path.endswith("/pods"):
            seen.set()
            await asyncio.sleep(600)
        return None

    async with api() as server, operator(tmp_path, server.address) as one:
        server.before = never
        server.submit("train")
        await asyncio.wait_for(seen.wait(), PATIENCE)
        code, _ = await one.end(signal.SIGTERM, signal.SIGINT)

    assert code == 130
    assert "Traceback" not in one.log


# -- what becomes known when something is stuck, in this process ------------------------------------------------------


def part_of(name: str) -> "asyncio.Task[object]":
    """A task of this process, by the function that it runs."""
    return next(task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == name)


@asynccontextmanager
async def inside(server: StoreServer, address: str) -> AsyncIterator[asyncio.Event]:
    """An operator in this process; it is told to stop at the end of the block."""
    stop = asyncio.Event()
    options = OperatorOptions(
        lease=Key("trainwright", "operator"), identity="me", addresses=HealthAddresses(probes=address), retry_period=0.2
    )
    task = asyncio.create_task(operate(access(f"http://{server.address}"), options, stop))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


async def answered(address: str, path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://{address}{path}") as response:
        return response.status, await response.text()


async def test_a_worker_that_dies_is_an_ill_operator() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with api() as server, inside(server, address):
        await until(lambda: bool(server.holder()), "it leads")
        await until(lambda: any("Controller._work" in repr(task) for task in asyncio.all_tasks()), "it works")
        assert await answered(address, "/healthz") == (200, "ok\n")
        part_of("Controller._work").cancel()
        await asyncio.sleep(0.05)

        assert await answered(address, "/healthz") == (503, "a part of the controller has ended\n")


async def test_a_leader_whose_renewals_hang_is_ill_and_one_that_stands_by_without_a_server_is_not_ready() -> None:
    session = ApiSession(access("http://127.0.0.1:9"))
    options = OperatorOptions(lease=Key("a", "b"), identity="me")
    one = _Operator(session, options)
    now = asyncio.get_running_loop().time()
    assert one._elector is not None

    assert (one._healthy(), one._ready()) == ("", "it has just been started")
    one._not_prepared, one._elector._last_contact = "", now - 5
    assert (one._healthy(), one._ready()) == ("", "")
    one._elector._last_contact = now - 13
    assert one._ready() == "it stands by, and cannot reach the lease"
    one._telemetry.leads = True
    assert (one._healthy(), one._ready()) == ("", "it leads, and has not listed everything yet")
    one._elector._last_contact = now - 36
    assert one._healthy() == "the lease was last renewed 36 s ago, and this operator still holds on to it"
    await session.close()


@pytest.mark.skipif(not OPENSSL, reason="makes its certificate with the openssl command")
async def test_a_server_that_cannot_be_trusted_is_not_waited_for(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("key", "crt", "config")}
    words = f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout {files['key']} -out {files['crt']}"
    subprocess.run([str(OPENSSL), *words.split()], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["crt"], files["key"])
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, operator(tmp_path, f"https://127.0.0.1:{port}") as one:
        assert await asyncio.wait_for(one.process.wait(), PATIENCE) == 3

    last = one.log.splitlines()[-1]
    assert last.startswith(f"trainwright: no answer from https://127.0.0.1:{port}: ")
    assert "certificate verify failed" in last


async def test_a_leader_that_cannot_reach_the_server_any_more_ends(tmp_path: Path) -> None:
    async with api() as server, operator(tmp_path, server.address, *QUICK) as one:
        await until(lambda: bool(server.holder()), "it leads")

        async def away(_: web.Request) -> web.Response | None:
            return status(503, "ServiceUnavailable", "away")

        server.before = away
        assert await asyncio.wait_for(one.process.wait(), PATIENCE) == 3

    assert one.log.splitlines()[-1].startswith("trainwright: the lease is lost")
    assert "Traceback" not in one.log


async def test_what_breaks_the_controller_is_told_and_the_lease_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Controller, "_work", breaks)
    options = OperatorOptions(lease=Key("trainwright", "operator"), identity="me")
    async with api() as server:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await operate(access(f"http://{server.address}"), options, asyncio.Event())

        assert server.holder() == ""


def answers(method: str, part: str, code: int, reason: str, message: str) -> Callable[[StoreServer], None]:
    """So does the server answer one kind of request."""

    async def before(request: web.Request) -> web.Response | None:
        return status(code, reason, message) if request.method == method and part in request.path else None

    return lambda server: setattr(server, "before", before)


def closed(server: StoreServer, kinds: Iterable[Kind] = KINDS) -> list[Body]:
    """Describe the status in the definitions of these kinds field by field; return their versions."""
    bodies = server.install(kinds)
    for kind, body in zip(kinds, bodies, strict=True):
        close_status(kind, body)
    return [version for body in bodies for version in body["spec"]["versions"]]


def another_ones(server: StoreServer, kinds: Iterable[Kind] = KINDS) -> None:
    """A definition of another operator: the API server would drop the ledger."""
    for version in closed(server, kinds):
        del status_of(version)["properties"]["trainwright"]


def forgetful(server: StoreServer) -> None:
    """A definition of an older version: it knows a ledger, but not all of it."""
    for version in closed(server):
        del ledger_of(version)["properties"]["roles"]["items"]["properties"]["retries"]


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (answers("GET", "customres", 404, "NotFound", "no"), 2, "not installed: genericjobs.batch.tensorstack.dev"),
        (another_ones, 2, "its status has no `trainwright`"),
        (forgetful, 2, "drop or refuse parts of the durable state: status.trainwright.roles[].retries in v1beta1"),
        (answers("GET", "customres", 403, "Forbidden", "you may not"), 3, "trainwright: you may not"),
        (answers("GET", "customres", 401, "Unauthorized", "who?"), 3, "the server does not know who we are: who?"),
        (
            answers("POST", "leases", 404, "NotFound", 'namespaces "trainwright" not found'),
            3,
            'cannot get the lease trainwright/operator: namespaces "trainwright" not found',
        ),
        (answers("GET", "leases", 403, "Forbidden", "no"), 3, "cannot get the lease trainwright/operator: no"),
    ],
    ids=[
        "no CRD",
        "another's CRD",
        "an older CRD",
        "forbidden",
        "unknown user",
        "no namespace for the lease",
        "no right to the lease",
    ],
)
async def test_what_keeps_it_from_starting_is_told_in_a_line(
    tmp_path: Path, prepare: Callable[[StoreServer], None], code: int, told: str
) -> None:
    async with api() as server:
        prepare(server)
        async with operator(tmp_path, server.address) as one:
            assert await asyncio.wait_for(one.process.wait(), PATIENCE) == code

    (line,) = [line for line in one.log.splitlines() if line.startswith("trainwright: ")]
    assert told in line
    assert "Traceback" not in one.log


async def test_a_gang_scheduler_that_is_not_installed_is_told_in_a_line(tmp_path: Path) -> None:
    async with api() as server, operator(tmp_path, server.address, "--gang-scheduler-name", "volcano") as one:
        assert await asyncio.wait_for(one.process.wait(), PATIENCE) == 2

    (line,) = [line for line in one.log.splitlines() if line.startswith("trainwright: ")]
    assert "--gang-scheduler-name volcano: it needs PodGroups of scheduling.volcano.sh/v1beta1" in line


async def test_definitions_of_the_previous_version_that_know_the_whole_ledger_are_enough(tmp_path: Path) -> None:
    async with api() as server:
        closed(server)
        async with operator(tmp_path, server.address) as one:
            server.submit("train")
            await until(lambda: server.phase("train") == "Succeeded", "the job succeeds")
            assert (await one.end())[0] == 0
