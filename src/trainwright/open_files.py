# SPDX-License-Identifier: Apache-2.0
"""The limit of open files of this process. Imports only the standard library.

Login shells and service managers usually allow 1,024 open files and let a process raise this limit. The engine and its
supervisors raise it. The processes that they start get the old limit back: programs that use `select` fail with larger
file descriptors, and some programs close every possible descriptor when they start.
"""

import resource
from contextlib import suppress

#: The highest limit that is set.
_MAX_OPEN_FILES = 65536
_original_limits: list[tuple[int, int]] = []


def raise_limit() -> int:
    """Raise the limit as far as allowed, and remember the old limit. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    if not _original_limits:
        _original_limits.append((soft, hard))
    return wanted


def restore_limit(pid: int) -> None:
    """Give a child process the limit that this process had before `raise_limit`. Only Linux can do this."""
    if _original_limits and hasattr(resource, "prlimit"):
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _original_limits[0])
