# SPDX-License-Identifier: Apache-2.0
"""TFJob, `kubeflow.org/v1` and `v1alpha2`: the kind as a value. `registry` lists it.

`wire` has its types, `checks` what may be wrong, `policies`, `dialect` and
`environment` its meaning, `conditions` and `status` how it speaks.
"""

from msgspec import UnsetType

from trainwright.kinds import gangs
from trainwright.kinds.base import Column, Kind, ended_elsewhere, key_of, owner_of, remembered
from trainwright.kinds.tfjob import policies
from trainwright.kinds.tfjob.checks import RULES, check, check_edit, scale, suspend
from trainwright.kinds.tfjob.conditions import worded
from trainwright.kinds.tfjob.dialect import TFDialect
from trainwright.kinds.tfjob.status import render, word
from trainwright.kinds.tfjob.wire import VERSIONS, RunPolicy, TFJob, TFJobSpec, TFJobStatus, default, typed
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: Who else may look after a TFJob; if it is somebody else, we do not.
OURS = "kubeflow.org/training-operator"
_OVERWRITTEN = "Restart policy in pod template will be overwritten by restart policy in replica spec"


def translate(job: TFJob) -> Job:
    """The job in the one model."""
    spec, meta = job.spec, job.metadata
    policy = spec.run_policy or RunPolicy()
    dialect = TFDialect(spec, meta)
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=TFJOB.singular,
        owner=owner_of(TFJOB, meta),
        generation=meta.generation,
        roles=tuple(policies.role(spec, name) for name in typed(spec)),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=dialect,
        lifecycle=policies.lifecycle(policy),
        gang=dialect.gang,
        ledger=remembered(TFJOB, job.status, meta),
        deleting=meta.deletion_timestamp is not None,
        unmanaged=_others(policy.managed_by),
        remarks=_remarks(spec),
    )


def _remarks(spec: TFJobSpec) -> tuple[tuple[str, str], ...]:
    """What the original tells of a job although it runs it."""
    set_there = any((one.template.get("spec") or {}).get("restartPolicy") for one in spec.tf_replica_specs.values())
    return (("SetPodTemplateRestartPolicy", _OVERWRITTEN),) if set_there else ()


def past(status: TFJobStatus, meta: ObjectMeta) -> Ledger:
    """A job that ended under another controller stays ended."""
    ends = [one for one in status.conditions or () if one.type in ("Succeeded", "Failed") and one.status == "True"]
    if not ends:
        return status.trainwright
    told = status.completion_time or ends[-1].last_transition_time or ""
    return ended_elsewhere(ends[-1].type, str(told), meta)


def elsewhere(document: Body) -> bool:
    """What another controller looks after is that one's to judge, too."""
    part: object = document
    for key in ("spec", "runPolicy", "managedBy"):
        part = part.get(key) if isinstance(part, dict) else None
    return isinstance(part, str) and _others(part)


def _others(manager: str | UnsetType) -> bool:
    return bool(manager) and manager != OURS


TFJOB = Kind(
    group="kubeflow.org",
    version=VERSIONS[0].name,
    name="TFJob",
    plural="tfjobs",
    short_names=(),
    wire=TFJob,
    status=TFJobStatus,
    columns=(
        Column("State", "string", ".status.conditions[-1:].type"),
        Column("Age", "date", ".metadata.creationTimestamp"),
    ),
    default=default,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    suspend=suspend,
    scale=scale,
    cel=RULES,
    versions=VERSIONS,
    # It is true as soon as one trains; that all of them do is stored at once.
    patient=("Running",),
    word=word,
    event=worded,
    gangs=gangs.ALL,
    tells_pods=True,
    removes=True,
    past=past,
    originals=("training-operator", "tf-operator", "tf-job-operator"),
    elsewhere=elsewhere,
)
