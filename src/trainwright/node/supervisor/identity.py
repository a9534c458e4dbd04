# SPDX-License-Identifier: Apache-2.0
"""Two lock files in the folder of a supervisor that outlives its agent.

`supervisor.lock` is locked while a supervisor lives in the folder. Its text says which process that is; the format is
stable, so that any later version can read it. `agent.lock` is locked by the one agent that may command the supervisor.
The kernel releases both locks when their process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any

from trainwright.jsonlines import SUPERVISOR_PROTOCOL, hello
from trainwright.node.supervisor import tree
from trainwright.node.supervisor.launch import StartRefused

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Identity

SUPERVISOR_LOCK, AGENT_LOCK = "supervisor.lock", "agent.lock"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_RETRY_SECONDS = 0.02
#: A reader holds the lock for some microseconds, so a new supervisor tries this often before it gives up.
_TRIES = 100
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def boot_id() -> str:
    """The kernel's name for the time since the machine was started; empty if the system has none."""
    return tree.read(_BOOT_ID).decode().strip()


def settle(folder: str, runtime: str) -> int:
    """Make this process the supervisor of the folder, and return the descriptor that holds the lock.

    Raises StartRefused if another supervisor lives in the folder.
    """
    fd = os.open(f"{folder}/{SUPERVISOR_LOCK}", _FLAGS, 0o600)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                os.close(fd)
                raise StartRefused("another supervisor lives in this folder.") from None
            time.sleep(_RETRY_SECONDS)
    pid = os.getpid()
    own: Identity = {
        **hello(SUPERVISOR_PROTOCOL),
        "pid": pid,
        "start": tree.start_time(pid) or "",
        "boot": boot_id(),
        "runtime": runtime,
    }
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(own).encode(), 0)
    return fd


def read(folder: str) -> Identity | None:
    """The living or the last supervisor of the folder; None if there was none, or if the file is damaged."""
    try:
        with open(f"{folder}/{SUPERVISOR_LOCK}", "rb") as file:
            found: Any = json.loads(file.read())
        known: Identity = {
            "protocol": int(found["protocol"]),
            "version": str(found["version"]),
            "pid": int(found["pid"]),
            "start": str(found["start"]),
            "boot": str(found["boot"]),
            "runtime": str(found["runtime"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known


def lives(folder: str) -> bool:
    """Whether a supervisor lives in the folder."""
    try:
        fd = os.open(f"{folder}/{SUPERVISOR_LOCK}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def lock_for_agent(folder: str) -> int | None:
    """Lock the folder for this agent until the returned descriptor is closed; None if another agent has the lock."""
    fd = os.open(f"{folder}/{AGENT_LOCK}", _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def proves_agent(folder: str, fd: int) -> bool:
    """Whether `fd` is the open file that holds the agent's lock of the folder.

    Locking again succeeds only for that open file: the lock belongs to the open file, not to the process.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(fd), os.stat(f"{folder}/{AGENT_LOCK}")):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False
