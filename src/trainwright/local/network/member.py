# SPDX-License-Identifier: Apache-2.0
"""Joining the network that the node agents of a machine share. `local.node` calls `join` before it starts a sandbox.

The first agent starts the `keeper`; whoever has joined holds the network's descriptors, which keep it alive.
"""

import array
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

import trainwright
from trainwright.errors import EngineError
from trainwright.local.network.keeper import READY, TAKEN, address, trusted

_PATIENCE = 30.0
_PAUSE = 0.02
_MOST, _SPACES = 1 << 16, 8


class _Told(Struct):
    subnet: str
    range: str
    spaces: list[str]
    notices: list[str]


@dataclass
class Member:
    """Our part in it: the whole subnet, our own range, descriptors by name, and what people should know."""

    subnet: str
    range: str
    spaces: dict[str, int]
    notices: list[str]
    _line: socket.socket
    _keeper: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def fileno(self) -> int:
        """For a loop: what can be read there is the keeper's end."""
        return self._line.fileno()

    def close(self) -> None:
        """Leave it. If we were the last and started the keeper, it is seen out."""
        self._line.close()
        for space in self.spaces.values():
            os.close(space)
        self.spaces = {}
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):  # others are still there
                self._keeper.wait(0.5)
            self._keeper.returncode = self._keeper.returncode or 0  # it may outlive us, and need not be warned of


def join(name: str) -> Member:
    """Be part of the network of that name, which is made if there is none. Raises EngineError."""
    keeper: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        member = _connect(name)
        if member is not None:
            member._keeper = keeper
            return member
        if keeper is None or keeper.poll() is not None:
            keeper = _start(name)
        time.sleep(_PAUSE)
    raise EngineError(f"the network of the nodes ({name}) was not to be had within {_PATIENCE:g} seconds")


def _connect(name: str) -> Member | None:
    """None: nobody keeps it, or not for long any more."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: list[int] = []
    try:
        line.settimeout(_PATIENCE)
        line.connect(address(name))
        if not trusted(line):
            raise EngineError(
                f"another user listens where the network of the nodes ({name}) is kept; --network names another"
            )
        data, parts, _, _ = line.recvmsg(_MOST, socket.CMSG_SPACE(4 * _SPACES), socket.MSG_CMSG_CLOEXEC)
        for _, _, body in parts:
            fds += array.array("i", body)
        told = msgspec.json.decode(data, type=_Told)
        line.setblocking(False)
    except EngineError:
        line.close()
        raise
    except (OSError, msgspec.MsgspecError):
        line.close()
        for fd in fds:
            os.close(fd)
        return None
    return Member(told.subnet, told.range, dict(zip(told.spaces, fds, strict=True)), told.notices, line)


def _start(name: str) -> "subprocess.Popen[bytes] | None":
    """A keeper of our own, unless somebody else is just beginning to be one."""
    keeper = subprocess.Popen(  # noqa: S603 - our own interpreter with our own words
        [sys.executable, "-m", "trainwright.local.network.keeper", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(trainwright.__file__).parents[1])},
        start_new_session=True,
        cwd=os.sep,
    )
    assert keeper.stdout is not None  # noqa: S101 - it is a pipe
    with keeper.stdout as words:
        told = words.readline().decode(errors="replace").strip()
    if told == READY:
        return keeper
    keeper.wait()
    if told == TAKEN:
        return None
    raise EngineError(told or "the keeper of the nodes' network has ended without a word")
