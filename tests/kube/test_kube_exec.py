# SPDX-License-Identifier: Apache-2.0
"""`trainwright exec` on a cluster: a real process, against a server that runs the command as a kubelet does."""

import asyncio
import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from kube_store import JOB, StoreServer, api, status

from patience import PATIENCE
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Key
from trainwright.runtime.ports import PODS

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
#: What nodes say about commands that they do not run.
NOT_RUN = {
    "nothing": 'exec: "nothing": executable file not found in $PATH',
    "/etc/passwd": 'exec: "/etc/passwd": permission denied',
    "upgrade": "unable to upgrade connection: 404: Not Found",
}


class ExecServer:
    """A cluster with the job `demo`, whose one pod runs commands on this machine."""

    def __init__(self, server: StoreServer, folder: Path) -> None:
        self.server, self.config = server, folder / "config"
        self.protocols: tuple[str, ...] = (V5, V4)
        self.refusal: web.Response | None = None
        self.breaks = False
        self.asked: list[web.Request] = []
        server.before, server.pods_run = self._before, False
        server.submit("demo")
        job = server.store.get(JOB, Key("default", "demo"))
        self._make_pod(job["metadata"]["uid"])
        cluster = {"server": f"http://{server.address}"}
        user = {"token": "secret", "as": "lena"}
        self.config.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": "me", "user": user}],
                }
            )
        )

    def _make_pod(self, uid: str) -> None:
        labels = {KIND: "genericjob", JOB_UID: uid, ROLE: "worker", INDEX: "0", ATTEMPT: "0"}
        meta = {"name": "demo-worker-0", "namespace": "default", "labels": labels}
        containers = [{"name": "main", "image": "none"}, {"name": "aside", "image": "none"}]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
        self.server.store.create(PODS.whole(), body | {"spec": {"containers": containers, "nodeName": "east"}})
        # A kubelet sorts the statuses by name.
        states = [
            {"name": name, "ready": True, "state": {"running": {"startedAt": "2026-11-17T00:00:00Z"}}}
            for name in ("aside", "main")
        ]
        status_ = {"phase": "Running", "containerStatuses": states}
        self.server.store.patch(PODS.whole(), Key("default", "demo-worker-0"), {"status": status_}, status=True)

    async def _before(self, request: web.Request) -> Any:
        if not request.path.endswith("/pods/demo-worker-0/exec"):
            return None
        self.asked.append(request)
        if self.refusal is not None:
            return self.refusal
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        if self.breaks:
            return socket
        words = request.query.getall("command")
        if words[0] in NOT_RUN:
            await socket.send_bytes(bytes((STATUS,)) + _failure(NOT_RUN[words[0]]))
        elif "tty" in request.query:
            await _run_on_terminal(socket, words)
        else:
            await _run_with_pipes(socket, words)
        await socket.close()
        return socket

    def words(self, *words: str) -> list[str]:
        options = ("--kubeconfig", str(self.config))
        return [sys.executable, "-m", "trainwright", "exec", *options, "demo", "worker-0", *words]

    async def run(self, *words: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self.words(*words), stdin=pipe, stdout=pipe, stderr=pipe)
        out, err = await asyncio.wait_for(process.communicate(given), PATIENCE)
        assert process.returncode is not None
        return process.returncode, out, err


def _failure(message: str, code: int | None = None) -> bytes:
    causes = {"details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}} if code else {}
    reason = "NonZeroExitCode" if code else "InternalError"
    return json.dumps({"status": "Failure", "message": message, "reason": reason, **causes}).encode()


async def _finish(socket: web.WebSocketResponse, code: int) -> None:
    said = b'{"status":"Success"}' if code == 0 else _failure(f"exit status {code}", code)
    await socket.send_bytes(bytes((STATUS,)) + said)


async def _run_with_pipes(socket: web.WebSocketResponse, words: list[str]) -> None:
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin
    assert process.stdout
    assert process.stderr

    async def output(stream: asyncio.StreamReader, channel: int) -> None:
        while data := await stream.read(32768):
            await socket.send_bytes(bytes((channel,)) + data)

    async def take_input() -> None:
        async for message in socket:
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                process.stdin.write(data)  # type: ignore[union-attr]
            elif (channel, data) == (CLOSE, bytes((STDIN,))) and socket.ws_protocol == V5:
                process.stdin.close()  # type: ignore[union-attr]

    typing = asyncio.create_task(take_input())
    await asyncio.gather(output(process.stdout, STDOUT), output(process.stderr, STDERR))
    code = await process.wait()
    await _finish(socket, code)
    typing.cancel()
    with suppress(asyncio.CancelledError):
        await typing


async def _run_on_terminal(socket: web.WebSocketResponse, words: list[str]) -> None:
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        "setsid", "--ctty", *words, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)

    async def output() -> None:
        with suppress(OSError):
            while data := await asyncio.to_thread(os.read, ours, 4096):
                await socket.send_bytes(bytes((STDOUT,)) + data)

    async def take_input() -> None:
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                os.write(ours, data)
            elif channel == RESIZE:
                size = json.loads(data)
                fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))

    typing = asyncio.create_task(take_input())
    await output()
    await _finish(socket, await process.wait())
    typing.cancel()
    with suppress(asyncio.CancelledError):
        await typing
    os.close(ours)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[ExecServer]:
    async with api() as server:
        yield ExecServer(server, tmp_path)


