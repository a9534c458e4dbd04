# SPDX-License-Identifier: Apache-2.0
"""What the supervisor knows of its containers, in a file that outlives it: one JSON object a line, only ever appended.

`containers` writes a line when one starts, when it has ended (before it is reaped) and when its end may be forgotten.
An agent whose supervisor has died calls `read` and has the ends that it has not stored yet.
"""
# pathlib would cost the supervisor a tenth of its start.

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from trainwright.jsonlines import END, decode, encode

if TYPE_CHECKING:
    from trainwright.local.supervisor.protocol import Entry, Forgotten, HowEnded

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
