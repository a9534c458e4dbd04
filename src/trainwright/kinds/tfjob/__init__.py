# SPDX-License-Identifier: Apache-2.0
"""TFJob, `kubeflow.org/v1` and `v1alpha2`: the kind as a value. `registry` lists it.

`wire` has its types, `versions` what each version fills in, `checks` what may be wrong, `policies`, `dialect` and
`cluster` its meaning, `conditions`, `words` and `status` how it speaks.
"""

from trainwright.kinds.base import Column, Kind, ended_elsewhere, key_of, owner_of
from trainwright.kinds.tfjob import policies
from trainwright.kinds.tfjob.cel import RULES
from trainwright.kinds.tfjob.checks import check, check_edit
from trainwright.kinds.tfjob.dialect import GANGS, TFDialect
from trainwright.kinds.tfjob.edits import scale, suspend
from trainwright.kinds.tfjob.status import render, word
from trainwright.kinds.tfjob.types import typed
from trainwright.kinds.tfjob.versions import VERSIONS, default
from trainwright.kinds.tfjob.wire import RunPolicy, TFJob, TFJobSpec, TFJobStatus
from trainwright.kinds.tfjob.words import event
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger, Phase

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
        roles=tuple(policies.role(name, one) for name, one in typed(spec).items()),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=dialect,
        lifecycle=policies.lifecycle(policy),
        gang=dialect.gang,
        ledger=_ledger(job),
        deleting=meta.deletion_timestamp is not None,
        unmanaged=bool(policy.managed_by) and policy.managed_by != OURS,
        remarks=_remarks(spec),
    )


def _remarks(spec: TFJobSpec) -> tuple[tuple[str, str], ...]:
    """What the original tells of a job although it runs it."""
    set_there = any((one.template.get("spec") or {}).get("restartPolicy") for one in spec.tf_replica_specs.values())
    return (("SetPodTemplateRestartPolicy", _OVERWRITTEN),) if set_there else ()


def _ledger(job: TFJob) -> Ledger:
    """What is remembered; a job that ended under another controller stays ended."""
    status = job.status
    if status is None or status.trainwright.phase is not Phase.NEW:
        return status.trainwright if status is not None else Ledger()
    ends = [one for one in status.conditions or () if one.type in ("Succeeded", "Failed") and one.status == "True"]
    if not ends:
        return status.trainwright
    told = status.completion_time or ends[-1].last_transition_time or ""
    return ended_elsewhere(ends[-1].type, str(told), job.metadata)


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
    event=event,
    gangs=GANGS,
    removes=True,
)