async def test_streams_and_the_exit_code_of_a_command(place: ExecServer) -> None:
    code, out, err = await place.run("--", "sh", "-c", "cat; echo to err >&2; exit 7", given=b"from \xff me\n" * 50_000)

    assert (code, out, err) == (7, b"from \xff me\n" * 50_000, b"to err\n")
    (asked,) = place.asked
    assert asked.query["container"] == "main"
    assert (asked.headers["Authorization"], asked.headers["Impersonate-User"]) == ("Bearer secret", "lena")


async def test_words_arrive_as_they_are(place: ExecServer) -> None:
    words = ("printf", "[%s]", "a b", "&c=d", "ä+%2F", "")

    assert await place.run("-c", "aside", "--", *words) == (0, "[a b][&c=d][ä+%2F][]".encode(), b"")
    assert place.asked[0].query["container"] == "aside"


async def test_a_server_with_the_older_protocol(place: ExecServer) -> None:
    place.protocols = (V4,)

    assert await place.run("--", "head", "-c", "3", given=b"abcdef") == (0, b"abc", b"")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--", "nothing"), 127, NOT_RUN["nothing"]),
        (("--", "/etc/passwd"), 126, NOT_RUN["/etc/passwd"]),
        (("--", "upgrade"), 3, f"the node of the replica did not run the command: {NOT_RUN['upgrade']}"),
        (("-c", "asid", "--", "true"), 2, "worker-0 has no container 'asid'; did you mean `aside`?"),
        (("-t", "--", "true"), 2, "-t needs a terminal, but standard input is not a terminal"),
    ],
)
async def test_a_command_that_does_not_start(place: ExecServer, words: tuple[str, ...], code: int, text: str) -> None:
    assert await place.run(*words) == (code, b"", f"trainwright: {text}\n".encode())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (status(403, "Forbidden", "no"), "you may not create pods/exec in namespace 'default' of cluster here"),
        (status(404, "NotFound", "no"), "the pod does not exist any more"),
        (status(502, "BadGateway", "no"), "cluster here does not connect to the pod: HTTP 502"),
    ],
    ids=["no right", "no pod", "no node"],
)
async def test_a_refusal_is_one_line(place: ExecServer, answer: web.Response, text: str) -> None:
    place.refusal = answer
    code, out, err = await place.run("--", "true")

    assert (code, out, err.count(b"\n")) == (3, b"", 1)
    assert err.decode().startswith(f"trainwright: {text}")


async def test_a_lost_connection_is_no_exit_code(place: ExecServer) -> None:
    place.breaks = True

    code, out, err = await place.run("--", "true")
    assert (code, out) == (3, b"")
    assert b"the connection to the pod ended before the command" in err


async def test_a_terminal(place: ExecServer) -> None:
    """Keys, Ctrl-C included, go to the command, which knows the size of the terminal and its changes."""
    sized = 'until [ "$(stty size)" != "0 0" ]; do sleep 0.05; done'  # the size follows the start of the command
    script = f"{sized}; trap 'echo caught' INT; stty size; read word; echo got $word; stty size; exit 4"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    words = ["setsid", "--ctty", *place.words("--", "bash", "-c", script)]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    before = termios.tcgetattr(theirs)
    said = Screen(ours)

    await said.until("30 100")
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    os.write(ours, b"\x03")
    await said.until("caught")
    os.write(ours, b"word\r")
    await said.until("got word")
    await said.until("20 50")
    assert await asyncio.to_thread(process.wait, PATIENCE) == 4
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


class Screen:
    """What appears on a terminal."""

    def __init__(self, ours: int) -> None:
        self._ours, self.text = ours, ""
        os.set_blocking(ours, False)

    async def until(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.text:
            assert time.monotonic() < end, self.text
            with suppress(BlockingIOError):
                self.text += os.read(self._ours, 65536).decode()
            await asyncio.sleep(0.02)
