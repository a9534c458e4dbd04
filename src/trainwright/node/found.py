# SPDX-License-Identifier: Apache-2.0
"""How containers ended, and the containers that an agent finds when it starts: those that earlier agents have started.

They come from a living supervisor, or from the journal that a dead supervisor has left.
"""

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.node.supervisor import journal
from trainwright.node.supervisor.protocol import Notes


class ContainerEnd(Struct, frozen=True, gc=False):
    """How a container ended: exit code (128 + n after signal n), and the time, in seconds since 1970."""

    container: str = ""
    code: int = 0
    signal: int = 0
    oom: bool = False
    at: float = 0.0


class FoundContainer(Struct):
    """A container that an earlier agent has started: an entry of the journal, or of the answer to `list`."""

    container: str
    pod: str
    pid: int = 0
    ended: ContainerEnd | None = None
    #: The container's name in its pod, and the number of its restarts.
    name: str = ""
    restart: int = 0
    #: The paths of its log and of its termination message.
    log: str = ""
    message: str = ""
    #: The time of the start, in seconds since 1970.
    started: float = 0.0
    notes: Notes = {}
    #: Whether the supervisor is dead, and the container with it.
    gone: bool = False

    def __post_init__(self) -> None:
        if self.ended is not None:
            self.ended = replace(self.ended, container=self.container)


class LossCause(Struct, frozen=True):
    """Why the containers of an earlier supervisor are gone: the reason and the message for their pods."""

    reason: str
    message: str


def read_ends(folder: Path) -> dict[str, ContainerEnd]:
    """The ends in the supervisor's journal, by container ID. The agent may have received no event for some of them."""
    known = {name: entry["ended"] for name, entry in journal.read(str(folder / "journal")).items()}
    return {name: msgspec.convert({**end, "container": name}, ContainerEnd) for name, end in known.items() if end}
