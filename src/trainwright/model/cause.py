# SPDX-License-Identifier: Apache-2.0
"""Why a replica ended. A restart policy lists the kinds of cause after which it restarts a replica."""

from enum import StrEnum

from msgspec import UNSET, UnsetType

from trainwright.model.meta import Wire

#: Longest message that is kept, in characters. A stack trace belongs in the log.
LONGEST_MESSAGE = 1024


def brief(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Shorten a text for a status, and remove control characters except line ends and tabs."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return text if text.isprintable() else "".join(c for c in text if c.isprintable() or c in "\n\t")


#: Reasons of pods and disruptions which mean that the node was shut down or removed.
_NODE_DOWN_REASONS = frozenset(
    {"NodeShutdown", "Terminated", "Shutdown", "NodeLost", "SupervisorLost", "DeletionByPodGC"}
)


class CauseKind(StrEnum):
    """The kinds of cause. The ledger counts restarts by these values."""

    COMPLETED = "Completed"  # every container ended with 0; used by policies that restart after success
    EXIT = "Exit"  # a container ended with another code or by a signal
    EVICTED = "Evicted"  # the kubelet evicted the pod because of the pod's own resource use
    DISRUPTED = "Disrupted"  # the pod was preempted, drained or evicted for reasons outside the pod
    DELETED = "Deleted"  # another client deleted the pod
    NODE_LOST = "NodeLost"  # the pod's node is gone or has not been ready for too long
    DEVICE = "DeviceFailed"  # GPUs of the pod's node have failed, or fewer are left than the job's pods hold
    CREATE_ERROR = "CreateError"  # the pod's containers cannot be created: image, configuration
    IN_PLACE = "InPlace"  # not an end: the kubelet restarted containers inside a pod that was later replaced
    REJECTED = "Rejected"  # the node did not admit the pod, or the pod failed without a container status


#: Reasons of containers whose program never ran.
NOT_STARTED = frozenset({"ContainerCannotRun", "StartError"})
_SIGNAL_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG"
    " XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
#: Linux signal numbers. Fixed here because nodes run Linux even if this machine does not.
SIGNALS = {number: f"SIG{name}" for number, name in enumerate(_SIGNAL_NAMES.split(), start=1)}


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    return SIGNALS.get(number, f"signal {number}")


def implied_signal(code: int) -> int:
    """Return the signal that an exit code above 128 usually means, else 0. A program may choose such a code itself."""
    return code - 128 if code - 128 in SIGNALS else 0


class Cause(Wire, frozen=True, gc=False):
    """One cause, with details for people."""

    why: CauseKind
    code: int | UnsetType = UNSET
    #: The signal that ended the container; 0: no signal ended it. Unset: only the exit code is known.
    signal: int | UnsetType = UNSET
    reason: str = ""
    message: str = ""
    container: str = ""
    node: str = ""

    @property
    def kinds(self) -> tuple[CauseKind, ...]:
        """The kinds of cause that policies check. A pod that was shut down with its node counts as NODE_LOST, too."""
        down = self.why is CauseKind.DISRUPTED and self.reason in _NODE_DOWN_REASONS
        return (self.why, CauseKind.NODE_LOST) if down else (self.why,)

    def __str__(self) -> str:
        if self.why is CauseKind.EXIT:
            return f"container {self.container} {self._exit()}"
        text = {
            CauseKind.COMPLETED: "completed",
            CauseKind.EVICTED: "evicted by its node",
            CauseKind.DISRUPTED: "disrupted",
            CauseKind.DELETED: "deleted" if self.reason else "deleted by somebody else",
            CauseKind.NODE_LOST: f"node {self.node} is lost",
            CauseKind.DEVICE: f"GPUs of node {self.node} have failed",
            CauseKind.CREATE_ERROR: f"container {self.container} cannot be created",
            CauseKind.IN_PLACE: "restarted in place",
            CauseKind.REJECTED: "failed before any container ran",
        }[self.why]
        detail = ": ".join(part for part in (self.reason, self.message) if part)
        return f"{text} ({detail})" if detail else text

    def _exit(self) -> str:
        """Describe how a container ended. A signal that is not known is left out: kubelets report only exit codes."""
        if self.code is UNSET and not self.signal:
            return "ended with an error"
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
        """Whether the program ran. Only then the exit code is from the program, or from a signal that ended it."""
        return self.reason not in NOT_STARTED
