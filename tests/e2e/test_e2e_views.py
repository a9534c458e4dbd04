# SPDX-License-Identifier: Apache-2.0
"""A run as people and programs see it: lines in a pipe, JSON, and a table that lives on a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from typing import Any

from e2e_jobs import job, role, shell, worker
from e2e_workspace import Workspace

from patience import PATIENCE

pytest_plugins = ["e2e_fixtures"]

FIELDS = {
    "job": {"namespace", "job", "kind", "phase", "replicas", "counts", "restarts"},
    "replica": {"namespace", "job", "replica", "phase", "pod", "attempt", "node", "restarts", "reason"},
    "log": {"namespace", "job", "replica", "container", "text"},
    "event": {"namespace", "job", "about", "reason", "message", "warning"},
    "notice": {"text"},
}
END = {"namespace", "name", "outcome", "exitCode", "duration", "restarts", "because", "folder"}
FAILED = {"rule", "replica", "pod", "container", "code", "cause", "lastLines"}


def test_every_line_of_json_is_as_documented(process: Workspace) -> None:
    flaky = shell("echo try; [ -e again ] || { touch again; exit 1; }; echo done")
    bad = shell("sleep 1.5; echo 'so \"it\" ends'; exit 7")
    body = job(role("flaky", flaky, restarts=1), role("bad", bad), failureRules=[{"bad": [0]}])
    done = process.run("run", "-o", "json", body)

    assert (done.code, done.err) == (1, ""), done.said
    for item in done.items:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", item["at"])
        if item["type"] != "end":
            assert set(item) == {"at", "type"} | FIELDS[item["type"]], item
    assert [item["type"] for item in done.items].count("end") == 1
    end = done.items[-1]
    assert end["type"] == "end"
    assert set(end) >= END | FAILED, end
    assert (end["outcome"], end["code"], end["replica"], end["lastLines"]) == ("Failed", 7, "bad-0", ['so "it" ends'])
    logs = [(item["replica"], item["text"]) for item in done.items if item["type"] == "log"]
    assert sorted(logs) == [("bad-0", 'so "it" ends'), ("flaky-0", "done"), ("flaky-0", "try"), ("flaky-0", "try")]
    phases = [item["phase"] for item in done.items if item["type"] == "replica" and item["replica"] == "flaky-0"]
    assert phases[-1] == "Succeeded"
    assert "Failed" in phases
    (process.work / "again").unlink()


def test_lines_in_a_pipe_are_plain(process: Workspace) -> None:
    forced = {"FORCE_COLOR": "1", "TERM": "xterm"}
    done = process.run("run", worker(r"printf 'a\033[31mred\033[0m\a\r\nb\n'"), env=forced)

    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\a" not in done.out
    assert "worker-0 | b" in done.out


def test_a_line_of_a_megabyte_does_no_harm(process: Workspace) -> None:
    done = process.run("run", worker("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after"))

    assert done.code == 0
    assert "worker-0 | after" in done.out


def test_everything_that_is_printed_is_shown_once_and_in_order(process: Workspace) -> None:
    done = process.run("run", "-o", "json", worker("seq 1 20000", replicas=2))

    assert done.code == 0
    for replica in ("worker-0", "worker-1"):
        lines = [item["text"] for item in done.items if item["type"] == "log" and item["replica"] == replica]
        assert lines == [str(number) for number in range(1, 20001)]


class Screen:
    """A command in a terminal of 100 by 30, and what it wrote there."""

    def __init__(self, words: list[str], **how: Any) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.written = b""
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, **how)

    def read(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            self._take(0.05)
        while self._take(0):
            pass

    def _take(self, seconds: float) -> bool:
        ready = bool(select.select([self.master], [], [], seconds)[0])
        if ready:
            try:
                self.written += os.read(self.master, 65536)
            except OSError:  # nobody has the other end any more
                return False
        return ready

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.written.decode())

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


def on_screen(workspace: Workspace, *words: Any) -> Screen:
    env = workspace.env | {"TERM": "xterm-256color"}
    return Screen(["setsid", "--ctty", *workspace.words(*words)], cwd=workspace.work, env=env)


def test_on_a_terminal_there_is_a_row_for_each_replica_and_the_log(process: Workspace) -> None:
    screen = on_screen(process, "run", worker("echo hello there; sleep 1", replicas=2))
    screen.read(PATIENCE)

    assert screen.process.wait(PATIENCE) == 0
    assert "\x1b[" in screen.written.decode()
    for word in ("worker-0", "worker-1", "Running", "node-0", "hello there", "e2e succeeded after"):
        assert word in screen.text, screen.text
    assert screen.written.count(b"\x1b[?25h") >= screen.written.count(b"\x1b[?25l")  # the cursor is seen again
    assert termios.tcgetattr(screen.slave) == screen.before
    screen.close()


def test_ctrl_c_on_the_terminal_ends_it_and_restores_the_terminal(process: Workspace) -> None:
    loud = "trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    screen = on_screen(process, "run", worker(loud))
    until_seen(screen, "up")
    os.write(screen.master, b"\x03")
    screen.read(PATIENCE)

    assert screen.process.wait(PATIENCE) == 130
    assert "leaving" in screen.text
    assert screen.written.count(b"\x1b[?25h") >= screen.written.count(b"\x1b[?25l")  # the cursor is seen again
    assert termios.tcgetattr(screen.slave) == screen.before
    screen.close()


def until_seen(screen: Screen, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        screen.read(0.1)
        if text in screen.text:
            return
    raise AssertionError(screen.text)


def test_a_window_that_changes_its_size_does_no_harm(process: Workspace) -> None:
    screen = on_screen(process, "run", worker("for i in $(seq 10); do echo line $i; sleep 0.1; done", replicas=3))
    for rows, columns in ((5, 20), (1, 1), (60, 300)):
        screen.read(0.4)
        fcntl.ioctl(screen.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen.read(PATIENCE)

    assert screen.process.wait(PATIENCE) == 0
    assert "Traceback" not in screen.text
    screen.close()
