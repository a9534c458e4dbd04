# SPDX-License-Identifier: Apache-2.0
"""`trainwright exec`: run a command inside a replica of a running job, connected to our terminal or pipes.

On this machine, the engine knows the node of the replica, and the supervisor of this node runs the command. If our
standard streams are pipes or files, the supervisor receives these streams. If they are a terminal, the supervisor
receives a new pseudo-terminal, and this process copies bytes and window sizes between the two terminals. On a cluster,
the API server connects the streams (`remote.exec`).
"""

import fcntl
import os
import selectors
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from trainwright.cli.completion import complete_jobs, complete_replicas
from trainwright.cli.condition import condition
from trainwright.cli.flags import ClusterOptions, cluster_choice
from trainwright.cli.live_job import LiveJob, namespaced, reach
from trainwright.cli.runs import near_replica
from trainwright.errors import UsageError
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import INDEX, PREFIX, ROLE
from trainwright.model.problem import nearest
from trainwright.node.exec_client import ExecConnection, container_id, exec_request
from trainwright.node.supervisor.protocol import TerminalExec

_CHUNK_BYTES = 64 * 1024
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in(supervisor: str, container: str, argv: list[str], *, tty: bool | None) -> int:
    """Run the command and return its exit code. With `tty=None`, the command gets a terminal if we have a terminal."""
    connection = ExecConnection(str(Path(supervisor).parent))
    if not wants_terminal(tty):
        return _with_pipes(connection, exec_request(container, argv))
    kind = os.environ.get("TERM") or "dumb"
    return _with_terminal(connection, exec_request(container, argv, terminal=kind))


def wants_terminal(tty: bool | None) -> bool:
    """Whether the command gets a terminal. Raises UsageError if the user wants a terminal but has none."""
    if tty and not sys.stdin.isatty():
        raise UsageError("-t needs a terminal, but standard input is not a terminal")
    return tty if tty is not None else sys.stdin.isatty() and sys.stdout.isatty()


def _with_pipes(connection: ExecConnection, request: TerminalExec) -> int:
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


def _with_terminal(connection: ExecConnection, request: TerminalExec) -> int:
    ours, theirs = os.openpty()
    _resize(ours)
    try:
        connection.start(request, [theirs, theirs, theirs])
    finally:
        os.close(theirs)
    with raw_terminal(), _handling({signal.SIGWINCH: lambda _: _resize(ours)}):
        return _relay(connection, ours)


def _resize(terminal: int) -> None:
    """Give the pseudo-terminal the size of our terminal. The kernel then sends SIGWINCH to the command."""
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Put our terminal into raw mode during the block, so that the command receives each key, even Ctrl-C."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps input that the user has already typed
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _relay(connection: ExecConnection, terminal: int) -> int:
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
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.argument("replica", metavar="REPLICA", shell_complete=complete_replicas)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@namespaced
@cluster_choice
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
def command(
    job: str, replica: str, words: tuple[str, ...], namespace: str, cluster: ClusterOptions, **given: Any
) -> int:
    """Run COMMAND in REPLICA of JOB, which must be running, and exit with the exit code of COMMAND.

    REPLICA is ROLE-INDEX such as worker-0, or the name of a pod. COMMAND has the network, files, environment variables
    and working directory of the replica.

    \b
    Examples:
      trainwright exec demo worker-0 -- bash
      trainwright exec demo worker-0 -- env | sort
      trainwright exec -c sidecar lab/demo ps-1 -- cat /etc/hosts
      trainwright exec --context production demo worker-0 -- nvidia-smi
    """
    reached = reach(job, namespace, cluster)
    pod, argv, tty = _pod(reached, replica), list(words), given["tty"]
    container = _running_container(pod, given["container"])
    if cluster.given:
        from trainwright.cli.remote.exec import run_in_pod  # noqa: PLC0415 - aiohttp is slow to import

        return run_in_pod(reached, pod, container["name"], argv, tty=tty)
    return run_in(_supervisor(reached, pod), container_id(container), argv, tty=tty)


def _pod(reached: LiveJob, word: str) -> Body:
    """The running pod of a replica. Raises UsageError."""
    pods = reached.pods()
    names = {_name(pod): pod for pod in pods} | {pod["metadata"]["name"]: pod for pod in pods}
    found: Body | None = {name.lower(): pod for name, pod in names.items()}.get(word.lower())
    if found is None:
        meant = near_replica(word, names)
        known = ", ".join(_name(pod) for pod in pods[:8]) + ", …" * (len(pods) > 8)
        hint = f"; {meant}" if meant else f"; it has {known}" if pods else "; it has no replicas now"
        raise UsageError(f"{reached.job} has no replica {word!r}{hint}")
    state = condition(found)
    if state.phase not in ("Running", BACKING_OFF):  # while one container is in back-off, another can run
        why = f" ({state.reason})" if state.reason else ""
        raise UsageError(f"{word} is not running: {state.phase}{why}")
    return found


def _name(pod: Body) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels.get(ROLE)}-{labels.get(INDEX)}"


def _running_container(pod: Body, word: str) -> Body:
    """The status of a running container. Raises UsageError."""
    statuses = {one["name"]: one for one in pod["status"].get("containerStatuses") or ()}
    name = word or pod["spec"]["containers"][0]["name"]  # kubelets sort the statuses by name
    if name not in statuses:
        meant = nearest(word, statuses)
        hint = f"did you mean `{meant}`?" if meant else f"it has {', '.join(statuses)}"
        raise UsageError(f"{_name(pod)} has no container {word!r}; {hint}")
    if not (statuses[name].get("state") or {}).get("running"):
        raise UsageError(f"container {name} of {_name(pod)} is not running")
    found: Body = statuses[name]
    return found


def _supervisor(reached: LiveJob, pod: Body) -> str:
    name = pod["spec"]["nodeName"]
    node = reached.client.get("nodes", ("", name))
    path = (node["metadata"].get("annotations") or {}).get(SUPERVISOR)
    return str(path or reached.run.engine_folder / "nodes" / name / "supervisor.sock")
