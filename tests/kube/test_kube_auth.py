# SPDX-License-Identifier: Apache-2.0
"""Who we say we are: tokens that change, plug-ins that are real programs, headers as they arrive."""

import asyncio
import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_server import BRISK, HERE, SECRETS, Server, a_secret, access, refuses, says

from trainwright.errors import ForbiddenError, TrainwrightError, UnavailableError
from trainwright.kube import auth, plugin
from trainwright.kube.blocking_http import http_client
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import Access, ExecPlugin, PluginVariable, UserEntry
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession

TOKEN = "".join(("a", "-", "bc"))
PASSWORD = f"ü{TOKEN}"
BASIC = b64encode(f"me:{PASSWORD}".encode()).decode()
V1 = "client.authentication.k8s.io/v1"
UNKNOWN = refuses(401, "Unauthorized", "Unauthorized")


def _sent(server: Server) -> list[str]:
    return [asked.headers.get("Authorization", "") for asked in server.asked]


@pytest.mark.parametrize(
    ("user", "header"),
    [
        pytest.param(UserEntry(), "", id="nobody"),
        pytest.param(UserEntry(token=f"{TOKEN}\n"), f"Bearer {TOKEN}", id="a token"),
        pytest.param(UserEntry(username="me", password=PASSWORD), f"Basic {BASIC}", id="a password"),
    ],
)
async def test_what_is_sent(server: Server, user: UserEntry, header: str) -> None:
    server.says = [says(a_secret())]
    async with connected(access(server.url, user)) as cluster:
        await cluster.get(SECRETS, HERE)
    assert _sent(server) == [header]


async def test_somebody_else_can_be_meant(server: Server) -> None:
    server.says = [says(a_secret())]
    user = UserEntry(impersonate="other", impersonate_uid="7", impersonate_groups=["a", "b"])
    async with connected(access(server.url, user)) as cluster:
        await cluster.get(SECRETS, HERE)
    headers = server.asked[0].headers
    assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("other", "7")
    assert headers.getall("Impersonate-Group") == ["a", "b"]


def _connect_session(made: Access) -> None:
    ApiSession(made).credentials.current()


@pytest.mark.parametrize("secret", ["hid\nden", "hid\x7fden", "hid\u00fcden"], ids=["newline", "control", "non-ASCII"])
@pytest.mark.parametrize("field", ["token", "tokenFile", "exec", "as", "as-uid", "as-groups[0]"])
@pytest.mark.parametrize("connect", [http_client, _connect_session])
def test_what_no_header_can_contain_is_refused_without_its_value(
    tmp_path: Path, field: str, secret: str, connect: Callable[[Access], object]
) -> None:
    (tmp_path / "token").write_text(secret)
    printed = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": secret}})
    user = {
        "token": UserEntry(token=secret),
        "tokenFile": UserEntry(token_file=str(tmp_path / "token")),
        "exec": UserEntry(exec=ExecPlugin(sys.executable, V1, ["-c", f"print({printed!r})"])),
        "as": UserEntry(impersonate=secret),
        "as-uid": UserEntry(impersonate_uid=secret),
        "as-groups[0]": UserEntry(impersonate_groups=[secret]),
    }[field]

    with pytest.raises(TrainwrightError, match=rf"user\.{re.escape(field)}: .*an HTTP header") as caught:
        connect(access("http://127.0.0.1:1", user))
    assert "den" not in str(caught.value)


