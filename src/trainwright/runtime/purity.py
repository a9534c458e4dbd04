# SPDX-License-Identifier: Apache-2.0
"""An audit hook that raises an error when a pure function does I/O. Only tests enable it.

`model`, `core` and `kinds` are pure. Python reports every access to a file, socket, process or import to audit hooks
(PEP 578). If a function of these packages is on the call stack, directly or indirectly, the event is a violation. The
hook writes it to a file, so that a caller that catches the exception cannot hide it, and raises `ImpureError`.
"""

import os
import sys
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

#: The value of this variable is the path of the file for violations. If the variable is not set, the hook is off.
VARIABLE = "TRAINWRIGHT_PURITY"
#: Packages whose functions must not do I/O.
PURE = ("model", "core", "kinds")

#: The folders of these packages. Computed without pathlib: every command imports this module, and pathlib is slow.
_FOLDERS = tuple(f"{__file__.rpartition('runtime')[0]}{package}{os.sep}" for package in PURE)
#: Audit events that are not I/O: introspection, and code that is created or run in memory. All others are violations.
_HARMLESS = frozenset(
    {
        "array.__new__",
        "builtins.id",
        "code.__new__",
        "compile",
        "exec",
        "function.__new__",
        "object.__delattr__",
        "object.__getattr__",
        "object.__setattr__",
        "sys._current_frames",
        "sys._getframe",
        "sys._getframemodulename",
        "sys.monitoring.register_callback",
        "sys.setprofile",
        "sys.settrace",
        "type.__new__",
    }
)


class ImpureError(Exception):
    """A function that must be pure did I/O."""


def enforce() -> None:
    """Install the hook in this process if the environment variable is set. Python cannot remove an audit hook."""
    path = os.environ.get(VARIABLE)
    if path:
        sys.addaudithook(_Hook(path))


class _Hook:
    """The audit hook: Python calls it for every audit event."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: True while the hook writes to its own file, which is not a violation.
        self._reporting = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _HARMLESS or self._reporting:
            return
        frame = sys._getframe(1)
        if not _may_be_pure(frame):
            return
        stack = _pure_functions(frame)
        if not stack:
            return
        text = f"{event}{args!r:.200} in {stack[-1].co_qualname} > {stack[0].co_qualname} ({stack[0].co_filename})"
        self._reporting = True
        try:
            with suppress(OSError), open(self._path, "a") as file:  # noqa: PTH123 - no pathlib, see _FOLDERS
                file.write(f"{text}\n")
        finally:
            self._reporting = False
        raise ImpureError(text)


def _may_be_pure(frame: FrameType | None) -> bool:
    """Whether the stack has code of a pure module: a quick test, since nearly all events have no such code.

    Python reports each access to `f_code` as an audit event, which calls the hook again; `f_globals` has no event.
    """
    while frame is not None:
        if (frame.f_globals.get("__file__") or "").startswith(_FOLDERS):
            return True
        frame = frame.f_back
    return False


def _pure_functions(frame: FrameType | None) -> list[CodeType]:
    """The pure functions on the stack, innermost first. Module and class bodies do not count: imports read files."""
    found: list[CodeType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" and not found:
            # The garbage collector can run a finalizer inside any function, so the function did not cause this event.
            return []
        if code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(_FOLDERS):
            found.append(code)
        frame = frame.f_back
    return found
