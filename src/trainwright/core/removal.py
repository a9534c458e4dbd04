# SPDX-License-Identifier: Apache-2.0
"""Deletes: whether and how a pod is deleted now, and which children of a missing job may be deleted.

A pod on a lost node cannot confirm its end and is deleted by force: at once if we delete it, after a while if another
client is deleting it. Any other pod gets one normal delete request.

Kubernetes' garbage collector stops while one API of the cluster does not answer; then pods of deleted jobs keep their
GPUs. `orphan_owner` finds what the collector would delete: children of ours whose only owner is the missing job. A
child without owner was kept on purpose (`--cascade=orphan`), and a child with another owner belongs to that owner.
"""

from collections.abc import Collection, Iterable

from trainwright.core.observe import Snapshot
from trainwright.model.child import Extra, Pod, Service
from trainwright.model.meta import JOB_UID, Meta, Owner
from trainwright.model.plan import Delete
from trainwright.model.units import Time, after


def pod_deletes(view: Snapshot, doomed: Iterable[tuple[Pod, str]]) -> list[Delete]:
    """Return the Deletes that these pods need now."""
    found: list[Delete] = []
    for pod, why in doomed:
        meta, health = pod.metadata, view.unhealthy_nodes.get(pod.spec.node_name)
        lost = health is not None and health.is_lost(view.now)
        if meta.deletion_timestamp is None:
            found.append(Delete("Pod", meta.name, meta.uid, why, force=lost))
        elif lost and view.now >= after(meta.deletion_timestamp, view.site.linger):
            text = f"{why}; its node is lost and it has lingered"
            found.append(Delete("Pod", meta.name, meta.uid, text, force=True))
    return found


def service_delete(service: Service, why: str) -> Delete:
    """Return the Delete for a service."""
    return Delete("Service", service.metadata.name, service.metadata.uid, why)


def extra_delete(extra: Extra, why: str) -> Delete:
    """Return the Delete for a child that belongs to the whole job: a pod group or a ConfigMap."""
    return Delete(extra.kind, extra.metadata.name, extra.metadata.uid, why, api=extra.api_version)


def extra_key(extra: Extra) -> tuple[str, str, str]:
    """Return API, kind and name of an existing child, as `render.extra_key` does for a wanted child."""
    return extra.api_version, extra.kind, extra.metadata.name


def is_terminating(child: Pod | Service | Extra) -> bool:
    """Return whether the child is being deleted."""
    return child.metadata.deletion_timestamp is not None


def next_check_at(view: Snapshot, pods: Iterable[Pod]) -> Time | None:
    """Return the next time at which pods on unhealthy nodes must be checked."""
    times: list[Time] = []
    for pod in pods if view.unhealthy_nodes else ():
        health = view.unhealthy_nodes.get(pod.spec.node_name)
        if health is not None and health.lost_at is not None:
            deletion = pod.metadata.deletion_timestamp
            times.append(health.lost_at if deletion is None else max(health.lost_at, after(deletion, view.site.linger)))
        elif health is not None and health.devices_failed_at is not None:
            times.append(health.devices_failed_at)
    return min((moment for moment in times if moment > view.now), default=None)


#: During this many seconds after the creation of a child, only the garbage collector may delete it.
ORPHAN_GRACE_SECONDS = 300.0


def orphan_owner(child: Meta, kinds: Collection[tuple[str, str]], now: Time) -> Owner | None:
    """Return the job that owns this child: if that job is missing, delete the child. None: do not delete it now."""
    owners = child.owner_references or ()
    if len(owners) != 1 or child.deletion_timestamp is not None or child.creation_timestamp is None:
        return None
    one = owners[0]
    ours = one.controller and (one.api_version, one.kind) in kinds and one.uid == (child.labels or {}).get(JOB_UID)
    return one if ours and now >= after(child.creation_timestamp, ORPHAN_GRACE_SECONDS) else None
