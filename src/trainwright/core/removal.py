# SPDX-License-Identifier: Apache-2.0
"""Taking children away: which delete a pod needs now, if any. Used by `create` and `lifecycle` for whatever must go.

A pod whose node is lost cannot confirm its end, so it is removed by force: at once if we give it up, after a while
if it was already being deleted. Any other pod is deleted once and then waited for.

What may be removed of children whose job is gone. `runtime.orphans` asks, about jobs that it cannot find.

Kubernetes' garbage collector removes whatever has lost its owner, but it stands still while one API of the cluster does
not answer, and pods of a job that nobody wants any more keep their GPUs. What is removed here is what it would remove:
a child of ours whose only owner is that job. One without an owner was let go on purpose (`--cascade=orphan`), and
one with another owner is that one's: both stay.
"""

from collections.abc import Collection, Iterable

from trainwright.core.observe import Snapshot
from trainwright.model.child import Extra, Pod, Service
from trainwright.model.meta import JOB_UID, Meta, Owner
from trainwright.model.plan import Delete
from trainwright.model.units import Time, after


def of_pod(view: Snapshot, pod: Pod, why: str) -> Delete | None:
    """The delete that this pod needs now."""
    meta = pod.metadata
    doubt = view.doubts.get(pod.spec.node_name)
    lost = doubt is not None and doubt.lost(view.now)
    if meta.deletion_timestamp is None:
        return Delete("Pod", meta.name, meta.uid, why, force=lost)
    if lost and view.now >= after(meta.deletion_timestamp, view.site.linger):
        return Delete("Pod", meta.name, meta.uid, f"{why}; its node is lost and it has lingered", force=True)
    return None


def of_pods(view: Snapshot, doomed: Iterable[tuple[Pod, str]]) -> list[Delete]:
    """The deletes that these pods need now."""
    found = (of_pod(view, pod, why) for pod, why in doomed)
    return [delete for delete in found if delete is not None]


def of_service(service: Service, why: str) -> Delete:
    """A service goes at once."""
    return Delete("Service", service.metadata.name, service.metadata.uid, why)


def of_extra(extra: Extra, why: str) -> Delete:
    """So does a child of the whole job."""
    return Delete(extra.kind, extra.metadata.name, extra.metadata.uid, why, api=extra.api_version)


def address(extra: Extra) -> tuple[str, str, str]:
    """API, kind and name, as `render.address` has them of what should be."""
    return extra.api_version, extra.kind, extra.metadata.name


def going(child: Pod | Service | Extra) -> bool:
    """It is being deleted already."""
    return child.metadata.deletion_timestamp is not None


def overdue_at(view: Snapshot, pods: Iterable[Pod]) -> Time | None:
    """When to look again for pods that linger, or whose node is in doubt."""
    times: list[Time] = []
    for pod in pods if view.doubts else ():
        doubt = view.doubts.get(pod.spec.node_name)
        if doubt is not None and doubt.lost_at is not None:
            deletion = pod.metadata.deletion_timestamp
            times.append(doubt.lost_at if deletion is None else max(doubt.lost_at, after(deletion, view.site.linger)))
        elif doubt is not None and doubt.failed_at is not None:
            times.append(doubt.failed_at)
    return min((moment for moment in times if moment > view.now), default=None)


#: Seconds that the collector has first.
GRACE = 300.0


def owner(child: Meta, kinds: Collection[tuple[str, str]], now: Time) -> Owner | None:
    """The job of one of these kinds, by version and name, without which this child must not be there; None: it may."""
    owners = child.owner_references or ()
    if len(owners) != 1 or child.deletion_timestamp is not None or child.creation_timestamp is None:
        return None
    one = owners[0]
    ours = one.controller and (one.api_version, one.kind) in kinds and one.uid == (child.labels or {}).get(JOB_UID)
    return one if ours and now >= after(child.creation_timestamp, GRACE) else None
