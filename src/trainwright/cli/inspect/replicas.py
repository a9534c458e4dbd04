# SPDX-License-Identifier: Apache-2.0
"""The replicas of a job, each with its state, node and restarts; after the end of a run, with its last known state."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from trainwright.cli.condition import PodCondition, condition
from trainwright.cli.inspect.evidence import JobEvidence
from trainwright.cli.inspect.facts import JobView, states_at_end
from trainwright.cli.logs.select import LogSelection, chosen, highest_restarts
from trainwright.cli.record import earlier_attempts
from trainwright.core.budget import pod_in_place_restarts
from trainwright.model.child import BACKING_OFF
from trainwright.model.ledger import Failure, Ledger
from trainwright.model.meta import Key, Wire
from trainwright.model.plan import ReplicaState, State

#: The state of a replica that had not ended when its job or its run ended.
STOPPED = "Stopped"
UNKNOWN = "Unknown"
_ENDED = (State.SUCCEEDED, State.FAILED)


class ReplicaReport(Wire, frozen=True, gc=False):
    """One replica.

    `state` is one of Waiting, Starting, Running, Stopping, Succeeded, Failed, Lost; after the end of a run also
    Stopped: the replica was ended with its job or with the run; Unknown: the run was killed.
    """

    name: str
    state: str
    pod: str
    attempt: int = 0
    restarts: int = 0
    node: str = ""
    reason: str = ""


class LastPod(Struct, frozen=True, gc=False):
    """The last pod of a replica in a past run."""

    attempt: int
    node: str
    #: How often its containers were restarted inside it.
    inside: int
    #: Whether it had a node.
    started: bool


def replica_reports(evidence: JobEvidence, view: JobView) -> Iterator[ReplicaReport]:
    """All replicas, in the order of roles and indexes."""
    past = _last_pods(evidence.folder, view.job.key) if evidence.folder is not None else {}
    reasons = {pod["metadata"]["name"]: _reason(condition(pod)) for pod in evidence.pods}
    at_end = states_at_end(evidence)
    failures = _last_failures(view.status.ledger)
    for role in view.status.roles:
        for one in role.replicas:
            name, pod = f"{role.name}-{one.index}", view.job.key.replica_name(role.name, one.index)
            last, failure = past.get(name), failures.get((role.name, one.index))
            attempt = one.attempt if last is None else last.attempt
            if failure is not None and (one.pod is not None or failure.attempt != attempt):
                failure = None
            yield ReplicaReport(
                name,
                _state(evidence, one, last, failure),
                pod,
                attempt,
                _restarts(view.status.ledger, role.name, attempt, one, last),
                _node(one, last, failure),
                str(failure.cause) if failure is not None else reasons.get(pod) or at_end.get(name, ""),
            )


def _reason(found: PodCondition) -> str:
    """The reason. While a container waits for its restart in place, the phase is added: the state is only Running."""
    return f"{found.phase}: {found.reason}" if found.phase == BACKING_OFF else found.reason


def _last_failures(ledger: Ledger) -> dict[tuple[str, int], Failure]:
    decisive = ledger.outcome.failure if ledger.outcome is not None else None
    known = (*ledger.failures, *((decisive,) if decisive is not None else ()))
    return {(one.role, one.index): one for one in sorted(known, key=lambda one: one.attempt)}


def _state(evidence: JobEvidence, one: ReplicaState, last: LastPod | None, failure: Failure | None) -> str:
    if evidence.live or one.state in _ENDED:
        return one.state
    if evidence.ending is None:
        return UNKNOWN
    if failure is not None:
        return State.FAILED
    return State.WAITING if last is None or not last.started else STOPPED


def _restarts(ledger: Ledger, role: str, attempt: int, one: ReplicaState, last: LastPod | None) -> int:
    inside = pod_in_place_restarts(one.pod) if one.pod is not None else last.inside if last is not None else 0
    return earlier_attempts(ledger, role, attempt) + inside


def _node(one: ReplicaState, last: LastPod | None, failure: Failure | None) -> str:
    if one.pod is not None:
        return one.pod.spec.node_name
    return (failure.cause.node if failure is not None else "") or (last.node if last is not None else "")


def _last_pods(folder: Path, key: Key) -> Mapping[str, LastPod]:
    """The last pod of each replica that had one, as the run has recorded it."""
    pods = {pod.replica: pod for pod in chosen(folder, LogSelection(str(key)))}
    inside = highest_restarts(folder, pods.values())
    # Runs of older versions have not recorded nodes; a pod with a log had one.
    return {
        name: LastPod(pod.attempt, pod.node, inside.get(pod.uid, 0), bool(pod.node) or pod.uid in inside)
        for name, pod in pods.items()
    }
