# SPDX-License-Identifier: Apache-2.0
"""Whose a child is. Called by `observe` first of all: nothing is concluded from, or done to, what is not ours.

Ours: its controller is this job, by UID. A pod to adopt: it bears a replica's name and this job's UID as a label, and
has no controller. A pod to release: we control and once labelled it, but somebody took its labels away; it is let go,
not removed. All else is foreign, and where it bears a name that we need, `create` says so.

What is there, classified once: children → replicas by role and index, leftovers, claims. The first step of a pass.

Later steps never look at raw pods again. `reconcile` calls `observe`; every step takes and returns a `View`.

Where a job is, and which moves there are. `lifecycle` asks for the phase; `docs/state-machine.md` prints MOVES.

`Pending` and `Resuming` last until every replica has run; after that a replica that is missing means `Restarting`.
The ends are final. A test drives random worlds and holds every move it sees against the table, both ways.
"""

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from trainwright.core import attempts, classify, gate, nodes
from trainwright.core.classify import conclude
from trainwright.core.nodes import NodeHealth
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Body, Job, Role
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, SPARE, Meta, Owner
from trainwright.model.plan import Patch, ReplicaState, RoleState, State
from trainwright.model.site import Site
from trainwright.model.units import Time, members


def is_ours(job: Job, pod: Pod) -> bool:
    """Controlled by this very job, and labelled as we label."""
    labels = pod.metadata.labels
    if not labels or labels.get(JOB_UID) != job.uid or ROLE not in labels or INDEX not in labels:
        return False
    return _controlled(pod.metadata, job.uid)


def adopt(job: Job, pod: Pod) -> Patch | None:
    """What to do about a pod that is not (yet, or any longer) ours; foreign pods and dying ones are left alone."""
    if job.deleting or pod.metadata.deletion_timestamp is not None:
        return None
    labels = pod.metadata.labels or {}
    controller = pod.metadata.controller
    complete = labels.get(JOB_UID) == job.uid and ROLE in labels and INDEX in labels and ATTEMPT in labels
    if complete and controller is None and _named(job, pod.metadata.name, labels):
        return _owners(
            pod, (*_others(job, pod), job.owner), "adopted: it carries this job's UID and nobody controls it"
        )
    if not complete and KIND in labels and controller is not None and controller.uid == job.uid:
        return _owners(pod, _others(job, pod), "released: its labels no longer name a replica of this job")
    return None


def _named(job: Job, name: str, labels: Mapping[str, str]) -> bool:
    """It bears the very name of the replica that its labels speak of, and the job has such a role."""
    index = labels[INDEX]
    if not index.isdecimal() or len(index) > 7 or all(role.name != labels[ROLE] for role in job.roles):
        return False
    return name == job.key.replica_name(labels[ROLE], int(index)) and index == str(int(index))


def owned_by(job: Job, observed: Observed) -> Observed:
    """The same without services and extras that somebody else controls."""
    uid = job.uid
    services = tuple([one for one in observed.services if _controlled(one.metadata, uid)])
    extras = tuple([one for one in observed.extras if _controlled(one.metadata, uid)]) if observed.extras else ()
    if len(services) == len(observed.services) and len(extras) == len(observed.extras):
        return observed
    return replace(observed, services=services, extras=extras)


def _controlled(meta: Meta, uid: str) -> bool:
    owners = meta.owner_references
    if not owners:
        return False
    # Almost everything has its controller first; the property walks lists.
    first = owners[0]
    if first.controller:
        return first.uid == uid
    controller = meta.controller
    return controller is not None and controller.uid == uid


def _others(job: Job, pod: Pod) -> tuple[Owner, ...]:
    return tuple(owner for owner in pod.metadata.owner_references or () if owner.uid != job.uid)


def _owners(pod: Pod, owners: tuple[Owner, ...], why: str) -> Patch:
    body: Body = {"metadata": {"ownerReferences": [to_builtins(owner) for owner in owners]}}
    return Patch("Pod", pod.metadata.name, pod.metadata.uid, body, why)


