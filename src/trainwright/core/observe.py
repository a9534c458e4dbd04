# SPDX-License-Identifier: Apache-2.0
"""What is there, classified once: children → replicas by role and index, leftovers, claims. The first step of a pass.

Later steps never look at raw pods again. `reconcile` calls `observe`; every step takes and returns a `View`.
"""

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import attempts, claims
from trainwright.core.conclude import conclude
from trainwright.model.action import Patch
from trainwright.model.child import Observed, Pod
from trainwright.model.indexes import members
from trainwright.model.job import Job, Role
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE
from trainwright.model.site import Site
from trainwright.model.status import RoleSeen, Seen, State
from trainwright.model.units import Time


class Leftover(Struct, frozen=True, gc=False):
    """A pod of ours that is no wanted replica: of an old attempt, or of a role or index that is gone."""

    pod: Pod
    role: str
    index: int
    why: str


class View(Struct, frozen=True):
    """One pass over one job. `job.ledger` is the working copy, `stored` is what the job came with."""

    job: Job
    stored: Ledger
    observed: Observed
    site: Site
    now: Time
    roles: tuple[RoleSeen, ...]
    leftovers: tuple[Leftover, ...] = ()
    claims: tuple[Patch, ...] = ()

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


def observe(job: Job, observed: Observed, site: Site, now: Time) -> View:
    """Classify every pod: replica, leftover, or not ours."""
    slots: dict[str, Slots] = {role.name: {} for role in job.roles}
    strays: list[Leftover] = []
    patches: list[Patch] = []
    for pod in observed.pods:
        if claims.mine(job, pod):
            _place(pod, slots, strays)
        elif (patch := claims.claim(job, pod)) is not None:
            patches.append(patch)
    view = View(job, job.ledger, observed, site, now, (), tuple(strays), tuple(patches))
    return _look(view, slots)


def _place(pod: Pod, slots: dict[str, Slots], strays: list[Leftover]) -> None:
    """Into its slot; of several in one slot the highest attempt stays."""
    labels = pod.metadata.labels or {}
    role, index, attempt = labels[ROLE], _number(labels[INDEX]), _number(labels.get(ATTEMPT, "0"))
    slot = slots.get(role)
    if slot is None:
        strays.append(Leftover(pod, role, index, f"the job has no role {role}"))
        return
    other = slot.get(index)
    if other is None:
        slot[index] = (attempt, pod)
        return
    keep, drop = ((attempt, pod), other[1]) if attempt > other[0] else (other, pod)
    slot[index] = keep
    strays.append(Leftover(drop, role, index, f"there is another pod for {role} {index}"))


def _number(text: str) -> int:
    """A label's number; -1, which no replica has, for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _look(view: View, slots: dict[str, Slots]) -> View:
    leftovers = list(view.leftovers)
    seen: list[RoleSeen] = []
    books = {book.name: book for book in view.ledger.roles}
    for role in view.job.roles:
        book = books.get(role.name) or RoleLedger(role.name)
        slot = slots[role.name]
        if slot and (higher := _higher(slot, book)):
            book = books[role.name] = attempts.learn(book, higher)
        seen.append(
            RoleSeen(
                role.name, tuple([_replica(view, role, book, i, slot.get(i), leftovers) for i in range(role.replicas)])
            )
        )
        if slot and (max(slot) >= role.replicas or min(slot) < 0):
            leftovers += _surplus(role, slot)
    ledger = _rebuilt(view, books)
    return replace(view.remember(ledger), roles=tuple(seen), leftovers=tuple(leftovers))


def _higher(slot: Slots, book: RoleLedger) -> dict[int, int]:
    """Attempts on pods that are above what is stored: only after a status was lost."""
    return {i: found for i, (found, _) in slot.items() if i >= 0 and found > attempts.attempt(book, i)}


def _rebuilt(view: View, books: dict[str, RoleLedger]) -> Ledger:
    """The ledger with one entry per role of the job, in the job's order."""
    wanted = tuple([books.get(role.name) or RoleLedger(role.name) for role in view.job.roles])
    return view.ledger if wanted == view.ledger.roles else replace(view.ledger, roles=wanted)


def _surplus(role: Role, slot: Slots) -> list[Leftover]:
    return [
        Leftover(pod, role.name, index, f"{role.name} has {role.replicas} replicas")
        for index, (_, pod) in sorted(slot.items())
        if not 0 <= index < role.replicas
    ]


def _replica(
    view: View, role: Role, book: RoleLedger, index: int, found: tuple[int, Pod] | None, leftovers: list[Leftover]
) -> Seen:
    """One replica: its pod if that is of the current attempt, else what is remembered of it."""
    current = attempts.attempt(book, index) if book.retries else book.epoch
    pod = None
    state, cause = State.WAITING, None
    if found is not None and found[0] >= current:
        pod = found[1]
        state, cause = conclude(pod, role, view.observed, view.site, view.now)
    elif found is not None:
        leftovers.append(Leftover(found[1], role.name, index, f"attempt {found[0]} has been replaced by {current}"))
    if book.succeeded and index in members(book.succeeded):
        return Seen(index, current, State.SUCCEEDED, pod, cause, final=True)
    if book.failed and index in members(book.failed):
        return Seen(index, current, State.FAILED, pod, cause, final=True)
    return Seen(index, current, state, pod, cause)
