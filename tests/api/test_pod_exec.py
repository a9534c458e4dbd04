# SPDX-License-Identifier: Apache-2.0
"""exec and attach in real containers, over a WebSocket as kubectl and the Python client use it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web
from api_rig import ApiRig, api_rig, open_logs
from node_agent import alive, container, settle

from patience import PATIENCE
from trainwright.api.channels import Channels, success
from trainwright.api.exec_streams import CommandStreams, StreamOptions

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
SUCCESS = {"metadata": {}, "status": "Success"}
UNSUPPORTED = "exec and attach need a WebSocket (GET) with the protocol v5.channel.k8s.io or v4.channel.k8s.io"
ALL = "stdin=true&stdout=true&stderr=true"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with api_rig(tmp_path) as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def pod(rig: ApiRig) -> ApiRig:
    """One pod that runs."""
    rig.agent.run(container("echo begun; sleep 1000", env=[{"name": "COLOUR", "value": "blue"}]))
    await rig.agent.phase("Running")
    return rig


def command(script: str, streams: str = ALL) -> str:
    return f"exec?command=sh&command=-c&command={quote(script)}&container=main&{streams}"


class Session:
    """One WebSocket and what came on each channel."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.found = {1: b"", 2: b"", 3: b""}

    async def send(self, channel: int, data: bytes) -> None:
        await self.socket.send_bytes(bytes((channel,)) + data)

    async def until(self, text: bytes, channel: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.found[channel]:
                assert await self._take(), self.found

    async def end(self) -> dict[str, Any]:
        """The status, after the server has closed the WebSocket."""
        async with asyncio.timeout(PATIENCE):
            while await self._take():
                pass
        assert self.socket.close_code == 1000
        status: dict[str, Any] = json.loads(self.found[3])
        return status

    async def _take(self) -> bool:
        message = await self.socket.receive()
        if message.type is not WSMsgType.BINARY:
            return False
        self.found[message.data[0]] += message.data[1:]
        return True


async def opened(client: aiohttp.ClientSession, url: str, *protocols: str) -> Session:
    return Session(await client.ws_connect(url, protocols=protocols or (V5,), max_msg_size=0))


def failed(code: int) -> dict[str, Any]:
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def test_output_that_is_in_the_pipe_when_the_command_ends(client: aiohttp.ClientSession) -> None:
    """All of it is sent, although another process may still have the pipe open."""
    loop = asyncio.get_running_loop()

    async def handler(request: web.Request) -> web.StreamResponse:
        channels = Channels()
        await channels.open(request)
        streams = CommandStreams(StreamOptions(stdin=False, stdout=True, stderr=True, tty=False))
        os.write(streams.theirs[1], b"x" * 60_000)
        os.write(streams.theirs[2], b"y" * 60_000)
        ended: asyncio.Future[int] = loop.create_future()
        ended.set_result(0)
        await streams.send_output(channels, ended)
        streams.close()
        await channels.finish(success())
        return channels.response

    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    session = await opened(client, f"http://127.0.0.1:{runner.addresses[0][1]}/")
    assert await session.end() == SUCCESS
    assert (session.found[1], session.found[2]) == (b"x" * 60_000, b"y" * 60_000)
    await runner.cleanup()


@pytest.mark.parametrize(
    ("offered", "chosen"), [((V5,), V5), ((V4,), V4), ((V5, V4), V5), (("v1.channel.k8s.io", V4), V4)]
)
async def test_protocols(pod: ApiRig, client: aiohttp.ClientSession, offered: tuple[str, ...], chosen: str) -> None:
    session = await opened(client, pod.path(command("echo hello")), *offered)
    assert session.socket.protocol == chosen
    assert await session.end() == SUCCESS
    assert session.found[1] == b"hello\n"


@pytest.mark.parametrize(
    ("script", "streams", "out", "err", "status"),
    [
        ("echo out; echo err >&2", ALL, b"out\n", b"err\n", SUCCESS),
        ("echo out; echo err >&2; exit 3", ALL, b"out\n", b"err\n", failed(3)),
        ("kill -9 $$", ALL, b"", b"", failed(137)),
        ("echo out; echo err >&2", "stdout=true", b"out\n", b"", SUCCESS),
        ("echo out; echo err >&2", "stderr=True&stdout=False", b"", b"err\n", SUCCESS),
        ("cat; echo $COLOUR", "stdout=true", b"blue\n", b"", SUCCESS),
        ("sleep 1000 & echo out", "stdout=true&stderr=true", b"out\n", b"", SUCCESS),
        ("test -t 0 || test -t 1 || echo none", ALL, b"none\n", b"", SUCCESS),
    ],
    ids=["streams", "exit code", "signal", "stdout", "stderr", "no input", "a process stays", "no terminal"],
)
async def test_commands(
    pod: ApiRig,
    client: aiohttp.ClientSession,
    *,
    script: str,
    streams: str,
    out: bytes,
    err: bytes,
    status: dict[str, Any],
) -> None:
    session = await opened(client, pod.path(command(script, streams)))
    assert await session.end() == status
    assert (session.found[1], session.found[2]) == (out, err)


async def test_a_command_that_does_not_exist(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(f"exec?command=no-such-program&{ALL}"))
    assert await session.end() == failed(127)
    assert b"no-such-program" in session.found[2]


async def test_input_of_kubectl(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    """Bytes, and the message that ends the input."""
    session = await opened(client, pod.path(command("cat; echo end")))
    await session.send(0, b"one\n\xff")
    await session.until(b"one\n\xff")
    await session.send(0, b"")
    await session.send(255, b"\x00")
    assert await session.end() == SUCCESS
    assert session.found[1] == b"one\n\xffend\n"


async def test_input_of_the_python_client(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    """Text. Version 4 has no end of the input, so the command must know when to stop."""
    session = await opened(client, pod.path(command("read a; echo $a; read b; echo $b")), V4)
    await session.socket.send_str("\x00größe\n")
    await session.until("größe\n".encode())
    await session.send(255, b"\x00")
    await session.socket.send_str("\x00two\n")
    assert await session.end() == SUCCESS
    assert session.found[1] == "größe\ntwo\n".encode()


async def test_much_data_both_ways(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("cat")))
    data = bytes(range(256)) * 4096

    async def feed() -> None:
        for _ in range(16):
            await session.send(0, data)
        await session.send(255, b"\x00")

    task = asyncio.create_task(feed())
    assert await session.end() == SUCCESS
    await task
    assert session.found[1] == data * 16


async def test_all_output_arrives_at_a_slow_client(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("head -c 3000000 /dev/zero; echo end >&2")))
    await asyncio.sleep(1.0)
    assert await session.end() == SUCCESS
    assert len(session.found[1]) == 3_000_000
    assert session.found[2] == b"end\n"


async def test_a_command_that_does_not_read_its_input(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    """The server answers pings although the input waits, and the command ends normally."""
    session = await opened(client, pod.path(command("sleep 1; echo end")))
    await session.send(0, b"x" * 500_000)
    await session.socket.ping(b"there?")
    assert await session.end() == SUCCESS
    assert session.found[1] == b"end\n"


async def test_input_after_the_command_has_closed_it(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("exec <&-; echo closed; sleep 0.5; echo end")))
    await session.until(b"closed")
    for _ in range(40):
        await session.send(0, b"x" * 100_000)
    assert await session.end() == SUCCESS
    assert session.found[1] == b"closed\nend\n"


async def test_a_terminal(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    streams = "stdin=true&stdout=true&tty=true"
    # Sizes and input have channels of their own, so the script waits for each size before it reads.
    wait = "while [ \"$(stty size)\" != '{}' ]; do sleep 0.02; done; stty size; read line; "
    script = "trap 'echo changed' WINCH; echo $TERM; " + wait.format("30 100") + wait.format("24 80")
    session = await opened(client, pod.path(command(f"{script}echo error >&2; exit 5", streams)))
    await session.until(b"xterm\r\n")
    await session.send(4, b'{"Width":100,"Height":30}\n')
    for bad in (b"", b"{", b"[]", b'{"Width":-1,"Height":30}', b'{"Width":99999,"Height":1}', b'{"Width":"a"}'):
        await session.send(4, bad)
    await session.until(b"30 100\r\n")
    await session.send(0, b"\n")
    await session.send(4, b'{"Width":80,"Height":24}\n')
    await session.until(b"24 80\r\n")
    await session.send(0, b"\n")
    assert await session.end() == failed(5)
    assert session.found[1].count(b"changed\r\n") == 2
    assert b"error\r\n" in session.found[1]
    assert session.found[2] == b""


async def test_ctrl_c_in_a_terminal(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path("exec?command=cat&stdin=true&stdout=true&tty=true"))
    await session.send(0, b"x\n")
    await session.until(b"x\r\nx\r\n")
    await session.send(0, b"\x03")
    assert await session.end() == failed(130)


async def test_the_last_output_of_a_terminal(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("seq 20000", "stdout=true&tty=true")))
    assert await session.end() == SUCCESS
    assert session.found[1].split() == [str(number).encode() for number in range(1, 20001)]


async def test_the_command_is_killed_when_the_client_goes_away(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("echo $$; exec sleep 1000")))
    await session.until(b"\n")
    pid = int(session.found[1])
    assert alive(pid)
    await session.socket.close()
    await settle(lambda: not alive(pid))


