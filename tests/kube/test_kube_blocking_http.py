# SPDX-License-Identifier: Apache-2.0
"""The blocking client of commands that only read: answers, refusals, and servers that do not answer well."""

import asyncio
import gc
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from threading import Barrier, Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from aiohttp import web
from kube_server import SECRETS, Answer, Server, a_list, a_secret, access, drops, refuses, says, streams, text
from msgspec.structs import replace

from patience import PATIENCE
from trainwright.errors import ApiError, ForbiddenError, NotFoundError, UnavailableError, UsageError
from trainwright.kube.blocking_http import (
    BlockingHttpClient,
    BlockingHttpPolicy,
    NoAnswerInTimeError,
    http_client,
    together,
)
from trainwright.kube.certificates import AuthHeaders
from trainwright.kube.codec import Request
from trainwright.kube.config import Access, ExecPlugin, UserEntry
from trainwright.kube.proxied import ProxiedHttpClient
from trainwright.runtime.ports import PODS, Selection

GET = Request("get", "secrets", "/api/v1/secrets/a", idempotent=True)
HURRY = BlockingHttpPolicy(timeout=0.3, retry_seconds=0.0)
PATIENT = BlockingHttpPolicy(timeout=10.0, retry_seconds=5.0)


async def read(
    made: Access, policy: BlockingHttpPolicy = PATIENT, use: Callable[[BlockingHttpClient], Any] | None = None
) -> Any:
    """What a request in another thread returns: the server needs this one."""

    def work() -> Any:
        one = http_client(made, policy)
        try:
            return one.send(GET) if use is None else use(one)
        finally:
            one.close()

    return await asyncio.to_thread(work)


async def test_an_answer_with_the_headers_of_the_user(server: Server) -> None:
    server.says = [says({"kind": "Secret"})]
    user = UserEntry(token="t", impersonate="me", impersonate_groups=["a", "b"])  # noqa: S106 - none

    assert json.loads(await read(access(f"{server.url}/prefix", user))) == {"kind": "Secret"}
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("GET", "/prefix/api/v1/secrets/a")
    assert (asked.headers["Authorization"], asked.headers["Impersonate-User"]) == ("Bearer t", "me")
    assert asked.headers.getall("Impersonate-Group") == ["a", "b"]


async def test_connections_are_used_again(server: Server) -> None:
    ports = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        return await says({})(request)

    server.says = [answer]
    await read(access(server.url), use=lambda one: [one.send(GET) for _ in range(3)])

    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_a_long_list_is_read_page_by_page(server: Server) -> None:
    server.says = [says(a_list(a_secret("a"), more="next")), says(a_list(a_secret("b")))]
    found = await read(access(server.url), use=lambda one: one.list(SECRETS, Selection("ns", labels="x=y")))

    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    assert [asked.query.get("continue") for asked in server.asked] == [None, "next"]
    assert {asked.query["labelSelector"] for asked in server.asked} == {"x=y"}


async def test_a_list_whose_page_token_expired_is_read_at_once(server: Server) -> None:
    expired = refuses(410, "Expired", "too old")
    server.says = [says(a_list(a_secret("a"), more="next")), expired, says(a_list(a_secret("a"), a_secret("b")))]
    found = await read(access(server.url), use=lambda one: one.list(SECRETS, Selection("ns")))

    assert len(found) == 2
    assert "limit" not in server.asked[-1].query


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [(403, "Forbidden", ForbiddenError), (404, "NotFound", NotFoundError), (500, "InternalError", ApiError)],
)
async def test_a_refusal_is_its_error(server: Server, code: int, reason: str, kind: type[ApiError]) -> None:
    server.says = [refuses(code, reason, "the reason")]

    with pytest.raises(kind, match=r"^the reason$"):
        await read(access(server.url), HURRY)
    assert len(server.asked) == 1


async def test_an_answer_of_something_else_than_an_api_server(server: Server) -> None:
    server.says = [text("<html>moved</html>", 302)]

    with pytest.raises(ApiError, match="HTTP 302 without a reason: <html>moved</html>"):
        await read(access(server.url))


async def test_a_list_that_is_not_utf_8(server: Server) -> None:
    def says_bytes(body: bytes, code: int = 200) -> Answer:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, status=code)

        return answer

    server.says = [says_bytes(b'{"metadata":{},"items":[{"metadata":{"name":"\xff"}}]}')]
    for resource in (SECRETS, PODS):
        with pytest.raises(ApiError, match="the server's answer cannot be read: 'utf-8' codec"):
            await read(
                access(server.url), use=partial(BlockingHttpClient.list, resource=resource, scope=Selection("ns"))
            )
    server.says = [says_bytes(b'{"message":"\xff"}', 403)]
    with pytest.raises(ForbiddenError, match="HTTP 403 without a reason"):
        await read(access(server.url))


