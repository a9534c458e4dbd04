# SPDX-License-Identifier: Apache-2.0
"""Sizes: within their bounds, the first thing `reconcile` does; and what a change of size takes along, after restarts.

A role that may be resized while it runs has bounds; a wanted size outside them counts as the nearer bound. Where peers
are told of each other when they start, a change of size starts them anew: no failure, so nothing is counted for it.
"""

from msgspec.structs import replace

from trainwright.core import attempts
from trainwright.core.observe import View
from trainwright.core.restart import kept_in_place
from trainwright.model.job import Job, Role, Scope
from trainwright.model.ledger import RoleLedger
from trainwright.model.status import RoleSeen


def bounded(job: Job) -> Job:
    """The job with every elastic role within its bounds."""
    if all([role.elastic is None for role in job.roles]):  # noqa: C419 - asked on every pass, and a list is cheaper
        return job
    return replace(job, roles=tuple(_bounded(role) for role in job.roles))


def _bounded(role: Role) -> Role:
    if role.elastic is None:
        return role
    return replace(role, replicas=min(max(role.replicas, role.elastic.least), role.elastic.most))


def resized(view: View) -> View:
    """The pass after its changes of size: whoever was told of the old world starts anew in the new one."""
    pairs = list(zip(view.job.roles, view.ledger.roles, strict=True))
    told = [(role, book) for role, book in pairs if role.resize is not None and book.size != role.replicas]
    if not told:
        return view
    changed = {role.name: role for role, book in told if book.size >= 0}
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
    return replace(book, size=role.replicas) if role.resize is not None else book
