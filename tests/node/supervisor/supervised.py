# SPDX-License-Identifier: Apache-2.0
"""A driver for tests: a real supervisor process, and a real socket to it."""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trainwright
from patience import PATIENCE
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, LineSplitter, decode, encode, hello

_CODE = "import sys; sys.path.insert(0, {!r}); from trainwright.node.supervisor.main import main; main()"
PATH = os.environ["PATH"]

Message = dict[str, Any]


class Talk:
    """The agent's side of a connection: it waits for answers and keeps the events."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.events: list[Message] = []
        self.answers: dict[int, Message] = {}
        self._lines = LineSplitter(1 << 20)
        self._ids = itertools.count(1)

    def take_over(self) -> None:
        """Connect as the agent."""
        self.send(role="control", **hello(SUPERVISOR_PROTOCOL))

    def send(self, **message: Any) -> None:
        self.sock.sendall(encode(message))

    def ask(self, do: str, **fields: Any) -> int:
        number = next(self._ids)
        self.send(id=number, do=do, **fields)
        return number

    def answer(self, number: int) -> Message:
        self.until(lambda: number in self.answers, f"the answer to request {number}")
        return self.answers.pop(number)

    def call(self, do: str, **fields: Any) -> Message:
        return self.answer(self.ask(do, **fields))

    def event(self, kind: str, **wanted: Any) -> Message:
        """Take the next event of that kind."""

        def found() -> Message | None:
            fits = [e for e in self.events if e["event"] == kind and all(e[k] == v for k, v in wanted.items())]
            return fits[0] if fits else None

        self.until(lambda: found() is not None, f"the event {kind} {wanted}")
        event = found()
        assert event is not None
        self.events.remove(event)
        return event

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert self.pump(deadline - time.monotonic()), f"waited in vain for {what}; heard {self.events}"

    def pump(self, seconds: float) -> bool:
        """Read messages for that time. False: none came."""
        if not select.select([self.sock], [], [], max(0.0, seconds))[0]:
            return False
        data = self.sock.recv(65536)
        assert data, f"the supervisor has hung up; heard {self.events}"
        for line in self._lines.feed(data):
            message = decode(line)
            if "event" in message:
                self.events.append(message)
            else:
                self.answers[message.get("id", 0)] = message
        return True


class Supervised(Talk):
    """A supervisor and its first agent."""

    def __init__(self, folder: Path, under: tuple[str, ...] = (), **config: Any) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        whole = {"fd": theirs.fileno(), "folder": str(folder), "runtime": "process", "orphans": "end"}
        whole |= {"protocol": SUPERVISOR_PROTOCOL, **config}
        source = Path(trainwright.__file__).parents[1]
        argv = [*under, sys.executable, "-E", "-s", "-S", "-c", _CODE.format(str(source)), json.dumps(whole)]
        with theirs:
            self.process = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), start_new_session=True)
        self._names = itertools.count(1)

    def start(self, *argv: str, container: str | None = None, **fields: Any) -> str:
        """Start a container and return its name."""
        name, answer = self.try_start(*argv, container=container, **fields)
        assert answer.get("ok"), answer
        return name

    def try_start(self, *argv: str, container: str | None = None, **fields: Any) -> tuple[str, Message]:
        name = container or f"c{next(self._names)}-{self.process.pid}"
        env = {"PATH": PATH, **fields.pop("env", {})}
        request = {"pod": "p1", "container": name, "argv": argv, "env": env, "cwd": None, "log": str(self.log(name))}
        return name, self.call("start", **{**request, **fields})

    def shell(self, script: str, **fields: Any) -> str:
        return self.start("/bin/sh", "-c", script, **fields)

    def ended(self, container: str) -> Message:
        return self.event("ended", container=container)

    def log(self, container: str) -> Path:
        return self.folder / "logs" / f"{container}.log"

    def words(self, container: str, wanted: str) -> str:
        """Wait until the log contains the text, and return the log."""
        self.eventually(lambda: self.log(container).exists() and wanted in self.log(container).read_text())
        return self.log(container).read_text()

    def eventually(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def hang_up(self) -> int:
        self.sock.close()
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """End all processes, also those that the test left."""
        self.sock.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def supervised(folder: Path, under: tuple[str, ...] = (), **config: Any) -> Iterator[Supervised]:
    one = Supervised(folder, under, **config)
    try:
        one.event("ready")
        one.call("open", pod="p1", host="p1", address="127.3.0.7", network="host", hosts=None, tmp=None)
        yield one
    finally:
        one.end()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
