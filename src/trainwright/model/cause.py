# SPDX-License-Identifier: Apache-2.0
"""Why a replica ended. `core.conclude` finds the cause, restart policies name the kinds of cause they answer."""

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
_WITH_NODE = frozenset({"NodeShutdown", "Terminated", "Shutdown", "NodeLost", "DeletionByPodGC"})


class Why(StrEnum):
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


class Cause(Wire, frozen=True, gc=False):
    """One cause, with what explains it to a person."""

    why: Why
    code: int | UnsetType = UNSET
    signal: int | UnsetType = UNSET
    reason: str = ""
    message: str = ""
    container: str = ""
    node: str = ""

    @property
    def kinds(self) -> tuple[Why, ...]:
        """What it counts as for policies: a pod that went down with its node has failed, and has lost its node."""
        down = self.why is Why.DISRUPTED and self.reason in _WITH_NODE
        return (self.why, Why.NODE_LOST) if down else (self.why,)

    def __str__(self) -> str:
        if self.why is Why.EXIT:
            return f"container {self.container} exited with code {self.code}" + (
                f" ({self.reason})" if self.reason not in ("", "Error") else ""
            )
        text = {
            Why.COMPLETED: "completed",
            Why.EVICTED: "evicted by its node",
            Why.DISRUPTED: "disrupted",
            Why.DELETED: "deleted by somebody else",
            Why.NODE_LOST: f"node {self.node} is lost",
            Why.DEVICE: f"GPUs of node {self.node} have failed",
            Why.CREATE_ERROR: f"container {self.container} cannot be created",
            Why.IN_PLACE: "restarted in place",
            Why.REJECTED: "failed before any container ran",
        }[self.why]
        detail = ": ".join(part for part in (self.reason, self.message) if part)
        return f"{text} ({detail})" if detail else text
