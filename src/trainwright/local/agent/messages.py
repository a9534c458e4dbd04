# SPDX-License-Identifier: Apache-2.0
"""A container's last words: what it left at its terminationMessagePath, else the end of its log. Called by `charge`."""

import contextlib
import os
from pathlib import Path

from trainwright.local.agent.container import Container
from trainwright.local.agent.link import End

DEFAULT_PATH = "/dev/termination-log"
_MESSAGE = 4096
_LINES = 80
_TAIL = 2048
_IN_USE = "address already in use"
_ADVICE = (
    'another process on this machine already listens on that port; "--runtime sandbox" gives every replica its own'
    " network"
)


def last(container: Container, end: End, *, sandboxed: bool) -> str:
    """The message of its end."""
    said = _read(container.message, _MESSAGE) if container.message else ""
    if said or not end.code:
        return said
    falls_back = container.body.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    if not falls_back and sandboxed:
        return ""
    tail = _read(container.log, _TAIL)
    if not sandboxed and _IN_USE in tail.lower():
        return f"Address already in use: {_ADVICE}"
    return "\n".join(tail.splitlines()[-_LINES:]) if falls_back else ""


def _read(path: str, most: int) -> str:
    """The end of a file, so many bytes at most; nothing if there is none."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode(errors="replace")
    return ""
