# SPDX-License-Identifier: Apache-2.0
"""Runs a script of kubectl commands on one server, and normalizes what they print, so that two servers can be compared.

Times, ages, identifiers, versions and addresses are replaced by words. `cluster_kubectl_steps` has the script.
"""

import os
import pty
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cluster_servers import Server
from msgspec import Struct

from patience import PATIENCE

#: The namespace of the script.
NAMESPACE = "lab"
_REPLACED = tuple(
    (re.compile(pattern, re.MULTILINE), word)
    for pattern, word in (
        (r"\r\n", "\n"),
        (r"[ \t]+", " "),
        (r" +$", ""),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "TIME"),
        (r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000", "TIME"),
        (r"https://[^/\s\"]+:\d+", "SERVER"),
        (r"\b\d+\.\d+\.\d+\.\d+\b", "ADDRESS"),
        (r"(\"?(?:resourceVersion|Resource Version)\"?: +)\"?\d+\"?", r"\1VERSION"),
        (r"\b(?:\d+[dhms]){1,2}\b", "AGE"),
        (r"((?:lost|Lost|Start|productive|Productive)\"?: )\d+", r"\1SECONDS"),
        (r"/tmp/[^\s:\"']+", "FILE"),  # noqa: S108 - kubectl names temporary files
        (r"-{2,}", "--"),
    )
)


class Ignored(Struct, frozen=True):
    """Lines of the output that may differ, and why. The pattern is searched in each normalized line."""

    pattern: str
    why: str


class Step(Struct, frozen=True, kw_only=True):
    """One command line of kubectl, and how it is run."""

    line: str
    #: Whether the command fails on both servers.
    fails: bool = False
    #: The standard input. In a terminal, it is typed when the output has `ready`.
    given: str = ""
    #: A command line of kubectl that runs when the normalized output has `until`. The step ends with Ctrl-C when the
    #: output has `until` once more.
    meanwhile: str = ""
    until: str = ""
    #: The sed script of the editor, for `kubectl edit`.
    edits: str = ""
    #: Whether standard input and output are a terminal.
    terminal: bool = False
    #: Lines that may differ between the servers.
    ignored: tuple[Ignored, ...] = ()
    #: Whether the engine may print fewer lines: each of its lines is then one of the other server's, in any order.
    fewer: bool = False
    #: The difference because of which the output is not compared: a row of a table in docs/compatibility.md.
    differs: str = ""
    #: What the output of the engine then contains.
    says: str = ""
    #: The exit code of the engine, if that differs too.
    code: int | None = None
    #: Repeat the command until its exit code is 0, because what it asks for comes a little later.
    patient: bool = False


class Result(Struct, frozen=True):
    """How a step ended, normalized."""

    code: int
    output: str

    def without(self, ignored: tuple[Ignored, ...]) -> list[str]:
        """The lines without those that may differ, and without the commas after the lines before them in JSON."""
        lines = (line.rstrip(",") for line in self.output.splitlines() if line.strip())
        return [line for line in lines if not any(re.search(one.pattern, line) for one in ignored)]


def normalized(text: str) -> str:
    """A text without everything that differs between two runs on the same server."""
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    return text.strip()


def run_script(server: Server, steps: tuple[Step, ...], files: dict[str, str]) -> list[Result]:
    """The results of all steps, which run in turn."""
    for name, text in files.items():
        (server.folder / name).write_text(text)
    return [_run(server, step) for step in steps]


def _run(server: Server, step: Step) -> Result:
    deadline = time.monotonic() + 30
    while True:
        result = _run_once(server, step)
        if not step.patient or result.code == 0 or time.monotonic() > deadline:
            return result
        time.sleep(0.2)


def _run_once(server: Server, step: Step) -> Result:
    words = [server.kubectl, "-n", NAMESPACE, *shlex.split(step.line)]
    env = server.env
    if step.edits:
        env["KUBE_EDITOR"] = _editor(server.folder, step.edits)
    if step.terminal:
        code, output = _run_in_terminal(words, env, server.folder, step.given)
    elif step.meanwhile:
        code, output = _run_until(words, env, server, step)
    else:
        done = subprocess.run(
            words, input=step.given, env=env, cwd=server.folder, capture_output=True, text=True, timeout=60, check=False
        )
        code, output = done.returncode, done.stdout + done.stderr
    return Result(code, normalized(output))


def _editor(folder: Path, script: str) -> str:
    path = folder / "editor"
    path.write_text(f'#!/bin/sh\nexec sed -i {shlex.quote(script)} "$1"\n')
    path.chmod(0o700)
    return str(path)


def _run_until(words: list[str], env: dict[str, str], server: Server, step: Step) -> tuple[int, str]:
    """Run a command that does not end by itself; the output up to the second `until`.

    The exit code after Ctrl-C depends on the moment, so it is 0, or 124 if the second `until` did not come.
    """
    process = subprocess.Popen(words, env=env, cwd=server.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    reader = threading.Thread(target=_read_lines, args=(process, lines))
    reader.start()
    try:
        _wait(lambda: step.until in normalized("".join(lines)) or process.poll() is not None)
        other = [server.kubectl, "-n", NAMESPACE, *shlex.split(step.meanwhile)]
        subprocess.run(other, env=env, cwd=server.folder, capture_output=True, timeout=60, check=True)
        _wait(lambda: _count(lines, step.until) > 1 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        process.wait(10)
    finally:
        process.kill()
        reader.join()
    while _count(lines[:-1], step.until) > 1:
        lines.pop()
    return (0 if _count(lines, step.until) > 1 else 124), "".join(lines)


def _count(lines: list[str], text: str) -> int:
    return normalized("".join(lines)).count(text)


def _read_lines(process: "subprocess.Popen[bytes]", lines: list[str]) -> None:
    assert process.stdout
    with process.stdout:
        for line in process.stdout:
            lines.append(line.decode())


def _wait(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not so() and time.monotonic() < deadline:
        time.sleep(0.02)


def _run_in_terminal(words: list[str], env: dict[str, str], folder: Path, given: str) -> tuple[int, str]:
    """Run a command in a terminal, and type what is given. The output has what the terminal echoes."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, env=env, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        with suppress(OSError):  # EIO: the other side is closed
            while part := os.read(ours, 4096):
                output += part
                if given and b"ready" in output:
                    os.write(ours, given.encode())
                    given = ""
        return process.wait(PATIENCE), output.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
