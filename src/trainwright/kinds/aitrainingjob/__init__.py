# SPDX-License-Identifier: Apache-2.0
"""What a manifest leaves out or leaves empty. Called by `base.load` before anything looks at a job.

AITrainingJob, `elasticdeeplearning.ai/v1`: the kind as a value. `registry` lists it.

`wire` has its types, `checks` what may be wrong, `policies`, `dialect` and `environment` its meaning, `conditions`
and `status` how it speaks.
"""

from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import policies
from trainwright.kinds.aitrainingjob.checks import RULES, check, check_edit, scale, suspend
from trainwright.kinds.aitrainingjob.conditions import ENDS, worded
from trainwright.kinds.aitrainingjob.dialect import GROUP, AIDialect
from trainwright.kinds.aitrainingjob.environment import PREFIX, counting, prefixed
from trainwright.kinds.aitrainingjob.status import render
from trainwright.kinds.aitrainingjob.wire import AITrainingJob, AITrainingJobSpec, AITrainingJobStatus, ReplicaSpec
from trainwright.kinds.base import Column, Kind, ended_elsewhere, key_of, owner_of, remembered
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta


def default(job: AITrainingJob) -> AITrainingJob:
    """Fill in what the user left out."""
    spec = job.spec
    specs = {name: _replica(one) for name, one in spec.replica_specs.items()}
    return replace(
        job,
        spec=replace(
            spec,
            replica_specs=specs,
            fail_policy=spec.fail_policy or "Any",
            complete_policy=spec.complete_policy or "All",
        ),
    )


def _replica(one: ReplicaSpec) -> ReplicaSpec:
    if one.restart_policy and one.restart_scope and one.fail_policy and one.complete_policy:
        return one
    return replace(
        one,
        restart_policy=one.restart_policy or "Never",
        restart_scope=one.restart_scope or "All",
        fail_policy=one.fail_policy or "Any",
        complete_policy=one.complete_policy or "All",
    )


def translate(job: AITrainingJob) -> Job:
    """The job in the one model."""
    spec, meta = job.spec, job.metadata
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=AITRAININGJOB.singular,
        owner=owner_of(AITRAININGJOB, meta),
        generation=meta.generation,
        roles=tuple(policies.role(name, one, spec) for name, one in policies.ordered(spec)),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=AIDialect(spec, meta),
        lifecycle=policies.lifecycle(spec, meta.annotations),
        ledger=remembered(AITRAININGJOB, job.status, meta),
        deleting=meta.deletion_timestamp is not None,
        remarks=_remarks(spec),
    )


def _remarks(spec: AITrainingJobSpec) -> tuple[tuple[str, str], ...]:
    """That nothing says which container trains."""
    first = [(name, counting(one.template)) for name, one in policies.ordered(spec)]
    bare = [f"{name}: {found[0]['name']}" for name, found in first if found and not prefixed(found[0])]
    text = f"no container is called {PREFIX}…, so the first one counts, with all its ports ({', '.join(bare)})"
    return (("TrainingJobContainer", text),) if bare else ()


def past(status: AITrainingJobStatus, meta: ObjectMeta) -> Ledger:
    """A job that ended under another controller stays ended, and in the same phase."""
    if status.phase not in ENDS:
        return status.trainwright
    result = "Succeeded" if status.phase == "Succeed" else "Failed"
    last = status.conditions[-1].last_transition_time if status.conditions else ""
    return ended_elsewhere(result, str(status.end_time or last or ""), meta, status.phase)


AITRAININGJOB = Kind(
    group=GROUP,
    version="v1",
    name="AITrainingJob",
    plural="aitrainingjobs",
    short_names=("aitj",),
    wire=AITrainingJob,
    status=AITrainingJobStatus,
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("Restarts", "integer", ".status.restarts"),
        Column("Age", "date", ".metadata.creationTimestamp"),
        Column("Started", "date", ".status.startTime", priority=1),
        Column("Running", "date", ".status.startRunningTime", priority=1),
        Column("Ended", "date", ".status.endTime", priority=1),
    ),
    default=default,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    suspend=suspend,
    scale=scale,
    cel=RULES,
    # Passing states: what they say changes with every word of a scheduler or kubelet, and something more follows.
    patient=("Pending", "Creating"),
    event=worded,
    past=past,
    originals=("trainingjob-operator", "aitrainingjob"),
)
