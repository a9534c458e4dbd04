# SPDX-License-Identifier: Apache-2.0
"""Sizes: within their bounds, the first thing `reconcile` does; and what a change of size takes along, after restarts.

A role that may be resized while it runs has bounds; a wanted size outside them counts as the nearer bound. Where peers
are told of each other when they start, a change of size starts them anew: no failure, so nothing is counted for it.
Where they look the size up while they run, it is announced to them.
"""

from msgspec.structs import replace

from trainwright.core import attempts
from trainwright.core.observe import View
from trainwright.core.restart import kept_in_place
from trainwright.model.action import Announce
from trainwright.model.job import Job, Role, Scope
from trainwright.model.ledger import Ceiling, RoleLedger
from trainwright.model.status import RoleSeen


def bounded(job: Job) -> Job:
    """The job with every elastic role at the size that is in force."""
    if all([role.elastic is None for role in job.roles]):  # noqa: C419 - asked on every pass, and a list is cheaper
        return job
    ceilings = {book.name: book.ceiling for book in job.ledger.roles}
    return replace(job, roles=tuple(_bounded(role, ceilings.get(role.name)) for role in job.roles))


def largest(job: Job) -> Job:
    """The job with every role at the largest size that a pass may decide on: as asked for, within the bounds."""
    return replace(job, roles=tuple(_bounded(role, None) for role in job.roles))


def _bounded(role: Role, ceiling: Ceiling | None) -> Role:
    bounds = role.elastic
    if bounds is None:
        return role
    asked = role.replicas if role.wanted is None else role.wanted
    wanted = size = min(max(asked, bounds.least), bounds.most)
    if bounds.auto and ceiling is not None and ceiling.most >= 0:
        size = max(min(wanted, ceiling.most), bounds.least)
    return replace(role, replicas=size, wanted=wanted)


def resized(view: View) -> View:
    """The pass after its changes of size: whoever was told of the old world starts anew in the new one."""
    if not view.job.told:
        return view
    pairs = list(zip(view.job.roles, view.ledger.roles, strict=True))
    told = [pair for pair in pairs if pair[1].size != pair[0].replicas and pair[0].told]
    if not told:
        return view
    changed = {role.name: role for role, book in told if role.resize is not None and book.size >= 0}
    everything = any(role.resize is Scope.JOB for role in changed.values())
    books = tuple(
        _sized(role, _anew(view, book, group) if everything or role.name in changed else book)
        for (role, book), group in zip(pairs, view.roles, strict=True)
    )
    view = view.remember(replace(view.ledger, roles=books))
    return view.again() if changed else view


def _anew(view: View, book: RoleLedger, group: RoleSeen) -> RoleLedger:
    return attempts.next_epoch(kept_in_place(view, book, group.replicas))


def _sized(role: Role, book: RoleLedger) -> RoleLedger:
    return replace(book, size=role.replicas) if role.told else book


def announced(view: View) -> tuple[Announce, ...]:
    """What replicas should find where they look up the size of their role."""
    return tuple(Announce(role.size_key, str(role.replicas)) for role in view.job.roles if role.size_key)
