# SPDX-License-Identifier: Apache-2.0
"""Device leases: one lock file per device of this machine, in a folder that all users of the machine share.

Only the lock decides who holds a device: a `flock`, which belongs to an open file description. Every process that
inherited the descriptor holds the device, and the kernel releases the lock when the last of these processes has ended.
The text in the file describes the holder for people. Any user may write to the file, so the text is shown and never
trusted. A text without a lock is from a holder that has ended.

Lock files are never removed. Otherwise one process could lock the removed file, and another process a new file of the
same name, and both would hold the device.
"""

import fcntl
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from trainwright.errors import EngineError

#: This environment variable replaces the default folder, for example by a folder that several containers share.
FOLDER_VARIABLE = "TRAINWRIGHT_LEASES"
#: The first folder that every user can write to is used, so all users choose the same folder. /dev/shm is not in the
#: list: logind removes a user's files there at logout (RemoveIPC), even if another user has locked them.
_SHARED_FOLDERS = ("/run/lock", "/tmp")  # noqa: S108 - opened with O_NOFOLLOW and checked
_PREFIX = "trainwright+"
#: Every description has this length in bytes, so that one write replaces the old description completely.
_DESCRIPTION_SIZE = 1024
_MAX_FIELD_CHARACTERS = 100
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE_ALL_USERS = 0o666


class LeaseHolder(Struct, frozen=True, kw_only=True):
    """The holder of a device, as the holder describes itself to other users."""

    user: str = ""
    uid: int = -1
    #: The process that took the lease: the engine of a run, a supervisor that outlives its engine, or a node agent.
    pid: int = 0
    run: str = ""
    job: str = ""
    pod: str = ""
    since: str = ""

    def __str__(self) -> str:
        """A text such as `alice (run 20261116-120311-1234, job demo/train) since 2026-11-16T12:03:11Z`."""
        run = f"run {self.run}" if self.run else f"process {self.pid}" if self.pid else ""
        inner = ", ".join(part for part in (run, f"job {self.job}" if self.job else "") if part)
        since = f" since {self.since}" if self.since else ""
        return f"{self.user or 'an unknown user'}{f' ({inner})' if inner else ''}{since}"

    @property
    def alive(self) -> bool:
        """Whether the process that took the lease still runs, as far as this process can see."""
        if self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            pass
        return True


class HeldDevice(Struct, frozen=True):
    """A device that a process holds."""

    resource: str
    device: str
    holder: LeaseHolder


class DeviceLease:
    """A device that this process holds until `close`. A process that inherited `fd` holds the device until it ends."""

    def __init__(self, resource: str, device: str, fd: int) -> None:
        self.resource, self.device, self.fd = resource, device, fd
        #: The time at which the lease began, for the description.
        self.since = ""

    def describe(self, holder: LeaseHolder) -> None:
        """Write who holds the device."""
        text = msgspec.json.encode(holder).ljust(_DESCRIPTION_SIZE)
        with suppress(OSError):  # a full disk does not affect the lock
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))

    def close(self) -> None:
        """Close `fd`. Other processes that inherited `fd` still hold the device. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class LeaseFolder:
    """The lock files of this machine."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_folder()

    def take(self, resource: str, device: str) -> DeviceLease | None:
        """Lease a device; None if another process holds it. Raises EngineError."""
        fd = self._locked(self._file(resource, device))
        return DeviceLease(resource, device, fd) if fd is not None else None

    def holder(self, resource: str, device: str) -> LeaseHolder | None:
        """The current holder of a device; None if the device is free. Raises EngineError."""
        return self._holder(self._file(resource, device))

    def held(self) -> list[HeldDevice]:
        """Every leased device of this machine, of all users."""
        found = []
        try:
            names = [path.name for path in self.path.glob(f"{_PREFIX}*+*")]
        except OSError as error:
            raise EngineError(f"the device leases cannot be read: {_explained(self.path, error)}") from None
        for name in sorted(names, key=_natural):
            resource, _, device = name.removeprefix(_PREFIX).partition("+")
            holder = self._holder(self.path / name)
            if holder is not None:
                found.append(HeldDevice(unquote(resource), unquote(device), holder))
        return found

    @contextmanager
    def mutex(self) -> Iterator[bool]:
        """Keep other runs from taking leases while this run takes several. Yields False if another run has the mutex.

        The mutex only prevents that two runs each take half of the devices that both need. A device itself belongs to
        the run that has the device's lock.
        """
        fd = self._locked(self.path / f"{_PREFIX}mutex")
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def _file(self, resource: str, device: str) -> Path:
        return self.path / f"{_PREFIX}{quote(resource, safe='')}+{quote(device, safe='')}"

    def _locked(self, path: Path) -> int | None:
        """Lock the file at that path, and create a missing file. None: another process has the lock."""
        while True:
            try:
                fd = os.open(path, _OPEN)
            except FileNotFoundError:
                self._make(path)
                continue
            except PermissionError:  # the owner of the file does not allow us to open it
                return None
            except OSError as error:
                raise EngineError(f"devices cannot be leased: {_explained(path, error)}") from None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                what = f"{path} is not a regular file; its owner or root can remove it"
                raise EngineError(f"devices cannot be leased: {what}")
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

    def _make(self, path: Path) -> None:
        """Make a draft file with the right mode, and link it to `path`. With O_CREAT alone, the umask changes the mode.

        Later opens are without O_CREAT, because fs.protected_regular forbids O_CREAT on another user's file.
        """
        draft = self.path / f".{path.name}-{os.urandom(8).hex()}"
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE_ALL_USERS)
            try:
                os.fchmod(fd, _MODE_ALL_USERS)
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
            return _file_owner(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _described(os.pread(fd, _DESCRIPTION_SIZE, 0))
        finally:
            os.close(fd)
        return None


def default_folder() -> Path:
    """The folder for the leases of all users of this machine."""
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
    """The name of a user; for a user without a name, a text such as `uid 1234`."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


def _described(data: bytes) -> LeaseHolder:
    """Decode a description, which any user may have written: shorten its texts, and check its uid and pid.

    If the process with this pid belongs to another uid, "unverified" is added to the user name: the description is
    false, or the pid has been reused. If this container cannot see the process, nothing is added.
    """
    try:
        holder = msgspec.json.decode(data, type=LeaseHolder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return LeaseHolder()
    texts = {name: _printable(getattr(holder, name)) for name in ("user", "run", "job", "pod", "since")}
    if _process_owner(holder.pid) not in (None, holder.uid):
        texts["user"] = f"{texts['user'] or 'an unknown user'}, unverified"
    return LeaseHolder(**texts, uid=holder.uid, pid=holder.pid)


def _process_owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except (OSError, ValueError):
        return None


def _printable(text: str) -> str:
    return "".join(one for one in text[:_MAX_FIELD_CHARACTERS] if one.isprintable())


def _file_owner(path: Path) -> LeaseHolder | None:
    """The owner of a lock file that we cannot read. This user counts as the holder of the device."""
    try:
        uid = path.lstat().st_uid
    except OSError:
        return None
    return LeaseHolder(user=user_name(uid), uid=uid)


def _natural(name: str) -> tuple[str, int, str]:
    """The sort key of a file name: device 10 is after device 9."""
    kind, _, device = name.rpartition("+")
    return kind, int(device) if device.isdecimal() else -1, device


def _explained(path: Path, error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{path}: {what}; {FOLDER_VARIABLE} can name a folder that all users of this machine may write to"
