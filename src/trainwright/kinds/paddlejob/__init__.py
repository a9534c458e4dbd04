# SPDX-License-Identifier: Apache-2.0
"""PaddleJob, `batch.paddlepaddle.org/v1`, as a `Kind`."""

from trainwright.kinds import gangs
from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, ended_elsewhere, translated
from trainwright.kinds.paddlejob import policies
from trainwright.kinds.paddlejob.checks import CEL_RULES, check, check_edit, scale, suspend
from trainwright.kinds.paddlejob.conditions import event
from trainwright.kinds.paddlejob.dialect import PaddleDialect
from trainwright.kinds.paddlejob.status import STARTING, render
from trainwright.kinds.paddlejob.wire import PaddleJob, PaddleJobStatus
from trainwright.kinds.paddlejob.writer import WRITER
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

_RESULTS = {"Completed": "Succeeded", "Failed": "Failed"}


def default(job: PaddleJob) -> PaddleJob:
    """Return the job unchanged, because the wire types set all defaults."""
    return job


def translate(job: PaddleJob) -> Job:
    """The job in the internal model."""
    dialect = PaddleDialect(job.spec)
    return translated(PADDLEJOB, job, policies, dialect, gang=dialect.gang, remarks=_remarks(dialect))


def _remarks(dialect: PaddleDialect) -> tuple[tuple[str, str], ...]:
    """The warning for a job that asks for a gang, if a template sets a scheduler that cannot schedule gangs."""
    if dialect.spec.scheduling_policy is None or not dialect.other_schedulers:
        return ()
    named = ", ".join(dialect.other_schedulers)
    message = f"pods are not scheduled as a gang: a template asks for {named}, which does not schedule gangs"
    return (("OtherScheduler", message),)


def adopted_ledger(status: PaddleJobStatus, meta: ObjectMeta) -> Ledger:
    """The ledger for a status without our ledger; if the status says that the job has ended, with that result."""
    if status.phase not in _RESULTS:
        return status.trainwright
    return ended_elsewhere(_RESULTS[status.phase], str(status.completion_time or ""), meta)


PADDLEJOB = Kind(
    group="batch.paddlepaddle.org",
    version="v1",
    name="PaddleJob",
    plural="paddlejobs",
    short_names=("pdj",),
    wire=PaddleJob,
    status=PaddleJobStatus,
    columns=(
        Column("Status", "string", ".status.phase"),
        Column("Mode", "string", ".status.mode"),
        Column("Age", "date", ".metadata.creationTimestamp"),
        REASON,
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
    # This phase is usually short, so its write can wait: usually the next phase is written instead.
    deferrable=(STARTING,),
    event=event,
    gangs=gangs.ALL,
    has_ttl=True,
    adopted_ledger=adopted_ledger,
    controller_names=("paddle-operator", "paddlejob"),
    has_config_map=True,
    obsolete_finalizers=("finalizers.paddlepaddle.org",),
)
