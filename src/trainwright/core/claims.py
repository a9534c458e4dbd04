# SPDX-License-Identifier: Apache-2.0
"""Whose a pod is. Called by `observe` first of all: nothing is concluded from, or done to, a pod that is not ours.

Ours: its controller is this job, by UID. Ours to adopt: it carries this job's UID as a label and has no controller.
Ours to release: we control it but somebody took its labels away; it is let go, not removed. All else is foreign.
"""

from msgspec import to_builtins

from trainwright.model.action import Patch
from trainwright.model.child import Pod
from trainwright.model.job import Body, Job
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, ROLE, Owner


def mine(job: Job, pod: Pod) -> bool:
    """Controlled by this very job, and labelled as we label."""
    meta, uid = pod.metadata, job.uid
    owners, labels = meta.owner_references, meta.labels
    if not owners or not labels or labels.get(JOB_UID) != uid or ROLE not in labels or INDEX not in labels:
        return False
    # Almost every pod has its controller first; the property walks lists.
    first = owners[0]
    controller = first if first.controller else meta.controller
    return controller is not None and controller.uid == uid


def claim(job: Job, pod: Pod) -> Patch | None:
    """What to do about a pod that is not (yet, or any longer) ours; foreign pods and dying ones are left alone."""
    if job.deleting or pod.metadata.deletion_timestamp is not None:
        return None
    labels = pod.metadata.labels or {}
    controller = pod.metadata.controller
    complete = labels.get(JOB_UID) == job.uid and ROLE in labels and INDEX in labels and ATTEMPT in labels
    if complete and controller is None:
        return _owners(
            pod, (*_others(job, pod), job.owner), "adopted: it carries this job's UID and nobody controls it"
        )
    if not complete and controller is not None and controller.uid == job.uid:
        return _owners(pod, _others(job, pod), "released: its labels no longer name a replica of this job")
    return None


def _others(job: Job, pod: Pod) -> tuple[Owner, ...]:
    return tuple(owner for owner in pod.metadata.owner_references or () if owner.uid != job.uid)


def _owners(pod: Pod, owners: tuple[Owner, ...], why: str) -> Patch:
    body: Body = {"metadata": {"ownerReferences": [to_builtins(owner) for owner in owners]}}
    return Patch("Pod", pod.metadata.name, pod.metadata.uid, body, why)
