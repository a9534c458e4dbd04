# SPDX-License-Identifier: Apache-2.0
"""GenericJob, `batch.tensorstack.dev/v1beta1`: the kind as a value. `registry` lists it.

`wire` has its types, `checks` what may be wrong with one, `policies` and `dialect` its meaning, `status` its words.
"""

from typing import TypeVar

from msgspec.structs import replace

from trainwright.kinds.base import Column, Kind, ended_elsewhere, key_of, owner_of, remembered
from trainwright.kinds.genericjob import policies
from trainwright.kinds.genericjob.checks import RULES, check, check_edit, scale, suspend
from trainwright.kinds.genericjob.dialect import GANG, GenericDialect
from trainwright.kinds.genericjob.status import render
from trainwright.kinds.genericjob.wire import DebugMode, GenericJob, GenericJobStatus, PauseMode
from trainwright.model.job import Job, Lifecycle, Role
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

Mode = TypeVar("Mode", DebugMode, PauseMode)


def default(job: GenericJob) -> GenericJob:
    """The wire types carry the defaults; what is left is the old spelling of `enabled`."""
    mode = job.spec.run_mode
    if mode is None:
        return job
    mode = replace(mode, debug=_enabled(mode.debug), pause=_enabled(mode.pause))
    return replace(job, spec=replace(job.spec, run_mode=mode))


def _enabled(mode: Mode | None) -> Mode | None:
    return replace(mode, enabled=True) if mode is not None and mode.enable is True else mode


def translate(job: GenericJob) -> Job:
    """The job in the one model."""
    spec, meta = job.spec, job.metadata
    mode = spec.run_mode
    dialect, scope = GenericDialect(spec), policies.scope(meta.annotations)
    return Job(
        key=key_of(meta),
        uid=meta.uid,
        kind=GENERICJOB.singular,
        owner=owner_of(GENERICJOB, meta),
        generation=meta.generation,
        roles=tuple(
            Role(
                one.type,
                one.replicas,
                one.template,
                policies.restart(one.restart_policy, scope),
                service=spec.service is not None,
            )
            for one in spec.replica_specs
        ),
        success=policies.success(spec),
        failure=policies.failure(spec),
        dialect=dialect,
        lifecycle=Lifecycle(
            suspended=mode is not None and mode.pause is not None and mode.pause.enabled,
            clean=policies.clean_up(spec),
        ),
        gang=GANG if dialect.scheduler is not None else None,
        ledger=remembered(GENERICJOB, job.status, meta),
        deleting=meta.deletion_timestamp is not None,
    )


def past(status: GenericJobStatus, meta: ObjectMeta) -> Ledger:
    """A job that ended under another controller stays ended."""
    if status.phase not in ("Succeeded", "Failed"):
        return status.trainwright
    ends = [one.last_transition_time for one in status.conditions or () if one.type == "Completed"]
    return ended_elsewhere(status.phase, ends[0] if ends else "", meta)


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
        Column("Running", "integer", ".status.aggregate.running", priority=1),
        Column("Succeeded", "integer", ".status.aggregate.succeeded", priority=1),
        Column("Failed", "integer", ".status.aggregate.failed", priority=1),
    ),
    default=default,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    suspend=suspend,
    scale=scale,
    cel=RULES,
    patient=("Initialized",),
    gangs=(GANG,),
    past=past,
    originals=("genericjob",),
)
