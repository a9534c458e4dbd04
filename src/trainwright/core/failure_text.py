# SPDX-License-Identifier: Apache-2.0
"""Failures in words: what happened to a replica, as the end of a sentence that begins with its name."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core.advice import ON_CLUSTER, RunPlace, advise
from trainwright.core.diagnose import Diagnosis, diagnose
from trainwright.model.cause import Cause, CauseKind, brief, signal_name
from trainwright.model.job import Job
from trainwright.model.ledger import Failure
from trainwright.model.units import format_indexes
from trainwright.model.verdict import FailureClass, LossKind

#: Longest detail in a sentence, in characters.
_LONGEST_DETAIL = 300
#: At most this many replicas are named in a sentence.
_MAX_NAMES = 4

#: What happened to the replica, by class. For a program that ended itself, the line of its log follows.
_PHRASES = {
    FailureClass.IMPORT_ERROR: "could not import a Python module",
    FailureClass.OUT_OF_MEMORY: "ran out of memory",
    FailureClass.DEVICE_OUT_OF_MEMORY: "had no GPU memory left",
    FailureClass.SHARED_MEMORY: "had no shared memory left (bus error, /dev/shm)",
    FailureClass.DISK_FULL: "had no disk space left",
    FailureClass.PORT_IN_USE: "found its port already in use",
    FailureClass.NAME_RESOLUTION: "could not resolve a host name",
    FailureClass.RENDEZVOUS: "did not reach its peers, or lost them",
    FailureClass.IMAGE: "cannot use its image",
    FailureClass.MISSING_OBJECT: "needs an object that does not exist",
    FailureClass.NODE_LOST: "lost its node",
    FailureClass.DEVICE_FAILED: "lost its GPUs, which have failed",
    FailureClass.PREEMPTED: "was preempted: another pod needed its place",
    FailureClass.EVICTED: "was evicted: its node had too few resources left",
    FailureClass.DISRUPTED: "was disrupted",
    FailureClass.DELETED: "was deleted by a user or by another controller",
}
_OOM_REASON = "OOMKilled"


class FailureAccount(Struct, frozen=True, gc=False):
    """One failure, diagnosed with the termination message, and with the log if it was read."""

    failure: Failure
    diagnosis: Diagnosis
    #: The memory limit of the container, as the manifest gives it; empty: none.
    memory_limit: str = ""
    #: Whether its pod has several containers, so that the container must be named.
    several: bool = False

    @property
    def replica(self) -> str:
        """Role and index, for example `worker-1`."""
        return f"{self.failure.role}-{self.failure.index}"

    def text(self) -> str:
        """Return what happened, for example `worker-1 ran out of memory (limit 64Mi) on node node-0`."""
        cause = self.failure.cause
        place = f" on node {cause.node}" if cause.node else ""
        if self.diagnosis.failure_class is FailureClass.NODE_LOST:
            place = place.removeprefix(" on node")
        detail = f": {self._detail()}" if self._detail() else ""
        container = f" (container {cause.container})" if self.several and cause.container else ""
        return brief(f"{self.replica}{container} {self._phrase()}{place}{detail}")

    def _phrase(self) -> str:
        cause, found = self.failure.cause, self.diagnosis.failure_class
        if found is FailureClass.OUT_OF_MEMORY and self.memory_limit:
            return f"ran out of memory (limit {self.memory_limit})"
        if found is FailureClass.COMMAND_NOT_FOUND:
            return "did not find a command or file" if cause.started else "could not start its command"
        if self.diagnosis.shell_signal:
            return f"{exit_text(cause)} ({signal_name(self.diagnosis.shell_signal)} ended a command of its shell)"
        if found is FailureClass.SHARED_MEMORY and cause.signal:
            return f"{exit_text(cause)}: /dev/shm was full, or a mapped file became shorter,"
        return _PHRASES.get(found) or exit_text(cause)

    def _detail(self) -> str:
        """Return the text that shows the class: a line of the program, or the message of the node."""
        cause = self.failure.cause
        if self.diagnosis.line:
            return self.diagnosis.line
        if cause.why is not CauseKind.EXIT:
            parts = (cause.reason, _first_line(cause.message)) if cause.why is not CauseKind.NODE_LOST else ()
            return ": ".join(part for part in parts if part)
        # The reason OOMKilled says all; the message of the node repeats it.
        message = "" if cause.reason == _OOM_REASON else _first_line(cause.message)
        last = self.diagnosis.last_line
        return message or (f"the last line of its log is: {last}" if last else "")


def account_for(job: Job, failure: Failure, lines: Iterable[str] = (), place: RunPlace = ON_CLUSTER) -> FailureAccount:
    """Diagnose a failure. `lines`: the last lines of its log, if they were read."""
    role = next((one for one in job.roles if one.name == failure.role), None)
    spec = (role.template.get("spec") or {}) if role is not None else {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    limits = {one.get("name"): (one.get("resources") or {}).get("limits") or {} for one in containers}
    limit = str(limits.get(failure.cause.container, {}).get("memory") or "")
    found = diagnose(failure.cause, lines)
    found = replace(found, action=advise(failure.cause, found, place))
    return FailureAccount(failure, found, limit, len(containers) > 1)


def exit_text(cause: Cause) -> str:
    """Return how a replica ended, without the name of its container: `exited with code 3`."""
    return str(cause).removeprefix(f"container {cause.container} ")


def loss_text(cause: str) -> str:
    """Return what time was lost to, in words: `until all replicas ran`, `after NodeLost`."""
    words = {LossKind.START.value: "until all replicas ran", LossKind.SUSPENDED.value: "while it was suspended"}
    return words.get(cause) or f"after {cause}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:_LONGEST_DETAIL]


def replica_names(replicas: Sequence[str]) -> str:
    """Return some replicas in words: `worker-1`, `worker-0 and ps-1`, `worker 0-99`, `worker 0-3 and 12 more`."""
    if len(replicas) <= 2:
        return " and ".join(replicas)
    by_role: dict[str, list[int]] = {}
    for name in replicas:
        role, _, index = name.rpartition("-")
        by_role.setdefault(role, []).append(int(index))
    return " and ".join(f"{role} {_indexes(indexes)}" for role, indexes in by_role.items())


def _indexes(indexes: list[int]) -> str:
    parts = format_indexes(indexes).split(",")
    more = len(parts) - _MAX_NAMES
    return ", ".join(parts[:_MAX_NAMES]) + (f" and {more} more ranges" if more > 0 else "")
