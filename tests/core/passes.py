# SPDX-License-Identifier: Apache-2.0
"""Shortcuts for tests of one pass over a job."""

from typing import Any

from msgspec.structs import replace

from trainwright.core.observe import Snapshot, observe
from trainwright.core.reconcile import reconcile
from trainwright.model.cause import CauseKind
from trainwright.model.child import Extra, GroupStatus, Node, Observed, Pod
from trainwright.model.event import Emit, default_emit
from trainwright.model.job import Body, Job, Replica, Restart, RestartScope
from trainwright.model.ledger import Ledger, PendingRestart, Phase, RoleLedger, Times
from trainwright.model.meta import DIGEST, ObjectMeta
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.model.units import parse_indexes
from trainwright.model.verdict import History
from trainwright.testing.factories import NOW, OWNER, PlainDialect, node

#: Restart failed containers without a limit.
ON_EXIT = Restart(frozenset({CauseKind.EXIT}))


def on(*causes: CauseKind, limit: int | None = None, scope: RestartScope = RestartScope.POD, **more: Any) -> Restart:
    """A policy that restarts after these causes."""
    return Restart(frozenset(causes), limit=limit, scope=scope, **more)


def view(job: Job, *pods: Pod, now: Any = NOW, site: Site | None = None, **observed: Any) -> Snapshot:
    """The snapshot: the first step of a pass."""
    return observe(job, seen(*pods, **observed), site or Site(), now)


def look(job: Job, *pods: Pod, now: Any = NOW, site: Site | None = None, **observed: Any) -> Plan:
    """A whole pass."""
    return reconcile(job, seen(*pods, **observed), site or Site(), now)


def emitted(plan: Plan) -> tuple[Emit, ...]:
    """The events of a pass with the default texts."""
    return tuple(default_emit(event) for event in plan.events)


def seen(*pods: Pod, nodes: dict[str, Node] | None = None, **more: Any) -> Observed:
    """The observed objects. With `nodes`, one more node is ready: while no node is ready, none is judged."""
    return Observed(pods=pods, nodes=nodes if nodes is None else {"elsewhere": node("elsewhere")} | nodes, **more)


def lived(*entries: RoleLedger, phase: Phase = Phase.RUNNING, **more: Any) -> Ledger:
    """The ledger of a job that was accepted and ran as a whole at NOW."""
    more.setdefault("times", Times(NOW, NOW, NOW))
    return Ledger(phase, roles=entries or (RoleLedger("worker", reached=1),), **more)


def waiting(*entries: RoleLedger, **more: Any) -> Ledger:
    """The ledger of a job that was accepted at NOW and has not run as a whole."""
    return lived(*(entries or (RoleLedger("worker"),)), phase=Phase.PENDING, times=Times(NOW, NOW), **more)


def undone(entry: RoleLedger, indexes: str, why: CauseKind = CauseKind.EXIT, *, together: bool = False) -> RoleLedger:
    """The ledger entry of a role that has just decided to restart these replicas; no pod of the new attempt exists."""
    times = 1 if together else len(parse_indexes(indexes))
    hidden = entry.hidden | {why.value: entry.hidden.get(why.value, 0) + times}
    return replace(entry, pending=(*entry.pending, PendingRestart(why, indexes, together)), hidden=hidden)


def names(plan: Plan) -> dict[str, list[str]]:
    """What a plan creates and deletes, as `Kind name`."""
    return {
        "creates": [f"{one.body['kind']} {one.name}" for one in plan.creates],
        "deletes": [f"{one.kind} {one.name}" for one in plan.deletes],
    }


class Grouped(PlainDialect, frozen=True):
    """A dialect whose jobs have a pod group with this number of members."""

    members: int = 2

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - a protocol
        """One pod group, named like the job."""
        return ({"apiVersion": "gang/v1", "kind": "PodGroup", "spec": {"minMember": self.members}},)


class Bare(PlainDialect, frozen=True):
    """A dialect that renders almost no metadata and reads addresses from the site."""

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """Only a spec."""
        return {"spec": {"host": site.host(job.key, replica.name)}}

    def service(self, job: Job, replica: Replica, site: Site) -> Body:
        """A service with an address of the site and its own annotation."""
        return {"metadata": {"annotations": {"a": "b"}}, "spec": {"clusterIP": site.host(job.key, replica.name)}}


def group(digest: str = "", *, name: str = "job", kind: str = "PodGroup", **more: Any) -> Extra:
    """An existing pod group; `digest` is that of the body it was created from."""
    phase, api = more.pop("phase", None), more.pop("api", "gang/v1" if kind == "PodGroup" else "v1")
    annotations = {DIGEST: digest} if digest else None
    more.setdefault("owner_references", (OWNER,))
    meta = ObjectMeta(name, "default", f"uid-{name}", annotations=annotations, **more)
    return Extra(kind, meta, GroupStatus(phase) if phase is not None else None, api)


def bare(ledger: Ledger) -> Ledger:
    """The ledger without verdict and history, which have tests of their own."""
    return replace(ledger, verdict=None, history=History())
