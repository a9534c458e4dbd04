# SPDX-License-Identifier: Apache-2.0
"""What to do about a failure, as far as its exit code and last words tell. `verdict` asks; the first match wins."""

import re
from collections.abc import Callable

from msgspec import Struct

from trainwright.model.cause import NOT_STARTED, implied_signal, signal_name

_HERE = "images are not used here, so it must be installed on this machine"
_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NOT_FOUND = re.compile(r"not found|no such file", re.IGNORECASE)
_SIGBUS = 7
_BUS_ERROR = re.compile(r"bus error|insufficient shared memory", re.IGNORECASE)
#: What shells print when a command of theirs was ended by a signal.
_OF_SHELLS = {6: "Aborted", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}
_UNRESOLVED = re.compile(
    r"name or service not known|temporary failure in name resolution|nodename nor servname|could not resolve host|"
    r"no address associated with hostname",
    re.IGNORECASE,
)


class Evidence(Struct, frozen=True):
    """What is known of the end of a container."""

    code: int | None
    #: 0: none; None: it is not known whether the exit code stands for one.
    signal: int | None
    reason: str
    lines: tuple[str, ...]
    runtime: str
    #: What the node says of the end.
    message: str = ""
    #: The node has said itself why it ended the container.
    told: bool = False

    @property
    def text(self) -> str:
        """Its last words in one."""
        return "\n".join(self.lines)

    @property
    def killed_by(self) -> int:
        """The signal; where that is not known, the one that the exit code may stand for."""
        return implied_signal(self.code or 0) if self.signal is None else self.signal

    @property
    def started(self) -> bool:
        """Its program ran, so that the exit code is not the node's."""
        return self.reason not in NOT_STARTED


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
    if one.started or one.code != 127:
        return ""
    return f"the command was not found: {_HERE} and be on the PATH"


def _forbidden(one: Evidence) -> str:
    clear = "directory" in one.message or "interpreter" in one.message  # the node has said it all
    if one.started or one.code != 126 or clear:
        return ""
    return "the command cannot be executed: it needs `chmod +x`, and a first line `#!…` if it is a script"


def _by_shell(one: Evidence) -> str:
    """A shell passes on how its last command ended; only what it printed tells that from a code of its own."""
    if one.started and one.code == 127 and _NOT_FOUND.search(one.text):
        return f"a shell did not find a command, which the last lines name: {_HERE} and be on the PATH"
    killed = implied_signal(one.code or 0) if one.signal == 0 else 0
    if killed and (word := _OF_SHELLS.get(killed)) and re.search(rf"\b{word}\b", one.text):
        return f"a shell passed on that a command of it was ended by {signal_name(killed)}"
    return ""


def _shared_memory(one: Evidence) -> str:
    if one.killed_by != _SIGBUS and not _BUS_ERROR.search(one.text):
        return ""
    why = "there was no room left for the shared memory that it wrote to, or a file it had mapped became shorter"
    if one.runtime == "process":
        return f"{why}: /dev/shm is this machine's here, `df -h /dev/shm` shows how full it is"
    larger = "mount an emptyDir with `medium: Memory` and a larger `sizeLimit` there"
    return f"{why}: /dev/shm was probably full; {larger}, or start fewer data loader workers"


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
    text = {
        4: "it ran an instruction that this processor does not have: it was built for another one",
        6: "it aborted itself: the lines above should say why",
        9: "SIGKILL comes from somebody, or from the kernel when memory runs out (`dmesg` tells)",
        11: "it touched memory that is not its own: a defect in native code",
        15: "it was asked to end from outside",
    }.get(one.killed_by, "") * (not one.told)
    return f"if it was {signal_name(one.killed_by)}: {text}" if text and one.signal is None else text


_LOOKS: tuple[Callable[[Evidence], str], ...] = (
    _port,
    _module,
    _memory,
    _missing,
    _forbidden,
    _by_shell,
    _shared_memory,
    _unresolved,
    _disk,
    _signalled,
)
