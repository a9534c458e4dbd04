# SPDX-License-Identifier: Apache-2.0
"""The connection of an agent to its supervisor: starts the process or attaches to one, sends requests, delivers events.

Each request gets a future, so that several requests can be open without a task for each. The link sends all requests
of one iteration of the event loop in one write. When the supervisor dies, its containers die, too: every open request
fails with SupervisorLost, and the link calls `on_lost` once.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

import trainwright
from trainwright import open_files
from trainwright.errors import EngineError
from trainwright.jsonlines import END, SUPERVISOR_PROTOCOL, LineSplitter, encode, hello, mismatch
from trainwright.node.found import ContainerEnd, FoundContainer, LossCause, read_ends
from trainwright.node.supervisor.protocol import (
    Attach,
    Config,
    ContainerRequest,
    Done,
    Exec,
    Executed,
    Leased,
    NoteContainer,
    OpenPod,
    PodRequest,
    Ready,
    SignalContainer,
    StartContainer,
    Started,
)
from trainwright.node.supervisor_process import SupervisorProcess

AnswerT = TypeVar("AnswerT")

_START_CODE = "import sys; sys.path.insert(0, {!r}); from trainwright.node.supervisor.main import main; main()"
_READY_TIMEOUT_SECONDS = 15.0
#: A supervisor that has not ended this many seconds after `close` is killed.
_EXIT_TIMEOUT_SECONDS = 10.0
#: An agent waits this many seconds for the end of a supervisor that has closed the connection.
_REAP_TIMEOUT_SECONDS = 1.0
_LOG_NAME = "supervisor.log"
#: Maximum size of a message. The agent trusts its supervisor, so the limit serves only to detect damaged data.
_MAX_MESSAGE_BYTES = 1 << 30


class SupervisorRefused(EngineError):  # noqa: N818 - an answer of the supervisor, not a defect
    """The supervisor refused a request. `code` is the exit code that the container gets; 0: no exit code."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class SupervisorLost(SupervisorRefused):
    """The supervisor is gone, and its containers are gone, too."""


class _Found(Struct):
    """The answer to `list`."""

    containers: list[FoundContainer]
    pods: list[str] = []


class _Envelope(Struct, gc=False):
    """The fields that show what a message of the supervisor is: an answer (it has `id`) or an event."""

    id: int | None = None
    event: str = ""
    error: str | None = None
    code: int = 0
    #: The text of the events `failed` and `notice`.
    text: str = ""


_envelope = msgspec.json.Decoder(_Envelope).decode
_ready = msgspec.json.Decoder(Ready).decode
_ended = msgspec.json.Decoder(ContainerEnd).decode
_done = msgspec.json.Decoder(Done).decode
_started = msgspec.json.Decoder(Started).decode
_executed = msgspec.json.Decoder(Executed).decode
_found = msgspec.json.Decoder(_Found).decode