async def test_the_command_ends_with_its_container(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    session = await opened(client, pod.path(command("echo begun; exec sleep 1000")))
    await session.until(b"begun")
    pod.agent.delete(grace=0)
    assert await session.end() == failed(137)


async def refusal(client: aiohttp.ClientSession, method: str, url: str, **headers: str) -> tuple[int, str]:
    async with client.request(method, url, headers=headers) as answer:
        return answer.status, (await answer.json())["message"]


WEBSOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": V5,
}
SPDY = {"Upgrade": "SPDY/3.1", "Connection": "Upgrade", "X-Stream-Protocol-Version": V5}


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (f"exec?command=ls&container=zz&{ALL}", "container zz is not valid for pod pod"),
        (f"exec?{ALL}", "you must specify at least 1 command for the container"),
        ("exec?command=ls&stdout=false", "you must specify at least 1 of stdin, stdout, stderr"),
        ("attach", "you must specify at least 1 of stdin, stdout, stderr"),
        (
            "attach?stdin=true&stdout=true",
            "container main has no standard input; attach without -i and -t shows its output",
        ),
        ("attach?tty=true&stdout=true", "container main has no terminal; attach without -i and -t shows its output"),
    ],
)
async def test_get_and_post_are_refused_alike(
    pod: ApiRig, client: aiohttp.ClientSession, rest: str, expected: str
) -> None:
    assert await refusal(client, "GET", pod.path(rest), **WEBSOCKET) == (400, expected)
    assert await refusal(client, "POST", pod.path(rest), **SPDY) == (400, expected)


