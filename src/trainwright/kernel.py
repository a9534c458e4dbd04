# SPDX-License-Identifier: Apache-2.0
"""System calls that Python 3.11 does not offer: namespaces, mounts, host name. ctypes calls the C library for them.

A failed call raises OSError, with the path if the call has a path.

Work in other namespaces runs in a thread that enters them and then ends (`in_thread`), because an unprivileged process
cannot return to the namespaces that it has left. The other threads of the process stay in their namespaces.
"""

import _thread
import ctypes
import os
import signal
from collections.abc import Callable
from typing import TypeVar

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
FS = 0x200

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT = 1, 2, 4, 8, 32
NOATIME, NODIRATIME, BIND, REC = 1 << 10, 1 << 11, 1 << 12, 1 << 14
UNBINDABLE, PRIVATE, RELATIME = 1 << 17, 1 << 18, 1 << 21
DETACH = 2

NET_ADMIN, SYS_CHROOT, SYS_ADMIN = 12, 18, 21

#: The number of openat2(2) is the same on all architectures. The C library of Debian 12 has no function for it.
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10

_PDEATHSIG = 1
_CAP_AMBIENT, _RAISE, _CLEAR = 47, 2, 4
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def unshare(flags: int) -> None:
    """Move this thread into new namespaces of these types."""
    _checked(_libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """Enter the namespace `fd`. If `fd` is the pidfd of a process: enter its namespaces whose types are in `flags`."""
    _checked(_libc.setns(fd, flags))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """Mount, bind or remount."""
    data = None if options is None else os.fsencode(options)
    name = None if kind is None else kind.encode()
    _checked(_libc.mount(os.fsencode(source), os.fsencode(target), name, flags, data), target)


def unmount(target: str) -> None:
    """Detach a mount now; the kernel releases it when no process uses it any more."""
    _checked(_libc.umount2(os.fsencode(target), DETACH), target)


def pivot(folder: str) -> None:
    """Make a mounted folder the root of this mount namespace, and detach the old root."""
    os.chdir(folder)
    _checked(_libc.pivot_root(b".", b"."), folder)  # the old root is now mounted over the new root
    unmount(".")
    os.chdir("/")


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open `path` as if the folder `root` were /: neither `..` nor a symbolic link leads out of it. Raises OSError."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path) or b"."
    fd: int = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_long(root), name, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
    )
    _checked(fd, path)
    return fd


def sethostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    text = name.encode()
    _checked(_libc.sethostname(text, len(text)), name)


def set_ambient_capability(capability: int | None) -> None:
    """Let programs that this thread starts keep this capability; None undoes this. Root does not need this call."""
    if capability is None:
        _checked(_libc.prctl(_CAP_AMBIENT, _CLEAR, 0, 0, 0))
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable bits of capabilities 0-31, then of 32-63
    _checked(_libc.capget(header, sets))
    sets[2] |= 1 << capability
    _checked(_libc.capset(header, sets))
    _checked(_libc.prctl(_CAP_AMBIENT, _RAISE, capability, 0, 0))


def die_with_parent() -> None:
    """Let the kernel kill this process, even if it is stopped, when the thread that started it ends."""
    _checked(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _checked(result: int, path: str | None = None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread, which may change its namespaces. An exception in `work` is raised here."""
    done = _thread.allocate_lock()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            unshare(FS)  # without this, threads share a working directory, and none can enter a mount namespace
            results.append(work())
        except BaseException as error:  # raised again below
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(run, ())
    with done:
        pass
    if errors:
        raise errors.pop()
    return results.pop()


def current_namespace(name: str) -> int:
    """Open this thread's namespace of one type (`net`, `mnt` …). The descriptor keeps the namespace alive."""
    return os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def is_privileged() -> bool:
    """Whether this process may create namespaces without a user namespace."""
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return all(effective >> one & 1 for one in (NET_ADMIN, SYS_CHROOT, SYS_ADMIN))


def enter_user_namespace(user: int | None) -> None:
    """Get the capabilities of root over our own namespaces: enter the given user namespace, or create a new one.

    Users keep their ids in the namespace, because some programs (mpirun) refuse to run as root. Raises OSError.
    """
    if user is not None:
        setns(user, NEWUSER)
    else:
        uid, gid = os.geteuid(), os.getegid()
        unshare(NEWUSER)
        try:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        except PermissionError as error:
            if uid:
                raise
            raise PermissionError(f"root without CAP_SETFCAP cannot be root in a user namespace: {error}") from None
