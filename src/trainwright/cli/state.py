# SPDX-License-Identifier: Apache-2.0
"""The state folder: where a run keeps what outlives it, and the lock that says that a job of that name is running.

`run` claims its jobs here and is handed a folder; every other command looks for that folder with `runs`.

    STATE/NAMESPACE/NAME/lock        held with flock for as long as the run lives; who holds it is written in it
    STATE/NAMESPACE/NAME/RUN-ID/     logs, final status; a link where several jobs share one run
    STATE/NAMESPACE/NAME/latest      a link to the last of them
    STATE/volumes/NAMESPACE/CLAIM/   the folders of PersistentVolumeClaims
"""

import fcntl
import os
import resource
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from trainwright.cli.flags import age
from trainwright.errors import EngineError, UsageError
from trainwright.model.meta import Key
from trainwright.model.units import Time, parse_time, rfc3339

#: How many runs of a job are kept.
KEPT = 5
#: Claims share the folder with namespaces.
VOLUMES = "volumes"
LOCK = "lock"
LATEST = "latest"
#: Somebody who only looks at a lock holds it for an instant.
_TRIES = 5
_PATIENCE = 0.02
#: Files that a run has open besides its locks.
_OTHERS = 512


class NameInUseError(UsageError):
    """A live run holds the name of a job."""


class RunLock(Struct, frozen=True):
    """What a live run writes into its lock."""

    pid: int
    run: str
    since: str


def home() -> Path:
    """The state folder."""
    given = os.environ.get("TRAINWRIGHT_STATE")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local/state").absolute() / "trainwright"


def place(state: Path, key: Key) -> Path:
    """Where everything of a job is kept."""
    return state / key.namespace / key.name


def run_id(now: Time, pid: int) -> str:
    """Sorts by time."""
    return f"{now:%Y%m%d-%H%M%S}-{pid}"


class NameLocks:
    """The names of a run's jobs, held against other runs until it is over. A killed run holds nothing."""

    def __init__(self, state: Path, keys: Iterable[Key], now: Time) -> None:
        self.state = state
        self.keys = tuple(keys)
        self.now = now
        self.folder = place(state, self.keys[0]) / run_id(now, os.getpid())
        self._locks: list[int] = []
        #: The folders and locks that were not there before, outer ones first.
        self._made: list[Path] = []
        _more_files(len(self.keys))

    def __enter__(self) -> "NameLocks":
        try:
            for key in sorted(self.keys):
                self._take(key)
            self._make()
        except OSError as error:
            self._undo()
            raise EngineError(f"the state folder {self.state} cannot be used: {_why(error)}") from None
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def discard(self) -> None:
        """Forget this run: nothing was started, so nothing stays that was not there before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for key in self.keys:
            folder = place(self.state, key)
            prune(folder)
            past = runs_in(folder)
            if past:
                _point(folder / LATEST, past[-1].name)
        self._undo()

    def release(self) -> None:
        """Let go of all names."""
        while self._locks:
            os.close(self._locks.pop())

    def _undo(self) -> None:
        """Remove what this claim has made, as far as it is empty, and let go of all names."""
        while self._made:
            path = self._made.pop()
            with suppress(OSError):
                if path.name == LOCK and not path.is_dir():
                    path.unlink()
                else:
                    path.rmdir()
        self.release()

    def _take(self, key: Key) -> None:
        folder = place(self.state, key)
        lock = self._lock(folder / LOCK)
        if lock is None:
            raise NameInUseError(in_use(key, holder(folder / LOCK), self.now))
        self._locks.append(lock)
        text = msgspec.json.encode(RunLock(os.getpid(), str(self.folder), rfc3339(self.now)))
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)

    def _lock(self, path: Path) -> int | None:
        """The lock, held; None: another run holds it. A claim that is undone removes its lock: then again."""
        while True:
            missing = [one for one in (path, *path.parents) if not one.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if path.parent.exists():
                    raise
                continue
            if not _locked(lock):
                os.close(lock)
                return None
            if _is_at(lock, path):
                self._made += reversed(missing)
                return lock
            os.close(lock)

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700)
        for key in self.keys:
            folder = place(self.state, key)
            if folder / self.folder.name != self.folder:
                (folder / self.folder.name).symlink_to(self.folder)
            _point(folder / LATEST, self.folder.name)
            prune(folder)


def _more_files(names: int) -> None:
    """A lock is an open file; of very many jobs there may be more than a shell allows by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = names + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _locked(lock: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PATIENCE * (attempt < _TRIES - 1))
        else:
            return True
    return False


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is still what the path names."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _point(link: Path, target: str) -> None:
    """Never without a target in between."""
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.symlink_to(target)
    new.replace(link)


def prune(folder: Path, keep: int = KEPT) -> None:
    """Remove all but the last runs of a job. Only the holder of its lock may, so none of them is live."""
    dead = [link for link in folder.iterdir() if link.is_symlink() and not link.exists()]
    for old in (*dead, *runs_in(folder)[:-keep]):
        with suppress(OSError):
            if old.is_symlink():
                old.unlink()
            else:
                shutil.rmtree(old, ignore_errors=True)


def runs_in(folder: Path) -> list[Path]:
    """The folders of a job's runs, oldest first; what is not called like one is left alone."""
    try:
        found = [entry for entry in folder.iterdir() if entry.name[:1].isdigit() and entry.is_dir()]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def holder(lock: Path) -> RunLock | None:
    """Who wrote into a lock; it may be long gone."""
    try:
        return msgspec.json.decode(lock.read_bytes(), type=RunLock)
    except (OSError, msgspec.DecodeError):
        return None


def is_live(lock: Path) -> bool:
    """Whether somebody holds it."""
    try:
        seen = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(seen, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(seen)
    return False


def in_use(key: Key, by: RunLock | None, now: Time) -> str:
    """The refusal of a second run, with the ways to the first."""
    since = parse_time(by.since) if by is not None else None
    who = f" by process {by.pid}" if by is not None else ""
    when = f", since {by.since} ({age((now - since).total_seconds())} ago)" if by is not None and since else ""
    word = key.name if key.namespace == "default" else str(key)
    ways = f"`trainwright get {word}`, `trainwright logs -f {word}`, `trainwright delete {word}`"
    return f"{key} is already being run{who}{when}; to see, follow or end it: {ways}"


def _why(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{what}; set TRAINWRIGHT_STATE to a folder that can be written to"
