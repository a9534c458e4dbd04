# SPDX-License-Identifier: Apache-2.0
"""The agent's line to its supervisor: starts the process, sends requests, hands out answers and events.

`worker` and `probes` call it. A request is a future, so that several can be under way without a task each; what is sent
in one turn of the loop goes out in one write. When the supervisor dies every request fails with Lost, and `lost` is
called once: its containers died with it.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

import trainwright
from trainwright.errors import EngineError
from trainwright.jsonlines import END, SUPERVISOR_PROTOCOL, LineSplitter, mismatch
from trainwright.node.supervisor import journal
from trainwright.node.supervisor.protocol import (
    Config,
    ContainerRequest,
    Done,
    Ended,
    Exec,
    Executed,
    Leased,
    OpenPod,
    PodRequest,
    Ready,
    SignalContainer,
    StartContainer,
    Started,
)

AnswerT = TypeVar("AnswerT")

_START = "import sys; sys.path.insert(0, {!r}); from trainwright.node.supervisor.main import main; main()"
_READY = 15.0
_LOG = "supervisor.log"
#: Bytes of one message. The supervisor is ours: the limit only ends a connection that went wrong.
_LONGEST = 1 << 30


class SupervisorRefused(EngineError):  # noqa: N818 - the supervisor's word for it
    """The supervisor could not do what it was asked; its sentence, and the exit code that it stands for."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class SupervisorLost(SupervisorRefused):
    """The supervisor is gone, and its containers with it."""


class ContainerEnd(Struct, frozen=True, gc=False):
    """How a container ended: exit code (128 + n after a signal n), and when, as seconds since 1970."""

    container: str = ""
    code: int = 0
    signal: int = 0
    oom: bool = False
    at: float = 0.0


def ends(folder: Path) -> dict[str, ContainerEnd]:
    """By container: how those ended whose end nobody may have been told, as the supervisor of that folder knew it."""
    known = {name: entry["ended"] for name, entry in journal.read(str(folder / "journal")).items()}
    return {name: msgspec.convert({**end, "container": name}, ContainerEnd) for name, end in known.items() if end}


class _Envelope(Struct, gc=False):
    """What any message of the supervisor may say: which request it answers, or which event it is."""

    id: int | None = None
    event: str = ""
    error: str | None = None
    code: int = 0
    #: The sentence of `failed` and of `notice`.
    text: str = ""
    #: The supervisor's side of the handshake, in `ready`.
    protocol: int | None = None
    version: str = ""


class _Waiting(Struct, frozen=True):
    """A request that is not answered yet."""

    future: asyncio.Future[Any]
    decode: Callable[[bytes], Any]


_envelope = msgspec.json.Decoder(_Envelope).decode
_ready = msgspec.json.Decoder(Ready).decode
_ended = msgspec.json.Decoder(Ended).decode
_done = msgspec.json.Decoder(Done).decode
_started = msgspec.json.Decoder(Started).decode
_executed = msgspec.json.Decoder(Executed).decode


