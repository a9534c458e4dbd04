# SPDX-License-Identifier: Apache-2.0
"""GenericJob, `batch.tensorstack.dev/v1beta1`, as a `Kind`."""

from typing import TypeVar

from msgspec.structs import replace

from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, ended_elsewhere, translated
from trainwright.kinds.genericjob import policies
from trainwright.kinds.genericjob.checks import CEL_RULES, check, check_edit, scale, suspend
from trainwright.kinds.genericjob.dialect import GANG, GenericDialect
from trainwright.kinds.genericjob.status import render
from trainwright.kinds.genericjob.wire import DebugMode, GenericJob, GenericJobStatus, PauseMode
from trainwright.kinds.genericjob.writer import WRITER
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

Mode = TypeVar("Mode", DebugMode, PauseMode)


def default(job: GenericJob) -> GenericJob:
    """Read `enable`, the old spelling of `enabled`; all other defaults are in the wire types."""
    mode = job.spec.run_mode
    if mode is None:
        return job
    mode = replace(mode, debug=_enabled(mode.debug), pause=_enabled(mode.pause))
    return replace(job, spec=replace(job.spec, run_mode=mode))


def _enabled(mode: Mode | None) -> Mode | None:
    return replace(mode, enabled=True) if mode is not None and mode.enable is True else mode


def translate(job: GenericJob) -> Job:
    """The job in the internal model."""
    dialect = GenericDialect(job.spec)
    return translated(GENERICJOB, job, policies, dialect, gang=GANG if dialect.scheduler is not None else None)


def adopted_ledger(status: GenericJobStatus, meta: ObjectMeta) -> Ledger:
    """The ledger for a status without our ledger; if the status says that the job has ended, with that result."""
    if status.phase not in ("Succeeded", "Failed"):
        return status.trainwright
    times = [one.last_transition_time for one in status.conditions or () if one.type == "Completed"]
    return ended_elsewhere(status.phase, times[0] if times else "", meta)


GENERICJOB = Kind(
    group="batch.tensorstack.dev",
    version="v1beta1",
    name="GenericJob",
    plural="genericjobs",
    short_names=("gj",),
    wire=GenericJob,
    status=GenericJobStatus,
    columns=(
        Column("Phase", "string", ".status.phase"),
        Column("Age", "date", ".metadata.creationTimestamp"),
        REASON,
        Column("Running", "integer", ".status.aggregate.running", priority=1),
        Column("Succeeded", "integer", ".status.aggregate.succeeded", priority=1),
        Column("Failed", "integer", ".status.aggregate.failed", priority=1),
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
    deferrable=("Initialized",),
    gangs=(GANG,),
    adopted_ledger=adopted_ledger,
    controller_names=("genericjob",),
)
