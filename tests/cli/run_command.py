# SPDX-License-Identifier: Apache-2.0
"""Runs the real command line as a subprocess, with a state folder per test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run_objects import role

from patience import PATIENCE
from trainwright.cli.output import as_yaml
from trainwright.model.job import Body

SCRIPT = str(Path(sys.executable).with_name("trainwright"))


def script(*lines: str, **more: Any) -> Body:
    """A pod template that runs a shell script."""
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "\n".join(lines)], **more}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}


def demo(*roles: Body, name: str = "demo", **spec: Any) -> Body:
    """A GenericJob as a user writes it; one worker that says hello unless told otherwise."""
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": list(roles) or [worker("echo hello")], **spec},
    }


def worker(*lines: str, replicas: int = 1, kind: str = "worker", **more: Any) -> Body:
    """A role whose replicas run a shell script."""
    return role(kind, replicas, **{"template": script(*lines), **more})


class CommandRunner:
    """Runs commands in a folder of the test, which holds manifests and the state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.env = {**os.environ, "TRAINWRIGHT_STATE": str(self.state), "TERM": "xterm-256color"}
        for name in ("TRAINWRIGHT_DEBUG", "NO_COLOR"):
            self.env.pop(name, None)
        self.number = 0

    def write(self, *bodies: Body) -> str:
        """Write a manifest and return its path."""
        self.number += 1
        file = self.folder / f"job-{self.number}.yaml"
        file.write_text(as_yaml(bodies), encoding="utf-8")
        return str(file)

    def call(self, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [SCRIPT, *args],
            input=text,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.folder,
            timeout=PATIENCE,
            check=False,
        )

    def run(self, *bodies: Body, args: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run `trainwright run` with the process runtime to its end."""
        return self.call("run", "--runtime", "process", *args, self.write(*bodies))

    @contextmanager
    def live(self, *bodies: Body, args: tuple[str, ...] = ()) -> Iterator["LiveRun"]:
        """Start a run in the background; it is killed if it has not ended by the end of the block."""
        out = self.folder / f"out-{self.number}"
        words = [SCRIPT, "run", "--runtime", "process", *args, self.write(*bodies)]
        with out.open("w") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=self.env, cwd=self.folder
            )
        try:
            yield LiveRun(process, out)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def latest(self, name: str = "demo") -> Path:
        """The folder of the last run."""
        return (self.state / "default" / name / "latest").resolve()


class LiveRun:
    """A run in the background."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.process = process
        self._out = out

    @property
    def pid(self) -> int:
        """The process ID."""
        return self.process.pid

    def text(self) -> str:
        """The output so far."""
        return self._out.read_text(encoding="utf-8")

    def until(self, text: str) -> str:
        """Wait until the output contains this text, and return the output."""
        wait(lambda: text in self.text() or self.process.poll() is not None)
        assert text in self.text(), self.text()
        return self.text()

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(PATIENCE)


def wait(look: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    until = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def processes(word: str) -> list[str]:
    """The command lines of all processes that contain this word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found
