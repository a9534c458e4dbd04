# SPDX-License-Identifier: Apache-2.0
"""Quarantine: a node that caused the failure of a replica gets no replica of the job for a while.

The ledger holds the list: nodes whose GPUs look unhealthy, each with the time at which this began; and failed nodes,
until they have been healthy for long enough. When a failed node leaves the list, pods that have no node yet are
replaced: the affinity of the old pods still excludes that node, and the affinity of a pod cannot be changed.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from trainwright.core import attempts, nodes
from trainwright.core.observe import Snapshot
from trainwright.core.render import PREFERRED, REQUIRED
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.job import Body, Role
from trainwright.model.ledger import KEPT_NODES, Avoided, Ledger, RoleLedger
from trainwright.model.plan import State
from trainwright.model.units import Time, after

HOSTNAME = "kubernetes.io/hostname"


def update(view: Snapshot) -> Snapshot:
    """Update the list: add nodes with unhealthy GPUs, remove nodes that have been healthy for long enough."""
    ledger = view.ledger
    if not (view.unhealthy_nodes or ledger.avoided):
        return view
    sick = {name for name, health in view.unhealthy_nodes.items() if health.device_message}
    kept = [new for one in ledger.avoided if (new := _updated(one, view, sick)) is not None]
    noted = {one.node for one in kept}
    for name in sorted(sick - noted):
        kept = _added(kept, Avoided(name, view.now, CauseKind.DEVICE))
    avoided = tuple(kept)
    if avoided == ledger.avoided:
        return view
    trusted = {one.node for one in ledger.avoided if one.failed} - noted
    view = view.with_ledger(replace(ledger, avoided=avoided))
    return _retry_unplaced(view) if trusted else view


def _updated(one: Avoided, view: Snapshot, sick: set[str]) -> Avoided | None:
    """Return the updated entry, or None once the node has been healthy for long enough."""
    node = (view.observed.nodes or {}).get(one.node)
    # A node that is not in the cluster counts as healthy. It gets no pods now, and it may return after a repair.
    well = one.node not in sick and (node is None or (node.ready and not nodes.device_failure(node, {}, view.site)))
    if not well:
        return replace(one, until=None) if one.until is not None else one
    if not one.failed or (one.until is not None and view.now >= one.until):
        return None
    latest = after(view.now, view.site.node_quarantine)
    # If `until` is later than `latest`, a wrong clock wrote it.
    return one if one.until is not None and one.until <= latest else replace(one, until=latest)


def _added(kept: list[Avoided], new: Avoided) -> list[Avoided]:
    """Add an entry. In a full list, it replaces the oldest failed node; if there is no failed node, it is not added."""
    if len(kept) < KEPT_NODES:
        return [*kept, new]
    oldest = next((one for one in kept if one.failed), None)
    return [*(one for one in kept if one is not oldest), new] if oldest is not None else kept


def _retry_unplaced(view: Snapshot) -> Snapshot:
    """Replace pods without a node, because they have the old affinity; let roles search for nodes again soon."""
    entries: list[RoleLedger] = []
    for entry, group in zip(view.ledger.roles, view.roles, strict=True):
        starting = [replica for replica in group.replicas if replica.state is State.STARTING and not replica.final]
        placeless = [one.index for one in starting if one.pod is not None and not one.pod.spec.node_name]
        new = entry
        if placeless:
            # Lower `reached`: no pod of the new attempts has existed yet. Otherwise they would count as deleted.
            new = replace(attempts.retry_replicas(entry, placeless), reached=min(entry.reached, *placeless))
        cap = new.ceiling
        entries.append(replace(new, ceiling=replace(cap, tries=0)) if cap is not None and cap.tries else new)
    if all(new is old for new, old in zip(entries, view.ledger.roles, strict=True)):
        return view
    return view.with_ledger(replace(view.ledger, roles=tuple(entries))).reobserve()


def add_failed_nodes(ledger: Ledger, causes: Iterable[Cause], now: Time) -> Ledger:
    """Add the nodes that caused these failures."""
    blamed = {one.node: one for one in causes if one.why in (CauseKind.NODE_LOST, CauseKind.DEVICE) and one.node}
    if not blamed:
        return ledger
    kept = [one for one in ledger.avoided if one.node not in blamed]
    for name, cause in sorted(blamed.items()):
        kept = _added(kept, Avoided(name, now, cause.why, failed=True))
    return replace(ledger, avoided=tuple(kept))


def node_terms(view: Snapshot, role: Role) -> Body:
    """Return the nodeAffinity terms for pods of this role, or an empty body.

    Avoiding the nodes is required only if another node could take the pods; otherwise it is preferred, so that the job
    does not wait forever.
    """
    names = [one.node for one in view.ledger.avoided if one.failed]
    if not names:
        return {}
    known = view.observed.nodes or {}
    labels = [(node.metadata.labels or {}).get(HOSTNAME, name) if (node := known.get(name)) else name for name in names]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": sorted(labels)}]}
    if nodes.another_node_fits(role, known, set(names), view.site):
        return {REQUIRED: {"nodeSelectorTerms": [term]}}
    return {PREFERRED: [{"weight": 100, "preference": term}]}
