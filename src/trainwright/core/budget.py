# SPDX-License-Identifier: Apache-2.0
"""Whether an ended replica may be tried again: by policy, exit code, its own or its role's budget, the job's.

Budgets are compared with the counts in the ledger, which are stored before anything is deleted: they survive a kill.
"""

from collections.abc import Iterable

from msgspec import Struct

from trainwright.core import attempts
from trainwright.core.classify import restarted
from trainwright.core.observe import Snapshot
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import RestartScope, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.plan import ReplicaState, State
from trainwright.model.units import row


class Retry(Struct, frozen=True, gc=False):
    """A replica that has ended, and why; to be tried again, or not."""

    role: Role
    seen: ReplicaState
    cause: Cause

    @property
    def scope(self) -> RestartScope:
        """What the restart takes along: the role's scope, except for a removal that its policy does not answer."""
        rule = self.role.restart
        return RestartScope.POD if self.cause.why is CauseKind.DELETED and not rule.answers_removal else rule.scope

    @property
    def counted(self) -> CauseKind:
        """What it is counted as: of all that it is, what is free."""
        return next((why for why in self.cause.kinds if why in self.role.uncounted), self.cause.why)

    @property
    def free(self) -> bool:
        """It does not use up any budget."""
        return self.counted in self.role.uncounted


class RestartCascade:
    """Which roles the restarts so far take along anyway: a scope that restarts costs once, however many have ended."""

    def __init__(self) -> None:
        self.everything = False
        self.roles: set[str] = set()

    def add(self, retry: Retry) -> None:
        """This restart takes its scope along."""
        self.everything |= retry.scope is RestartScope.JOB
        if retry.scope is RestartScope.ROLE:
            self.roles.add(retry.role.name)

    def __contains__(self, role: Role) -> bool:
        return self.everything or role.name in self.roles


class Spending:
    """What a role, or each of its replicas, has used of its budget, with the restarts of this pass."""

    def __init__(self, role: Role, book: RoleLedger) -> None:
        self._limit = role.restart.limit
        self._role = attempts.restarts(book, role.uncounted)
        self._replicas = row(book.charged) if role.restart.per_replica else None
        #: Restarts of the role that this pass has granted so far.
        self.more = 0

    def allows(self, one: Retry) -> bool:
        """Whether there is budget left for this restart; a replica ends once in a pass at most."""
        if self._limit is None:
            return True
        used = self._role + self.more if self._replicas is None else self._replicas.get(one.seen.index, 0)
        return used < self._limit


def split(ledger: Ledger, ended: list[Retry]) -> tuple[list[Retry], list[Retry]]:
    """To be tried again, and over for good: in index order, for as long as the budget of the role or replica lasts.

    A pod that is only stuck has not ended: one that may not be replaced is left as it is.
    """
    retries: list[Retry] = []
    finals: list[Retry] = []
    spent: dict[str, Spending] = {}
    along = RestartCascade()
    for one in ended:
        role = one.role
        if role.name not in spent:
            spent[role.name] = Spending(role, attempts.of_role(ledger, role.name))
        gratis = one.free or role in along
        if _answers(one) and (gratis or spent[role.name].allows(one)):
            spent[role.name].more += not gratis
            retries.append(one)
            along.add(one)
        elif one.seen.state is not State.STARTING:
            finals.append(one)
    return retries, finals


def _answers(one: Retry) -> bool:
    """The policy answers this cause, and this exit code."""
    rule = one.role.restart
    if one.cause.why is CauseKind.DELETED or one.seen.state is State.STARTING:
        return True
    if not any(one.role.survives(why) for why in one.cause.kinds):
        return False
    if one.cause.why is not CauseKind.EXIT or rule.codes is None:
        return True
    if one.role.mains and one.cause.container not in one.role.mains:
        # The codes are a language between user and controller, and only the containers that count speak it.
        return rule.beside
    code = one.cause.code
    return isinstance(code, int) and any(first <= code <= last for first, last in rule.codes)


def within_backoff_limit(view: Snapshot, retries: list[Retry]) -> tuple[tuple[Retry, ...], Retry | None]:
    """The job's own budget, over all roles: those within it, and the first beyond it."""
    limit = view.job.lifecycle.restarts_allowed
    if limit is None or not retries:
        return tuple(retries), None
    room = limit - spent(view)
    along = RestartCascade()
    for place, one in enumerate(retries):
        if not (one.free or one.role in along):
            if room <= 0:
                return tuple(retries[:place]), one
            room -= 1
        along.add(one)
    return tuple(retries), None


def overspent(view: Snapshot) -> bool:
    """Restarts inside pods alone can exceed the job's budget."""
    limit = view.job.lifecycle.restarts_allowed
    return limit is not None and view.job.lifecycle.counts_in_place and spent(view) > limit


def worst(view: Snapshot) -> Retry | None:
    """The replica whose kubelet has restarted it most often, and how it last ended; None where that is not known."""
    pairs = zip(view.job.roles, view.roles, strict=True)
    seen = [(role, one, one.pod) for role, group in pairs for one in group.replicas if one.pod is not None]
    if not view.job.lifecycle.counts_in_place or not seen:
        return None
    role, one, pod = max(seen, key=lambda each: in_place(each[2]))
    cause = restarted(pod)
    return None if cause is None else Retry(role, one, cause)


def spent(view: Snapshot) -> int:
    """Restarts of all roles together that count against the job's budget."""
    books = {book.name: book for book in view.ledger.roles}
    made = sum(attempts.restarts(books[role.name], role.uncounted) for role in view.job.roles)
    if not view.job.lifecycle.counts_in_place:
        return made
    return made + sum(inside(role.replicas) for role in view.roles)


def inside(replicas: Iterable[ReplicaState]) -> int:
    """How often kubelets have restarted containers of these replicas, in their pods of the current attempt."""
    return sum(in_place(seen.pod) for seen in replicas if seen.pod is not None)


def in_place(pod: Pod) -> int:
    """How often the kubelet has restarted containers of this pod."""
    groups = (pod.status.init_container_statuses, pod.status.container_statuses)
    return sum(container.restart_count for group in groups for container in group or ())
