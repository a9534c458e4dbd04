# SPDX-License-Identifier: Apache-2.0
"""Commands in a running container: probes and hooks of the agent, and commands of `trainwright exec`."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised import Message, Supervised, alive, supervised

from patience import PATIENCE
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, encode, hello
from trainwright.node.supervisor import terminal

_SAME = hello(SUPERVISOR_PROTOCOL)
_OTHER = {"protocol": SUPERVISOR_PROTOCOL + 1, "version": "9.9"}


@pytest.mark.parametrize(
    ("script", "code", "number", "output"),
    [
        ("echo out; echo err >&2; exit 3", 3, 0, "out\nerr\n"),
        ("kill -9 $$", 137, 9, ""),
        ("echo $A $B; pwd", 0, 0, "container exec\n/usr\n"),
        ("cat; echo end of input", 0, 0, "end of input\n"),
        ("sleep 300 & echo left behind", 0, 0, "left behind\n"),
    ],
    ids=["exit code", "signal", "environment and folder", "no input", "left in the background"],
)
def test_a_command_is_answered_when_it_has_ended(
    tmp_path: Path, script: str, code: int, number: int, output: str
) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300", env={"A": "container", "B": "container"}, cwd="/usr")
        argv = ["sh", "-c", script]
        answer = one.call("exec", container=name, argv=argv, env={"B": "exec"}, timeout=PATIENCE)
        assert answer.pop("id")
        assert answer == {"ok": True, "code": code, "signal": number, "timeout": False, "output": output}
        assert one.events == []  # the container itself has not ended


def test_only_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        argv = ["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo end"]
        output = one.call("exec", container=name, argv=argv, env=None, timeout=PATIENCE)["output"]
        assert (len(output), output[-5:]) == (4096, "xend\n")


def test_a_late_command_is_killed_with_all_it_started(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        argv = ["sh", "-c", f"setsid sh -c 'echo $$ >{tmp_path}/pid; sleep 300' & wait"]
        answer = one.call("exec", container=name, argv=argv, env=None, timeout=2)
        assert (answer["timeout"], answer["signal"]) == (True, 9)
        one.eventually(lambda: not alive(int((tmp_path / "pid").read_text())))
        assert one.call("list")["containers"][0]["ended"] is None


def test_commands_run_side_by_side(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        slow = one.ask("exec", container=name, argv=["sleep", "300"], env=None, timeout=300)
        assert one.call("exec", container=name, argv=["true"], env=None, timeout=PATIENCE)["code"] == 0
        one.call("kill", container=name)
        assert one.answer(slow)["signal"] == 9
        assert one.ended(name)["signal"] == 9


@pytest.mark.parametrize(
    ("argv", "code", "sentence"),
    [
        (["no-such-program"], 127, "not found in PATH"),
        (["/etc/passwd"], 126, "is not executable"),
        ([], 128, "the command is empty."),
    ],
    ids=["not found", "not executable", "empty"],
)
@pytest.mark.parametrize("way", ["agent", "people", "terminal"])
def test_a_command_that_cannot_run_is_refused(
    tmp_path: Path, argv: list[str], code: int, sentence: str, way: str
) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        if way == "agent":
            answer = one.call("exec", container=name, argv=argv, env=None, timeout=PATIENCE)
        else:
            with _entered(one, name, argv, tty=way == "terminal") as client:
                answer = client.first
        assert (answer["code"], sentence in answer["error"]) == (code, True), answer


def test_a_container_that_has_ended_is_not_entered(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("exit 0")
        one.ended(name)
        answer = one.call("exec", container=name, argv=["true"], env=None, timeout=PATIENCE)
        assert answer["error"] == f'the container "{name}" is not running.'


class _Client:
    """A client's connection to the socket, and its end of the terminal or the pipes."""

    def __init__(self, sock: socket.socket, end: int) -> None:
        self.sock, self.end = sock, end
        self._lines = sock.makefile("rb")
        self.first: Message = self.line()

    def line(self) -> Message:
        return json.loads(self._lines.readline() or b"null")  # type: ignore[no-any-return]

    def until(self, wanted: bytes) -> bytes:
        seen = b""
        while wanted not in seen:
            piece = os.read(self.end, 4096)
            assert piece, seen
            seen += piece
        return seen

    def send(self, **message: Any) -> None:
        self.sock.sendall(encode(message))

    def close(self) -> None:
        self._lines.close()
        self.sock.close()


