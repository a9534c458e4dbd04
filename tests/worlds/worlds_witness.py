# SPDX-License-Identifier: Apache-2.0
"""What really happened in a random world, noted from its objects, and compared with what the ledger says about it.

Nothing here uses the decisions of `core`: a pod, its exit code and the state of its node are facts of the world.
"""

from collections.abc import Mapping
from typing import Any

from trainwright.core import attempts
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import Job, RestartScope, Role
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE, SPARE
from trainwright.model.plan import Plan, ReplicaState, State, Status
from trainwright.model.units import parse_counts
from trainwright.model.verdict import Decision, FailureClass, Verdict
from trainwright.testing.world import World

#: A replica and one of its attempts: role, index, attempt.
Attempt = tuple[str, int, int]
_ENDED = (Phase.SUCCEEDED, Phase.FAILED)


class WitnessedWorld(World):
    """A world that remembers each write of the ledger: the ledgers before and after it, and the roles of the job."""

    def __init__(self, job: Job, **more: Any) -> None:
        self.stored: list[tuple[Ledger, Ledger, tuple[Role, ...]]] = []
        super().__init__(job, **more)

    def _store(self, ledger: Ledger) -> None:
        before, pending = self.job.ledger, self.pending
        super()._store(ledger)
        if pending is not None and pending.phase is not before.phase:
            # The operator has accepted the job in an earlier pass, and stores the acceptance with this ledger.
            self.stored.append((before, pending, self.job.roles))
            before = pending
        self.stored.append((before, self.job.ledger, self.job.roles))


