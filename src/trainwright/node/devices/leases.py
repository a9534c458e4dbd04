# SPDX-License-Identifier: Apache-2.0
"""Device leases: one lock file per device of this machine, in a folder that all its users share.

The lock decides, and nothing else. It is a `flock`, which belongs to an open file description: every process that
inherited the descriptor holds the device, and the kernel releases the lock when the last of them has died. The text in
the file describes the holder for people. Any user may write to the file, so the text is shown and never trusted; a text
without a lock is what a dead holder left.

No file is ever removed: a process could hold a lock on a removed file while another one locks a new file of that name.
"""

import fcntl
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from trainwright.errors import EngineError

#: Names another folder, for example one that several containers of a machine share.
FOLDER_VARIABLE = "TRAINWRIGHT_LEASES"
#: The first of them that every user may write to is used, so all users choose the same one. Not /dev/shm: there logind
#: removes the files of a user at logout (RemoveIPC), also those that another user has locked.
_SHARED_FOLDERS = ("/run/lock", "/tmp")  # noqa: S108 - the files in it are opened with care
_PREFIX = "trainwright+"
_MUTEX = f"{_PREFIX}mutex"
#: A description has this length in bytes, so that one write replaces the one before as a whole.
_DESCRIPTION_SIZE = 1024
_LONGEST_WORD = 100
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_EVERYBODY = 0o666


class LeaseHolder(Struct, frozen=True, kw_only=True):
    """Who says that they hold a device, and since when. Written by the holder, shown to others."""

    user: str = ""
    uid: int = -1
    #: The process that took the lease: the engine of a run, or a node agent.
    pid: int = 0
    run: str = ""
    job: str = ""
    pod: str = ""
    since: str = ""

    def __str__(self) -> str:
        """`alice (run 20261116-120311-1234, job demo/train) since 2026-11-16T12:03:11Z`."""
        run = f"run {self.run}" if self.run else f"process {self.pid}" if self.pid else ""
        inner = ", ".join(part for part in (run, f"job {self.job}" if self.job else "") if part)
        since = f" since {self.since}" if self.since else ""
        return f"{self.user or 'an unknown user'}{f' ({inner})' if inner else ''}{since}"

    @property
    def alive(self) -> bool:
        """Whether the process that took the lease still runs, as far as this process can see."""
        return self.pid > 0 and _running(self.pid)


class HeldDevice(Struct, frozen=True):
    """A device that somebody holds."""

    resource: str
    device: str
    holder: LeaseHolder


