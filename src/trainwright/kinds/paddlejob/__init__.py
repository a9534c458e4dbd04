# SPDX-License-Identifier: Apache-2.0
"""PaddleJob, `batch.paddlepaddle.org/v1`: the kind as a value. `registry` lists it.

`wire` has its types, `checks` what may be wrong, `policies`, `dialect` and `environment` its
meaning, `conditions` and `status` how it speaks.
"""

from trainwright.kinds import gangs
from trainwright.kinds.base import Column, Kind, ended_elsewhere, finalizers_of, key_of, owner_of, remembered
from trainwright.kinds.paddlejob import policies
from trainwright.kinds.paddlejob.checks import RULES, check, check_edit, scale, suspend
from trainwright.kinds.paddlejob.conditions import worded
from trainwright.kinds.paddlejob.dialect import PaddleDialect
from trainwright.kinds.paddlejob.status import STARTING, render
from trainwright.kinds.paddlejob.wire import PaddleJob, PaddleJobStatus, roles
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

_ENDS = {"Completed": "Succeeded", "Failed": "Failed"}


def translate(job: PaddleJob) -> Job:
    """The job in the one model."""
    spec, meta = job.spec, job.metadata
    dialect = PaddleDialect(spec)
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=PADDLEJOB.singular,
        owner=owner_of(PADDLEJOB, meta),
        generation=meta.generation,
        roles=tuple(policies.role(name, one, spec, key_of(meta)) for name, one in roles(spec).items()),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=dialect,
        lifecycle=policies.lifecycle(spec),
        gang=dialect.gang,
        ledger=remembered(PADDLEJOB, job.status, meta),
        deleting=meta.deletion_timestamp is not None,
        finalizers=finalizers_of(PADDLEJOB, meta),
        remarks=_remarks(dialect),
    )


def _remarks(dialect: PaddleDialect) -> tuple[tuple[str, str], ...]:
    """Where a gang was asked for that cannot be one."""
    if dialect.spec.scheduling_policy is None or not dialect.strangers:
        return ()
    named = ", ".join(dialect.strangers)
    return (("OtherScheduler", f"pods start one by one: a template asks for {named}, which starts no gangs"),)


def past(status: PaddleJobStatus, meta: ObjectMeta) -> Ledger:
    """A job that ended under another controller stays ended."""
    if status.phase not in _ENDS:
        return status.trainwright
    return ended_elsewhere(_ENDS[status.phase], str(status.completion_time or ""), meta)


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
    ),
    default=lambda job: job,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    suspend=suspend,
    scale=scale,
    cel=RULES,
    # It lasts for moments mostly; only a slow start is worth telling.
    patient=(STARTING,),
    event=worded,
    gangs=gangs.ALL,
    removes=True,
    past=past,
    originals=("paddle-operator", "paddlejob"),
    configures=True,
    outlived=("finalizers.paddlepaddle.org",),
)
