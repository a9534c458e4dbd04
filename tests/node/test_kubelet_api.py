# SPDX-License-Identifier: Apache-2.0
"""What a node asks of an API server besides what any client asks, and what it answers to one."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, TCPConnector
from kube_server import BRISK, HERE, Server, access, refuses, says

from trainwright.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession
from trainwright.model.meta import Key
from trainwright.node import credentials
from trainwright.node.kubelet_api import NodeCluster
from trainwright.node.log_server import NodeServer as Logs
from trainwright.node.log_server import log_part
from trainwright.runtime.ports import LEASES, NODES, PODS, LogPart, WallClock

NOW = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
STRATEGIC = "application/strategic-merge-patch+json"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture
async def node(server: Server) -> AsyncIterator[NodeCluster]:
    session = ApiSession(access(server.url))
    yield NodeCluster(HttpClient(session, BRISK))
    await session.close()


# -- asking --------------------------------------------------------------------------------------------------------


async def test_the_status_of_a_pod_is_patched_condition_by_condition(server: Server, node: NodeCluster) -> None:
    server.says = [says({"metadata": {"name": "a", "uid": "u"}})]
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": conditions}
    await node.patch(PODS.whole(), HERE, {"status": status}, uid="u", status=True)

    (asked,) = server.asked
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/ns/pods/a/status")
    assert asked.headers["Content-Type"] == STRATEGIC
    assert asked.body == {
        "metadata": {"uid": "u"},
        "status": {
            "phase": "Running",
            "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": None, "message": None}],
        },
    }


@pytest.mark.parametrize(("resource", "status"), [(LEASES, False), (PODS, False), (NODES, False)])
async def test_everything_else_is_patched_as_ever(
    server: Server, node: NodeCluster, resource: Any, status: bool
) -> None:
    server.says = [says({"metadata": {"name": "a"}})]
    await node.patch(resource.whole(), HERE, {"metadata": {"labels": {"a": "b"}}}, status=status)

    assert server.asked[0].headers["Content-Type"] == "application/merge-patch+json"


async def test_a_token_is_asked_for_a_pod_and_bound_to_it(server: Server, node: NodeCluster) -> None:
    server.says = [says({"status": {"token": "abc"}}, 201)]
    pod = {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": {"serviceAccountName": "robot"}}

    assert await node.token(pod, "vault", 3607) == "abc"
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/ns/serviceaccounts/robot/token")
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u"}
    assert asked.body["spec"] == {"audiences": ["vault"], "expirationSeconds": 3607, "boundObjectRef": bound}


@pytest.mark.parametrize("answer", [True, False])
async def test_the_api_server_says_who_may_read(server: Server, node: NodeCluster, answer: bool) -> None:
    server.says = [says({"status": {"allowed": answer}}, 201)]

    assert await node.allowed("somebody", ["group"], "node-0") is answer
    spec = server.asked[0].body["spec"]
    assert (spec["user"], spec["groups"]) == ("somebody", ["group"])
    assert spec["resourceAttributes"] == {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": "node-0"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (says({"metadata": {"name": "a"}, "data": {"client-ca-file": "PEM"}}), "PEM"),
        (says({"metadata": {"name": "a"}}), ""),
        (refuses(404, "NotFound"), ""),
        (refuses(403, "Forbidden"), ""),
    ],
    ids=["told", "empty", "missing", "forbidden"],
)
async def test_whose_certificates_are_trusted(server: Server, node: NodeCluster, answer: Any, expected: str) -> None:
    server.says = [answer]

    assert await node.authority() == expected
    assert server.asked[0].path == "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


# -- answering -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogPart()),
        (
            {"follow": "true", "timestamps": "true", "previous": "true"},
            LogPart(follow=True, timestamps=True, previous=True),
        ),
        ({"tailLines": "0", "limitBytes": "9"}, LogPart(tail=0, limit=9)),
        ({"sinceSeconds": "60"}, LogPart(since=datetime(2026, 11, 16, 9, 29, tzinfo=UTC))),
        ({"sinceTime": "2026-11-16T10:00:00+01:00"}, LogPart(since=datetime(2026, 11, 16, 9, 0, tzinfo=UTC))),
        ({"sinceSeconds": str(2**63 - 1)}, LogPart(since=NOW - timedelta(seconds=10**9))),
        ({"follow": "True", "timestamps": "False", "previous": "0"}, LogPart(follow=True)),
        ({"sinceTime": ""}, LogPart()),
    ],
    ids=["nothing", "flags", "numbers", "seconds", "time", "for ever", "Python's flags", "empty time"],
)
def test_what_a_request_asks_for(query: dict[str, str], expected: LogPart) -> None:
    assert log_part(query, NOW) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "-1"},
        {"tailLines": "9" * 5000},
        {"limitBytes": "0"},
        {"sinceSeconds": "x"},
        {"sinceTime": "now"},
        {"sinceTime": "9999-12-31T23:59:59-23:59"},
        {"sinceSeconds": "9", "sinceTime": "2026-11-16T10:00:00Z"},
        {"tailLines": ""},
    ],
    ids=["negative", "huge", "nothing", "no number", "no time", "no such time", "two times", "empty"],
)
def test_what_makes_no_sense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match=next(iter(query))):
        log_part(query, NOW)


class Node:
    """A node with one log, which some may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.allowed: Any = True
        self.asked: list[tuple[str, list[str]]] = []
        self.over = asyncio.Event()

    async def may(self, user: str, groups: list[str]) -> bool:
        self.asked.append((user, groups))
        if isinstance(self.allowed, Exception):
            raise self.allowed
        return bool(self.allowed)

    def log(self, pod: Key, container: str, part: LogPart) -> AsyncGenerator[bytes, None]:
        if pod.name != "a":
            raise NotFoundError(f"no pod {pod}")
        if container != "main":
            raise InvalidError("is waiting to start")

        async def words() -> AsyncGenerator[bytes, None]:
            yield b"tail" if part.tail else b"all"
            try:
                await asyncio.sleep(60 if part.follow else 0)
            finally:
                self.over.set()

        return words()

    async def get(self, path: str, name: str = "") -> tuple[int, str]:
        """Ask it, with a certificate of that name."""
        async with self.asking(path, name) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def asking(self, path: str, name: str = "") -> AsyncIterator[ClientResponse]:
        """The answer, while it comes."""
        made = credentials.self_signed(self.folder / "own", "node-0", "127.0.0.1")
        assert made is not None
        tls = credentials.tls_context(*made, (self.folder / "ca.crt").read_text())
        client = ssl.create_default_context(cafile=str(made[0]))
        if name:
            client.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        server = Logs(self.log, self.may, WallClock())
        async with (
            server.serving("127.0.0.1", 0, tls) as port,
            ClientSession(connector=TCPConnector(ssl=client)) as session,
            session.get(f"https://127.0.0.1:{port}{path}") as answer,
        ):
            yield answer
            answer.close()
            await asyncio.wait_for(self.over.wait(), 5) if "follow" in path else None


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: S607 - as the system has it


