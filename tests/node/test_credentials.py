# SPDX-License-Identifier: Apache-2.0
"""A node's client certificate: requested from an API server that signs with `openssl`, kept, and renewed."""

import asyncio
import base64
import logging
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_server import Server, access, refuses, says

from trainwright.errors import EngineError, ForbiddenError
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession
from trainwright.model.meta import Key
from trainwright.node.credentials import NodeIdentity
from trainwright.node.kubelet_api import NodeCluster
from trainwright.runtime.ports import SECRETS, WallClock

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
Body = dict[str, Any]
PENDING: list[Body] = []
APPROVED = [{"type": "Approved", "status": "True"}]


class Watch:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return WallClock().now() + self.ahead


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: S607 - as the system has it


class Signer:
    """Answers requests about CertificateSigningRequests; `conditions` are put on each that comes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.requests = folder, dict[str, Body]()
        self.conditions, self.sign = APPROVED, True
        folder.mkdir()
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9")
        openssl(folder, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if request.method == "POST":
            body = await request.json()
            self.requests[body["metadata"]["name"]] = body
            return web.json_response(body, status=201)
        if name not in self.requests:
            return await refuses(404, "NotFound")(request)
        body = self.requests[name]
        status: Body = {"conditions": self.conditions}
        if self.conditions == APPROVED and self.sign:
            status["certificate"] = base64.b64encode(self.signed(body)).decode()
        return web.json_response({**body, "status": status})

    def signed(self, body: Body, days: str = "1") -> bytes:
        (self._folder / "x.csr").write_bytes(base64.b64decode(body["spec"]["request"]))
        by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", days)
        openssl(self._folder, "x509", "-req", *by, "-in", "x.csr", "-out", "x.crt")
        return (self._folder / "x.crt").read_bytes()


@pytest.fixture
def signer(server: Server, tmp_path: Path) -> Signer:
    one = Signer(tmp_path / "ca")
    server.says = [one]
    return one


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def identity(tmp_path: Path, watch: Watch) -> NodeIdentity:
    (tmp_path / "node").mkdir()
    return NodeIdentity(tmp_path / "node", "gpu-0", watch)


async def test_a_certificate_is_requested_as_kubernetes_wants_it_and_kept_for_its_owner_alone(
    server: Server, signer: Signer, identity: NodeIdentity, tmp_path: Path
) -> None:
    found = await identity.obtain(access(server.url), 60)

    ((name, body),) = signer.requests.items()
    (tmp_path / "asked.csr").write_bytes(base64.b64decode(body["spec"]["request"]))
    words = ["openssl", "req", "-in", str(tmp_path / "asked.csr"), "-noout", "-subject", "-nameopt", "RFC2253"]
    subject = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert subject.strip() == "subject=CN=system:node:gpu-0,O=system:nodes"
    assert name.startswith("trainwright-gpu-0-")
    assert body["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert body["spec"]["usages"] == ["digital signature", "client auth"]
    pki = tmp_path / "node" / "pki"
    assert {path.name: path.stat().st_mode & 0o777 for path in pki.iterdir()} == {"client.pem": 0o600}
    assert (pki.stat().st_mode & 0o777, identity.kubeconfig.stat().st_mode & 0o777) == (0o700, 0o600)
    assert found.server == server.url
    assert found.user.value.client_certificate == found.user.value.client_key == str(pki / "client.pem")
    kept = identity.stored()
    assert kept is not None
    assert kept.user == "system:node:gpu-0"
    assert identity.belongs_to(access(server.url))
    assert not identity.belongs_to(access("http://127.0.0.1:9"))


async def test_a_second_start_waits_for_the_request_of_the_first(
    server: Server, signer: Signer, identity: NodeIdentity, tmp_path: Path, watch: Watch
) -> None:
    signer.conditions = PENDING
    with pytest.raises(EngineError, match="kubectl certificate approve trainwright-gpu-0-"):
        await identity.obtain(access(server.url), 0.5)
    signer.conditions = APPROVED
    await NodeIdentity(tmp_path / "node", "gpu-0", watch).obtain(access(server.url), 60)

    assert len(signer.requests) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            {"conditions": [{"type": "Denied", "status": "True", "reason": "Who", "message": "not ours"}]},
            r"was denied \(Who: not ours\); to request it again, run `kubectl delete csr trainwright-gpu-0-\w+`",
            id="denied",
        ),
        pytest.param(
            {"conditions": [{"type": "Failed", "status": "True", "reason": "SignerValidationFailure"}]},
            r"could not be signed \(SignerValidationFailure\)",
            id="failed",
        ),
        pytest.param({"conditions": PENDING}, "was not approved within 0.5 s", id="nobody approves"),
        pytest.param({"sign": False}, "is approved, but no certificate was issued .*cluster-signing", id="no signer"),
    ],
)
async def test_without_a_certificate_it_is_said_why(
    server: Server, signer: Signer, identity: NodeIdentity, change: Body, told: str
) -> None:
    for name, value in change.items():
        setattr(signer, name, value)

    with pytest.raises(EngineError, match=told):
        await identity.obtain(access(server.url), 0.5)
    assert identity.stored() is None


async def test_who_may_not_request_one_is_told_what_to_install(server: Server, identity: NodeIdentity) -> None:
    server.says = [refuses(403, "Forbidden", "you may not")]

    with pytest.raises(EngineError, match="you may not; `trainwright manifests --nodes` prints an account that may"):
        await identity.obtain(access(server.url), 60)


async def test_a_certificate_for_another_key_is_refused_and_the_one_before_is_kept(
    server: Server, signer: Signer, identity: NodeIdentity, tmp_path: Path
) -> None:
    await identity.obtain(access(server.url), 60)
    before = (tmp_path / "node" / "pki" / "client.pem").read_bytes()
    other = signer.signed(next(iter(signer.requests.values())))
    signer.signed = lambda *_: other  # type: ignore[method-assign]

    with pytest.raises(EngineError, match="does not fit its request"):
        await identity.obtain(access(server.url), 60)
    assert (tmp_path / "node" / "pki" / "client.pem").read_bytes() == before


async def test_what_has_ended_or_is_another_nodes_is_not_used(
    server: Server, signer: Signer, identity: NodeIdentity, tmp_path: Path, watch: Watch
) -> None:
    assert identity.stored() is None
    await identity.obtain(access(server.url), 60)

    assert NodeIdentity(tmp_path / "node", "gpu-1", watch).stored() is None
    watch.ahead = timedelta(days=1.1)
    assert identity.stored() is None


async def renewed(identity: NodeIdentity, session: ApiSession, until: Callable[[], bool]) -> None:
    """Let it renew until it is so."""
    task = asyncio.create_task(identity.keep_renewed(session, None))
    try:
        async with asyncio.timeout(20):
            while not until():
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_it_is_renewed_when_most_of_its_time_is_over_and_the_session_has_the_new_one(
    server: Server, signer: Signer, identity: NodeIdentity, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session = ApiSession(await identity.obtain(access(server.url), 60))
    before = (await session.credentials.auth_headers()).key_pair
    watch.ahead = timedelta(days=0.6)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await identity.keep_renewed(session, None)
    assert len(signer.requests) == 1
    watch.ahead = timedelta(days=0.85)
    await renewed(identity, session, lambda: "was renewed" in caplog.text)

    after = (await session.credentials.auth_headers()).key_pair
    assert len(signer.requests) >= 2
    assert before != after
    assert after is not None
    assert after[0].count(b"BEGIN CERTIFICATE") == 1
    await session.close()


async def test_one_that_has_ended_is_told_of_and_the_agent_goes_on(
    server: Server, signer: Signer, identity: NodeIdentity, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    session = ApiSession(await identity.obtain(access(server.url), 60))
    watch.ahead = timedelta(days=2)
    await renewed(identity, session, lambda: "--bootstrap-kubeconfig" in caplog.text)

    assert "could not be renewed: it has expired; start the agent again with --bootstrap-kubeconfig FILE" in caplog.text
    await session.close()


def test_a_machine_without_openssl_is_told_so(identity: NodeIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(EngineError, match="there is no `openssl` command on this machine"):
        identity._pending()


# -- what a node asks for with it ----------------------------------------------------------------------------------


async def test_a_secret_is_asked_for_again_until_the_server_knows_the_pod(server: Server) -> None:
    no = refuses(403, "Forbidden", "no relationship found between node 'gpu-0' and this object")
    server.says = [no, no, says({"metadata": {"name": "a"}})]
    session = ApiSession(access(server.url))
    found = await NodeCluster(HttpClient(session)).get(SECRETS.whole(), Key("ns", "a"))
    await session.close()

    assert (found["metadata"]["name"], len(server.asked)) == ("a", 3)


async def test_what_is_never_allowed_is_refused_soon(server: Server) -> None:
    server.says = [refuses(403, "Forbidden", "no relationship")]
    session = ApiSession(access(server.url))
    began = asyncio.get_running_loop().time()
    with pytest.raises(ForbiddenError, match="no relationship"):
        await NodeCluster(HttpClient(session)).get(SECRETS.whole(), Key("ns", "a"))
    await session.close()

    assert len(server.asked) == 6
    assert asyncio.get_running_loop().time() - began > 1


@pytest.mark.parametrize(
    ("answer", "user"),
    [
        (says({"status": {"userInfo": {"username": "system:node:gpu-0"}}}, 201), "system:node:gpu-0"),
        (refuses(404, "NotFound"), ""),
    ],
    ids=["told", "an old server"],
)
async def test_a_node_asks_who_it_is(server: Server, answer: Any, user: str) -> None:
    server.says = [answer]
    session = ApiSession(access(server.url))
    assert await NodeCluster(HttpClient(session)).user() == user
    await session.close()