class StalePod(Struct, frozen=True, gc=False):
    """A pod of ours that is no wanted replica: of an old attempt, or of a role or index that is gone."""

    pod: Pod
    role: str
    index: int
    why: str
    #: It holds a place for a replica that may come: `autosize` says for how long.
    spare: bool = False


class Snapshot(Struct, frozen=True, gc=False):
    """One pass over one job. `job.ledger` is the working copy, `stored` is what the job came with."""

    job: Job
    stored: Ledger
    observed: Observed
    site: Site
    now: Time
    roles: tuple[RoleState, ...]
    leftovers: tuple[StalePod, ...] = ()
    claims: tuple[Patch, ...] = ()
    #: Nodes of its pods that are not as they should be, lost or not yet.
    doubts: Mapping[str, NodeHealth] = {}
    #: Every replica runs: nothing has ended, nothing is missing. Most passes over most jobs are like that.
    calm: bool = False
    #: Names of pods that are not ours, or not yet.
    foreign: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The working copy of the durable state."""
        return self.job.ledger

    def remember(self, ledger: Ledger) -> "Snapshot":
        """The same pass with another working copy."""
        return self if ledger is self.job.ledger else replace(self, job=replace(self.job, ledger=ledger))

    def again(self) -> "Snapshot":
        """Look once more: attempts have been raised, so pods that counted a moment ago are stale."""
        return replace(observe(self.job, self.observed, self.site, self.now), stored=self.stored)


Slots = dict[int, tuple[int, Pod]]
RUNNING = State.RUNNING


def observe(job: Job, observed: Observed, site: Site, now: Time) -> Snapshot:
    """Classify every pod: replica, leftover, or not ours."""
    observed = owned_by(job, observed)
    slots: dict[str, Slots] = {role.name: {} for role in job.roles}
    leftovers: list[StalePod] = []
    patches: list[Patch] = []
    foreign: list[str] = []
    for pod in observed.pods:
        if is_ours(job, pod):
            _place(pod, slots, leftovers)
            continue
        foreign.append(pod.metadata.name)
        if (patch := adopt(job, pod)) is not None:
            patches.append(patch)
    books = {book.name: book for book in job.ledger.roles}
    doubts, passed = nodes.doubts(job, observed, site, now), gate.passed(job, observed)
    looker = _Looker(site, now, doubts, leftovers, passed, job.ledger.outcome is None)
    seen = tuple([looker.look(role, slots[role.name], books) for role in job.roles])
    if looker.passed:
        seen = gate.moved(job, observed, seen)
    running = sum([role.running for role in seen])
    calm = running > 0 and running == sum([role.replicas for role in job.roles])
    view = Snapshot(
        job,
        job.ledger,
        observed,
        site,
        now,
        seen,
        tuple(leftovers),
        tuple(patches),
        looker.doubts,
        calm,
        tuple(foreign),
    )
    return view.remember(_rebuilt(job, books))


def _place(pod: Pod, slots: dict[str, Slots], leftovers: list[StalePod]) -> None:
    """Into its slot; of several in one slot the highest attempt stays."""
    labels = pod.metadata.labels or {}
    role, index, attempt = labels[ROLE], _number(labels[INDEX]), _number(labels.get(ATTEMPT, "0"))
    slot = slots.get(role)
    if slot is None:
        leftovers.append(StalePod(pod, role, index, f"the job has no role {role}"))
        return
    other = slot.setdefault(index, (attempt, pod))
    if other[1] is not pod:
        # By UID where nothing else tells them apart: the order in which they are listed must not decide.
        older, newer = sorted(((attempt, pod), other), key=lambda found: (found[0], found[1].metadata.uid))
        slot[index] = newer
        leftovers.append(StalePod(older[1], role, index, f"there is another pod for {role} {index}"))


@lru_cache(maxsize=16384)
def _number(text: str) -> int:
    """A label's number; -1, which no replica has, for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _rebuilt(job: Job, books: dict[str, RoleLedger]) -> Ledger:
    """The ledger with one entry per role of the job, in the job's order."""
    wanted = tuple([books[role.name] for role in job.roles])
    return job.ledger if wanted == job.ledger.roles else replace(job.ledger, roles=wanted)


