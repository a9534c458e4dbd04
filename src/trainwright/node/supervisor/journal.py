# SPDX-License-Identifier: Apache-2.0
"""State that must survive a killed process: the journal of containers, and the locks on devices.

The journal is a file with one JSON object per line. The supervisor appends a line when a container starts, when it has
ended (before it is reaped), and when the agent has stored its exit status. After the supervisor's death, the agent
reads the journal. If the supervisor outlives its agent, a line also precedes each start: if the supervisor is killed
while it starts a process, the journal names that process.

The engine locks devices and sends a descriptor of each lock to the supervisor. The supervisor keeps the descriptor, and
every container that uses the device inherits it, so a device stays locked until its last user has ended, even if the
engine and the supervisor are killed. While a descriptor is sent but not yet read, the kernel keeps the lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, cast

from trainwright.jsonlines import END, decode, encode
from trainwright.node.supervisor.control import LineSocket
from trainwright.node.supervisor.launch import StartRefused
from trainwright.node.supervisor.loop import Loop

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import (
        ExitStatus,
        ForgottenEntry,
        JournalEntry,
        LeaseMessage,
        Notes,
        StartContainer,
    )

#: The journal is rewritten when it has at least this many forgotten containers.
_MIN_FORGOTTEN = 500


class Journal:
    """The journal of one supervisor. A full disk does not stop the supervisor: all entries are also in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, JournalEntry] = {}
        self._forgotten = 0
        self._last_line_cut = False
        self._file = _create(path)

    def started(self, container: str, pod: str, pid: int) -> None:
        """Record that a container's main process runs."""
        entry = self.entries.setdefault(container, {"container": container, "pod": pod, "pid": pid, "ended": None})
        entry["pid"] = pid
        self._append(entry)

    def starting(self, request: StartContainer) -> None:
        """Record that a container is about to start, with what a later agent needs to know about it."""
        entry: JournalEntry = {
            "container": request["container"],
            "pod": request["pod"],
            "pid": 0,
            "ended": None,
            "name": request["name"],
            "restart": request["restart"],
            "log": request["log"],
            "message": request.get("message", ""),
            "started": time.time(),
        }
        self.entries[entry["container"]] = entry
        self._append(entry)

    def note(self, container: str, notes: Notes) -> None:
        """Add what the agent has done with a container."""
        entry = self.entries.get(container)
        if entry is not None:
            entry["notes"] = {**entry.get("notes", {}), **notes}
            self._append(entry)

    def ended(self, container: str, status: ExitStatus) -> None:
        """Record how a container ended."""
        self.entries[container]["ended"] = status
        self._append(self.entries[container])

    def forget(self, container: str) -> None:
        """Remove a container whose exit status the agent has stored."""
        if self.entries.pop(container, None) is None:
            return
        self._forgotten += 1
        self._append({"container": container, "forgotten": True})
        if self._forgotten >= max(_MIN_FORGOTTEN, len(self.entries)):
            self._rewrite()

    def close(self) -> None:
        """Close the file, and leave it in the folder."""
        os.close(self._file)

    def _append(self, entry: JournalEntry | ForgottenEntry) -> None:
        line = encode(entry)
        if self._last_line_cut:
            line = END + line  # a full disk has cut the last line: begin the new entry on its own line
        try:
            self._last_line_cut = os.write(self._file, line) < len(line)
        except OSError:
            self._last_line_cut = True

    def _rewrite(self) -> None:
        """Write a file without the forgotten containers, and replace the old file atomically."""
        path = f"{self.path}.new"
        text = b"".join(encode(entry) for entry in self.entries.values())
        file = -1
        try:
            file = _create(path)
            if os.write(file, text) < len(text):
                raise OSError
            os.rename(path, self.path)
        except OSError:
            if file >= 0:
                os.close(file)
            return  # the old file is still correct; the next `forget` tries again
        os.close(self._file)
        self._file, self._forgotten, self._last_line_cut = file, 0, False


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read(path: str) -> dict[str, JournalEntry]:
    """The entries by container, without forgotten containers. An incomplete line is ignored.

    Read the file before another supervisor starts in the same folder: that supervisor begins with an empty file.
    """
    entries: dict[str, JournalEntry] = {}
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
            entries[entry["container"]] = cast("JournalEntry", entry)
    return entries


class LeaseDescriptors:
    """The descriptor of the lock of each device. `fd` is the socket for leases, or None without device leases."""

    def __init__(self, loop: Loop, fd: int | None) -> None:
        self._loop = loop
        self._held: dict[str, int] = {}
        self._lines: LineSocket | None = None
        if fd is not None:
            os.set_inheritable(fd, False)
            self._listen(fd)

    def attach(self, fd: int) -> None:
        """Take a new socket, from an engine that has replaced the engine before, and tell it which locks are here."""
        self._close()
        lines = self._listen(fd)
        for device, lock in self._held.items():
            message: LeaseMessage = {"do": "hold", "device": device}
            with contextlib.suppress(OSError):  # the engine has already ended
                socket.send_fds(lines.sock, [encode(message)], [lock])

    def _listen(self, fd: int) -> LineSocket:
        self._lines = LineSocket(socket.socket(fileno=fd))
        self._loop.watch(fd, self._receive)
        return self._lines

    def of(self, devices: list[str]) -> tuple[int, ...]:
        """The descriptors of these devices, for a container that uses them. Raises StartRefused."""
        self._receive()  # the engine sent the leases before this request, so they can be read now
        missing = [device for device in devices if device not in self._held]
        if missing:
            raise StartRefused(f"the supervisor did not receive the lease of {', '.join(missing)}.")
        return tuple(self._held[device] for device in devices)

    def _receive(self) -> None:
        while self._lines is not None and (lines := self._lines.receive()):
            for line in lines:
                self._handle(self._lines, cast("LeaseMessage", decode(line)))
        if self._lines is not None and self._lines.closed:
            self._close()

    def _close(self) -> None:
        if self._lines is not None:
            self._loop.unwatch(self._lines.fileno())
            self._lines.close()
            self._lines = None

    def _handle(self, lines: LineSocket, message: LeaseMessage) -> None:
        device = message["device"]
        old = self._held.pop(device, None)
        if message["do"] == "hold":
            self._held[device] = lines.fds.pop(0)
        if old is not None:
            os.close(old)
