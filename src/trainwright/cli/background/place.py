# SPDX-License-Identifier: Apache-2.0
"""The files of the background engine of one user, and whether the engine runs.

STATE/.engine/lock          a file with the process and the version of the engine; the live engine locks it with flock
STATE/.engine/engine.sock   the private socket: `status`, `submit`, `down`, `attach`
STATE/.engine/api.sock      the Kubernetes API for commands about jobs
STATE/.engine/store.db      all objects: jobs, pods, nodes
STATE/.engine/engine.log    what the engine reports
STATE/.engine/options.json  the options of the last `trainwright up`
STATE/.engine/jobs/RUN/     the logs and the record of a job; STATE/NAMESPACE/NAME/RUN is a link to this folder
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from trainwright.cli.state import ENGINE, LOCK, home, is_live, try_lock
from trainwright.errors import EngineError, UnavailableError, UsageError
from trainwright.local.settings import SOCKET
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.node.supervisor import identity

STORE = "store.db"
LOG = "engine.log"
OPTIONS = "options.json"
#: An engine answers within milliseconds. After this time without an answer, the engine is probably stopped (SIGSTOP).
_ANSWER_TIMEOUT_SECONDS = 10.0


class EngineProcess(Struct, frozen=True):
    """The content of the lock file: the process that runs the engine, its version, and the time of its start."""

    pid: int
    version: str
    since: str


def engine_folder() -> Path:
    """The folder of the background engine of this user."""
    return home() / ENGINE


def running_engine(folder: Path | None = None) -> EngineProcess | None:
    """The process of the engine; None if no engine runs."""
    lock = (folder or engine_folder()) / LOCK
    if not is_live(lock):
        return None
    try:
        return msgspec.json.decode(lock.read_bytes(), type=EngineProcess)
    except (OSError, msgspec.MsgspecError):  # the engine has just been started and has not written the file yet
        return EngineProcess(0, "", "")


def replicas_may_run(folder: Path) -> bool:
    """Whether a supervisor of the last engine runs, so that replicas may run without an engine."""
    from trainwright.local.persistent import node_folders  # noqa: PLC0415 - imports asyncio, which is slow

    return any(identity.lives(str(one)) for one in node_folders(folder))


def lock_engine(folder: Path) -> int:
    """Take the lock of the engine; return its descriptor. Raises UsageError if another engine holds the lock."""
    try:
        make_private(folder)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        advice = "set TRAINWRIGHT_STATE to a folder in which you can write"
        raise EngineError(f"the folder of the engine, {folder}, cannot be used: {error.strerror}; {advice}") from None
    if not try_lock(lock):
        os.close(lock)
        raise UsageError(already_runs(running_engine(folder)))
    return lock


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, which only this user may use, whatever the umask is. Raises OSError."""
    for one in reversed([folder, *folder.parents]):
        with suppress(FileExistsError):
            one.mkdir(mode=0o700)


def already_runs(process: EngineProcess | None) -> str:
    """The error text if an engine runs already."""
    who = f" (process {process.pid}, since {process.since})" if process is not None and process.pid else ""
    return f"an engine runs here already{who}; `trainwright status` shows it, `trainwright down` ends it"


def connect(*, timeout: float | None = _ANSWER_TIMEOUT_SECONDS) -> BlockingClient:
    """A client of the background engine. Raises EngineError if no engine runs or if it does not answer."""
    folder = engine_folder()
    process = running_engine(folder)
    if process is None:
        raise EngineError("no engine runs in the background; start one with `trainwright up`")
    try:
        return BlockingClient(folder / SOCKET, timeout=timeout)
    except (UnavailableError, EngineError) as error:
        raise EngineError(f"the engine (process {process.pid}) does not answer: {error}") from None
