# SPDX-License-Identifier: Apache-2.0
"""`trainwright exec`: run a command inside a replica of a running job, connected to our terminal or pipes.

The engine knows the node of the replica, and the supervisor of this node runs the command. If our standard streams are
pipes or files, the supervisor receives these streams. If they are a terminal, the supervisor receives a new
pseudo-terminal, and this process copies bytes and window sizes between the two terminals.
"""

import fcntl
import os
import selectors
import signal
import socket
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import click

from trainwright import __version__
from trainwright.cli.condition import condition
from trainwright.cli.live_job import LiveJob, namespaced, reach
from trainwright.cli.runs import near_replica
from trainwright.errors import EngineError, UsageError
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, LineSplitter, decode, encode
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME, INDEX, PREFIX, ROLE
from trainwright.model.problem import nearest
from trainwright.node.supervisor.protocol import TerminalEnd, TerminalExec, TerminalSignal
from trainwright.node.supervisor.terminal import connect

_CHUNK_BYTES = 64 * 1024
_MAX_MESSAGE_BYTES = 1 << 20
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in(supervisor: str, container: str, argv: list[str], *, tty: bool | None) -> int:
    """Run the command and return its exit code. With `tty=None`, the command gets a terminal if we have a terminal."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if tty and not sys.stdin.isatty():
        raise UsageError("-t needs a terminal, but standard input is not a terminal")
    connection = _Connection(supervisor)
    request: TerminalExec = {
        "do": "exec",
        "protocol": SUPERVISOR_PROTOCOL,
        "version": __version__,
        "container": container,
        "argv": argv,
    }
    if tty is False or not (terminal or tty):
        return _with_pipes(connection, request)
    env = {"TERM": os.environ.get("TERM", "dumb")}
    return _with_terminal(connection, {**request, "env": env, "tty": True})


class CommandNotStarted(UsageError):  # noqa: N818 - the name says what happened
    """The command cannot be started. The exit codes are those of a shell: 127 if not found, 126 if not executable."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.exit_code = code or UsageError.exit_code


class _Connection:
    """The connection to a supervisor."""

    def __init__(self, path: str) -> None:
        try:
            self.socket = connect(str(Path(path).parent))
        except OSError as error:
            raise EngineError(f"the node of the replica does not answer at {path}: {error.strerror or error}") from None
        self._lines, self._ready = LineSplitter(_MAX_MESSAGE_BYTES), deque[bytes]()

    def start(self, request: TerminalExec, fds: list[int]) -> None:
        """Start the command with these standard streams. Raises CommandNotStarted with the reason."""
        socket.send_fds(self.socket, [encode(request)], fds)
        answer = self._read()
        if not answer.get("ok"):
            raise CommandNotStarted(str(answer.get("error", "the node did not start the command")), answer.get("code"))

    def wait(self) -> int:
        """Wait until the command has ended and return its exit code."""
        end = cast("TerminalEnd", self._read())
        return end["code"]

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        message: TerminalSignal = {"signal": number}
        with suppress(OSError):
            self.socket.sendall(encode(message))

    def _read(self) -> dict[str, Any]:
        """Wait for the next message."""
        while not self._ready:
            data = self.socket.recv(_CHUNK_BYTES)
            if not data:
                raise EngineError("the node of the replica has closed the connection")
            self._ready.extend(self._lines.feed(data))
        return decode(self._ready.popleft())


def _with_pipes(connection: _Connection, request: TerminalExec) -> int:
    connection.start(request, [0, 1, 2])
    with _handling(dict.fromkeys(_FORWARDED_SIGNALS, connection.signal)):
        return connection.wait()


