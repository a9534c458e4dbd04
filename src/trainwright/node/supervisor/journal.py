# SPDX-License-Identifier: Apache-2.0
"""What the supervisor knows of its containers, in a file that outlives it: one JSON object a line, only ever appended.

`containers` writes a line when one starts, when it has ended (before it is reaped) and when its end may be forgotten.
An agent whose supervisor has died calls `read` and has the ends that it has not stored yet.

The supervisor's copies of the locks on devices: they keep a device leased while a container may use it.

The engine takes the locks and sends a descriptor of each over a socket of its own. If the engine is killed, the lock
lives on here until the containers have been ended; every container that uses a device inherits the descriptor, so the
lock lives on there if the supervisor is killed too. A descriptor that was sent and not yet read counts as held: the
kernel keeps it in the socket.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, cast

from trainwright.jsonlines import END, decode, encode
from trainwright.node.supervisor.control import LineSocket
from trainwright.node.supervisor.launch import NOT_POSSIBLE, StartRefused
from trainwright.node.supervisor.loop import Loop

# pathlib would cost the supervisor a tenth of its start.


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Entry, Forgotten, HowEnded

_FORGOTTEN = 500  # so many dead containers in the file, and it is written anew


class Journal:
    """The file of one supervisor. A full disk never stops it: what cannot be written is still known in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self._dead = 0
        self._torn = False
        self._file = _opened(path)

    def started(self, container: str, pod: str, pid: int) -> None:
        """A container's main process runs."""
        self.entries[container] = {"container": container, "pod": pod, "pid": pid, "ended": None}
        self._append(self.entries[container])

    def ended(self, container: str, end: HowEnded) -> None:
        """How it ended."""
        self.entries[container]["ended"] = end
        self._append(self.entries[container])

    def forget(self, container: str) -> None:
        """Its end is stored elsewhere."""
        if self.entries.pop(container, None) is None:
            return
        self._dead += 1
        self._append({"container": container, "forgotten": True})
        if self._dead >= max(_FORGOTTEN, len(self.entries)):
            self._renew()

    def close(self) -> None:
        """Close the file; it stays where it is."""
        os.close(self._file)

    def _append(self, entry: Entry | Forgotten) -> None:
        line = encode(entry)
        if self._torn:
            line = END + line  # a line that a full disk has cut spoils no other
        try:
            self._torn = os.write(self._file, line) < len(line)
        except OSError:
            self._torn = True

    def _renew(self) -> None:
        """Write only what is still of use, and put it in the place of the old file in one step."""
        fresh = f"{self.path}.new"
        text = b"".join(encode(entry) for entry in self.entries.values())
        file = -1
        try:
            file = _opened(fresh)
            if os.write(file, text) < len(text):
                raise OSError
            os.rename(fresh, self.path)
        except OSError:
            if file >= 0:
                os.close(file)
            return  # the old file is still true, only longer; the next one to be forgotten tries again
        os.close(self._file)
        self._file, self._dead, self._torn = file, 0, False


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read(path: str) -> dict[str, Entry]:
    """By container: pod, pid, and `ended` as in the event, or None if it ran to the last. A torn line is left out.

    To be read before another supervisor is started in the same folder: that one begins with an empty file.
    """
    entries: dict[str, Entry] = {}
    try:
        with open(path, "rb") as file:
            lines = file.read().split(END)
    except FileNotFoundError:
        return {}
    for line in lines:
        try:
            entry = decode(line)
        except ValueError:
            continue
        if entry.get("forgotten"):
            entries.pop(entry["container"], None)
        else:
            entries[entry["container"]] = cast("Entry", entry)
    return entries


if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Lease


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
            raise StartRefused(NOT_POSSIBLE, f"the lease of {', '.join(missing)} was not handed over.")
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