def _knows(*tokens: str) -> Any:
    """A server that takes these tokens only."""

    async def answer(request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Authorization") in [f"Bearer {token}" for token in tokens]
        return await (says(a_secret()) if known else UNKNOWN)(request)

    return answer


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("one\n")
    return path


async def test_a_token_that_is_refused_is_read_again(server: Server, token: Path) -> None:
    server.says = [_knows("one")]
    async with connected(access(server.url, UserEntry(token_file=str(token)))) as cluster:
        await cluster.get(SECRETS, HERE)
        token.write_text("two")
        server.says = [_knows("two")]
        await cluster.create(SECRETS, a_secret())
    assert _sent(server) == ["Bearer one", "Bearer one", "Bearer two"]


async def test_one_that_stays_refused_is_told_of(server: Server, token: Path) -> None:
    server.says = [UNKNOWN]
    async with connected(access(server.url, UserEntry(token_file=str(token)))) as cluster:
        with pytest.raises(ForbiddenError, match="does not know who we are: Unauthorized"):
            await cluster.get(SECRETS, HERE)
    assert len(server.asked) == 1


async def test_a_token_is_read_again_in_time(server: Server, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_TOKEN_FILE_SECONDS", 0.05)
    server.says = [says(a_secret())]
    async with connected(access(server.url, UserEntry(token_file=str(token), token=TOKEN))) as cluster:
        await cluster.get(SECRETS, HERE)
        token.write_text("two")
        await asyncio.sleep(0.06)
        await cluster.get(SECRETS, HERE)
        # What is being replaced at this moment takes nothing away.
        token.unlink()
        await asyncio.sleep(0.06)
        await cluster.get(SECRETS, HERE)
    assert _sent(server) == ["Bearer one", "Bearer two", "Bearer two"]


@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
async def test_a_file_without_a_token_is_told_of(server: Server, token: Path, content: str | None) -> None:
    token.unlink() if content is None else token.write_text(content)
    async with connected(access(server.url, UserEntry(token_file=str(token)))) as cluster:
        with pytest.raises(UnavailableError, match=r"users\[0\]\.user\.tokenFile: no token in .*token: "):
            await cluster.get(SECRETS, HERE)
    assert server.asked == []


# -- plug-ins ---------------------------------------------------------------------------------------------------------

_SCRIPT = """
import json, os, sys, pathlib
folder = pathlib.Path(sys.argv[1])
count = len(list(folder.glob("run-*"))) + 1
folder.joinpath(f"run-{count}").write_text(os.environ["KUBERNETES_EXEC_INFO"] + "\\n" + os.environ.get("EXTRA", ""))
assert sys.stdin.read() == ""
status = json.loads(sys.argv[2])
status["token"] = f"token-{count}"
print(json.dumps({"apiVersion": sys.argv[3], "kind": "ExecCredential", "status": status}))
"""


class _Clock:
    """One that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


def _plugin(
    server: Server, folder: Path, version: str = V1, status: dict[str, str] | None = None, **more: Any
) -> Access:
    script = folder / "plugin.py"
    script.write_text(_SCRIPT)
    args = ["-I", str(script), str(folder), json.dumps(status or {}), version]
    given = ExecPlugin(sys.executable, version, args, [PluginVariable("EXTRA", "given")], **more)
    return access(server.url, UserEntry(exec=given), tls_server_name="name")


@pytest.mark.parametrize("version", [V1, f"{V1}beta1"])
async def test_a_plugin_is_run_once(server: Server, tmp_path: Path, version: str) -> None:
    server.says = [says(a_secret())]
    async with connected(_plugin(server, tmp_path, version)) as cluster:
        await asyncio.gather(*[cluster.get(SECRETS, HERE) for _ in range(5)])
    assert _sent(server) == ["Bearer token-1"] * 5
    (run,) = tmp_path.glob("run-*")
    info, extra = run.read_text().splitlines()
    assert json.loads(info) == {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert extra == "given"


async def test_it_is_told_of_the_cluster_if_it_asks(server: Server, tmp_path: Path) -> None:
    server.says = [says(a_secret())]
    async with connected(_plugin(server, tmp_path, provide_cluster_info=True)) as cluster:
        await cluster.get(SECRETS, HERE)
    info = json.loads((tmp_path / "run-1").read_text().splitlines()[0])
    assert info["spec"]["cluster"] == {"server": server.url, "tls-server-name": "name"}


async def test_what_it_says_is_good_until_it_expires(server: Server, tmp_path: Path) -> None:
    clock = _Clock()
    server.says = [says(a_secret())]
    session = ApiSession(_plugin(server, tmp_path, status={"expirationTimestamp": "2026-11-15T12:00:30Z"}), clock)
    cluster = KubeCluster(HttpClient(session, BRISK))
    for seconds in (0, 29, 30):
        clock.time = datetime(2026, 11, 15, 12, tzinfo=UTC) + timedelta(seconds=seconds)
        await cluster.get(SECRETS, HERE)
    await session.close()
    assert _sent(server) == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


async def test_it_is_asked_again_when_it_is_refused_and_only_once_for_all(server: Server, tmp_path: Path) -> None:
    server.says = [_knows("token-2")]
    async with connected(_plugin(server, tmp_path)) as cluster:
        await asyncio.gather(*[cluster.get(SECRETS, HERE) for _ in range(5)])
    assert sorted(_sent(server)) == ["Bearer token-1"] * 5 + ["Bearer token-2"] * 5


async def test_a_late_refusal_of_the_old_does_not_touch_the_new(server: Server, tmp_path: Path) -> None:
    session = ApiSession(_plugin(server, tmp_path))
    old = await session.credentials.auth_headers()
    assert session.credentials.rejected(old)
    new = await session.credentials.auth_headers()
    assert session.credentials.rejected(old)
    assert await session.credentials.auth_headers() is new
    assert new is not old


async def test_what_it_says_may_be_wrong_twice(server: Server, tmp_path: Path) -> None:
    server.says = [UNKNOWN]
    async with connected(_plugin(server, tmp_path)) as cluster:
        with pytest.raises(ForbiddenError, match="who we are"):
            await cluster.get(SECRETS, HERE)
    assert _sent(server) == ["Bearer token-1", "Bearer token-2"]


async def test_it_gets_no_terminal_nor_anything_to_read(server: Server, tmp_path: Path) -> None:
    server.says = [says(a_secret())]
    there, ours = os.dup(0), os.pipe()
    os.dup2(ours[0], 0)
    try:
        async with asyncio.timeout(10), connected(_plugin(server, tmp_path)) as cluster:
            await cluster.get(SECRETS, HERE)
    finally:
        os.dup2(there, 0)
        for descriptor in (there, *ours):
            os.close(descriptor)


async def test_one_that_hangs_is_ended(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_PLUGIN_TIMEOUT_SECONDS", 0.5)
    script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(30)"
    user = UserEntry(exec=ExecPlugin(sys.executable, V1, ["-I", "-c", script, str(tmp_path / "pid")]))
    async with connected(access(server.url, user)) as cluster:
        with pytest.raises(UnavailableError, match=r"did not end within 0\.5 s"):
            await cluster.get(SECRETS, HERE)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def _prints(version: str, kind: str) -> str:
    said = json.dumps({"apiVersion": version, "kind": kind})
    return f"print({said!r})"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("import sys; sys.exit('log\\nlog in')", "ended with exit code 1: log in", id="it fails"),
        pytest.param("import os; os.abort()", "ended with exit code -6: it printed no error", id="it crashes"),
        pytest.param("print('hello')", "did not print an ExecCredential: JSON is malformed", id="no JSON"),
        pytest.param(
            'import os; os.write(1, b\'{"kind":"\\xff"}\')', "did not print an ExecCredential: 'utf-8'", id="no UTF-8"
        ),
        pytest.param(_prints(V1, "Secret"), f"printed {V1} Secret; expected {V1} ExecCredential", id="another kind"),
        pytest.param(_prints("v2", "ExecCredential"), "printed v2 ExecCredential; expected", id="another version"),
        pytest.param(_prints(V1, "ExecCredential"), "printed neither status.token nor", id="nothing"),
    ],
)
async def test_a_plugin_that_does_not_work(server: Server, script: str, words: str) -> None:
    user = UserEntry(exec=ExecPlugin(sys.executable, V1, ["-I", "-c", script]))
    async with connected(access(server.url, user)) as cluster:
        with pytest.raises(UnavailableError, match=words) as caught:
            await cluster.get(SECRETS, HERE)
    assert str(caught.value).startswith(f"file: users[0].user.exec: {sys.executable} ")


async def test_a_plugin_that_is_missing_says_where_to_get_it(server: Server) -> None:
    user = UserEntry(exec=ExecPlugin("no-such-plugin", V1, install_hint="get it\nfrom there"))
    async with connected(access(server.url, user)) as cluster:
        with pytest.raises(UnavailableError, match=r"no-such-plugin cannot be run: No such file.*; get it from there"):
            await cluster.get(SECRETS, HERE)


async def test_a_token_comes_before_a_plugin(server: Server) -> None:
    server.says = [says(a_secret())]
    user = UserEntry(token=TOKEN, exec=ExecPlugin("no-such-plugin", V1))
    async with connected(access(server.url, user)) as cluster:
        await cluster.get(SECRETS, HERE)
    assert _sent(server) == [f"Bearer {TOKEN}"]