class SupervisorLink(asyncio.Protocol):
    """One supervisor. `Link.begin` makes it; `notice` hears what it has to tell people."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.notice: Callable[[str], None] = lambda _: None
        self.lost: Callable[[], None] = lambda: None
        self.alive = True
        #: What the supervisor before knew of its containers' ends.
        self.former: dict[str, ContainerEnd] = {}
        #: The supervisor and its pods go on when we hang up.
        self.outlives = False
        self._loop = asyncio.get_running_loop()
        #: The supervisor's first words: its runtime, how it limits, what it had to notice.
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._ends: dict[str, Callable[[ContainerEnd], None]] = {}
        self._id = 0
        self._lines = LineSplitter(_LONGEST)
        self._out: list[bytes] = []
        self._closing = False
        self.loss = f"the supervisor (process {process.pid}) has gone"

    @classmethod
    async def begin(cls, config: Config) -> "SupervisorLink":
        """Start a supervisor with that configuration and wait until it is ready. Raises EngineError."""
        folder = Path(config["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        former = ends(folder)  # a new supervisor begins with an empty file
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn({**config, "fd": theirs.fileno()}, folder / _LOG)
        link = cls(process, folder)
        link.former = former
        await link._loop.create_unix_connection(lambda: link, sock=ours)
        try:
            async with asyncio.timeout(_READY):
                await asyncio.shield(link.ready)
        except (TimeoutError, EngineError) as error:
            await link.close()
            raise EngineError(f"the supervisor did not start: {error or 'no word from it'}") from None
        link.outlives = config.get("orphans") == "keep"
        return link

    def open(self, pod: OpenPod) -> asyncio.Future[Done]:
        """Make what the containers of a pod share."""
        return self._ask("open", pod, _done)

    def close_pod(self, pod: PodRequest) -> None:
        """Kill what is left of a pod and drop what its containers shared."""
        self._tell("close", pod)

    def leased(self, devices: Leased) -> asyncio.Future[Done]:
        """See that the supervisor holds the locks of these devices."""
        return self._ask("leased", devices, _done)

    def start(self, container: StartContainer) -> asyncio.Future[Started]:
        """Start a container."""
        return self._ask("start", container, _started)

    def exec(self, command: Exec) -> asyncio.Future[Executed]:
        """Run a command in a container; answered when it has ended."""
        return self._ask("exec", command, _executed)

    def signal(self, container: SignalContainer) -> None:
        """Signal the main process of a container."""
        self._tell("signal", container)

    def kill(self, container: ContainerRequest) -> None:
        """SIGKILL a container."""
        self._tell("kill", container)

    def forget(self, container: ContainerRequest) -> None:
        """The end of a container is stored: the supervisor need not remember it."""
        self._tell("forget", container)

    def ping(self) -> asyncio.Future[Done]:
        """Have the supervisor show that it answers."""
        return self._ask("ping", {}, _done)

    def follow(self, container: str, ended: "Callable[[ContainerEnd], None]") -> None:
        """Call `ended` when that container ends. To be said before it is started."""
        self._ends[container] = ended

    def unfollow(self, container: str) -> None:
        """It was not started after all."""
        self._ends.pop(container, None)

    async def close(self, patience: float = 10.0) -> None:
        """Hang up and see the supervisor out; one whose orphans end takes them along."""
        self._closing = True
        if self._transport is not None:
            self._flush()
            self._transport.close()
        if self.outlives:
            return
        try:
            async with asyncio.timeout(patience):
                await _exit(self.process)
        except TimeoutError:
            self.process.kill()
            await _exit(self.process)

    def _ask(
        self, what: str, fields: Mapping[str, Any], decode: Callable[[bytes], AnswerT]
    ) -> "asyncio.Future[AnswerT]":
        """Send a request; the future holds the answer, or Refused."""
        future: asyncio.Future[AnswerT] = self._loop.create_future()
        if not self.alive:
            future.set_exception(SupervisorLost(self.loss))
            return future
        self._waiting[self._send(what, fields)] = _Waiting(future, decode)
        return future

    def _tell(self, what: str, fields: Mapping[str, Any]) -> None:
        """Send a request whose answer nobody waits for."""
        if self.alive:
            self._send(what, fields)

    def _send(self, what: str, fields: Mapping[str, Any]) -> int:
        self._id += 1
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(msgspec.json.encode({"id": self._id, "do": what, **fields}))
        return self._id

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._out.append(b"")
            self._transport.write(END.join(self._out))
        self._out.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio says: the socket is ours."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Asyncio says: there is something to read."""
        for line in self._lines.feed(data):
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        said = _envelope(line)
        if said.id is not None:
            self._answered(said, line)
        elif said.event == "ended":
            end = _ended(line)
            ended = self._ends.pop(end["container"], None)
            if ended is not None:
                ended(ContainerEnd(end["container"], end["code"], end["signal"], end["oom"], end["at"]))
        elif said.event == "ready" and not self.ready.done():
            self._greeted(said, line)
        elif said.event == "failed" and not self.ready.done():
            self.ready.set_exception(EngineError(said.text))
        elif said.event == "notice":
            self.notice(said.text)

    def _greeted(self, said: _Envelope, line: bytes) -> None:
        told = {"protocol": said.protocol, "version": said.version}
        problem = mismatch(told, SUPERVISOR_PROTOCOL, "the supervisor", "the agent")
        if problem is None:
            self.ready.set_result(_ready(line))
        else:
            self.ready.set_exception(EngineError(problem))

    def _answered(self, said: _Envelope, line: bytes) -> None:
        waiting = self._waiting.pop(said.id or 0, None)
        if waiting is None or waiting.future.done():
            return
        if said.error is None:
            waiting.future.set_result(waiting.decode(line))
        else:
            waiting.future.set_exception(SupervisorRefused(said.error, said.code))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why is of no consequence
        """Asyncio says: the other side has gone."""
        self.alive = False
        self.loss += _last_words(self.folder / _LOG)
        if not self.ready.done():
            self.ready.set_exception(SupervisorLost(self.loss))
        self.ready.exception()  # whether or not anybody still waits for it
        left, self._waiting = self._waiting, {}
        for waiting in left.values():
            if not waiting.future.done():
                waiting.future.set_exception(SupervisorLost(self.loss))
        self._ends.clear()
        if not self._closing:
            self.lost()


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        told = log.read_text(errors="replace").split("\n")
        return next((f"; its last words: {line}" for line in reversed(told) if line.strip()), "")
    return ""


async def _exit(process: "subprocess.Popen[bytes]") -> None:
    """Until the process has gone, at that very moment where the platform can tell it."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(process.wait)
    elif process.poll() is None:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        process.wait()


def _spawn(config: Config, log: Path) -> "subprocess.Popen[bytes]":
    """The process: a session of its own, so that a Ctrl-C meant for us does not reach it."""
    code = _START.format(str(Path(trainwright.__file__).parents[1]))
    argv = [sys.executable, "-E", "-s", "-S", "-c", code, msgspec.json.encode(config).decode()]
    network, leases = config.get("network"), config.get("leases")
    holder = (network.get("holder") if network else None) or {}
    with log.open("wb") as words:
        return subprocess.Popen(  # noqa: S603 - our own interpreter with our own words
            argv,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            pass_fds=(config["fd"], *([leases] if leases is not None else []), *holder.values()),
            start_new_session=True,
            cwd=os.sep,
        )
