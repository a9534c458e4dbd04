# SPDX-License-Identifier: Apache-2.0
"""Going into namespaces, and getting the right to. Called by `sandbox`, `network` and `outside`.

A thread goes in, does its work and ends there. It is not sent back: an unprivileged process may not return to the
namespaces it came from, and one that never left needs no returning. The process stays where it was, one thread again.
"""

import _thread
import os
from collections.abc import Callable
from typing import TypeVar

from trainwright.local.supervisor import kernel

Result = TypeVar("Result")


def elsewhere(work: Callable[[], Result]) -> Result:
    """Do it in a thread of its own, whose namespaces are its own to change; what it raises is raised here."""
    done = _thread.allocate_lock()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            kernel.unshare(kernel.FS)  # a working directory of its own, without which no mount namespace lets it in
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


def current(name: str) -> int:
    """A descriptor of a namespace of this thread, by its name in /proc; it lives as long as the descriptor."""
    return os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def privileged() -> bool:
    """Whether namespaces can be made without a user namespace."""
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return all(effective >> one & 1 for one in (kernel.NET_ADMIN, kernel.SYS_CHROOT, kernel.SYS_ADMIN))


def acquire(user: int | None) -> None:
    """Get the rights of root over namespaces of our own: enter the given user namespace, or make one.

    Users keep their ids in it, so that programs which refuse to run as root (mpirun) do not see one. Raises OSError.
    """
    if user is not None:
        kernel.setns(user, kernel.NEWUSER)
    else:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER)
        try:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        except PermissionError as error:
            if uid:
                raise
            raise PermissionError(f"root without CAP_SETFCAP cannot be root in a user namespace: {error}") from None