@pytest.fixture
def served(tmp_path: Path) -> Node:
    """With a CA, and a client of its own."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(tmp_path, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(tmp_path, "req", *key, "-subj", "/O=one/O=two/CN=somebody", "-keyout", "client.key", "-out", "client.csr")
    signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(tmp_path, "x509", "-req", *signing, "-in", "client.csr", "-out", "client.crt")
    return Node(tmp_path)


@needs_openssl
@pytest.mark.parametrize(
    ("path", "client", "allowed", "expected"),
    [
        ("/containerLogs/ns/a/main", "client", True, (200, "all")),
        ("/containerLogs/ns/a/main?tailLines=1", "client", True, (200, "tail")),
        ("/containerLogs/ns/b/main", "client", True, (404, "no pod ns/b")),
        ("/containerLogs/ns/a/other", "client", True, (400, "is waiting to start")),
        ("/containerLogs/ns/a/main?tailLines=x", "client", True, (400, "tailLines: 'x'; expected a number from 0 on")),
        ("/containerLogs/ns/a/main", "", True, (401, "Unauthorized\n")),
        ("/healthz", "", True, (401, "Unauthorized\n")),
        ("/healthz", "client", True, (200, "ok\n")),
        (
            "/containerLogs/ns/a/main",
            "client",
            False,
            (403, "Forbidden (user=somebody, verb=get, resource=nodes/proxy)\n"),
        ),
        (
            "/healthz",
            "client",
            UnavailableError("away"),
            (503, "the API server did not say whether somebody may read logs: away\n"),
        ),
    ],
    ids=["log", "part", "no pod", "no log", "wrong", "nobody", "health of nobody", "health", "forbidden", "unsure"],
)
async def test_logs_are_for_those_who_may(
    served: Node, path: str, client: str, allowed: Any, expected: tuple[int, str]
) -> None:
    served.allowed = allowed

    assert await served.get(path, client) == expected
    assert served.asked == ([("somebody", ["one", "two", "system:authenticated"])] if client else [])


@needs_openssl
async def test_who_follows_and_goes_is_not_waited_for(served: Node) -> None:
    async with served.asking("/containerLogs/ns/a/main?follow=true", "client") as answer:
        assert await answer.content.readany() == b"all"

    assert served.over.is_set()


@needs_openssl
async def test_a_port_that_is_taken_is_named(served: Node) -> None:
    made = credentials.self_signed(served.folder / "own", "node-0", "127.0.0.1")
    assert made is not None
    tls = credentials.tls_context(*made, "")
    one = Logs(served.log, served.may, WallClock())
    async with one.serving("127.0.0.1", 0, tls) as port:
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}: .*; --port 0 takes any"):
            async with one.serving("127.0.0.1", port, tls):
                pass


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no")
    with pytest.raises(UsageError, match="is not a certificate with its key"):
        credentials.tls_context(tmp_path / "c", tmp_path / "c", "")
