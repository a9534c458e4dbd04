# SPDX-License-Identifier: Apache-2.0
"""The state folder: the files that stay after a run, and one lock per job name. A live run holds the locks of its jobs.

STATE/NAMESPACE/NAME/lock        a file with the process id and folder of the run; the live run locks it with flock
STATE/NAMESPACE/NAME/RUN-ID/     logs and final status; a link if several jobs share one run
STATE/NAMESPACE/NAME/latest      a link to the last run
STATE/volumes/NAMESPACE/CLAIM/   the folders of PersistentVolumeClaims
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from trainwright import open_files
from trainwright.cli.flags import age
from trainwright.errors import EngineError, UsageError
from trainwright.model.meta import Key
from trainwright.model.units import Time, parse_time, rfc3339

#: The number of runs of a job that are kept.
KEPT = 5
#: The folder of volumes is beside the folders of namespaces, so a namespace must not have this name.
VOLUMES = "volumes"
#: The folder of the background engine. No namespace begins with a dot.
ENGINE = ".engine"
#: The Unix socket in this folder on which the Kubernetes API of the engine serves the owner's commands.
API_SOCKET = "api.sock"
LOCK = "lock"
LATEST = "latest"
#: `is_live` locks the file for a very short time, so a run tries several times to get the lock.
_LOCK_TRIES = 5
_RETRY_SECONDS = 0.02


class NameInUseError(UsageError):
    """A live run uses the name of a job."""


class RunLock(Struct, frozen=True):
    """The content of a lock file, which a live run writes."""

    pid: int
    run: str
    since: str


class _LockOwner(Struct, frozen=True):
    """The field that the lock files of runs and of the background engine share."""

    pid: int


def home() -> Path:
    """The state folder."""
    given = os.environ.get("TRAINWRIGHT_STATE")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state").absolute() / "trainwright"


def job_folder(state: Path, key: Key) -> Path:
    """The folder of a job and all its runs."""
    return state / key.namespace / key.name


def run_id(now: Time, pid: int) -> str:
    """The id of a run. Sorted ids are in the order of time."""
    return f"{now:%Y%m%d-%H%M%S}-{pid}"


class NameLocks:
    """Locks the names of a run's jobs until the run ends. The kernel releases the locks of a killed run."""

    def __init__(self, state: Path, keys: Iterable[Key], now: Time) -> None:
        self.state = state
        self.keys = tuple(keys)
        self.now = now
        self.folder = job_folder(state, self.keys[0]) / run_id(now, os.getpid())
        self._locks: list[int] = []
        #: The folders and locks that this run has created, outer folders first.
        self._created: list[Path] = []
        open_files.raise_limit()  # each job needs one more open file, its lock

    def __enter__(self) -> "NameLocks":
        try:
            for key in sorted(self.keys):
                self._take(key)
            self._create_folder()
        except OSError as error:
            self._undo()
            raise EngineError(f"the state folder {self.state} cannot be used: {_advice(error)}") from None
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def discard(self) -> None:
        """Remove the folder of this run and everything else that it created, because no job was started."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for key in self.keys:
            folder = job_folder(self.state, key)
            prune(folder)
            past = runs_in(folder)
            if past:
                point_to(folder, past[-1].name)
        self._undo()

    def release(self) -> None:
        """Release the locks of all names."""
        while self._locks:
            os.close(self._locks.pop())

    def _undo(self) -> None:
        """Remove the locks and the empty folders that this run created, and release all names."""
        while self._created:
            path = self._created.pop()
            with suppress(OSError):
                if path.name == LOCK and not path.is_dir():
                    path.unlink()
                else:
                    path.rmdir()
        self.release()

    def _take(self, key: Key) -> None:
        folder = job_folder(self.state, key)
        lock = self._lock(folder / LOCK)
        if lock is None:
            raise NameInUseError(_in_use(key, read_lock(folder / LOCK), self.now))
        self._locks.append(lock)
        text = msgspec.json.encode(RunLock(os.getpid(), str(self.folder), rfc3339(self.now)))
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)

    def _lock(self, path: Path) -> int | None:
        """Open and lock the file; None if another run holds the lock.

        If another run removes the file after we open it and before we lock it (`_undo`), try again.
        """
        while True:
            missing = [one for one in (path, *path.parents) if not one.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if path.parent.exists():
                    raise
                continue
            if not try_lock(lock):
                os.close(lock)
                return None
            if _is_at(lock, path):
                self._created += reversed(missing)
                return lock
            os.close(lock)

    def _create_folder(self) -> None:
        self.folder.mkdir(mode=0o700)
        for key in self.keys:
            folder = job_folder(self.state, key)
            if folder / self.folder.name != self.folder:
                (folder / self.folder.name).symlink_to(self.folder)
            point_to(folder, self.folder.name)
            prune(folder)


def try_lock(lock: int) -> bool:
    """Lock an open file, unless another process holds the lock."""
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_RETRY_SECONDS * (attempt < _LOCK_TRIES - 1))
        else:
            return True
    return False


def _is_at(file: int, path: Path) -> bool:
    """Whether the file at this path is still the same file as the open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def point_to(folder: Path, run: str) -> None:
    """Make a run the latest run of a job. The link is replaced atomically, so that it always exists."""
    new = folder / f".{LATEST}-{secrets.token_hex(4)}"  # a killed process may have left a link of any other name
    new.symlink_to(run)
    new.replace(folder / LATEST)


def prune(folder: Path, keep: int = KEPT) -> None:
    """Remove all runs of a job except the last `keep`. The caller holds the job's lock, so no other run is live."""
    broken = [link for link in folder.iterdir() if link.is_symlink() and not link.exists()]
    for old in (*broken, *runs_in(folder)[:-keep]):
        with suppress(OSError):
            if old.is_symlink():
                old.unlink()
            else:
                shutil.rmtree(old, ignore_errors=True)


def runs_in(folder: Path) -> list[Path]:
    """The folders of a job's runs, oldest first. A folder whose name is not the id of a run is ignored."""
    try:
        found = [entry for entry in folder.iterdir() if entry.name[:1].isdigit() and entry.is_dir()]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def read_lock(lock: Path) -> RunLock | None:
    """The content of a lock file; None if it cannot be read. The file stays after the end of the run that wrote it."""
    try:
        return msgspec.json.decode(lock.read_bytes(), type=RunLock)
    except (OSError, msgspec.DecodeError):
        return None


def read_pid(lock: Path) -> int:
    """The process ID in a lock file; 0 if the file cannot be read."""
    try:
        return msgspec.json.decode(lock.read_bytes(), type=_LockOwner).pid
    except (OSError, msgspec.MsgspecError):
        return 0


def is_live(lock: Path) -> bool:
    """Whether a run holds the lock."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _in_use(key: Key, lock: RunLock | None, now: Time) -> str:
    """The error text for a second run of a job, with the commands that show or end the first run."""
    since = parse_time(lock.since) if lock is not None else None
    process = f" in process {lock.pid}" if lock is not None else ""
    when = f" since {lock.since} ({age((now - since).total_seconds())} ago)" if lock is not None and since else ""
    word = key.name if key.namespace == "default" else str(key)
    commands = f"`trainwright get {word}`, `trainwright logs -f {word}`, `trainwright delete {word}`"
    return f"{key} already runs{process}{when}; to see, follow or end it: {commands}"


def _advice(error: OSError) -> str:
    return f"{error.strerror or error}; set TRAINWRIGHT_STATE to a folder in which you can write"
