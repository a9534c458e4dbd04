# SPDX-License-Identifier: Apache-2.0
"""Certificates on a real TLS server: whom we trust, who we are, and a proxy in between."""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_server import BRISK, HERE, SECRETS, Server, a_secret, access, event, refuses, says, streams
from msgspec.structs import replace

from trainwright.errors import ApiError, ForbiddenError, UnavailableError, UntrustedError, UsageError
from trainwright.kube.blocking_http import BlockingHttpPolicy, http_client
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.codec import Request, object_path
from trainwright.kube.config import Access, ExecPlugin, UserEntry
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="makes its certificates with the openssl command")
V1 = "client.authentication.k8s.io/v1"


def _openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)  # noqa: S607 - whichever there is


def _signed(folder: Path, name: str, *extra: str) -> None:
    """A certificate of our authority, with its key."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
    by = ("-CA", "ca.crt", "-CAkey", "ca.key") if name != "ca" else ()
    _openssl(folder, "req", "-x509", *by, *key, "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}", *extra)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    _signed(folder, "ca", "-addext", "keyUsage=keyCertSign")
    _signed(folder, "server", "-addext", "subjectAltName=DNS:api.internal,IP:127.0.0.1")
    _signed(folder, "other", "-addext", "subjectAltName=DNS:api.internal")
    for name in ("me", "you"):
        _signed(folder, name)
    return folder


def _data(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()


async def _served(folder: Path, name: str) -> Server:
    """One that tells the name in the certificate it is shown."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    return await Server().start(context)


@pytest.fixture
async def secure(certificates: Path) -> AsyncIterator[Server]:
    one = await _served(certificates, "server")
    one.says = [_who]
    yield one
    await one.stop()