@contextmanager
def _handling(handlers: dict[signal.Signals, Callable[[int], None]]) -> Iterator[None]:
    """Install signal handlers and restore the previous handlers at the end."""
    before = {number: signal.signal(number, lambda got, _: handlers[signal.Signals(got)](got)) for number in handlers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_terminal(connection: _Connection, request: TerminalExec) -> int:
    ours, theirs = os.openpty()
    _resize(ours)
    try:
        connection.start(request, [theirs, theirs, theirs])
    finally:
        os.close(theirs)
    with _raw(), _handling({signal.SIGWINCH: lambda _: _resize(ours)}):
        return _relay(connection, ours)


def _resize(terminal: int) -> None:
    """Give the pseudo-terminal the size of our terminal. The kernel then sends SIGWINCH to the command."""
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def _raw() -> Iterator[None]:
    """Put our terminal into raw mode during the block, so that the command receives each key, even Ctrl-C."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps input that the user has already typed
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(connection: _Connection, terminal: int) -> int:
    """Copy bytes between both terminals until the command has ended and its output is shown. Return its exit code."""
    with selectors.DefaultSelector() as selector:
        for fd in (0, terminal, connection.socket.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if terminal in ready and not _copy(terminal, 1):
                selector.unregister(terminal)
            if 0 in ready and not _copy(0, terminal):
                selector.unregister(0)
            if connection.socket.fileno() in ready:
                code = connection.wait()
                _drain(terminal)
                return code


def _copy(source: int, target: int) -> bool:
    try:
        data = os.read(source, _CHUNK_BYTES)
    except OSError:  # reading a pseudo-terminal fails with EIO after all its processes have ended
        return False
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return bool(data)


def _drain(terminal: int) -> None:
    os.set_blocking(terminal, False)
    while _copy(terminal, 1):
        pass


#: The key of a node's annotation. Its value is the path of the supervisor's socket.
SUPERVISOR = f"{PREFIX}/supervisor"


@click.command("exec")
@click.argument("job", metavar="JOB")
@click.argument("replica", metavar="REPLICA")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@namespaced
@click.option(
    "-c", "--container", metavar="NAME", default="", help="Run in the container NAME.  [default: the first container]"
)
@click.option(
    "-i",
    is_flag=True,
    expose_value=False,
    help="Ignored; accepted as in kubectl. The command always receives the input.",
)
@click.option(
    "-t/-T",
    "--tty/--no-tty",
    default=None,
    help="Give COMMAND a terminal or none.  [default: a terminal if this is one]",
)
def command(job: str, replica: str, words: tuple[str, ...], namespace: str, container: str, tty: bool | None) -> int:
    """Run COMMAND in REPLICA of JOB, which must be running, and exit with the exit code of COMMAND.

    REPLICA is ROLE-INDEX such as worker-0, or the name of a pod. COMMAND has the network, files, environment variables
    and working directory of the replica.

    \b
    Examples:
      trainwright exec demo worker-0 -- bash
      trainwright exec demo worker-0 -- env | sort
      trainwright exec -c sidecar lab/demo ps-1 -- cat /etc/hosts
    """
    reached = reach(job, namespace)
    pod = _pod(reached, replica)
    return run_in(_supervisor(reached, pod), _container_id(pod, container), list(words), tty=tty)


def _pod(reached: LiveJob, word: str) -> Body:
    """The running pod of a replica. Raises UsageError."""
    pods = reached.pods()
    names = {_name(pod): pod for pod in pods} | {pod["metadata"]["name"]: pod for pod in pods}
    found: Body | None = {name.lower(): pod for name, pod in names.items()}.get(word.lower())
    if found is None:
        meant = near_replica(word, names)
        known = ", ".join(_name(pod) for pod in pods[:8]) + ", …" * (len(pods) > 8)
        hint = f"; {meant}" if meant else f"; it has {known}" if pods else "; it has no replicas now"
        raise UsageError(f"{reached.run.key} has no replica {word!r}{hint}")
    state = condition(found)
    if state.phase not in ("Running", BACKING_OFF):  # while one container is in back-off, another can run
        why = f" ({state.reason})" if state.reason else ""
        raise UsageError(f"{word} is not running: {state.phase}{why}")
    return found


def _name(pod: Body) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels.get(ROLE)}-{labels.get(INDEX)}"


def _container_id(pod: Body, word: str) -> str:
    """The id of a running container. Raises UsageError."""
    statuses = {one["name"]: one for one in pod["status"].get("containerStatuses") or ()}
    name = word or next(iter(statuses), "")
    if name not in statuses:
        meant = nearest(word, statuses)
        hint = f"did you mean `{meant}`?" if meant else f"it has {', '.join(statuses)}"
        raise UsageError(f"{_name(pod)} has no container {word!r}; {hint}")
    if not (statuses[name].get("state") or {}).get("running"):
        raise UsageError(f"container {name} of {_name(pod)} is not running")
    found: str = statuses[name].get("containerID", "").removeprefix(CONTAINER_SCHEME)
    return found


def _supervisor(reached: LiveJob, pod: Body) -> str:
    name = pod["spec"]["nodeName"]
    node = reached.client.get("nodes", ("", name))
    path = (node["metadata"].get("annotations") or {}).get(SUPERVISOR)
    return str(path or reached.run.folder / "nodes" / name / "supervisor.sock")