@pytest.mark.parametrize("rest", [command("true"), "attach?stdout=true"])
@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", SPDY),
        ("POST", WEBSOCKET),
        ("GET", {}),
        ("GET", {**WEBSOCKET, "Sec-WebSocket-Protocol": "v1.channel.k8s.io"}),
        ("GET", {name: value for name, value in WEBSOCKET.items() if name != "Sec-WebSocket-Protocol"}),
    ],
)
async def test_other_protocols_are_refused(
    pod: ApiRig, client: aiohttp.ClientSession, rest: str, method: str, headers: dict[str, str]
) -> None:
    status, message = await refusal(client, method, pod.path(rest), **headers)
    assert status == 400
    assert message.startswith(UNSUPPORTED)


async def test_a_container_that_does_not_run(rig: ApiRig, client: aiohttp.ClientSession) -> None:
    rig.agent.run(container("exit 0"))
    await rig.agent.ended()
    for rest in (command("true"), "attach?stdout=true"):
        expected = (400, 'container "main" in pod "pod" is not running')
        assert await refusal(client, "GET", rig.path(rest), **WEBSOCKET) == expected
    rig.agent.run(container(), name="new", nodeName="")
    expected = (400, "pod new does not have a host assigned")
    assert await refusal(client, "GET", rig.path(command("true"), "new"), **WEBSOCKET) == expected


async def test_a_node_that_does_not_answer(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    (pod.agent.folder / "nodes/node-0/supervisor.sock").unlink()
    session = await opened(client, pod.path(command("true")))
    status = await session.end()
    assert (status["status"], status["reason"]) == ("Failure", "InternalError")
    assert "does not answer" in status["message"]


# -- attach -----------------------------------------------------------------------------------------------------------


async def test_attach_shows_the_output_from_now_on_until_the_container_ends(
    rig: ApiRig, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    script = f"echo before; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo after; echo error >&2; exit 7"
    rig.agent.run(container(script))
    await settle(lambda: rig.agent.status().get("phase") == "Running" and "before" in rig.agent.log())
    session = await opened(client, rig.path("attach?container=main&stdout=true&stderr=true"))
    await asyncio.sleep(0.3)
    (tmp_path / "go").touch()
    assert await session.end() == SUCCESS
    assert session.found[1] == b"after\nerror\n"


async def test_attach_ends_when_the_client_goes_away(pod: ApiRig, client: aiohttp.ClientSession) -> None:
    before = len(open_logs())
    for pause in (0.0, 0.0, 0.2):
        session = await opened(client, pod.path("attach?stdout=true"))
        await asyncio.sleep(pause)
        async with asyncio.timeout(PATIENCE):
            await session.socket.close()
    await settle(lambda: len(open_logs()) <= before)