@contextlib.contextmanager
def _entered(
    one: Supervised, container: str, argv: list[str], *, tty: bool = False, **fields: Any
) -> Iterator[_Client]:
    if tty:
        ours, theirs = os.openpty()
        fds = [theirs] * 3
    else:
        pair = socket.socketpair()
        ours, theirs = (sock.detach() for sock in pair)
        fds = [theirs] * 3
    sock = terminal.connect(str(one.folder))
    sock.settimeout(10)
    message = {"do": "exec", **hello(SUPERVISOR_PROTOCOL), "container": container, "argv": argv, "tty": tty, **fields}
    socket.send_fds(sock, [encode(message)], fds)
    os.close(theirs)
    client = _Client(sock, ours)
    try:
        yield client
    finally:
        client.close()
        os.close(ours)


def test_people_s_descriptors_are_the_command_s_own(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        with _entered(one, name, ["sh", "-c", "read line; echo got $line; exit 6"]) as client:
            assert client.first["ok"]
            assert alive(client.first["pid"])
            os.write(client.end, b"hello\n")
            assert client.until(b"got hello\n")
            assert client.line() == {"code": 6}
            assert client.line() is None


def test_a_terminal_becomes_the_command_s_own(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        look = "test -t 0 && test -t 1 && test -t 2 && tty </dev/tty; ps -o tpgid=,pgid= -p $$; echo end; exec cat"
        with _entered(one, name, ["sh", "-c", look], tty=True, env={"TERM": "dumb"}) as client:
            tty, groups = client.until(b"end").splitlines()[:2]
            assert tty.startswith(b"/dev/")
            assert len({*groups.split()}) == 1
            os.write(client.end, b"ping\n")
            client.until(b"ping\r\nping")  # the terminal's echo, and then `cat`
            os.write(client.end, b"\x03")  # Ctrl-C: the terminal turns it into a signal
            assert client.line() == {"code": 130}


def test_people_s_signals_are_passed_on_to_the_group(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        with _entered(one, name, ["sh", "-c", "echo up; sleep 300; echo not reached"]) as client:
            client.until(b"up")
            client.send(signal=int(signal.SIGTERM))
            assert client.line() == {"code": 143}


def test_a_command_whose_owner_has_gone_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        before = one.descriptors()
        with _entered(one, name, ["sh", "-c", "setsid sh -c 'echo $$; sleep 300' & wait"]) as client:
            pids = [client.first["pid"], int(client.until(b"\n"))]
        one.eventually(lambda: not any(map(alive, pids)) and one.descriptors() == before)
        assert one.call("list")["containers"][0]["ended"] is None


@pytest.mark.parametrize("argv", [["sleep", "300"], ["env", "-i", "sleep", "300"]], ids=["marked", "unmarked"])
def test_a_command_ends_with_its_container(tmp_path: Path, argv: list[str]) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        before = one.descriptors()
        with _entered(one, name, argv) as client:
            assert one.descriptors() == before + 2  # the connection and a pidfd; the client's own are not kept
            one.call("signal", container=name, signal=15)
            assert client.line() == {"code": 137}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (encode({"do": "exec", "container": "x", "argv": ["true"], **_SAME}), "expected three descriptors"),
        (encode({"do": "dance", **_SAME}), 'expected {"role": "control"} or'),
        (b"nonsense\n", "not JSON"),
        (encode({"do": "exec", "container": "x", "argv": ["true"]}), "the client is of an older version, "),
        (encode({"role": "control", **_OTHER}), "the client is of version 9.9 (protocol 2), the supervisor of "),
    ],
    ids=["no descriptors", "unknown verb", "no JSON", "an older version", "a newer version"],
)
def test_a_stranger_s_words_are_refused_and_harm_nothing(tmp_path: Path, line: bytes, sentence: str) -> None:
    with supervised(tmp_path) as one:
        before = one.descriptors()
        with terminal.connect(str(tmp_path)) as sock, sock.makefile("rb") as lines:
            sock.sendall(line)
            assert sentence in json.loads(lines.readline())["error"]
            assert lines.readline() == b""
        one.eventually(lambda: one.descriptors() == before)


def test_the_socket_is_its_owner_s_alone_and_its_folder_s_name_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / "node"
    with supervised(folder) as one:
        assert (folder / "supervisor.sock").stat().st_mode & 0o777 == 0o600
        name = one.shell("sleep 300")
        with _entered(one, name, ["sh", "-c", "exit 2"]) as client:
            assert client.line() == {"code": 2}
