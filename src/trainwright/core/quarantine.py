# SPDX-License-Identifier: Apache-2.0
"""Nodes that failed a replica get no other one for a while. `create` has pods rendered by the list.

The list is in the ledger: suspects, whose GPUs do not look well, since when; and those that have failed, until they
have been well again for long enough. A pod that waits for a place and was made to avoid one that is trusted again is
made anew, for what it demands of its node cannot be taken back.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import attempts, nodes
from trainwright.core.observe import Snapshot
from trainwright.core.render import PREFERRED, REQUIRED
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.job import Body, Role
from trainwright.model.ledger import KEPT_NODES, Avoided, Ledger, RoleLedger
from trainwright.model.plan import RoleState, State
from trainwright.model.units import Time, after

HOSTNAME = "kubernetes.io/hostname"


def update(view: Snapshot) -> Snapshot:
    """The pass with the list brought up to date: suspects noted, those that are well again forgotten in time."""
    ledger = view.ledger
    if not (view.doubts or ledger.avoided):
        return view
    sick = {name for name, doubt in view.doubts.items() if doubt.sick}
    kept = [new for one in ledger.avoided if (new := _aged(one, view, sick)) is not None]
    noted = {one.node for one in kept}
    for name in sorted(sick - noted):
        kept = _with(kept, Avoided(name, view.now, CauseKind.DEVICE))
    avoided = tuple(kept)
    if avoided == ledger.avoided:
        return view
    trusted = {one.node for one in ledger.avoided if one.failed} - noted
    view = view.remember(replace(ledger, avoided=avoided))
    return _released(view) if trusted else view


def _aged(one: Avoided, view: Snapshot, sick: set[str]) -> Avoided | None:
    """What is to be remembered of it now; nothing once it has been well for long enough."""
    node = (view.observed.nodes or {}).get(one.node)
    # One that nobody knows is no danger to pods either; should it come back, it may have been mended.
    well = one.node not in sick and (node is None or (node.ready and not nodes.device_failure(node, {}, view.site)))
    if not well:
        return replace(one, until=None) if one.until is not None else one
    if not one.failed or (one.until is not None and view.now >= one.until):
        return None
    latest = after(view.now, view.site.distrust)
    # Further ahead than that it was written by a clock that was wrong.
    return one if one.until is not None and one.until <= latest else replace(one, until=latest)


def _with(kept: list[Avoided], new: Avoided) -> list[Avoided]:
    """The list with this one; the oldest that failed makes room, a suspect never does: its time would begin anew."""
    if len(kept) < KEPT_NODES:
        return [*kept, new]
    oldest = next((one for one in kept if one.failed), None)
    return [*(one for one in kept if one is not oldest), new] if oldest is not None else kept


def _released(view: Snapshot) -> Snapshot:
    """Pods that wait for a place start anew, without the terms they were made with; and there may be room again."""
    books: list[RoleLedger] = []
    for book, group in zip(view.ledger.roles, view.roles, strict=True):
        placeless = _placeless(group)
        new = attempts.retry(book, placeless) if placeless else book
        held = new.ceiling is not None and new.ceiling.tries
        books.append(replace(new, ceiling=replace(new.ceiling, tries=0)) if new.ceiling and held else new)
    if all(new is old for new, old in zip(books, view.ledger.roles, strict=True)):
        return view
    return view.remember(replace(view.ledger, roles=tuple(books))).again()


def _placeless(group: RoleState) -> list[int]:
    if group.calm:
        return []
    starting = [seen for seen in group.replicas if seen.state is State.STARTING and not seen.final]
    return [seen.index for seen in starting if seen.pod is not None and not seen.pod.spec.node_name]


def failed(ledger: Ledger, causes: Iterable[Cause], now: Time) -> Ledger:
    """The ledger with the nodes that these failures lie with."""
    blamed = {one.node: one for one in causes if one.why in (CauseKind.NODE_LOST, CauseKind.DEVICE) and one.node}
    if not blamed:
        return ledger
    kept = [one for one in ledger.avoided if one.node not in blamed]
    for name, cause in sorted(blamed.items()):
        kept = _with(kept, Avoided(name, now, cause.why, failed=True))
    return replace(ledger, avoided=tuple(kept))


def wakes(view: Snapshot) -> list[Time]:
    """When nodes are trusted again."""
    return [one.until for one in view.ledger.avoided if one.until is not None]


def node_terms(view: Snapshot, role: Role) -> Body:
    """What pods of this role should demand of, or wish for in, their node: a nodeAffinity, or nothing.

    A demand is made only if another node is known that could take them: a job must not wait for ever for a better one.
    """
    names = [one.node for one in view.ledger.avoided if one.failed]
    if not names:
        return {}
    known = view.observed.nodes or {}
    labels = [(node.metadata.labels or {}).get(HOSTNAME, name) if (node := known.get(name)) else name for name in names]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": sorted(labels)}]}
    if nodes.elsewhere(role, known, set(names), view.site):
        return {REQUIRED: {"nodeSelectorTerms": [term]}}
    return {PREFERRED: [{"weight": 100, "preference": term}]}
