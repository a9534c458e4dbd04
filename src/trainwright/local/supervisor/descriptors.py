# SPDX-License-Identifier: Apache-2.0
"""How many files may be open: the supervisor holds three for each container, so it asks for all that it may have.

`main` raises its own limit; `launch` gives each new process the one that the user had.
"""

import contextlib
import resource

_ENOUGH = 65536

_users: list[tuple[int, int]] = []


def more() -> None:
    """Raise our limit as far as we may, and remember what it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _users.append((soft, hard))


def usual(pid: int) -> None:
    """Give a new process the limit that we were started with, where that can be done from outside (Linux)."""
    if _users and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _users[0])