async def _who(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    shown = request.transport.get_extra_info("peercert") or {}
    (((_, name),),) = shown.get("subject", (((("", "nobody"),)),))
    return await says(a_secret(name))(request)


async def _name(url: str, user: UserEntry | None = None, **cluster: Any) -> str:
    """What both clients are told. They must also fail with the same words."""
    made = access(url, user, **cluster)
    told, read = await _outcome(_told(made)), await _outcome(asyncio.to_thread(_read, made))
    assert (type(told), str(told)) == (type(read), str(read))
    if isinstance(told, Exception):
        raise told
    return told


async def _outcome(asked: Awaitable[str]) -> str | Exception:
    try:
        return await asked
    except (ApiError, UsageError) as error:
        return error


async def _told(made: Access) -> str:
    async with connected(made, BRISK) as one:
        return str((await one.get(SECRETS, HERE))["metadata"]["name"])


def _read(made: Access) -> str:
    with closing(http_client(made, BlockingHttpPolicy(BRISK.timeout, BRISK.retry_seconds))) as one:
        data = one.send(Request("get", SECRETS.id, object_path(SECRETS, HERE), idempotent=True))
    return str(json.loads(data)["metadata"]["name"])


async def test_an_authority_is_trusted(secure: Server, certificates: Path) -> None:
    assert await _name(secure.url, certificate_authority=str(certificates / "ca.crt")) == "nobody"
    assert await _name(secure.url, certificate_authority_data=_data(certificates / "ca.crt")) == "nobody"


async def test_without_one_nobody_is_and_that_does_not_pass(secure: Server) -> None:
    tries: list[int] = []
    async with connected(access(secure.url)) as plain:
        cluster = KubeCluster(HttpClient(plain.http.session, observer=lambda _, __, code, ___: tries.append(code)))
        with pytest.raises(UnavailableError, match=r"no answer from https://127.*: .*certificate verify failed"):
            await cluster.get(SECRETS, HERE)
    assert (tries, secure.asked) == ([0], [])
    with pytest.raises(UntrustedError, match="certificate verify failed"):
        await _name(secure.url)


async def test_nothing_is_left_of_what_was_given_up(secure: Server) -> None:
    """An event loop that ends with open sockets complains."""
    secure.says = [streams([event("ADDED", a_secret()), 30.0])]
    session = ApiSession(access(secure.url, insecure_skip_tls_verify=True))
    watches = [KubeCluster(HttpClient(session, BRISK)).watch(SECRETS, since="1") for _ in range(3)]
    await asyncio.gather(*[anext(watch) for watch in watches])
    sockets = list(session._sockets)
    for watch in watches:
        await watch.aclose()
    await session.close()
    assert [sock.fileno() for sock in sockets] == [-1, -1, -1]


async def test_unless_that_is_asked_for(secure: Server) -> None:
    assert await _name(secure.url, insecure_skip_tls_verify=True) == "nobody"


async def test_a_server_may_have_another_name_than_its_address(certificates: Path) -> None:
    server = await _served(certificates, "other")
    server.says = [_who]
    trusted: dict[str, Any] = {"certificate_authority": str(certificates / "ca.crt")}
    with pytest.raises(UnavailableError, match="IP address mismatch"):
        await _name(server.url, **trusted)
    assert await _name(server.url, **trusted, tls_server_name="api.internal") == "nobody"
    await server.stop()


@pytest.mark.parametrize("inline", [False, True], ids=["files", "data"])
async def test_a_certificate_says_who_we_are(secure: Server, certificates: Path, *, inline: bool) -> None:
    crt, key = certificates / "me.crt", certificates / "me.key"
    user = UserEntry(client_certificate=str(crt), client_key=str(key))
    if inline:
        user = UserEntry(client_certificate_data=_data(crt), client_key_data=_data(key))
    assert await _name(secure.url, user, certificate_authority=str(certificates / "ca.crt")) == "me"


async def test_a_renewed_certificate_is_read_when_the_old_one_is_refused(
    secure: Server, certificates: Path, tmp_path: Path
) -> None:
    user = UserEntry(client_certificate=str(tmp_path / "crt"), client_key=str(tmp_path / "key"))

    def issue(name: str) -> None:
        shutil.copy(certificates / f"{name}.crt", tmp_path / "crt")
        shutil.copy(certificates / f"{name}.key", tmp_path / "key")

    issue("me")
    async with connected(access(secure.url, user, certificate_authority=str(certificates / "ca.crt")), BRISK) as one:
        assert (await one.get(SECRETS, HERE))["metadata"]["name"] == "me"
        secure.says = [refuses(401, "Unauthorized"), _who]
        with pytest.raises(ForbiddenError):
            await one.get(SECRETS, HERE)
        issue("you")
        secure.says = [refuses(401, "Unauthorized"), _who]
        assert (await one.get(SECRETS, HERE))["metadata"]["name"] == "you"


async def test_a_plugin_may_give_a_certificate(secure: Server, certificates: Path) -> None:
    status = {
        "clientCertificateData": (certificates / "me.crt").read_text(),
        "clientKeyData": (certificates / "me.key").read_text(),
    }
    said = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})
    user = UserEntry(exec=ExecPlugin(sys.executable, V1, ["-I", "-c", "import sys; print(sys.argv[1])", said]))
    assert await _name(secure.url, user, certificate_authority=str(certificates / "ca.crt")) == "me"


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        pytest.param(
            {"certificate_authority": "no.pem"},
            {},
            r"clusters\[0\].cluster.certificate-authority: cannot read",
            id="no file",
        ),
        pytest.param(
            {"certificate_authority_data": "eHh4"}, {}, r"certificate-authority: not a certificate in PEM", id="no PEM"
        ),
        pytest.param(
            {"certificate_authority_data": "/w=="}, {}, r"certificate-authority: not a certificate in PEM", id="no text"
        ),
        pytest.param(
            {"certificate_authority_data": "CA", "insecure_skip_tls_verify": True},
            {},
            r"insecure-skip-tls-verify: true, although",
            id="contradiction",
        ),
        pytest.param(
            {"certificate_authority_data": "CA"},
            {"client_certificate_data": "eA==", "client_key_data": "eA=="},
            r"users\[0\].user.client-certificate: not a certificate with its key",
            id="no pair",
        ),
    ],
)
async def test_certificates_that_are_none(
    certificates: Path, cluster: dict[str, Any], user: dict[str, Any], words: str
) -> None:
    given = {name: _data(certificates / "ca.crt") if value == "CA" else value for name, value in cluster.items()}
    with pytest.raises(UsageError, match=words):
        await _name("https://127.0.0.1:1", UserEntry(**user), **given)


async def test_a_key_with_a_password_is_refused_and_not_asked_for(
    secure: Server, certificates: Path, tmp_path: Path
) -> None:
    _openssl(tmp_path, "ec", "-in", str(certificates / "me.key"), "-aes128", "-passout", "pass:x", "-out", "key")
    user = UserEntry(client_certificate=str(certificates / "me.crt"), client_key=str(tmp_path / "key"))
    with pytest.raises(UsageError, match="not a certificate with its key"):
        await _name(secure.url, user, insecure_skip_tls_verify=True)


async def test_a_proxy_is_gone_through(secure: Server, certificates: Path) -> None:
    seen: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head.partition("\r\n")[0])
        host, _, port = head.split()[1].rpartition(":")
        up, down = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_pump(reader, down), _pump(up, writer))

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        there = access(secure.url, certificate_authority=str(certificates / "ca.crt"))
        async with connected(replace(there, proxy=f"http://127.0.0.1:{port}"), BRISK) as one:
            await one.get(SECRETS, HERE)
    assert seen == [f"CONNECT {secure.url.removeprefix('https://')} HTTP/1.1"]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
