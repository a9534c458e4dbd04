# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API of a background engine: who can reach it, and what clients see when the engine is killed."""

import asyncio
import base64
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl
from e2e_jobs import worker
from e2e_workspace import Workspace, until

from patience import PATIENCE
from trainwright import open_files
from trainwright.cli.state import is_live

pytest_plugins = ["e2e_fixtures"]
_MAPS = "/api/v1/namespaces/default/configmaps"
_JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/default/genericjobs"
_MERGE = {"Content-Type": "application/merge-patch+json"}


def _up(work: Workspace, *words: str) -> dict[str, Any]:
    done = work.run("up", *words)
    assert done.code == 0, done.said
    status: dict[str, Any] = json.loads(work.run("status", "-o", "json").out)
    return status


class ApiClient:
    """A client with the kubeconfig of an engine."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cadata=authority))
        headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self.session = aiohttp.ClientSession(self.url, headers=headers, connector=connector)

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Send a request until the server answers. Returns the code and the body."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with self.session.request(method, path, json=body, headers=headers) as answer:
                        return answer.status, await answer.json()
                except (aiohttp.ClientError, ConnectionError):
                    await asyncio.sleep(0.02)


def _test(folder: Path, work: Callable[[ApiClient], Awaitable[None]]) -> None:
    async def run() -> None:
        client = ApiClient(folder / "kubeconfig")
        async with client.session:
            await work(client)

    asyncio.run(run())


def test_the_kubeconfig_is_private_and_the_address_stays(process: Workspace) -> None:
    first = _up(process)
    path = Path(first["kubeconfig"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first["api"].startswith("https://127.0.0.1:")
    os.kill(first["pid"], signal.SIGKILL)
    assert _up(process)["api"] == first["api"]

    async def work(client: ApiClient) -> None:
        code, body = await client.ask("GET", "/api/v1/namespaces/default")
        assert (code, body["status"]) == (200, {"phase": "Active"})

    _test(path.parent, work)
    assert process.run("down").code == 0
    assert (
        json.loads(process.run("kubeconfig", "--role", "viewer").out)["clusters"][0]["cluster"]["server"]
        == first["api"]
    )


def test_a_redirected_kubeconfig_is_private(process: Workspace) -> None:
    _up(process)
    new, own = process.work / "new.json", process.work / "own.json"
    own.touch(mode=0o640)
    for path in (new, own):
        with path.open("wb") as file:
            new.chmod(0o644)  # as with the usual umask
            command = process.words("kubeconfig")
            subprocess.run(command, env=process.env, cwd=process.work, stdout=file, check=True)
        assert json.loads(path.read_bytes())["kind"] == "Config"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert process.run("down").code == 0


def test_silent_connections_do_not_stop_commands(process: Workspace) -> None:
    """Connections that never begin TLS need open files; an engine starts with the usual limit of 1,024 files."""
    open_files.raise_limit()
    process.before = ["/bin/sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh"]
    assert process.run("up").code == 0
    process.before = []
    url = yarl.URL(json.loads(process.run("status", "-o", "json").out)["api"])
    ready, stop = threading.Event(), threading.Event()
    clients = threading.Thread(target=_open_silent_connections, args=((url.host, url.port), ready, stop))
    clients.start()
    try:
        assert ready.wait(PATIENCE)
        # A new process gets its limit when it has just started.
        assert process.run("submit", worker("until test $(ulimit -Sn) = 1024; do sleep 0.05; done")).code == 0
        done = process.run("wait", "--timeout", "60s", "e2e")
        assert done.code == 0, f"pods have the limit that the engine was started with: {done.said}"
        assert "e2e" in process.run("get", "--all").out
        _test(process.state / ".engine", _list_maps)
    finally:
        stop.set()
        clients.join()
    assert process.run("down").code == 0


def _open_silent_connections(address: tuple[str, int], ready: threading.Event, stop: threading.Event) -> None:
    """Keep 2,000 connections open that send nothing. New ones replace the oldest ones until `stop` is set."""
    found: deque[socket.socket] = deque()
    while not stop.is_set():
        found.append(socket.create_connection(address, timeout=PATIENCE))
        if len(found) > 2000:
            ready.set()
            found.popleft().close()
            stop.wait(0.002)
    for one in found:
        one.close()


async def _list_maps(client: ApiClient) -> None:
    code, _ = await client.ask("GET", _MAPS)
    assert code == 200


def test_a_deleted_node_is_registered_again(process: Workspace) -> None:
    folder = Path(_up(process, "--nodes", "1")["kubeconfig"]).parent
    go = process.work / "go"
    assert process.run("submit", worker(f"until test -e {go}; do sleep 0.05; done")).code == 0
    assert process.run("wait", "--for", "running", "e2e").code == 0

    async def work(client: ApiClient) -> None:
        _, before = await client.ask("GET", "/api/v1/nodes/node-0")
        code, _ = await client.ask("DELETE", "/api/v1/nodes/node-0")
        assert code == 200
        async with asyncio.timeout(PATIENCE):
            while True:
                code, after = await client.ask("GET", "/api/v1/nodes/node-0")
                if code == 200 and after.get("status", {}).get("conditions"):
                    break
                await asyncio.sleep(0.02)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["status"]["allocatable"] == before["status"]["allocatable"]

    _test(folder, work)
    other = worker("echo placed")
    other["metadata"]["name"] = "later"
    assert process.run("submit", other).code == 0
    assert process.run("wait", "later").code == 0, "the node takes new pods"
    go.touch()
    assert process.run("wait", "e2e").code == 0
    assert json.loads(process.run("get", "e2e", "-o", "json").out)["status"].get("restarts", 0) == 0
    assert process.run("down").code == 0


def test_an_engine_without_an_api(process: Workspace) -> None:
    status = _up(process, "--no-api")
    assert (status["api"], status["kubeconfig"]) == ("", "")
    assert process.run("kubeconfig").code == 3
    assert process.run("down").code == 0


def test_a_job_of_kubectl_runs_like_a_submitted_one(workspace: Workspace) -> None:
    folder = Path(_up(workspace)["kubeconfig"]).parent

    async def work(client: ApiClient) -> None:
        body = worker("echo hello from the API; exit 3")
        body["metadata"].pop("namespace", None)
        code, made = await client.ask("POST", _JOBS, body)
        assert code == 201, made

    _test(folder, work)
    assert workspace.run("wait", "e2e").code == 1
    assert "hello from the API" in workspace.run("logs", "e2e").out
    assert "exited with code 3" in workspace.run("explain", "e2e").out
    assert workspace.run("down").code == 0


def test_a_pod_in_the_sandbox_cannot_read_the_tokens(sandbox: Workspace) -> None:
    state = sandbox.work / "state"  # a folder that pods see
    env = {"TRAINWRIGHT_STATE": str(state)}
    assert sandbox.run("up", env=env).code == 0
    folder = f"{state}/.engine"
    script = f"ls -A {folder} | wc -l; cat {folder}/api/admin.token {folder}/kubeconfig; test ! -e {folder}/api.sock"
    assert (state / ".engine" / "api.sock").is_socket()
    assert sandbox.run("submit", worker(script), env=env).code == 0
    assert sandbox.run("wait", "e2e", env=env).code == 0
    said = sandbox.run("logs", "e2e", env=env).out
    token = (state / ".engine" / "api" / "admin.token").read_text().strip()
    assert "No such file" in said
    assert token not in said
    assert said.split("|")[-1].strip().startswith("0") or "0\n" in said
    assert sandbox.run("down", env=env).code == 0


class Follower:
    """A client that lists once and then watches. After a disconnection, it continues at the last version it saw."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.version = ""
        #: All events: the type, the name, the version of the object, and its value.
        self.events: list[tuple[str, str, int, str]] = []
        self.resumed = self.gone = 0

    async def run(self) -> None:
        """Follow until cancelled."""
        _, body = await self._client.ask("GET", _MAPS)
        self.version = body["metadata"]["resourceVersion"]
        while True:
            try:
                await self._watch()
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0.02)
            self.resumed += 1

    async def _watch(self) -> None:
        query = {"watch": "true", "resourceVersion": self.version, "allowWatchBookmarks": "true"}
        async with self._client.session.get(_MAPS, params=query, timeout=aiohttp.ClientTimeout(None)) as answer:
            if answer.status == 410:
                self.gone += 1
            answer.raise_for_status()
            while line := await answer.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self.gone += event["object"]["code"] == 410
                    raise ConnectionError(event["object"]["message"])
                meta = event["object"]["metadata"]
                self.version = meta["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    value = (event["object"].get("data") or {}).get("n", "")
                    self.events.append((event["type"], meta["name"], int(self.version), value))


@pytest.mark.parametrize("kills", [3])
def test_clients_resume_without_gaps_or_duplicates_after_kills(process: Workspace, kills: int) -> None:
    status = _up(process)

    async def work(client: ApiClient) -> None:
        followers = [Follower(client) for _ in range(20)]
        tasks = [asyncio.create_task(one.run()) for one in followers]
        await asyncio.sleep(0.3)
        written: dict[str, list[str]] = {f"m{number}": [] for number in range(8)}
        stop = asyncio.Event()

        async def write(name: str) -> None:
            number = 0
            while not stop.is_set():
                body = {"metadata": {"name": name}, "data": {"n": str(number)}}
                if number == 0:
                    code, _ = await client.ask("POST", _MAPS, body)
                    assert code in (201, 409)
                else:
                    code, _ = await client.ask("PATCH", f"{_MAPS}/{name}", {"data": {"n": str(number)}}, _MERGE)
                    assert code == 200
                written[name].append(str(number))
                number += 1

        writers = [asyncio.create_task(write(name)) for name in written]
        pid = status["pid"]
        for _ in range(kills):
            await asyncio.sleep(0.7)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: not is_live(process.state / ".engine" / "lock"))
            done = await asyncio.to_thread(process.run, "up")
            assert done.code == 0, done.said
            pid = json.loads((await asyncio.to_thread(process.run, "status", "-o", "json")).out)["pid"]
        await asyncio.sleep(0.7)
        stop.set()
        await asyncio.gather(*writers)
        last = {name: values[-1] for name, values in written.items()}
        async with asyncio.timeout(PATIENCE):
            for one in followers:
                while {name: value for _, name, _, value in one.events} != last:
                    await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _check(followers, written)

    _test(Path(status["kubeconfig"]).parent, work)
    assert process.run("down").code == 0


def _check(followers: list[Follower], written: dict[str, list[str]]) -> None:
    for one in followers:
        assert one.resumed >= 1
        assert one.gone == 0, "the history of writes survives the engine"
        versions = [version for _, _, version, _ in one.events]
        assert versions == sorted(set(versions)), "in order, and nothing twice"
        for name, values in written.items():
            own = [(what, value) for what, found, _, value in one.events if found == name]
            assert [value for _, value in own] == values
            assert [what for what, _ in own] == ["ADDED"] + ["MODIFIED"] * (len(values) - 1)