class SupervisorLink(asyncio.Protocol):
    """The connection to one supervisor, made by `begin` or `attach`. `on_notice` receives its notices to the user."""

    def __init__(self, process: SupervisorProcess, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.on_notice: Callable[[str], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        #: The function to call when a container ends, by container ID. Set it before `start`: the end may come at once.
        self.on_ended: dict[str, Callable[[ContainerEnd], None]] = {}
        self.alive = True
        #: The ends in the journal of the previous supervisor, by container ID.
        self.previous_ends: dict[str, ContainerEnd] = {}
        #: By pod UID: the containers of earlier agents that no pod of this agent has claimed yet; see `claim`.
        self.found: dict[str, list[FoundContainer]] = {}
        #: The UIDs of the pods that earlier agents have opened.
        self.open_pods: set[str] = set()
        #: What happened to containers of earlier agents of which nothing else is known.
        self.loss_cause = LossCause("SupervisorLost", "the supervisor that ran this pod no longer runs it")
        #: The lock that makes this agent the only one of its supervisor; see `supervisor.identity`.
        self.lock: int | None = None
        #: Whether the supervisor and its pods continue to run after `close`.
        self._outlives_agent = False
        self._loop = asyncio.get_running_loop()
        #: The first message of the supervisor: its runtime, how it limits resources, its notices.
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        #: The requests without an answer: the future that waits for the answer, and the decoder of the answer.
        self._pending: dict[int, tuple[asyncio.Future[Any], Callable[[bytes], Any]]] = {}
        self._id = 0
        self._lines = LineSplitter(_MAX_MESSAGE_BYTES)
        self._out: list[bytes] = []
        self._closing = False
        #: How the supervisor was lost: the message of SupervisorLost. Every request fails with this error then.
        self.loss = f"the supervisor (process {process.pid}) has ended"

    @classmethod
    async def begin(cls, config: Config) -> "SupervisorLink":
        """Start a supervisor with that configuration and wait until it is ready. Raises EngineError."""
        folder = Path(config["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        previous_ends = read_ends(folder)  # read the journal first: a new supervisor empties it
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn({**config, "fd": theirs.fileno()}, folder / _LOG_NAME)
        link = cls(SupervisorProcess.of_child(process), folder)
        link.previous_ends = previous_ends
        await link._loop.create_unix_connection(lambda: link, sock=ours)
        try:
            await link._wait_ready()
        except EngineError as error:
            await link.close()
            raise EngineError(f"the supervisor did not start: {error}") from None
        link._outlives_agent = config.get("orphans") == "keep"
        return link

    @classmethod
    async def attach(cls, folder: Path, lock: int, leases: int | None = None) -> "SupervisorLink":
        """Connect to the supervisor that lives in that folder, and find its containers.

        `lock` is the agent's lock of the folder, `leases` the descriptor of a new socket that receives device leases.
        Raises OSError if no supervisor listens there, and EngineError if it is not the folder's own supervisor or
        does not answer.
        """
        from trainwright.node.supervisor import terminal  # noqa: PLC0415 - `trainwright run` does not need it

        sock = terminal.connect(str(folder))
        try:
            process = _peer(sock, folder)
            first: Attach = {**hello(SUPERVISOR_PROTOCOL), "role": "control", "leases": leases is not None}
            socket.send_fds(sock, [encode(first)], [lock, *([leases] if leases is not None else [])])
        except BaseException:
            sock.close()
            raise
        link = cls(process, folder)
        link._outlives_agent = True
        await link._loop.create_unix_connection(lambda: link, sock=sock)
        try:
            await link._wait_ready()
            ready = link.ready.result()
            if ready.get("pid") != process.pid:
                raise EngineError(f"process {process.pid} listens, but process {ready.get('pid')} answers")
            answer = await link._request("list", {}, _found)
        except EngineError as error:
            await link.close()
            raise EngineError(f"the supervisor (process {process.pid}) cannot be taken over: {error}") from None
        link.open_pods = set(answer.pods)
        link.keep_found(answer.containers)
        return link

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_TIMEOUT_SECONDS):
                await asyncio.shield(self.ready)
        except TimeoutError:
            raise EngineError(f"no message from it within {_READY_TIMEOUT_SECONDS:g} s") from None

    def keep_found(self, containers: Iterable[FoundContainer]) -> None:
        """Keep containers of earlier agents until the pods of this agent claim them."""
        for one in containers:
            self.found.setdefault(one.pod, []).append(one)

    def claim(self, pod: str) -> list[FoundContainer]:
        """The containers of a pod that earlier agents have started, in the order of their restarts."""
        return sorted(self.found.pop(pod, ()), key=lambda one: one.restart)

    def open(self, pod: OpenPod) -> asyncio.Future[Done]:
        """Create what the containers of a pod share: its network and its folders."""
        return self._request("open", pod, _done)

    def close_pod(self, pod: PodRequest) -> None:
        """Kill the remaining processes of a pod and remove what its containers shared."""
        self._send_request("close", pod)

    def leased(self, devices: Leased) -> asyncio.Future[Done]:
        """Check that the supervisor holds the locks of these devices."""
        return self._request("leased", devices, _done)

    def start(self, container: StartContainer) -> asyncio.Future[Started]:
        """Start a container."""
        return self._request("start", container, _started)

    def exec(self, command: Exec) -> asyncio.Future[Executed]:
        """Run a command in a container; the answer comes when the command has ended."""
        return self._request("exec", command, _executed)

    def signal(self, container: SignalContainer) -> None:
        """Send a signal to the main process of a container."""
        self._send_request("signal", container)

    def kill(self, container: ContainerRequest) -> None:
        """Send SIGKILL to all processes of a container."""
        self._send_request("kill", container)

    def forget(self, container: ContainerRequest) -> None:
        """Allow the supervisor to forget how a container ended, because the agent no longer needs this information."""
        self._send_request("forget", container)

    def note(self, container: NoteContainer) -> None:
        """Let the supervisor remember what this agent does with a container, for an agent that attaches later."""
        self._send_request("note", container)

    def ping(self) -> asyncio.Future[Done]:
        """Ask the supervisor for an empty answer, which shows that the supervisor works."""
        return self._request("ping", {}, _done)

    async def close(self, *, end: bool = False) -> None:
        """Close the connection. Wait until the supervisor has ended, unless the settings let it outlive the agent.

        With `end`, also end a supervisor that outlives the agent, and kill what it still runs.
        """
        if self._closing:
            return
        self._closing = True
        if self._transport is not None:
            self._flush()
            self._transport.close()
        if end:
            self.process.send(signal.SIGTERM)
        if end or not self._outlives_agent:
            try:
                async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                    await self.process.wait()
            except TimeoutError:
                self.process.send(signal.SIGKILL)
                await self.process.wait()
        elif not self.alive:  # the supervisor has probably ended: reap it
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _REAP_TIMEOUT_SECONDS)
        self.process.close()
        if self.lock is not None:
            os.close(self.lock)

    def _request(
        self, verb: str, fields: Mapping[str, Any], decode: Callable[[bytes], AnswerT]
    ) -> "asyncio.Future[AnswerT]":
        """Send a request; the future gets the answer, or SupervisorRefused."""
        future: asyncio.Future[AnswerT] = self._loop.create_future()
        if not self.alive:
            future.set_exception(SupervisorLost(self.loss))
            return future
        self._pending[self._enqueue(verb, fields)] = future, decode
        return future

    def _send_request(self, verb: str, fields: Mapping[str, Any]) -> None:
        """Send a request and ignore the answer."""
        if self.alive:
            self._enqueue(verb, fields)

    def _enqueue(self, verb: str, fields: Mapping[str, Any]) -> int:
        self._id += 1
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(msgspec.json.encode({"id": self._id, "do": verb, **fields}))
        return self._id

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._out.append(b"")
            self._transport.write(END.join(self._out))
        self._out.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle the complete lines (asyncio calls this)."""
        for line in self._lines.feed(data):
            self._dispatch(line)

    def _dispatch(self, line: bytes) -> None:
        message = _envelope(line)
        if message.id is not None:
            self._resolve(message, line)
        elif message.event == "ended":
            end = _ended(line)
            if (ended := self.on_ended.pop(end.container, None)) is not None:
                ended(end)
            else:
                self._record_end(end)
        elif message.event == "ready" and not self.ready.done():
            problem = mismatch(msgspec.json.decode(line), SUPERVISOR_PROTOCOL, "the supervisor", "the agent")
            if problem is None:
                self.ready.set_result(_ready(line))
            else:
                self.ready.set_exception(EngineError(problem))
        elif message.event == "failed" and not self.ready.done():
            self.ready.set_exception(EngineError(message.text))
        elif message.error is not None and not self.ready.done():  # the supervisor refuses this agent
            self.ready.set_exception(EngineError(message.error))
        elif message.event == "notice":
            self.on_notice(message.text)

    def _record_end(self, end: ContainerEnd) -> None:
        """Record the end of a container that no pod has claimed yet."""
        for one in (one for some in self.found.values() for one in some if one.container == end.container):
            one.ended = end

    def _resolve(self, message: _Envelope, line: bytes) -> None:
        future, decode = self._pending.pop(message.id or 0, (None, _done))
        if future is None or future.done():
            return
        if message.error is None:
            future.set_result(decode(line))
        else:
            future.set_exception(SupervisorRefused(message.error, message.code))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause does not matter
        """Fail all open requests (asyncio calls this)."""
        self.alive = False
        self.loss += _last_log_line(self.folder / _LOG_NAME)
        if not self.ready.done():
            self.ready.set_exception(SupervisorLost(self.loss))
        self.ready.exception()  # marks the exception as retrieved, so that asyncio does not log it
        open_requests, self._pending = self._pending, {}
        for future, _ in open_requests.values():
            if not future.done():
                future.set_exception(SupervisorLost(self.loss))
        self.on_ended.clear()
        if not self._closing:
            self.on_lost()


def _last_log_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")
        return next((f"; the last line of its log: {line}" for line in reversed(lines) if line.strip()), "")
    return ""


def _peer(sock: socket.socket, folder: Path) -> SupervisorProcess:
    """The process that listens, if it is the supervisor of the folder. Raises EngineError.

    The kernel tells who listens. So an old socket file, and another process with the supervisor's ID, are not trusted.
    """
    from trainwright.node.supervisor import identity  # noqa: PLC0415 - `trainwright run` does not need it

    known = identity.read(str(folder))
    if known is None:
        raise EngineError(f"{folder} does not say which supervisor lives there")
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if (pid, uid) != (known["pid"], os.geteuid()):
            raise EngineError(f"process {pid} of user {uid} listens in {folder}, expected process {known['pid']}")
    process = SupervisorProcess.find(known["pid"], known["start"])
    if process is None:
        raise EngineError(f"the supervisor of {folder} has ended")
    return process


def _spawn(config: Config, log: Path) -> "subprocess.Popen[bytes]":
    """Start the process in a session of its own, so that Ctrl-C in the agent's terminal does not reach the process."""
    code = _START_CODE.format(str(Path(trainwright.__file__).parents[1]))
    argv = [sys.executable, "-E", "-s", "-S", "-c", code, msgspec.json.encode(config).decode()]
    network, leases = config.get("network"), config.get("leases")
    holder = (network.get("holder") if network else None) or {}
    lease = network.get("lease") if network else None
    more = [fd for fd in (leases, lease) if fd is not None]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(config["fd"], *more, *holder.values()),
            start_new_session=True,
            cwd=os.sep,
        )
    open_files.restore_limit(process.pid)
    return process