class _Looker(Struct, frozen=True, gc=False):
    """What every replica of a pass is looked at with."""

    site: Site
    now: Time
    doubts: Mapping[str, NodeHealth]
    leftovers: list[StalePod]
    #: The gate of this attempt is open.
    passed: bool = False
    #: The job has not ended.
    live: bool = True

    def look(self, role: Role, slot: Slots, books: dict[str, RoleLedger]) -> RoleState:
        """The replicas of one role; its book is opened, or corrected where pods know better."""
        book = books.get(role.name) or RoleLedger(role.name)
        if slot and (higher := _higher(slot, book)):
            book = attempts.learn(book, higher)
        if self.live and book.restarts and role.restart.per_replica:
            book = attempts.attributed(role, book)
        if slot and book.pending:
            book = attempts.happened(book, _current(slot, book))
        if slot and (max(slot) >= role.replicas or min(slot) < 0):
            book = self._shrink(role, slot, book)
        if book.reached > role.replicas or book.succeeded or book.failed:
            book = attempts.resize(book, role.replicas)
        if self.passed:
            book = gate.reached(role, book)
        books[role.name] = book
        replicas = [self._replica(role, book, index, slot.get(index)) for index in range(role.replicas)]
        return RoleState(role.name, tuple(replicas), sum([one.state is RUNNING for one in replicas]))

    def _shrink(self, role: Role, slot: Slots, book: RoleLedger) -> RoleLedger:
        """Replicas that are no longer wanted go; should one come back, it is a new one, and its old pod is stale."""
        surplus = [(index, found) for index, found in sorted(slot.items()) if not 0 <= index < role.replicas]
        why = f"{role.name} has {role.replicas} replica{'s' * (role.replicas != 1)}"
        self.leftovers.extend(StalePod(pod, role.name, index, why, _spare(pod)) for index, (_, pod) in surplus)
        current = [index for index, (found, _) in surplus if index >= 0 and found >= attempts.attempt(book, index)]
        return attempts.retry(book, current) if current else book

    def _replica(self, role: Role, book: RoleLedger, index: int, found: tuple[int, Pod] | None) -> ReplicaState:
        """One replica: its pod if that is of the current attempt, else what is remembered of it."""
        if found is not None and found[0] == book.epoch and not (book.retries or book.succeeded or book.failed):
            pod = found[1]
            # The dull case, which `classify` would find as well, only not as fast.
            if (
                pod.status.phase == "Running"
                and pod.metadata.deletion_timestamp is None
                and pod.spec.node_name not in self.doubts
                and not (role.mains and _any_ended(pod))
            ):
                return ReplicaState(index, book.epoch, RUNNING, pod)
        return self._unusual(role, book, index, found)

    def _unusual(self, role: Role, book: RoleLedger, index: int, found: tuple[int, Pod] | None) -> ReplicaState:
        current = attempts.attempt(book, index)
        pod = old = None
        state, cause = State.WAITING, None
        if found is not None and found[0] >= current:
            pod = found[1]
            state, cause = conclude(pod, role, self.doubts.get(pod.spec.node_name), self.site, self.now)
            if state is State.STARTING and cause is not None and role.recreates:
                over = classify.creation_given_up(book, index, pod, self.site.creating, self.now)
                state = State.FAILED if over else state
        elif found is not None:
            old = found[1]
            why = "its place is needed" if _spare(old) else f"attempt {found[0]} has been replaced by {current}"
            self.leftovers.append(StalePod(old, role.name, index, why))
        if book.succeeded and index in members(book.succeeded):
            return ReplicaState(index, current, State.SUCCEEDED, pod, cause, True, old)
        if book.failed and index in members(book.failed):
            return ReplicaState(index, current, State.FAILED, pod, cause, True, old)
        return ReplicaState(index, current, state, pod, cause, False, old)