class DeviceLease:
    """A device that this process holds, until `close` and until every process that inherited `fd` has ended."""

    def __init__(self, resource: str, device: str, fd: int) -> None:
        self.resource, self.device, self.fd = resource, device, fd
        #: Since when it is held, as its holder tells it.
        self.since = ""

    def describe(self, holder: LeaseHolder) -> None:
        """Tell others who holds the device."""
        text = msgspec.json.encode(holder).ljust(_DESCRIPTION_SIZE)
        with suppress(OSError):  # a full disk changes nothing about the lock
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))

    def close(self) -> None:
        """Give the device back. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class LeaseFolder:
    """The lock files of this machine."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_folder()

    def take(self, resource: str, device: str) -> DeviceLease | None:
        """The device, or None if somebody holds it. Raises EngineError."""
        fd = self._locked(self._file(resource, device))
        return DeviceLease(resource, device, fd) if fd is not None else None

    def holder(self, resource: str, device: str) -> LeaseHolder | None:
        """Who holds the device now; None if nobody does. Raises EngineError."""
        return self._holder(self._file(resource, device))

    def held(self) -> list[HeldDevice]:
        """Every device of this machine that somebody holds, of all users."""
        found = []
        for name in sorted(self._names(), key=_natural):
            resource, _, device = name.removeprefix(_PREFIX).partition("+")
            holder = self._holder(self.path / name)
            if holder is not None:
                found.append(HeldDevice(unquote(resource), unquote(device), holder))
        return found

    @contextmanager
    def mutex(self) -> Iterator[bool]:
        """Whoever has it may take several leases without meeting another one who does. Says whether it was free.

        It only keeps two runs from blocking each other with half of what each needs: the locks of the devices decide.
        """
        fd = self._locked(self.path / _MUTEX)
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.path.glob(f"{_PREFIX}*+*")]
        except OSError as error:
            raise EngineError(f"the device leases cannot be read: {_explained(self.path, error)}") from None

    def _file(self, resource: str, device: str) -> Path:
        return self.path / f"{_PREFIX}{quote(resource, safe='')}+{quote(device, safe='')}"

    def _locked(self, path: Path) -> int | None:
        """An exclusive lock on the file of that name, not on one that was removed meanwhile."""
        while True:
            fd = self._opened(path)
            if fd is None:
                return None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), path.lstat()):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                pass
            os.close(fd)

    def _opened(self, path: Path) -> int | None:
        """The file, made if it is missing; None if its owner does not let us open it."""
        try:
            return _checked(path, os.open(path, _OPEN))
        except FileNotFoundError:
            self._make(path)
        except PermissionError:
            return None
        except OSError as error:
            raise EngineError(f"devices cannot be leased: {_explained(path, error)}") from None
        try:
            return _checked(path, os.open(path, _OPEN))
        except OSError as error:
            raise EngineError(f"devices cannot be leased: {_explained(path, error)}") from None

    def _make(self, path: Path) -> None:
        """A link puts the file there with its rights: with O_CREAT it would have those of the umask for a moment.

        An open without O_CREAT is also what fs.protected_regular allows on a file of somebody else.
        """
        draft = self.path / f".{path.name}-{secrets.token_hex(8)}"
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _EVERYBODY)
            try:
                os.fchmod(fd, _EVERYBODY)
                with suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                os.close(fd)
                draft.unlink()
        except OSError as error:
            raise EngineError(f"devices cannot be leased: {_explained(self.path, error)}") from None

    def _holder(self, path: Path) -> LeaseHolder | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            return _owner(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _described(os.pread(fd, _DESCRIPTION_SIZE, 0))
        finally:
            os.close(fd)
        return None


def default_folder() -> Path:
    """Where the users of this machine keep their leases."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    for folder in map(Path, _SHARED_FOLDERS):
        with suppress(OSError):
            mode = folder.stat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & stat.S_IWOTH:
                return folder
    return Path(_SHARED_FOLDERS[-1])


def own_description(run: str, **more: Any) -> LeaseHolder:
    """This process as a holder."""
    return LeaseHolder(user=user_name(os.getuid()), uid=os.getuid(), pid=os.getpid(), run=run, **more)


def user_name(uid: int) -> str:
    """The name of a user, or `uid 1234` for one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


def _checked(path: Path, fd: int) -> int:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise EngineError(f"devices cannot be leased: {path} is not a regular file; its owner or root can remove it")


def _described(data: bytes) -> LeaseHolder:
    """A description that anybody may have written: words are cut short, and the kernel says whose the process is.

    A process of that number may be another user's by now, or not be visible from this container.
    """
    try:
        told = msgspec.json.decode(data, type=LeaseHolder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return LeaseHolder()
    words = {name: _word(getattr(told, name)) for name in ("user", "run", "job", "pod", "since")}
    if _owner_of(told.pid) not in (None, told.uid):
        words["user"] = f"{words['user'] or 'an unknown user'}, unverified"
    return LeaseHolder(**words, uid=told.uid, pid=told.pid)


def _owner_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except (OSError, ValueError):
        return None


def _word(text: str) -> str:
    return "".join(one for one in text[:_LONGEST_WORD] if one.isprintable())


def _owner(path: Path) -> LeaseHolder | None:
    """A file that we may not read: its owner keeps the device for themselves."""
    try:
        uid = path.lstat().st_uid
    except OSError:
        return None
    return LeaseHolder(user=user_name(uid), uid=uid)


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _natural(name: str) -> tuple[str, int, str]:
    """Device 10 comes after device 9."""
    kind, _, device = name.rpartition("+")
    return kind, int(device) if device.isdecimal() else -1, device


def _explained(path: Path, error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{path}: {what}; {FOLDER_VARIABLE} can name a folder that all users of this machine may write to"
