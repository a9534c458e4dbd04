# SPDX-License-Identifier: Apache-2.0
"""A command in a container, connected to this terminal or to these pipes. `exec` calls it; the supervisor runs it.

Pipes are handed over as they are. For a terminal a pseudo-terminal stands between: the command has its own, and this
one is only passed on, key by key, with its size.

`trainwright exec`: a command inside a replica of a live run, with this terminal. That is what debug mode is for.

The engine tells where the replica is; the supervisor of that node runs the command (`terminal` talks to it).
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

_CHUNK = 64 * 1024
_LONGEST = 1 << 20
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in(supervisor: str, container: str, argv: list[str], *, tty: bool | None) -> int:
    """Run it; its exit code. Without a word about it, it has a terminal if this is one."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if tty and not sys.stdin.isatty():
        raise UsageError("-t needs a terminal, and standard input is none")
    link = _Link(supervisor)
    request: TerminalExec = {
        "do": "exec",
        "protocol": SUPERVISOR_PROTOCOL,
        "version": __version__,
        "container": container,
        "argv": argv,
    }
    if tty is False or not (terminal or tty):
        return _piped(link, request)
    env = {"TERM": os.environ.get("TERM", "dumb")}
    return _at_terminal(link, {**request, "env": env, "tty": True})


class CommandNotStarted(UsageError):  # noqa: N818 - it ends a command, it is no mistake of ours
    """The command cannot be started; the exit code is what a shell would say: 127 not found, 126 not executable."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.exit_code = code or UsageError.exit_code


class _Link:
    """The connection to a supervisor."""

    def __init__(self, path: str) -> None:
        try:
            self.socket = connect(str(Path(path).parent))
        except OSError as error:
            raise EngineError(f"the replica's node does not answer at {path}: {error.strerror or error}") from None
        self._lines, self._ready = LineSplitter(_LONGEST), deque[bytes]()

    def ask(self, request: TerminalExec, fds: list[int]) -> None:
        """Start the command; Unstarted says why it cannot be."""
        socket.send_fds(self.socket, [encode(request)], fds)
        answer = self._read()
        if not answer.get("ok"):
            raise CommandNotStarted(str(answer.get("error", "the node did not start the command")), answer.get("code"))

    def end(self) -> int:
        """Wait until the command has ended; its exit code."""
        end = cast("TerminalEnd", self._read())
        return end["code"]

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        message: TerminalSignal = {"signal": number}
        with suppress(OSError):
            self.socket.sendall(encode(message))

    def _read(self) -> dict[str, Any]:
        """The next message; waits for it."""
        while not self._ready:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise EngineError("the replica's node is gone")
            self._ready.extend(self._lines.feed(data))
        return decode(self._ready.popleft())


def _piped(link: _Link, request: TerminalExec) -> int:
    link.ask(request, [0, 1, 2])
    with _handling(dict.fromkeys(_FORWARDED, link.signal)):
        return link.end()


@contextmanager
def _handling(acts: dict[signal.Signals, Callable[[int], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda got, _: acts[signal.Signals(got)](got)) for number in acts}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal(link: _Link, request: TerminalExec) -> int:
    ours, theirs = os.openpty()
    _resize(ours)
    try:
        link.ask(request, [theirs, theirs, theirs])
    finally:
        os.close(theirs)
    with _raw(), _handling({signal.SIGWINCH: lambda _: _resize(ours)}):
        return _pass_on(link, ours)


def _resize(terminal: int) -> None:
    """Give it this one's size; the kernel tells whoever is in it."""
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def _raw() -> Iterator[None]:
    """Keys as they come, Ctrl-C too; the terminal is put back whatever happens."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is not to be lost
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _pass_on(link: _Link, terminal: int) -> int:
    """Both ways, until the command has ended and all it wrote is shown."""
    with selectors.DefaultSelector() as selector:
        for fd in (0, terminal, link.socket.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if terminal in ready and not _copy(terminal, 1):
                selector.unregister(terminal)
            if 0 in ready and not _copy(0, terminal):
                selector.unregister(0)
            if link.socket.fileno() in ready:
                code = link.end()
                _drain(terminal)
                return code


def _copy(source: int, target: int) -> bool:
    try:
        data = os.read(source, _CHUNK)
    except OSError:  # how a terminal says that nobody is in it any more
        return False
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return bool(data)


def _drain(terminal: int) -> None:
    os.set_blocking(terminal, False)
    while _copy(terminal, 1):
        pass


SUPERVISOR = f"{PREFIX}/supervisor"


@click.command("exec")
@click.argument("job", metavar="JOB")
@click.argument("replica", metavar="REPLICA")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@namespaced
@click.option("-c", "--container", metavar="NAME", default="", help="Which container.  [default: the first]")
@click.option("-i", is_flag=True, expose_value=False, help="Accepted for kubectl's sake: input is always passed on.")
@click.option("-t/-T", "--tty/--no-tty", default=None, help="A terminal for it, or none.  [default: if this is one]")
def command(job: str, replica: str, words: tuple[str, ...], namespace: str, container: str, tty: bool | None) -> int:
    """Run COMMAND in REPLICA of JOB, which must be running; exit with its exit code.

    REPLICA is ROLE-INDEX such as worker-0, or the name of its pod. The command sees what the replica sees: its network,
    files, environment and working directory.

    \b
    Examples:
      trainwright exec demo worker-0 -- bash
      trainwright exec demo worker-0 -- env | sort
      trainwright exec -c sidecar lab/demo ps-1 -- cat /etc/hosts
    """
    reached = reach(job, namespace)
    pod = _pod(reached, replica)
    place = _container(pod, container)
    return run_in(_supervisor(reached, pod), place, list(words), tty=tty)


def _pod(reached: LiveJob, word: str) -> Body:
    """The replica's pod that runs."""
    pods = reached.pods()
    names = {_name(pod): pod for pod in pods} | {pod["metadata"]["name"]: pod for pod in pods}
    found: Body | None = {name.lower(): pod for name, pod in names.items()}.get(word.lower())
    if found is None:
        meant = near_replica(word, names)
        there = ", ".join(_name(pod) for pod in pods[:8]) + ", …" * (len(pods) > 8)
        hint = f"; {meant}" if meant else f"; there are {there}" if pods else "; it has none now"
        raise UsageError(f"{reached.run.key} has no replica {word!r}{hint}")
    state = condition(found)
    if state.phase not in ("Running", BACKING_OFF):  # of several containers, one that runs may still be entered
        why = f" ({state.reason})" if state.reason else ""
        raise UsageError(f"{word} is not running: {state.phase}{why}")
    return found


def _name(pod: Body) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels.get(ROLE)}-{labels.get(INDEX)}"


def _container(pod: Body, word: str) -> str:
    """The id of a container that runs."""
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
    node = reached.portal.get("nodes", ("", name))
    told = (node["metadata"].get("annotations") or {}).get(SUPERVISOR)
    return str(told or reached.run.folder / "nodes" / name / "supervisor.sock")