@pytest.mark.parametrize("first", [refuses(503, "ServiceUnavailable"), refuses(429, "TooManyRequests"), drops])
async def test_a_temporary_failure_is_tried_again(server: Server, first: Any) -> None:
    server.says = [first, says({})]

    assert await read(access(server.url)) == b"{}"
    assert len(server.asked) == 2


async def test_a_server_that_asks_for_too_long_a_pause_is_not_asked_again(server: Server) -> None:
    server.says = [refuses(503, "ServiceUnavailable", "later", Retry_After="60")]

    with pytest.raises(UnavailableError, match="later"):
        await read(access(server.url))
    assert len(server.asked) == 1


async def test_an_error_about_a_header_does_not_contain_its_value(server: Server) -> None:
    def use(one: BlockingHttpClient) -> None:
        one._auth = AuthHeaders({"Authorization": "Bearer hid\nden"})
        one.send(GET)

    with pytest.raises(UsageError, match="the HTTP header Authorization cannot be sent") as caught:
        await read(access(server.url), use=use)
    assert "den" not in str(caught.value)


async def test_unknown_credentials(server: Server) -> None:
    server.says = [refuses(401, "Unauthorized", "Unauthorized")]

    with pytest.raises(ForbiddenError, match="the server does not know who we are: Unauthorized"):
        await read(access(server.url, UserEntry(token="t")))  # noqa: S106 - none
    assert len(server.asked) == 1


async def test_a_rejected_token_file_is_read_again(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer new":
            return await says({})(request)
        token.write_text("new")
        return await refuses(401, "Unauthorized")(request)

    server.says = [answer]

    assert await read(access(server.url, UserEntry(token_file=str(token)))) == b"{}"


async def test_a_plugin_gives_the_token(server: Server) -> None:
    version = "client.authentication.k8s.io/v1"
    printed = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "t"}})
    plugin = ExecPlugin(sys.executable, version, ["-c", f"print({printed!r})"], interactive_mode="Never")
    server.says = [says({})]

    assert await read(access(server.url, UserEntry(exec=plugin))) == b"{}"
    assert server.asked[0].headers["Authorization"] == "Bearer t"


async def test_a_plugin_that_fails_runs_once_for_all_requests_and_does_not_delay_the_end(
    server: Server, tmp_path: Path
) -> None:
    version = "client.authentication.k8s.io/v1"
    script = """if True:
        import json, pathlib, sys, time
        folder = pathlib.Path(sys.argv[1])
        count = len(list(folder.glob("run-*"))) + 1
        folder.joinpath(f"run-{count}").touch()
        while count > 1 and not folder.joinpath("go").exists():
            time.sleep(0.01)
        if count > 1:
            sys.exit("log in again")
        print(json.dumps({"apiVersion": sys.argv[2], "kind": "ExecCredential", "status": {"token": "t"}}))
    """
    plugin = ExecPlugin(sys.executable, version, ["-c", script, str(tmp_path), version])
    server.says = [refuses(401, "Unauthorized")]

    def use(one: BlockingHttpClient) -> list[BaseException | None]:
        end = monotonic() + PATIENCE
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(one.send, GET) for _ in range(7)]
            try:
                while not tmp_path.joinpath("run-2").exists() and monotonic() < end:
                    sleep(0.01)
                pool.submit(one.close).result(PATIENCE)
            finally:
                tmp_path.joinpath("go").touch()
            return [call.exception(PATIENCE) for call in asked]

    errors = await read(access(server.url, UserEntry(exec=plugin)), use=use)
    assert {str(error).rpartition(": ")[2] for error in errors} == {"log in again"}
    assert len(list(tmp_path.glob("run-*"))) == 2


# -- no answer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[60.0], [b"x", 60.0], [b"x", *[0.05, b"x"] * 1000]], ids=["none", "stops", "drips"])
async def test_an_answer_must_be_there_in_time(server: Server, chunks: list[bytes | float]) -> None:
    server.says = [streams(chunks)]

    with pytest.raises(NoAnswerInTimeError, match=rf"^no answer from {server.url}: none within 0.3 s$"):
        await read(access(server.url), HURRY)


