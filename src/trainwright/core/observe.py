# SPDX-License-Identifier: Apache-2.0
"""What is there, classified once: children → replicas by role and index, leftovers, claims. The first step of a pass.

Later steps never look at raw pods again. `reconcile` calls `observe`; every step takes and returns a `View`.
"""

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import attempts, claims, counting, creation, gate, nodes
from trainwright.core.conclude import conclude
from trainwright.core.nodes import Doubt
from trainwright.model.action import Patch
from trainwright.model.child import Observed, Pod
from trainwright.model.indexes import members
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE, SPARE
from trainwright.model.site import Site
from trainwright.model.status import RoleSeen, Seen, State
from trainwright.model.units import Time


class Leftover(Struct, frozen=True, gc=False):
    """A pod of ours that is no wanted replica: of an old attempt, or of a role or index that is gone."""

    pod: Pod
    role: str
    index: int
    why: str
    #: It holds a place for a replica that may come: `spares` says for how long.
    spare: bool = False


class View(Struct, frozen=True, gc=False):
    """One pass over one job. `job.ledger` is the working copy, `stored` is what the job came with."""

    job: Job
    stored: Ledger
    observed: Observed
    site: Site
    now: Time
    roles: tuple[RoleSeen, ...]
    leftovers: tuple[Leftover, ...] = ()
    claims: tuple[Patch, ...] = ()
    #: Nodes of its pods that are not as they should be, lost or not yet.
    doubts: Mapping[str, Doubt] = {}
    #: Every replica runs: nothing has ended, nothing is missing. Most passes over most jobs are like that.
    calm: bool = False
    #: Names of pods that are not ours, or not yet.
    foreign: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The working copy of the durable state."""
        return self.job.ledger

    def remember(self, ledger: Ledger) -> "View":
        """The same pass with another working copy."""
        return self if ledger is self.job.ledger else replace(self, job=replace(self.job, ledger=ledger))

    def again(self) -> "View":
        """Look once more: attempts have been raised, so pods that counted a moment ago are stale."""
        return replace(observe(self.job, self.observed, self.site, self.now), stored=self.stored)


Slots = dict[int, tuple[int, Pod]]
RUNNING = State.RUNNING


def observe(job: Job, observed: Observed, site: Site, now: Time) -> View:
    """Classify every pod: replica, leftover, or not ours."""
    observed = claims.owned(job, observed)
    slots: dict[str, Slots] = {role.name: {} for role in job.roles}
    leftovers: list[Leftover] = []
    patches: list[Patch] = []
    foreign: list[str] = []
    for pod in observed.pods:
        if claims.mine(job, pod):
            _place(pod, slots, leftovers)
            continue
        foreign.append(pod.metadata.name)
        if (patch := claims.claim(job, pod)) is not None:
            patches.append(patch)
    books = {book.name: book for book in job.ledger.roles}
    doubts, passed = nodes.doubts(job, observed, site, now), gate.passed(job, observed)
    looker = _Looker(site, now, doubts, leftovers, passed, job.ledger.outcome is None)
    seen = tuple([looker.look(role, slots[role.name], books) for role in job.roles])
    if looker.passed:
        seen = gate.moved(job, observed, seen)
    running = sum([role.running for role in seen])
    calm = running > 0 and running == sum([role.replicas for role in job.roles])
    view = View(
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


def _place(pod: Pod, slots: dict[str, Slots], leftovers: list[Leftover]) -> None:
    """Into its slot; of several in one slot the highest attempt stays."""
    labels = pod.metadata.labels or {}
    role, index, attempt = labels[ROLE], _number(labels[INDEX]), _number(labels.get(ATTEMPT, "0"))
    slot = slots.get(role)
    if slot is None:
        leftovers.append(Leftover(pod, role, index, f"the job has no role {role}"))
        return
    other = slot.setdefault(index, (attempt, pod))
    if other[1] is not pod:
        # By UID where nothing else tells them apart: the order in which they are listed must not decide.
        older, newer = sorted(((attempt, pod), other), key=lambda found: (found[0], found[1].metadata.uid))
        slot[index] = newer
        leftovers.append(Leftover(older[1], role, index, f"there is another pod for {role} {index}"))


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
    doubts: Mapping[str, Doubt]
    leftovers: list[Leftover]
    #: The gate of this attempt is open.
    passed: bool = False
    #: The job has not ended.
    live: bool = True

    def look(self, role: Role, slot: Slots, books: dict[str, RoleLedger]) -> RoleSeen:
        """The replicas of one role; its book is opened, or corrected where pods know better."""
        book = books.get(role.name) or RoleLedger(role.name)
        if slot and (higher := _higher(slot, book)):
            book = attempts.learn(book, higher)
        if self.live and book.restarts and role.restart.per_replica:
            book = counting.attributed(role, book)
        if slot and book.pending:
            book = counting.happened(book, _current(slot, book))
        if slot and (max(slot) >= role.replicas or min(slot) < 0):
            book = self._shrink(role, slot, book)
        if book.reached > role.replicas or book.succeeded or book.failed:
            book = attempts.resize(book, role.replicas)
        if self.passed:
            book = gate.reached(role, book)
        books[role.name] = book
        replicas = [self._replica(role, book, index, slot.get(index)) for index in range(role.replicas)]
        return RoleSeen(role.name, tuple(replicas), sum([one.state is RUNNING for one in replicas]))

    def _shrink(self, role: Role, slot: Slots, book: RoleLedger) -> RoleLedger:
        """Replicas that are no longer wanted go; should one come back, it is a new one, and its old pod is stale."""
        surplus = [(index, found) for index, found in sorted(slot.items()) if not 0 <= index < role.replicas]
        why = f"{role.name} has {role.replicas} replica{'s' * (role.replicas != 1)}"
        self.leftovers.extend(Leftover(pod, role.name, index, why, _spare(pod)) for index, (_, pod) in surplus)
        current = [index for index, (found, _) in surplus if index >= 0 and found >= attempts.attempt(book, index)]
        return attempts.retry(book, current) if current else book

    def _replica(self, role: Role, book: RoleLedger, index: int, found: tuple[int, Pod] | None) -> Seen:
        """One replica: its pod if that is of the current attempt, else what is remembered of it."""
        if found is not None and found[0] == book.epoch and not (book.retries or book.succeeded or book.failed):
            pod = found[1]
            # The dull case, which `conclude` would find as well, only not as fast.
            if (
                pod.status.phase == "Running"
                and pod.metadata.deletion_timestamp is None
                and pod.spec.node_name not in self.doubts
                and not (role.mains and _any_ended(pod))
            ):
                return Seen(index, book.epoch, RUNNING, pod)
        return self._unusual(role, book, index, found)

    def _unusual(self, role: Role, book: RoleLedger, index: int, found: tuple[int, Pod] | None) -> Seen:
        current = attempts.attempt(book, index)
        pod = old = None
        state, cause = State.WAITING, None
        if found is not None and found[0] >= current:
            pod = found[1]
            state, cause = conclude(pod, role, self.doubts.get(pod.spec.node_name), self.site, self.now)
            if state is State.STARTING and cause is not None and role.recreates:
                over = creation.given_up(book, index, pod, self.site.creating, self.now)
                state = State.FAILED if over else state
        elif found is not None:
            old = found[1]
            why = "its place is needed" if _spare(old) else f"attempt {found[0]} has been replaced by {current}"
            self.leftovers.append(Leftover(old, role.name, index, why))
        if book.succeeded and index in members(book.succeeded):
            return Seen(index, current, State.SUCCEEDED, pod, cause, True, old)
        if book.failed and index in members(book.failed):
            return Seen(index, current, State.FAILED, pod, cause, True, old)
        return Seen(index, current, state, pod, cause, False, old)


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
