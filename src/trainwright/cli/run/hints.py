# SPDX-License-Identifier: Apache-2.0
"""What to do about a failure, as far as its exit code and last words tell. `verdict` asks; the first match wins."""

import re
from collections.abc import Callable

from msgspec import Struct

_HERE = "images are not used here, so it must be installed on this machine"
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_UNRESOLVED = re.compile(
    r"name or service not known|temporary failure in name resolution|nodename nor servname|could not resolve host|"
    r"no address associated with hostname",
    re.IGNORECASE,
)


class Evidence(Struct, frozen=True):
    """What is known of the end of a container."""

    code: int | None
    signal: int | None
    reason: str
    lines: tuple[str, ...]
    runtime: str
    #: The node has said itself why it ended the container.
    told: bool = False

    @property
    def text(self) -> str:
        """Its last words in one."""
        return "\n".join(self.lines)

    @property
    def killed_by(self) -> int:
        """The signal, also where only the exit code tells it."""
        return self.signal or (self.code - 128 if self.code is not None and 128 < self.code < 193 else 0)


def hint(evidence: Evidence) -> str:
    """One sentence, or nothing."""
    return next((text for look in _LOOKS if (text := look(evidence))), "")


def _port(one: Evidence) -> str:
    if not _IN_USE.search(one.text):
        return ""
    if one.runtime == "process":
        return "replicas share this machine's ports here; `--runtime sandbox` gives each a network of its own"
    return "something in the same replica listens on that port already, or hostNetwork is set"


def _module(one: Evidence) -> str:
    found = _MODULE.search(one.text)
    return f"Python did not find {found[1]}: {_HERE}, for the Python that the command runs" if found else ""


def _memory(one: Evidence) -> str:
    return "it used more memory than its limit: raise resources.limits.memory" if one.reason == "OOMKilled" else ""


def _missing(one: Evidence) -> str:
    return f"the command was not found: {_HERE} and be on the PATH" if one.code == 127 else ""


def _forbidden(one: Evidence) -> str:
    if one.code != 126 or "directory" in one.text or "interpreter" in one.text:  # which says it all
        return ""
    return "the command cannot be executed: it needs `chmod +x`, and a first line `#!…` if it is a script"


def _unresolved(one: Evidence) -> str:
    if not _UNRESOLVED.search(one.text):
        return ""
    if one.runtime == "process":
        return (
            "names of replicas resolve in the sandbox only (`--runtime sandbox`); here use $(service.TYPE[RANK].host)"
        )
    return "replicas have names only if the job has `spec.service`; others must resolve on this machine"


def _disk(one: Evidence) -> str:
    return "a disk is full: free some room, or put the state folder elsewhere (TRAINWRIGHT_STATE)" * (
        "No space left on device" in one.text
    )


def _signalled(one: Evidence) -> str:
    return {
        4: "it ran an instruction that this processor does not have: it was built for another one",
        6: "it aborted itself: the lines above should say why",
        9: "SIGKILL comes from somebody, or from the kernel when memory runs out (`dmesg` tells)",
        11: "it touched memory that is not its own: a defect in native code",
        15: "it was asked to end from outside",
    }.get(one.killed_by, "") * (not one.told)


_LOOKS: tuple[Callable[[Evidence], str], ...] = (
    _port,
    _module,
    _memory,
    _missing,
    _forbidden,
    _unresolved,
    _disk,
    _signalled,
)
