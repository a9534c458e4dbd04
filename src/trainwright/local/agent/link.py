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
from typing import Any

import msgspec
from msgspec import Struct

import trainwright
from trainwright.errors import EngineError
from trainwright.local.supervisor import journal

Answer = dict[str, Any]
Ended = Callable[["End"], None]

_START = "import sys; sys.path.insert(0, {!r}); from trainwright.local.supervisor.main import main; main()"
_READY = 15.0
_LOG = "supervisor.log"


class Refused(EngineError):  # noqa: N818 - the supervisor's word for it
    """The supervisor could not do what it was asked; its sentence, and the exit code that it stands for."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Lost(Refused):
    """The supervisor is gone, and its containers with it."""


class End(Struct, frozen=True, gc=False):
    """How a container ended: exit code (128 + n after a signal n), and when, as seconds since 1970."""

    container: str = ""
    code: int = 0
    signal: int = 0
    oom: bool = False
    at: float = 0.0


def ends(folder: Path) -> dict[str, End]:
    """By container: how those ended whose end nobody may have been told, as the supervisor of that folder knew it."""
    known = {name: entry.get("ended") for name, entry in journal.read(str(folder / "journal")).items()}
    return {name: msgspec.convert({**end, "container": name}, End) for name, end in known.items() if end}


class _Line(Struct, gc=False):
    """Anything that the supervisor says."""

    id: int | None = None
    event: str = ""
    error: str | None = None
    code: int = 0
    text: str = ""
    container: str = ""
    signal: int = 0
    oom: bool = False
    at: float = 0.0


_decode = msgspec.json.Decoder(_Line).decode
_whole = msgspec.json.Decoder(Answer).decode


class Link(asyncio.Protocol):
    """One supervisor. `Link.start` makes it; `notice` hears what it has to tell people."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.notice: Callable[[str], None] = lambda _: None
        self.lost: Callable[[], None] = lambda: None
        self.alive = True
        #: What the supervisor before knew of its containers' ends.
        self.former: dict[str, End] = {}
        #: The supervisor and its pods go on when we hang up.
        self.outlives = False
        self._loop = asyncio.get_running_loop()
        #: The supervisor's first words: its runtime, how it limits, what it had to notice.
        self.ready: asyncio.Future[Answer] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._ends: dict[str, Ended] = {}
        self._id = 0
        self._rest = b""
        self._out: list[bytes] = []
        self._closing = False
        self.loss = f"the supervisor (process {process.pid}) has gone"

    @classmethod
    async def start(cls, config: Mapping[str, Any]) -> "Link":
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

    def call(self, what: str, **fields: Any) -> asyncio.Future[Answer]:
        """Ask for something; the future holds the answer, or Refused."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self.alive:
            future.set_exception(Lost(self.loss))
            return future
        self._waiting[self._send(what, fields)] = future
        return future

    def tell(self, what: str, **fields: Any) -> None:
        """Ask for something whose answer nobody waits for."""
        if self.alive:
            self._send(what, fields)

    def follow(self, container: str, ended: Ended) -> None:
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

    def _send(self, what: str, fields: dict[str, Any]) -> int:
        self._id += 1
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(msgspec.json.encode({"id": self._id, "do": what, **fields}))
        return self._id

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._out.append(b"")
            self._transport.write(b"\n".join(self._out))
        self._out.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio says: the socket is ours."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Asyncio says: there is something to read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        said = _decode(line)
        if said.id is not None:
            self._answered(said, line)
        elif said.event == "ended":
            ended = self._ends.pop(said.container, None)
            if ended is not None:
                ended(End(said.container, said.code, said.signal, said.oom, said.at))
        elif said.event == "ready" and not self.ready.done():
            self.ready.set_result(_whole(line))
        elif said.event == "failed" and not self.ready.done():
            self.ready.set_exception(EngineError(said.text))
        elif said.event == "notice":
            self.notice(said.text)

    def _answered(self, said: _Line, line: bytes) -> None:
        future = self._waiting.pop(said.id or 0, None)
        if future is None or future.done():
            return
        if said.error is None:
            future.set_result(_whole(line))
        else:
            future.set_exception(Refused(said.error, said.code))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why is of no consequence
        """Asyncio says: the other side has gone."""
        self.alive = False
        self.loss += _last_words(self.folder / _LOG)
        if not self.ready.done():
            self.ready.set_exception(Lost(self.loss))
        self.ready.exception()  # whether or not anybody still waits for it
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Lost(self.loss))
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


def _spawn(config: dict[str, Any], log: Path) -> "subprocess.Popen[bytes]":
    """The process: a session of its own, so that a Ctrl-C meant for us does not reach it."""
    code = _START.format(str(Path(trainwright.__file__).parents[1]))
    argv = [sys.executable, "-E", "-s", "-S", "-c", code, msgspec.json.encode(config).decode()]
    holder, leases = (config.get("network") or {}).get("holder") or {}, config.get("leases")
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
