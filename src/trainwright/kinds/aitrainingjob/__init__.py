# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob, `elasticdeeplearning.ai/v1`: the kind as a value. `registry` lists it.

`wire` has its types, `checks` what may be wrong, `policies`, `dialect` and `environment` its meaning, `conditions`,
`words`, `events` and `status` how it speaks.
"""

from trainwright.kinds.aitrainingjob import policies
from trainwright.kinds.aitrainingjob.cel import RULES
from trainwright.kinds.aitrainingjob.checks import check, check_edit
from trainwright.kinds.aitrainingjob.conditions import ENDS
from trainwright.kinds.aitrainingjob.containers import PREFIX, counting, prefixed
from trainwright.kinds.aitrainingjob.defaults import default
from trainwright.kinds.aitrainingjob.dialect import GROUP, AIDialect
from trainwright.kinds.aitrainingjob.edits import scale, suspend
from trainwright.kinds.aitrainingjob.events import worded
from trainwright.kinds.aitrainingjob.status import render
from trainwright.kinds.aitrainingjob.wire import AITrainingJob, AITrainingJobSpec, AITrainingJobStatus
from trainwright.kinds.base import Column, Kind, ended_elsewhere, key_of, owner_of, remembered
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta


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
