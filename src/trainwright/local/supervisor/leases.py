# SPDX-License-Identifier: Apache-2.0
"""The supervisor's copies of the locks on devices: they keep a device leased while a container may use it.

The engine takes the locks and sends a descriptor of each over a socket of its own. If the engine is killed, the lock
lives on here until the containers have been ended; every container that uses a device inherits the descriptor, so the
lock lives on there if the supervisor is killed too. A descriptor that was sent and not yet read counts as held: the
kernel keeps it in the socket.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, cast

from trainwright.jsonlines import decode
from trainwright.local.supervisor.launch import NOT_POSSIBLE
from trainwright.local.supervisor.loop import Loop
from trainwright.local.supervisor.runtimes import Refused
from trainwright.local.supervisor.wire import LineSocket

if TYPE_CHECKING:
    from trainwright.local.supervisor.protocol import Lease


class LeaseDescriptors:
    """By device: the descriptor of its lock. `fd` is the socket, or None where nobody leases devices."""

    def __init__(self, loop: Loop, fd: int | None) -> None:
        self._loop = loop
        self._held: dict[str, int] = {}
        self._lines: LineSocket | None = None
        if fd is not None:
            os.set_inheritable(fd, False)
            self._lines = LineSocket(socket.socket(fileno=fd))
            loop.watch(fd, self._receive)

    def of(self, devices: list[str]) -> tuple[int, ...]:
        """The descriptors of these devices, for a container that uses them. Raises Refused."""
        self._receive()  # what was sent before the request is there
        missing = [device for device in devices if device not in self._held]
        if missing:
            raise Refused(NOT_POSSIBLE, f"the lease of {', '.join(missing)} was not handed over.")
        return tuple(self._held[device] for device in devices)

    def _receive(self) -> None:
        while self._lines is not None and (lines := self._lines.receive()):
            for line in lines:
                self._handle(self._lines, cast("Lease", decode(line)))
        if self._lines is not None and self._lines.closed:
            self._loop.unwatch(self._lines.fileno())
            self._lines.close()
            self._lines = None

    def _handle(self, lines: LineSocket, message: Lease) -> None:
        """A message that hands over a lock comes with one descriptor."""
        device = message["device"]
        old = self._held.pop(device, None)
        if message["do"] == "hold":
            self._held[device] = lines.fds.pop(0)
        if old is not None:
            os.close(old)
