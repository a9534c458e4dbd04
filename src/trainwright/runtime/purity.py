# SPDX-License-Identifier: Apache-2.0
"""Fails as soon as a decision does I/O. Tests switch it on; it is off otherwise, and then costs nothing.

`model`, `core` and `kinds` are pure. Python reports every file, socket, process and import to audit hooks (PEP 578).
This hook walks up the stack: where a function of these packages is on it, the event is a violation, whoever was called
in between. The hook writes the violation to a file, so that a caller that catches the exception cannot hide it, and
raises `ImpureError`.
"""

import os
import sys
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

#: The file to which violations are appended; unset: nothing is enforced. Child processes inherit it.
VARIABLE = "TRAINWRIGHT_PURITY"
#: Packages whose functions may do no I/O.
PURE = ("model", "core", "kinds")

#: Not with pathlib: every command imports this module, and that would take as long as all of it.
_FOLDERS = tuple(f"{__file__.rpartition('runtime')[0]}{package}{os.sep}" for package in PURE)
#: Audit events that are no I/O: introspection, and code that is made or run in memory. Everything else is refused.
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
    """Check all decisions of this process from now on, if the environment asks for it. It cannot be undone."""
    path = os.environ.get(VARIABLE)
    if path:
        sys.addaudithook(_Hook(path))


class _Hook:
    """What Python calls for every audit event."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: The hook's own file is being written: that is no violation.
        self._reporting = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _HARMLESS or self._reporting:
            return
        stack = _decision(sys._getframe(1))
        if not stack:
            return
        text = f"{event}{args!r:.200} in {stack[-1].co_qualname} > {stack[0].co_qualname} ({stack[0].co_filename})"
        self._reporting = True
        try:
            with suppress(OSError), open(self._path, "a") as file:  # noqa: PTH123 - as above
                file.write(f"{text}\n")
        finally:
            self._reporting = False
        raise ImpureError(text)


def _decision(frame: FrameType | None) -> list[CodeType]:
    """The pure functions on the stack, innermost first. Modules and class bodies do not count: imports read files."""
    found: list[CodeType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" and not found:
            # The garbage collector runs finalizers anywhere.
            return []
        if code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(_FOLDERS):
            found.append(code)
        frame = frame.f_back
    return found