class Witness:
    """Everything that pods and nodes of one world ever did."""

    def __init__(self, world: WitnessedWorld) -> None:
        self.world = world
        self.pods: set[Attempt] = set()
        #: Exit codes of the containers of each attempt, also of ends that a kubelet followed by a restart.
        self.codes: dict[Attempt, set[int]] = {}
        self.preempted: set[Attempt] = set()
        #: Attempts whose containers could not be created.
        self.stuck: set[Attempt] = set()
        #: Nodes that did not answer, or whose GPUs failed.
        self.bad_nodes: set[str] = set()
        #: Attempts whose pod was deleted.
        self.removed: set[Attempt] = set()
        #: How many attempts of the job the stored ledgers show.
        self.job_attempts = 0
        #: Why pods of the running job were deleted, while no restart has followed.
        self.removal: FailureClass | None = None

    def note(self, foreign: list[Pod]) -> None:
        """Remember what the pods and nodes are doing now, in the world and in the caches of the operator."""
        present: set[Attempt] = set()
        for pod in (*self.world.pods().values(), *self.world.observed().pods):
            labels = pod.metadata.labels or {}
            if pod not in foreign and labels.get(ATTEMPT, SPARE) != SPARE:
                who = (labels[ROLE], int(labels[INDEX]), int(labels[ATTEMPT]))
                self._note_pod(who, pod)
                present |= {who} if pod.metadata.deletion_timestamp is None else set()
        self.removed |= self.pods - present
        known = (self.world.nodes or {}).items()
        self.bad_nodes |= {name for name, node in known if not node.ready or len(node.status.conditions or ()) > 1}

    def _note_pod(self, who: Attempt, pod: Pod) -> None:
        self.pods.add(who)
        for one in pod.status.container_statuses or ():
            states = [state for state in (one.state, one.last_state) if state is not None]
            self.codes.setdefault(who, set()).update(s.terminated.exit_code for s in states if s.terminated is not None)
            if any(state.waiting is not None for state in states) and pod.status.phase == "Pending":
                self.stuck.add(who)
        if any(one.type == "DisruptionTarget" for one in pod.status.conditions or ()):
            self.preempted.add(who)

    # -- the verdict ---------------------------------------------------------------------------------------------

    def check_decision(self, before: Ledger, after: Ledger) -> None:
        """There is a new verdict if and only if this pass restarts or ends the job, and it says which."""
        ends, restarts = after.outcome is not None and before.outcome is None, _made(after) > _made(before)
        assert (after.verdict != before.verdict) == (ends or restarts), "a verdict without a decision, or none with one"
        verdict = after.verdict
        if verdict is None:
            assert after.outcome is None
            return
        if after.outcome is not None:
            assert (verdict.decision.value, verdict.reason) == (after.outcome.result.value, after.outcome.reason)
        else:
            assert (verdict.decision, verdict.reason in list(RestartScope)) == (Decision.RESTART, True)
        if ends or restarts:
            assert verdict.message
            self._check_failure(verdict)

    def _check_failure(self, verdict: Verdict) -> None:
        """The replica that a verdict blames has really failed in this way."""
        if not verdict.replica:
            assert verdict.decision is not Decision.RESTART
            assert verdict.failure_class in _WITHOUT_REPLICA, verdict
            return
        role, _, index = verdict.replica.rpartition("-")
        who = (role, int(index), verdict.attempt)
        assert verdict.pod == f"job-{role.lower()}-{index}"
        assert who in self.pods, f"{who} has never existed"
        assert self._has_happened(who, verdict.failure_class, verdict.code, verdict.node), verdict

    def _has_happened(self, who: Attempt, kind: FailureClass, code: object, node: str) -> bool:
        if isinstance(code, int):
            expected = FailureClass.KILLED if code > 128 else FailureClass.PROGRAM_ERROR
            return code != 0 and code in self.codes.get(who, ()) and kind is expected
        match kind:
            case FailureClass.COMPLETED:
                return 0 in self.codes.get(who, ())
            case FailureClass.PREEMPTED:
                # Of several pods that are gone, nobody knows which one was preempted.
                return who in self.preempted or (who in self.removed and bool(self.preempted & self.removed))
            case FailureClass.NODE_LOST | FailureClass.DEVICE_FAILED:
                return node in self.bad_nodes
            case FailureClass.IMAGE:
                return who in self.stuck
            case FailureClass.DISRUPTED:
                return bool(self.world.job.has_gate)  # its address has changed
            case _:
                return kind is FailureClass.DELETED and who in self.removed

    # -- counts --------------------------------------------------------------------------------------------------

    def check_writes(self) -> None:
        """Check each write of the ledger since the last call: its attempts, and the attempts of the job."""
        for before, after, roles in self.world.stored:
            self._count_attempts(before, after)
            for part in _restarted_by_replica(roles):
                old, new = attempts.find_entry(before, part.name), attempts.find_entry(after, part.name)
                raised = _retries(new, part) - _retries(old, part)
                counted = _counted(new.restarts) - _counted(old.restarts)
                # A suspension raises all attempts, and is no restart. A node that is trusted again raises the attempts
                # of the pods without a node, because their affinity excludes it.
                assert old.epoch != new.epoch or raised == counted or (raised > counted and _is_trusted(before, after))
        self.world.stored.clear()

    def _count_attempts(self, before: Ledger, after: Ledger) -> None:
        """A deleted pod ends an attempt of a running job. The restart that follows when it is gone ends no other."""
        restarts = _made(after) > _made(before)
        removed = (before.phase, after.phase) == (Phase.RUNNING, Phase.RESTARTING)
        answers = restarts and after.verdict is not None and after.verdict.failure_class is self.removal
        goes_on = _is_live(before) and _is_live(after)
        self.job_attempts += _is_live(after) if not goes_on else (restarts or removed) and not answers
        if restarts or not goes_on or after.phase is Phase.RUNNING:
            self.removal = None
        elif removed:
            self.removal = after.history.attempts[-2].cause

    def check_history(self) -> None:
        """The history has one attempt for each start, resume, restart, resize and deleted pod of a running job."""
        history = self.world.job.ledger.history
        assert history.total == self.job_attempts
        numbers = [one.number for one in history.attempts]
        assert numbers == list(range(history.total - len(numbers) + 1, history.total + 1))
        if history.attempts:
            assert (history.attempts[-1].end is None) == _is_live(self.world.job.ledger)

    def check_pods(self) -> None:
        """A replica has had a pod for each of its attempts but perhaps the last, in a job that nobody has edited."""
        for part in _restarted_by_replica(self.world.job.roles):
            tries = parse_counts(attempts.find_entry(self.world.job.ledger, part.name).retries)
            for index in {index for name, index, _ in self.pods if name == part.name}:
                seen = {attempt for name, one, attempt in self.pods if (name, one) == (part.name, index)}
                assert seen in (set(range(tries.get(index, 0) + 1)), set(range(tries.get(index, 0))))

    # -- the status ----------------------------------------------------------------------------------------------

    def check_status(self, plan: Plan, pods: dict[str, Pod]) -> None:
        """The status that a pass reports is that of the pods, if the operator has seen all of them."""
        status, running = plan.status, plan.status.ledger.phase is Phase.RUNNING
        for group in status.roles:
            for replica in group.replicas:
                pod = pods.get(f"job-{group.name.lower()}-{replica.index}")
                who = (group.name, replica.index, replica.attempt)
                self._check_replica(who, replica, pod, _attempt(pod))
                assert not running or replica.final or replica.state is State.RUNNING or self._grows(status, who)
            assert group.running == sum(replica.state is State.RUNNING for replica in group.replicas)

    def _grows(self, status: Status, who: Attempt) -> bool:
        """Whether the replica has not existed when the job began to run."""
        return who[1] >= attempts.find_entry(status.ledger, who[0]).reached

    def _check_replica(self, who: Attempt, replica: ReplicaState, pod: Pod | None, attempt: int) -> None:
        is_current, phase = attempt == replica.attempt, pod.status.phase if pod is not None else ""
        match replica.state:
            case State.RUNNING:
                assert pod is not None
                assert (is_current, phase, pod.metadata.deletion_timestamp) == (True, "Running", None)
            case State.SUCCEEDED:
                assert 0 in self.codes.get(who, ()), "no container of it has succeeded"
            case State.FAILED:
                failed = any(self.codes.get(who, ())) or who in self.preempted or who in self.stuck
                assert failed or who in self.removed or self.bad_nodes, "nothing of it has failed"
            case State.LOST:
                assert pod is not None
                assert pod.spec.node_name in self.bad_nodes or self.world.job.has_gate
            case State.WAITING:
                assert pod is None or not is_current or pod.metadata.controller is None
            case State.STARTING:
                assert (is_current, phase) == (True, "Pending")
            case State.STOPPING:
                assert pod is not None
                assert pod.metadata.deletion_timestamp is not None


