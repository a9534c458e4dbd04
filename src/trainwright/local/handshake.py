# SPDX-License-Identifier: Apache-2.0
"""How two processes of ours find out that they come from different versions of Trainwright.

Each protocol has a number. Raise it with every change of `sockets.protocol` or `supervisor.protocol` that the other
side would misunderstand. The side that connects says its number first; the other side refuses a different one. The
supervisor imports this module, so it uses the standard library only.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from trainwright import __version__

#: Between clients (commands, agents) and the socket of an engine.
ENGINE_PROTOCOL = 1
#: Between an agent, or `trainwright exec`, and a supervisor.
SUPERVISOR_PROTOCOL = 1


class Hello(TypedDict):
    """What a process says of itself: the number of the protocol, and its version of Trainwright, for people."""

    protocol: int
    version: str


def hello(protocol: int) -> Hello:
    """What this process says of itself."""
    return {"protocol": protocol, "version": __version__}


def mismatch(said: Mapping[str, Any], protocol: int, other: str, this: str) -> str | None:
    """Why the two cannot talk, or None if they can. `other` and `this` name the two processes in the text.

    `said` is the other side's Hello, or any message of a version that did not know of it yet.
    """
    number = said.get("protocol")
    if number == protocol and type(number) is int:
        return None
    theirs = f"version {said.get('version')} (protocol {number})" if number is not None else "an older version"
    return (
        f"{other} is of {theirs}, {this} of version {__version__} (protocol {protocol}); "
        "both must come from the same version of trainwright"
    )
