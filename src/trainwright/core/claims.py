# SPDX-License-Identifier: Apache-2.0
"""Whose a child is. Called by `observe` first of all: nothing is concluded from, or done to, what is not ours.

Ours: its controller is this job, by UID. A pod to adopt: it bears a replica's name and this job's UID as a label, and
has no controller. A pod to release: we control and once labelled it, but somebody took its labels away; it is let go,
not removed. All else is foreign, and where it bears a name that we need, `run` says so.
"""

from collections.abc import Mapping

from msgspec import to_builtins
from msgspec.structs import replace

from trainwright.model.action import Patch
from trainwright.model.child import Observed, Pod
from trainwright.model.job import Body, Job
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Meta, Owner


def mine(job: Job, pod: Pod) -> bool:
    """Controlled by this very job, and labelled as we label."""
    labels = pod.metadata.labels
    if not labels or labels.get(JOB_UID) != job.uid or ROLE not in labels or INDEX not in labels:
        return False
    return _controlled(pod.metadata, job.uid)


def claim(job: Job, pod: Pod) -> Patch | None:
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


def owned(job: Job, observed: Observed) -> Observed:
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