#: Classes of ends that no replica has caused. The budget of a job may be used up by restarts whose reason nobody knows.
_WITHOUT_REPLICA = frozenset(
    {FailureClass.NONE, FailureClass.REQUESTED, FailureClass.DEADLINE, FailureClass.INVALID, FailureClass.RULE}
)


def check_counts(status: Status, shown: Mapping[str, tuple[int, int]]) -> None:
    """A rendered status shows for each role of a live job how many replicas run, and how many have succeeded."""
    if status.ledger.outcome is None and status.ledger.phase is not Phase.SUSPENDED:
        for group in status.roles:
            assert shown[group.name] == (group.count(State.RUNNING), group.count(State.SUCCEEDED))


def _attempt(pod: Pod | None) -> int:
    label = (pod.metadata.labels or {}).get(ATTEMPT, "") if pod is not None else ""
    return int(label) if label.isdigit() else -1


def _restarted_by_replica(roles: tuple[Role, ...]) -> list[Role]:
    """The roles in which, apart from a suspension, only the failure of a replica raises its attempt."""
    if any(part.restart.scope is RestartScope.JOB or part.resize is RestartScope.JOB for part in roles):
        return []
    alone = [part for part in roles if part.restart.scope is RestartScope.POD]
    return [part for part in alone if part.elastic is None and part.resize is None]


def _retries(entry: RoleLedger, part: Role) -> int:
    """The retries of the replicas that the role has. A removed replica gets a higher attempt without a restart."""
    return sum(times for index, times in parse_counts(entry.retries).items() if index < part.replicas)


def _is_trusted(before: Ledger, after: Ledger) -> bool:
    """Whether a node that has failed before may be used again."""
    return bool({one.node for one in before.avoided if one.failed} - {one.node for one in after.avoided})


def _is_live(ledger: Ledger) -> bool:
    return ledger.phase not in (Phase.NEW, Phase.SUSPENDED, *_ENDED)


def _made(ledger: Ledger) -> int:
    return sum(_counted(entry.restarts) for entry in ledger.roles)


def _counted(restarts: dict[str, int]) -> int:
    return sum(times for why, times in restarts.items() if why != CauseKind.IN_PLACE)
