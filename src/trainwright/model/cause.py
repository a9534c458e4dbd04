# SPDX-License-Identifier: Apache-2.0
"""Why a replica ended. `core.classify` finds the cause, restart policies name the kinds of cause they answer."""

from enum import StrEnum

from msgspec import UNSET, UnsetType

from trainwright.model.meta import Wire

#: Longest text of a message we keep; a stack trace belongs in the log.
LONGEST_MESSAGE = 1024


def brief(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """A text as a status keeps it: no control characters but line ends, and not longer than this."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return text if text.isprintable() else "".join(c for c in text if c.isprintable() or c in "\n\t")


#: Reasons of pods, and of their disruption, that say their node went down, or was gone before them.
_WITH_NODE = frozenset({"NodeShutdown", "Terminated", "Shutdown", "NodeLost", "SupervisorLost", "DeletionByPodGC"})


class CauseKind(StrEnum):
    """The kinds of cause, as they are counted in the durable state."""

    COMPLETED = "Completed"  # every container ended with 0; a cause only for policies that restart success
    EXIT = "Exit"  # a container ended with another code or by a signal
    EVICTED = "Evicted"  # the kubelet threw it out for what it used itself
    DISRUPTED = "Disrupted"  # preempted, drained or evicted for reasons outside the pod
    DELETED = "Deleted"  # somebody else removed the pod
    NODE_LOST = "NodeLost"  # its node is gone or has been silent for too long
    DEVICE = "DeviceFailed"  # the GPUs of its node are sick, or fewer than it holds
    CREATE_ERROR = "CreateError"  # its containers cannot be made: image, configuration
    IN_PLACE = "InPlace"  # not an end: restarts the kubelet made inside a pod that has since been replaced
    REJECTED = "Rejected"  # the node would not admit it, or it failed without a container's word


#: Reasons of containers whose program never ran.
NOT_STARTED = frozenset({"ContainerCannotRun", "StartError"})
#: Signals as Linux numbers them, which is what nodes run.
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    16: "SIGSTKFLT",
    17: "SIGCHLD",
    18: "SIGCONT",
    19: "SIGSTOP",
    20: "SIGTSTP",
    21: "SIGTTIN",
    22: "SIGTTOU",
    23: "SIGURG",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    26: "SIGVTALRM",
    27: "SIGPROF",
    28: "SIGWINCH",
    29: "SIGIO",
    30: "SIGPWR",
    31: "SIGSYS",
}


def signal_name(number: int) -> str:
    """`SIGKILL`."""
    return SIGNALS.get(number, f"signal {number}")


def implied_signal(code: int) -> int:
    """The signal that an exit code above 128 stands for, unless the program chose that code itself; 0: none."""
    return code - 128 if code - 128 in SIGNALS else 0


class Cause(Wire, frozen=True, gc=False):
    """One cause, with what explains it to a person."""

    why: CauseKind
    code: int | UnsetType = UNSET
    #: The signal that ended it, 0 if it is known that none did. Unset: only the exit code is known.
    signal: int | UnsetType = UNSET
    reason: str = ""
    message: str = ""
    container: str = ""
    node: str = ""

    @property
    def kinds(self) -> tuple[CauseKind, ...]:
        """What it counts as for policies: a pod that went down with its node has failed, and has lost its node."""
        down = self.why is CauseKind.DISRUPTED and self.reason in _WITH_NODE
        return (self.why, CauseKind.NODE_LOST) if down else (self.why,)

    def __str__(self) -> str:
        if self.why is CauseKind.EXIT:
            return f"container {self.container} {self._exit()}"
        text = {
            CauseKind.COMPLETED: "completed",
            CauseKind.EVICTED: "evicted by its node",
            CauseKind.DISRUPTED: "disrupted",
            CauseKind.DELETED: "deleted by somebody else",
            CauseKind.NODE_LOST: f"node {self.node} is lost",
            CauseKind.DEVICE: f"GPUs of node {self.node} have failed",
            CauseKind.CREATE_ERROR: f"container {self.container} cannot be created",
            CauseKind.IN_PLACE: "restarted in place",
            CauseKind.REJECTED: "failed before any container ran",
        }[self.why]
        detail = ": ".join(part for part in (self.reason, self.message) if part)
        return f"{text} ({detail})" if detail else text

    def _exit(self) -> str:
        """How a container ended: no more than is known. A kubelet tells the exit code alone."""
        code = self.code if isinstance(self.code, int) else 0
        if not self.started:
            return f"could not be started (exit code {code}, {self.reason})"
        detail = self.reason if self.reason not in ("", "Error") else ""
        if self.signal:
            return f"was killed by {signal_name(self.signal)} (exit code {code}{', ' * bool(detail)}{detail})"
        implied = implied_signal(code) if self.signal is UNSET else 0
        if implied and not detail:
            return f"ended with {signal_name(implied)}, or exit code {code} from the program"
        return f"exited with code {code}" + (f" ({detail})" if detail else "")

    @property
    def started(self) -> bool:
        """Its program ran: the exit code is the program's own, or a signal's."""
        return self.reason not in NOT_STARTED
