# SPDX-License-Identifier: Apache-2.0
"""The certificates, tokens and kubeconfig of the API server, made by the real `openssl` and used by a real socket."""

import asyncio
import json
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from trainwright.api.access import AccessRole, ApiIdentity
from trainwright.api.credentials import ApiCredentials
from trainwright.errors import EngineError
from trainwright.kube.config import ConnectionOptions, load
from trainwright.runtime.ports import WallClock

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


class Ahead:
    """A clock that can be put forward."""

    def __init__(self, days: float = 0) -> None:
        self.days = days

    def now(self) -> datetime:
        return WallClock().now() + timedelta(days=self.days)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def made(folder: Path, days: float = 0) -> ApiCredentials:
    credentials = ApiCredentials(folder, Ahead(days))
    credentials.prepare()
    return credentials


@pytest.mark.usefixtures("open_umask")
def test_only_the_user_can_read_the_files(tmp_path: Path) -> None:
    made(tmp_path).write_kubeconfig("https://127.0.0.1:1")
    files = [tmp_path / "kubeconfig", *(tmp_path / "api").iterdir()]
    assert sorted(file.name for file in files) == [
        "admin.token",
        "ca.pem",
        "kubeconfig",
        "server.pem",
        "user.token",
        "viewer.token",
    ]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "api").stat().st_mode & 0o777 == 0o700


def test_a_token_that_others_could_read_is_closed_again(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "api/user.token").chmod(0o644)
    made(tmp_path)
    assert (tmp_path / "api/user.token").stat().st_mode & 0o777 == 0o600


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    made(tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "api").iterdir()}
    made(tmp_path)
    assert {file.name: file.read_bytes() for file in (tmp_path / "api").iterdir()} == before


@pytest.mark.parametrize("role", AccessRole)
def test_a_token_is_an_identity(tmp_path: Path, role: AccessRole) -> None:
    credentials = made(tmp_path)
    token = credentials.token(role)
    expected = ApiIdentity(f"trainwright:{role}", role)
    assert credentials.identify(f"Bearer {token}") == expected
    assert credentials.identify(f"bearer  {token} ") == expected
    for wrong in (f"Basic {token}", token, f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer", "", "Bearer é\udcff"):
        assert credentials.identify(wrong) is None


def test_without_its_file_a_token_is_replaced(tmp_path: Path) -> None:
    before = made(tmp_path).token(AccessRole.USER)
    (tmp_path / "api/user.token").unlink()
    after = made(tmp_path)
    assert after.identify(f"Bearer {before}") is None
    assert after.token(AccessRole.USER) != before


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 20 + b" " + b"y" * 20, b"\xff" * 40])
def test_a_damaged_token_is_refused(tmp_path: Path, content: bytes) -> None:
    made(tmp_path)
    (tmp_path / "api/user.token").write_bytes(content)
    with pytest.raises(EngineError, match=r"user.token is not a token; remove the file"):
        made(tmp_path)


def test_without_openssl_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="install the package openssl"):
        made(tmp_path)


def test_valid_files_need_no_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    made(tmp_path)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "api").write_text("a file")
    with pytest.raises(EngineError, match=r"the credentials in .*api cannot be used: File exists"):
        made(tmp_path)


@pytest.mark.parametrize(
    ("days", "new"),
    [(0, []), (240, []), (250, ["server.pem"]), (2900, ["server.pem"]), (2950, ["ca.pem", "server.pem"])],
)
def test_certificates_are_renewed_before_they_end(tmp_path: Path, days: float, new: list[str]) -> None:
    made(tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "api").iterdir()}
    made(tmp_path, days)
    changed = sorted(name for name, data in before.items() if (tmp_path / "api" / name).read_bytes() != data)
    assert changed == new


@pytest.mark.parametrize("name", ["ca.pem", "server.pem"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_damaged_certificate_is_replaced(tmp_path: Path, name: str, content: bytes | None) -> None:
    made(tmp_path)
    path = tmp_path / "api" / name
    path.unlink() if content is None else path.write_bytes(content)
    made(tmp_path)
    assert b"BEGIN CERTIFICATE" in path.read_bytes()


def test_a_server_certificate_of_another_ca_is_replaced(tmp_path: Path) -> None:
    made(tmp_path / "one")
    made(tmp_path / "two")
    foreign = (tmp_path / "two/api/ca.pem").read_bytes()
    (tmp_path / "one/api/ca.pem").write_bytes(foreign)
    server = (tmp_path / "one/api/server.pem").read_bytes()
    made(tmp_path / "one")
    assert (tmp_path / "one/api/server.pem").read_bytes() != server
    assert (tmp_path / "one/api/ca.pem").read_bytes() == foreign


async def greeted(server: asyncio.Server, authority: str, host: str) -> bytes:
    """Connect to the server as `host`, with a strict check of its certificate, and return the certificate."""
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    with closing(writer):
        assert await reader.read() == b"hello"
        return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))


async def hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def test_a_client_trusts_the_server(tmp_path: Path) -> None:
    credentials = ApiCredentials(tmp_path, WallClock())
    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=credentials.prepare())
    async with server:
        for host in ("localhost", "127.0.0.1", "::1"):
            await greeted(server, credentials.authority().decode(), host)
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeted(server, credentials.authority().decode(), "example.org")


async def test_a_running_server_gets_the_new_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.api.credentials._CHECK_SECONDS", 0.01)
    clock, renewed = Ahead(), asyncio.Event()
    credentials = ApiCredentials(tmp_path, clock)
    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=credentials.prepare())
    authority = credentials.authority().decode()
    async with server:
        before = await greeted(server, authority, "localhost")
        task = asyncio.create_task(credentials.keep_renewed(renewed.set))
        clock.days = 300
        await renewed.wait()
        assert await greeted(server, authority, "localhost") != before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_kubeconfig_leads_to_the_server(tmp_path: Path) -> None:
    credentials = made(tmp_path)
    path = credentials.write_kubeconfig("https://127.0.0.1:7443")
    access = load(ConnectionOptions(kubeconfig=str(path)))
    assert access.server == "https://127.0.0.1:7443"
    content = json.loads(path.read_text())
    assert content["current-context"] == "trainwright"
    assert content["users"][0]["user"]["token"] == credentials.token(AccessRole.ADMIN)
    assert "PRIVATE KEY" not in credentials.authority().decode()
    viewer = credentials.kubeconfig_for(AccessRole.VIEWER, "https://127.0.0.1:7443")
    assert viewer["users"][0]["user"]["token"] == credentials.token(AccessRole.VIEWER)