async def test_a_caller_can_wait_for_less_time(server: Server) -> None:
    server.says = [streams([60.0])]

    with pytest.raises(NoAnswerInTimeError, match=r"none within 0.1 s"):
        await read(access(server.url), use=lambda one: one.send(GET, 0.1))


@pytest.mark.parametrize("length", [True, False], ids=["with its length", "in chunks"])
async def test_a_truncated_answer_is_no_answer(server: Server, *, length: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if length:
            response.content_length = 100
        await response.prepare(request)
        await response.write(b'{"kind":')
        assert request.transport is not None
        request.transport.close()
        return response

    server.says = [answer]

    with pytest.raises(UnavailableError, match="the connection ended in the middle of the answer"):
        await read(access(server.url), HURRY)


async def test_an_answer_that_closes_its_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    old = HTTPResponse.read1

    def read1(response: HTTPResponse, n: int = -1) -> bytes:
        """As in Python 3.11.8 and 3.12.2: close the response as soon as its last byte is read."""
        part = old(response, n)
        if response.length == 0:
            response._close_conn()  # type: ignore[attr-defined]
        return part

    monkeypatch.setattr(HTTPResponse, "read1", read1)
    server.says = [says({"a": 1}, Connection="close")]

    assert await read(access(server.url), HURRY) == b'{"a": 1}'


async def test_a_port_where_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        made = replace(access(f"http://127.0.0.1:{taken.getsockname()[1]}"), origin="context 'lab' of f")
        with pytest.raises(UnavailableError, match=r"Connection refused; the address is from context 'lab' of f; not"):
            await read(made, HURRY)


async def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(UnavailableError, match=r"the name nowhere.invalid does not resolve \(.*\); check the name"):
        await read(access("https://nowhere.invalid:6443"), HURRY)


async def test_a_server_without_tls(server: Server) -> None:
    with pytest.raises(UnavailableError, match=r"no TLS connection \(.*\); check whether the server's address must"):
        await read(access(server.url.replace("http:", "https:")), HURRY)


# -- proxies and threads -----------------------------------------------------------------------------------------------


async def test_a_proxy_is_used(server: Server) -> None:
    server.says = [says({"by": "proxy"})]
    made = replace(access("http://api.internal"), proxy=server.url)

    assert json.loads(await read(made)) == {"by": "proxy"}
    assert server.asked[0].headers["Host"] == "api.internal"
    assert isinstance(http_client(access(server.url)), BlockingHttpClient)
    server.says = [streams([60.0])]
    with pytest.raises(NoAnswerInTimeError, match=r"none within 0.1 s"):
        await read(made, use=lambda one: isinstance(one, ProxiedHttpClient) and one.send(GET, 0.1))


def test_a_closed_client_cancels_and_refuses_requests(recwarn: pytest.WarningsRecorder) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        one = http_client(replace(access("http://api.internal"), proxy=proxy))
        ends: list[BaseException] = []

        def ask() -> None:
            try:
                while True:
                    one.send(GET)
            except BaseException as error:
                ends.append(error)

        threads = [Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        one.close()
        for thread in threads:
            thread.join(PATIENCE)

    assert [type(error) for error in ends] == [UnavailableError] * 8
    with pytest.raises(UnavailableError, match="the client is closed"):
        one.send(GET)
    gc.collect()
    assert not recwarn.list


def test_calls_run_at_the_same_time_and_keep_their_order() -> None:
    meet = Barrier(3)

    def call(number: int) -> int:
        meet.wait(timeout=30)
        return number

    assert together([lambda number=number: call(number) for number in range(3)]) == [0, 1, 2]  # type: ignore[misc]


def test_the_first_error_of_several_calls_is_raised() -> None:
    later = Event()

    def fails(text: str) -> None:
        if text == "first":
            later.wait(timeout=30)
        else:
            later.set()
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        together([lambda: None, lambda: fails("first"), lambda: fails("second")])


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxy"])
def test_ctrl_c_ends_a_command_that_waits_for_the_server(tmp_path: Path, *, proxied: bool) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        cluster = {"server": "http://api.internal", "proxy-url": address} if proxied else {"server": address}
        config = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a"}}],
            "clusters": [{"name": "a", "cluster": cluster}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        words = [sys.executable, "-m", "trainwright", "explain", "demo", "--kubeconfig", str(tmp_path / "config")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(PATIENCE)
            connection, _ = silent.accept()
            connection.settimeout(PATIENCE)
            with connection:
                assert connection.recv(3) == b"GET"
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=PATIENCE) == ("", "\n")
        assert process.returncode == 130
