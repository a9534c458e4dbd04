# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob, `elasticdeeplearning.ai/v1`, as a `Kind`."""

from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import policies
from trainwright.kinds.aitrainingjob.checks import CEL_RULES, check, check_edit, scale, suspend
from trainwright.kinds.aitrainingjob.conditions import FINAL_PHASES, event
from trainwright.kinds.aitrainingjob.dialect import GROUP, AIDialect
from trainwright.kinds.aitrainingjob.environment import PREFIX, has_prefix, main_containers
from trainwright.kinds.aitrainingjob.status import render
from trainwright.kinds.aitrainingjob.wire import AITrainingJob, AITrainingJobSpec, AITrainingJobStatus, ReplicaSpec
from trainwright.kinds.aitrainingjob.writer import WRITER
from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, ended_elsewhere, translated
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta


def default(job: AITrainingJob) -> AITrainingJob:
    """Fill in the fields that the user left out or left empty."""
    spec = replace(
        job.spec,
        replica_specs={name: _replica(one) for name, one in job.spec.replica_specs.items()},
        fail_policy=job.spec.fail_policy or "Any",
        complete_policy=job.spec.complete_policy or "All",
    )
    return replace(job, spec=spec)


def _replica(spec: ReplicaSpec) -> ReplicaSpec:
    return replace(
        spec,
        restart_policy=spec.restart_policy or "Never",
        restart_scope=spec.restart_scope or "All",
        fail_policy=spec.fail_policy or "Any",
        complete_policy=spec.complete_policy or "All",
    )


def translate(job: AITrainingJob) -> Job:
    """The job in the internal model."""
    dialect = AIDialect(job.spec, job.metadata)
    return translated(AITRAININGJOB, job, policies, dialect, remarks=_remarks(job.spec))


def _remarks(spec: AITrainingJobSpec) -> tuple[tuple[str, str], ...]:
    """The warning about replica types in which no container has a name that begins with `aitj-`."""
    mains = [(name, main_containers(one.template)) for name, one in policies.ordered(spec)]
    unmarked = [f"{name}: {found[0]['name']}" for name, found in mains if found and not has_prefix(found[0])]
    text = f"no container is called {PREFIX}…, so the first one counts, with all its ports ({', '.join(unmarked)})"
    return (("TrainingJobContainer", text),) if unmarked else ()


def adopted_ledger(status: AITrainingJobStatus, meta: ObjectMeta) -> Ledger:
    """The ledger for a status without our ledger; if the job has ended, with the result and the phase in the status."""
    if status.phase not in FINAL_PHASES:
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
        REASON,
        Column("Started", "date", ".status.startTime", priority=1),
        Column("Running", "date", ".status.startRunningTime", priority=1),
        Column("Ended", "date", ".status.endTime", priority=1),
        MESSAGE,
    ),
    default=default,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    writer=WRITER,
    suspend=suspend,
    scale=scale,
    cel=CEL_RULES,
    # These phases are short, and their messages change with every message of the scheduler or of a kubelet.
    deferrable=("Pending", "Creating"),
    event=event,
    adopted_ledger=adopted_ledger,
    controller_names=("trainingjob-operator", "aitrainingjob"),
)
