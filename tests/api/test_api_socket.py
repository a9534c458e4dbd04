# SPDX-License-Identifier: Apache-2.0
"""The Unix socket of the API: its file, who may connect, and that the client of the commands gets the same objects."""

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_server import CONFIG_MAPS, JOBS, ServedStore, config_map, generic_job, served

from trainwright.api import budgets, connections, resources, server
from trainwright.cli.get import _UNFINISHED, _unfinished
from trainwright.errors import ConflictError, EngineError, InvalidError, NotFoundError, UnavailableError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.blocking import ClusterClient, engine_client
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets import server as socket_server
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.local.sockets.server import serve
from trainwright.model.meta import Key
from trainwright.runtime.ports import BY_ID, LogPart, jobs_of

_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_OWNER = "trainwright:owner"
_GENERIC = "genericjobs.batch.tensorstack.dev"


class OwnerApi:
    """A served store, and the path of its Unix socket."""

    def __init__(self, api: ServedStore, path: Path) -> None:
        self.api, self.path = api, path

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request to the Unix socket."""
        connector = aiohttp.UnixConnector(str(self.path))
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector) as session,
            session.request(method, path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    async def call(self, work: Callable[[ClusterClient], Any]) -> Any:
        """Use the client of the commands, which blocks, in a thread."""

        def run() -> Any:
            with engine_client(self.path, 5.0) as client:
                return work(client)

        return await asyncio.to_thread(run)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[OwnerApi]:
    path = tmp_path / "engine" / "api.sock"
    async with served(tmp_path) as api:
        await api.server.start_socket(path)
        yield OwnerApi(api, path)


# -- the file and the identity ----------------------------------------------------------------------------------------


async def test_the_file_is_private_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "engine" / "api.sock"
    async with served(tmp_path) as api:
        await api.server.start_socket(path)
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


async def test_whoever_connects_is_the_owner_and_an_admin(owner: OwnerApi) -> None:
    for headers in ({}, {"Authorization": "Bearer viewer"}, {"Authorization": "Bearer nonsense"}):
        code, body = await owner.ask("POST", _REVIEW, {}, **headers)
        assert (code, body["status"]["userInfo"]["username"]) == (201, _OWNER)
        assert "trainwright:admin" in body["status"]["userInfo"]["groups"]
    code, _ = await owner.ask("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "one"}})
    assert code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {_OWNER}"},
        {"X-Remote-User": _OWNER},
        {"Impersonate-User": _OWNER},
        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=unix"},
    ],
)
async def test_tcp_never_gets_this_identity(owner: OwnerApi, headers: dict[str, str]) -> None:
    async with owner.api.session.post(owner.api.server.url + _REVIEW, json={}, headers=headers) as answer:
        assert answer.status == 401
    headers = {"Authorization": "Bearer viewer"} | headers
    async with owner.api.session.post(owner.api.server.url + _REVIEW, json={}, headers=headers) as answer:
        body = await answer.json()
        assert body.get("status", {}) == "Failure" or body["status"]["userInfo"]["username"] == "test:viewer"


async def test_a_foreign_host_is_refused_on_both(owner: OwnerApi) -> None:
    code, body = await owner.ask("GET", "/api", Host="evil.example")
    assert (code, body["reason"]) == (403, "Forbidden")
    answer = await owner.api.session.get(owner.api.server.url + "/api", headers={"Host": "evil.example"})
    assert answer.status == 403


async def test_the_file_of_a_killed_engine_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    async with served(tmp_path) as api:
        await api.server.start_socket(path)
        assert (await OwnerApi(api, path).ask("GET", "/api"))[0] == 200


async def test_a_live_engine_keeps_its_socket(owner: OwnerApi, tmp_path: Path) -> None:
    async with served(tmp_path / "other") as second:
        with pytest.raises(EngineError, match="another engine listens there"):
            await second.server.start_socket(owner.path)
    assert (await owner.ask("GET", "/api"))[0] == 200


_AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect(sys.argv[1])
try:
    s.sendall(b"GET /api HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print(s.recv(100))
except ConnectionError:
    print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
async def test_another_user_gets_no_answer_even_if_the_file_is_open(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())  # the folders of pytest are private
    try:
        folder.chmod(0o755)
        async with served(tmp_path) as api:
            await api.server.start_socket(folder / "api.sock")
            (folder / "api.sock").chmod(0o666)
            command = [sys.executable, "-I", "-S", "-c", _AS_NOBODY, str(folder / "api.sock")]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert done.stdout == "b''\n", done
            assert (await OwnerApi(api, folder / "api.sock").ask("GET", "/api"))[0] == 200
    finally:
        shutil.rmtree(folder)


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_clients_of_tcp_cannot_use_up_the_budget_of_the_owner(
    owner: OwnerApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "_BURST", 3.0)
    monkeypatch.setattr(budgets, "_RATE", 0.0)
    codes = [(await owner.api.ask("GET", CONFIG_MAPS)).code for _ in range(4)]
    assert codes == [200, 200, 200, 429]
    assert [(await owner.ask("GET", CONFIG_MAPS))[0] for _ in range(4)] == codes


async def test_the_number_of_connections_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_OWNER_CONNECTIONS", 2)
    async with served(tmp_path) as api:
        await api.server.start_socket(tmp_path / "api.sock")
        open_ones = [await asyncio.open_unix_connection(str(tmp_path / "api.sock")) for _ in range(3)]
        assert await asyncio.wait_for(open_ones[0][0].read(), 5) == b"", "the oldest one without a request is closed"
        assert (await api.ask("GET", "/api")).code == 200
        for _, writer in open_ones:
            writer.close()


async def test_a_large_body_is_refused(owner: OwnerApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", 1000)
    code, body = await owner.ask("POST", CONFIG_MAPS, config_map("big", text="x" * 2000))
    assert (code, body["reason"]) == (413, "RequestEntityTooLarge")


# -- the client of the commands ---------------------------------------------------------------------------------------


async def test_both_clients_of_an_engine_see_the_same(owner: OwnerApi, tmp_path: Path) -> None:
    await owner.api.make(JOBS, {**generic_job("one"), "metadata": {"name": "one", "finalizers": ["example.com/held"]}})
    store = owner.api.store
    pod = {
        "metadata": {"name": "p", "namespace": "default", "labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "any"}]},
    }
    store.create(BY_ID["pods"].whole(), pod)
    store.delete(BY_ID["pods"].whole(), Key("default", "p"), grace=30)

    def see(client: Any) -> Any:
        key, resource = ("default", "one"), _GENERIC
        seen = [client.get(resource, key), client.get("pods", ("default", "p"))]
        seen += [
            client.list(resource, fields="status.trainwright.phase!=Failed")[0],
            client.list("pods", labels="a")[0],
        ]
        failing: list[tuple[type[Exception], Callable[[], Any]]] = [
            (NotFoundError, lambda: client.get(resource, ("default", "two"))),
            (NotFoundError, lambda: client.delete(resource, ("default", "two"), propagation="Foreground", uid="x")),
            (ConflictError, lambda: client.delete(resource, key, propagation="Foreground", uid="other")),
            (InvalidError, lambda: client.patch(resource, key, {"spec": {"replicaSpecs": []}})),
        ]
        for error, call in failing:
            with pytest.raises(error) as caught:
                call()
            assert type(caught.value) is error
        return json.loads(json.dumps(seen))

    async with serve(tmp_path / "engine.sock", LocalCluster(store)):
        through_api = await owner.call(see)

        def private() -> Any:
            with BlockingClient(tmp_path / "engine.sock", timeout=5) as client:
                return see(client)

        assert through_api == await asyncio.to_thread(private)
    assert "deletionTimestamp" in through_api[1]["metadata"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
async def test_get_works_with_an_older_engine_that_does_not_have_a_kind(
    owner: OwnerApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    await owner.api.make(JOBS, generic_job("one"))
    for version in kind.served:
        monkeypatch.delitem(resources._BY_PATH, (kind.group, version.partition("/")[2], kind.plural))
    without = {name: one for name, one in BY_ID.items() if name != jobs_of(kind).id}
    monkeypatch.setattr(socket_server, "BY_ID", without)

    def names(client: Any) -> list[str]:
        return [body["metadata"]["name"] for one in KINDS for body in _unfinished(client, one)]

    expected = [] if jobs_of(kind).id == _GENERIC else ["one"]
    assert await owner.call(names) == expected
    async with serve(tmp_path / "engine.sock", LocalCluster(owner.api.store)):

        def private() -> list[str]:
            with BlockingClient(tmp_path / "engine.sock", timeout=5) as client:
                return names(client)

        assert await asyncio.to_thread(private) == expected


@pytest.mark.parametrize("count", [0, 1, 201, 1203])
async def test_long_lists_are_complete(owner: OwnerApi, count: int) -> None:
    for number in range(count):
        body = {**config_map(f"c-{number:04}", text="y" * 50)}
        body["metadata"]["namespace"] = "default"
        owner.api.store.create(BY_ID["configmaps"].whole(), body)
    found = await owner.call(lambda client: client.list("configmaps", namespace="default")[0])
    assert [one["metadata"]["name"] for one in found] == [f"c-{number:04}" for number in range(count)]


async def test_finished_jobs_can_be_left_out(owner: OwnerApi) -> None:
    resource = jobs_of(KINDS[0])
    for name, phase in (("new", ""), ("on", "Running"), ("good", "Succeeded"), ("bad", "Failed")):
        job = {**generic_job(name), "apiVersion": resource.api_version, "kind": resource.kind}
        job["metadata"]["namespace"] = "default"
        owner.api.store.create(BY_ID[_GENERIC], job)
        if phase:
            change = {"status": {"trainwright": {"phase": phase}}}
            owner.api.store.patch(BY_ID[_GENERIC], Key("default", name), change, status=True)
    found = await owner.call(lambda client: client.list(_GENERIC, fields=_UNFINISHED)[0])
    assert [one["metadata"]["name"] for one in found] == ["new", "on"]


async def test_a_log_is_streamed_and_its_error_is_told(owner: OwnerApi) -> None:
    def read(client: ClusterClient) -> None:
        list(client.log(("default", "nobody"), "main", LogPart()))

    with pytest.raises(NotFoundError):
        await owner.call(read)


async def test_an_engine_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no engine answers at .*: No such file"):
        engine_client(tmp_path / "api.sock", 1.0)