def _spare(pod: Pod) -> bool:
    return (pod.metadata.labels or {}).get(ATTEMPT) == SPARE


def _any_ended(pod: Pod) -> bool:
    """Whether any of its containers has ended, so that those which count may have."""
    for container in pod.status.container_statuses or ():
        if container.state is not None and container.state.terminated is not None:
            return True
    return False


def _current(slot: Slots, book: RoleLedger) -> frozenset[int]:
    """The replicas that have a pod of their current attempt."""
    return frozenset(index for index, (found, _) in slot.items() if found >= attempts.attempt(book, index))


def _higher(slot: Slots, book: RoleLedger) -> dict[int, int]:
    """Attempts on pods that are above what is stored: only after a status was lost."""
    epoch = book.epoch
    return {
        index: found
        for index, (found, _) in slot.items()
        if found > epoch and index >= 0 and found > attempts.attempt(book, index)
    }


_ENDS: Mapping[Phase, str] = {
    Phase.SUCCEEDED: "the success rule is fulfilled, or somebody asked for this end",
    Phase.FAILED: "a failure rule is fulfilled, success is out of reach, or a deadline, a budget or somebody ended it",
}
_SUSPEND = {Phase.SUSPENDED: "suspension is asked for: every pod is removed, what had finished is forgotten"}
_RUN = {Phase.RUNNING: "every replica runs or has finished"}

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.NEW: {
        Phase.PENDING: "the job is accepted",
        Phase.SUSPENDED: "the job is created suspended",
        Phase.RUNNING: "the job is accepted and its pods already run (a status was lost)",
        Phase.SUCCEEDED: "the job is accepted and its pods have already fulfilled the success rule (a status was lost)",
        Phase.FAILED: "the manifest cannot be run, or its end was asked for before it began",
    },
    Phase.PENDING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.RUNNING: {
        Phase.RESTARTING: "a replica that ran is being replaced",
        **_SUSPEND,
        **_ENDS,
    },
    Phase.RESTARTING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUSPENDED: {
        Phase.RESUMING: "suspension is lifted: every replica is made anew",
        Phase.SUCCEEDED: "somebody asked for this end",
        Phase.FAILED: "somebody asked for this end",
    },
    Phase.RESUMING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUCCEEDED: {},
    Phase.FAILED: {},
}

FINAL = frozenset(phase for phase, moves in MOVES.items() if not moves)


def up(seen: ReplicaState) -> bool:
    """It runs, or has run to its end."""
    return seen.state is State.RUNNING or seen.final


def present(role: RoleState) -> bool:
    """Every replica of the role has a pod, or has finished."""
    return all(seen.pod is not None or seen.final for seen in role.replicas)


def has_arrived(view: Snapshot, role: RoleState) -> bool:
    """Every replica of the role has existed; those by which it grows while the job runs count once they are up.

    Else they would be missed in the next pass, as if they had been up before.
    """
    return all(up(seen) for seen in role.replicas) if view.ledger.phase is Phase.RUNNING else present(role)


def phase_of(view: Snapshot) -> Phase:
    """The phase of a job that is neither suspended nor at its end."""
    before = view.ledger.phase
    if view.calm:
        return Phase.RUNNING
    if all(role.calm or all(up(seen) for seen in role.replicas) for role in view.roles):
        # All of them finished and no rule decided: nothing runs, so nothing has changed.
        return Phase.RUNNING if any(role.running for role in view.roles) else before
    return Phase.RESTARTING if before is Phase.RUNNING and _replaced(view) else before


def _replaced(view: Snapshot) -> bool:
    """Whether a replica that once existed is not up: growth alone is not a restart."""
    reached = {book.name: book.reached for book in view.stored.roles}
    return any(not up(seen) and seen.index < reached.get(role.name, 0) for role in view.roles for seen in role.replicas)
