# SPDX-License-Identifier: Apache-2.0
"""Whether an ended replica may be restarted: by policy, exit code, and the budgets of replica, role and job.

The ledger holds the counts. The ledger is stored before any pod is deleted, so no count is lost if our process is
killed.
"""

from collections.abc import Iterable

from msgspec import Struct

from trainwright.core import attempts
from trainwright.core.classify import last_in_place_end
from trainwright.core.observe import Snapshot
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import Job, RestartScope, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.plan import ReplicaState, RoleState, State
from trainwright.model.units import parse_row


class EndedReplica(Struct, frozen=True, gc=False):
    """A replica that has ended, with its cause. The pass either restarts it or makes it final."""

    role: Role
    replica: ReplicaState
    cause: Cause

    @property
    def scope(self) -> RestartScope:
        """What is restarted. If the pod was deleted: only the pod, unless `Restart.answers_removal` is true."""
        rule = self.role.restart
        return RestartScope.POD if self.cause.why is CauseKind.DELETED and not rule.answers_removal else rule.scope

    @property
    def counted_as(self) -> CauseKind:
        """The kind under which the ledger counts the restart. Of several kinds, a kind that uses no budget wins."""
        return next((why for why in self.cause.kinds if why in self.role.uncounted), self.cause.why)

    @property
    def is_free(self) -> bool:
        """Whether the restart uses no budget."""
        return self.counted_as in self.role.uncounted


class RestartCascade:
    """The roles that this pass already restarts as a whole. Further ended replicas of these roles use no budget."""

    def __init__(self) -> None:
        self.everything = False
        self.roles: set[str] = set()

    def add(self, retry: EndedReplica) -> None:
        """Include the scope of this restart."""
        self.everything |= retry.scope is RestartScope.JOB
        if retry.scope is RestartScope.ROLE:
            self.roles.add(retry.role.name)

    def __contains__(self, role: Role) -> bool:
        return self.everything or role.name in self.roles


class BudgetUse:
    """How much of its budget a role, or each of its replicas, has used, including restarts granted in this pass."""

    def __init__(self, role: Role, entry: RoleLedger) -> None:
        self._limit = role.restart.limit
        self._role = attempts.budget_used(entry, role.uncounted)
        self._replicas = parse_row(entry.charged) if role.restart.per_replica else None
        #: Restarts of the role that were granted in this pass.
        self.more = 0

    def allows(self, one: EndedReplica) -> bool:
        """Return whether the budget allows this restart. `more` matters only for budgets of roles."""
        if self._limit is None:
            return True
        used = self._role + self.more if self._replicas is None else self._replicas.get(one.replica.index, 0)
        return used < self._limit


def split_ended(ledger: Ledger, ended: list[EndedReplica]) -> tuple[list[EndedReplica], list[EndedReplica]]:
    """Split ended replicas into replicas to restart and final replicas. Low indexes use the role's budget first.

    A replica whose containers cannot be created has not ended. If the budget allows no new pod for it, neither list
    contains the replica.
    """
    retries: list[EndedReplica] = []
    finals: list[EndedReplica] = []
    use: dict[str, BudgetUse] = {}
    along = RestartCascade()
    for one in ended:
        role = one.role
        if role.name not in use:
            use[role.name] = BudgetUse(role, attempts.find_entry(ledger, role.name))
        gratis = one.is_free or role in along
        if _policy_allows(one) and (gratis or use[role.name].allows(one)):
            use[role.name].more += not gratis
            retries.append(one)
            along.add(one)
        elif one.replica.state is not State.STARTING:
            finals.append(one)
    return retries, finals


def _policy_allows(one: EndedReplica) -> bool:
    """Return whether the policy restarts after this cause and exit code."""
    rule = one.role.restart
    if one.cause.why is CauseKind.DELETED or one.replica.state is State.STARTING:
        return True
    if not any(one.role.may_retry(why) for why in one.cause.kinds):
        return False
    if one.cause.why is not CauseKind.EXIT or rule.codes is None:
        return True
    if one.role.main_containers and one.cause.container not in one.role.main_containers:
        # The policy's exit codes apply only to the main containers.
        return rule.retries_other_containers
    code = one.cause.code
    return isinstance(code, int) and any(first <= code <= last for first, last in rule.codes)


def within_backoff_limit(
    view: Snapshot, retries: list[EndedReplica]
) -> tuple[tuple[EndedReplica, ...], EndedReplica | None]:
    """Apply the job's own restart budget: return the restarts within it and the first restart beyond it."""
    limit = view.job.lifecycle.restarts_allowed
    if limit is None or not retries:
        return tuple(retries), None
    room = limit - restarts_used(view)
    along = RestartCascade()
    for place, one in enumerate(retries):
        if not (one.is_free or one.role in along):
            if room <= 0:
                return tuple(retries[:place]), one
            room -= 1
        along.add(one)
    return tuple(retries), None


def is_overspent(view: Snapshot) -> bool:
    """Return whether the job's budget is exceeded, in a job whose budget also counts in-place restarts by kubelets."""
    limit = view.job.lifecycle.restarts_allowed
    return limit is not None and view.job.lifecycle.counts_in_place and restarts_used(view) > limit


def most_restarted(view: Snapshot) -> EndedReplica | None:
    """Return the replica with the most in-place restarts, and its last in-place end; None if that is unknown."""
    pairs = zip(view.job.roles, view.roles, strict=True)
    replica = [(role, one, one.pod) for role, group in pairs for one in group.replicas if one.pod is not None]
    if not replica:
        return None
    role, one, pod = max(replica, key=lambda each: pod_in_place_restarts(each[2]))
    cause = last_in_place_end(pod)
    return None if cause is None else EndedReplica(role, one, cause)


def restarts_used(view: Snapshot) -> int:
    """Return how many restarts of all roles count against the job's budget."""
    return restarts_counted(view.job, view.ledger, view.roles)


def restarts_counted(job: Job, ledger: Ledger, roles: Iterable[RoleState]) -> int:
    """Return how many restarts count against the budget of a job with this ledger and these replicas."""
    pairs = zip(job.roles, ledger.roles, strict=True)
    made = sum(attempts.budget_used(entry, role.uncounted) for role, entry in pairs)
    if not job.lifecycle.counts_in_place:
        return made
    if ledger.outcome is not None:
        return made + sum(entry.inside for entry in ledger.roles)  # counted when the job ended
    return made + sum(in_place_restarts(role.replicas) for role in roles)


def in_place_restarts(replicas: Iterable[ReplicaState]) -> int:
    """Return how often kubelets restarted containers in the current pods of these replicas."""
    return sum(pod_in_place_restarts(replica.pod) for replica in replicas if replica.pod is not None)


def pod_in_place_restarts(pod: Pod) -> int:
    """Return how often the kubelet restarted containers of this pod."""
    groups = (pod.status.init_container_statuses, pod.status.container_statuses)
    return sum(container.restart_count for group in groups for container in group or ())
