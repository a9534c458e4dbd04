# SPDX-License-Identifier: Apache-2.0
"""A driver for tests: a real supervisor with the sandbox runtime, run by root or by an unprivileged user."""

import functools
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from supervised import Message, Talk, alive

import trainwright
from patience import PATIENCE
from trainwright.jsonlines import SUPERVISOR_PROTOCOL

SOURCE = Path(trainwright.__file__).parents[1]
NOBODY = 65534
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SUBNET = "10.200.0.0/16"
#: The folder of the Python of these tests; it must stay visible if it is below /tmp.
PYTHON = (sys.prefix, sys.base_prefix)
_MAIN = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from trainwright.node.supervisor.main import main; main()"
_TRY = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import trainwright.node.supervisor.sandbox"
_AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")


def as_who(who: str) -> tuple[str, ...]:
    """The beginning of a command line that runs a command as this user."""
    return _AS_NOBODY if who == "user" and os.geteuid() == 0 else ()


@functools.cache
def python(who: str) -> str | None:
    """A Python that this user may run."""
    for path in (sys.executable, "/usr/bin/python3"):
        # By a shell, because setpriv itself still has the rights of root.
        command = [*as_who(who), "/bin/sh", "-c", '"$0" "$@"', path, "-E", "-s", "-S", "-c", _TRY]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0:
            return path
    return None


@functools.cache
def unavailable(who: str) -> str:
    """Why this user can have no sandbox here; empty if sandboxes work."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    if who == "root" and os.geteuid() != 0:
        return "needs root"
    if as_who(who) and shutil.which("setpriv") is None:
        return "needs setpriv"
    if python(who) is None:
        return "no Python that they may run"
    tried = subprocess.run([*as_who(who), "unshare", "-Urnm", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.decode()}"


class Sandboxed(Talk):
    """A supervisor, with helpers for requests."""

    def __init__(
        self, folder: Path, who: str, under: Sequence[str] = (), passed: tuple[int, ...] = (), **config: Any
    ) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.folder, self.who = folder, who
        if not folder.exists():
            folder.mkdir()
            shutil.chown(folder, folder.parent.owner())
        network = {"subnet": config.pop("subnet", SUBNET), "holder": config.pop("holder", None)}
        whole = {"fd": theirs.fileno(), "folder": str(folder), "runtime": "sandbox", "network": network}
        whole |= {"protocol": SUPERVISOR_PROTOCOL, **config}
        command = [python(who) or "", "-E", "-s", "-S", "-c", _MAIN, json.dumps(whole)]
        passed = (theirs.fileno(), *passed, *(network["holder"] or {}).values())
        with theirs:
            self.process = subprocess.Popen([*under, *as_who(who), *command], pass_fds=passed, cwd="/")
        self._numbers = itertools.count(2)
        self._names = itertools.count(1)

    def ready(self) -> Message:
        self.until(lambda: bool(self.events), "the supervisor")
        assert self.events[0]["event"] == "ready", self.events
        return self.event("ready")

    def open(self, name: str = "pod", **fields: Any) -> str:
        """Open a pod and return its address."""
        number = next(self._numbers)
        address = f"10.200.{number // 250}.{number % 250 + 2}"
        request: Message = {"pod": name, "host": name, "address": address, "network": "own", "hosts": None, "shm": None}
        request |= {"tmp": str(self.folder / "pods" / name / "tmp"), "keep": [*PYTHON], **fields}
        answer = self.call("open", **request)
        assert answer.get("ok"), answer
        return str(request["address"])

    def start(self, script: str, pod: str = "pod", **fields: Any) -> str:
        """Start a container of that pod with this script, and return its name."""
        name, answer = self.attempt(["/bin/sh", "-c", script], pod, **fields)
        assert answer.get("ok"), answer
        return name

    def attempt(self, argv: list[str], pod: str = "pod", **fields: Any) -> tuple[str, Message]:
        name = f"c{next(self._names)}"
        request = {"pod": pod, "container": name, "argv": argv, "env": {"PATH": PATH}, "cwd": "/", "mounts": []}
        return name, self.call("start", **request | {"log": str(self.log(name)), **fields})

    def run(self, script: str, pod: str = "pod", **fields: Any) -> str:
        """Run the script, check that it succeeds, and return its output."""
        name = self.start(script, pod, **fields)
        end = self.event("ended", container=name)
        assert end["code"] == 0, (end, self.said(name))
        return self.said(name)

    def enter(self, container: str, script: str, **fields: Any) -> Message:
        request = {"container": container, "argv": ["/bin/sh", "-c", script], "env": None, "timeout": 5}
        return self.call("exec", **request | fields)

    def log(self, container: str) -> Path:
        return self.folder / "logs" / f"{container}.log"

    def said(self, container: str) -> str:
        return self.log(container).read_text() if self.log(container).exists() else ""

    def hears(self, container: str, words: str) -> None:
        """Wait until the log contains the text."""
        eventually(lambda: words in self.said(container), lambda: self.said(container))

    def descendants(self) -> list[int]:
        """All living descendants of the supervisor."""
        return [pid for pid in below(self.process.pid) if alive(pid)]

    def end(self) -> None:
        self.sock.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [one for child in map(int, text.split()) for one in (child, *below(child))]


def eventually(done: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"waited in vain: {told()}"
        time.sleep(0.005)
