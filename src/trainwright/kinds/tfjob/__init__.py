# SPDX-License-Identifier: Apache-2.0
"""TFJob, `kubeflow.org/v1` and `v1alpha2`, as a `Kind`."""

from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds import gangs
from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, ended_elsewhere, translated
from trainwright.kinds.tfjob import policies
from trainwright.kinds.tfjob.checks import CEL_RULES, check, check_edit, scale, suspend
from trainwright.kinds.tfjob.conditions import event
from trainwright.kinds.tfjob.dialect import TFDialect
from trainwright.kinds.tfjob.status import phase_of, render
from trainwright.kinds.tfjob.wire import (
    RESTART_POLICY,
    VERSIONS,
    RunPolicy,
    TFJob,
    TFJobSpec,
    TFJobStatus,
    defaults_version,
)
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

T = TypeVar("T")
#: By version: the restart policy and the clean-up policy of a job that sets none.
_DEFAULT_RESTART = {version.name: version.defaults[RESTART_POLICY] for version in VERSIONS}
_DEFAULT_CLEAN_UP = {"v1": "None", "v1alpha2": "Running"}
#: The value of `managedBy` for jobs that we manage; with any other value we ignore the job.
MANAGED_BY = "kubeflow.org/training-operator"
_OVERWRITTEN = "Restart policy in pod template will be overwritten by restart policy in replica spec"


def default(job: TFJob) -> TFJob:
    """Fill in the fields that the user left out; fields in their old place move to `runPolicy`."""
    spec = job.spec
    restart = _DEFAULT_RESTART[defaults_version(spec)]
    replicas = {
        key: replace(one, restart_policy=one.restart_policy or restart) for key, one in spec.tf_replica_specs.items()
    }
    return replace(job, spec=replace(spec, tf_replica_specs=replicas, run_policy=_run_policy(spec)))


def _run_policy(spec: TFJobSpec) -> RunPolicy:
    given = spec.run_policy or RunPolicy()
    clean = _first(given.clean_pod_policy, spec.clean_pod_policy)
    return replace(
        given,
        clean_pod_policy=_DEFAULT_CLEAN_UP[defaults_version(spec)] if clean is UNSET else clean,
        ttl_seconds_after_finished=_first(given.ttl_seconds_after_finished, spec.ttl_seconds_after_finished),
        active_deadline_seconds=_first(given.active_deadline_seconds, spec.active_deadline_seconds),
        backoff_limit=_first(given.backoff_limit, spec.backoff_limit),
    )


def _first(new: T | UnsetType, old: T | UnsetType) -> T | UnsetType:
    return old if new is UNSET else new


def translate(job: TFJob) -> Job:
    """The job in the internal model."""
    spec, dialect = job.spec, TFDialect(job.spec, job.metadata)
    unmanaged = spec.run_policy is not None and _is_other(spec.run_policy.managed_by)
    return translated(TFJOB, job, policies, dialect, gang=dialect.gang, unmanaged=unmanaged, remarks=_remarks(spec))


def _remarks(spec: TFJobSpec) -> tuple[tuple[str, str], ...]:
    """The warning that the original controller emits if a template has a restart policy."""
    has_policy = any((one.template.get("spec") or {}).get("restartPolicy") for one in spec.tf_replica_specs.values())
    return (("SetPodTemplateRestartPolicy", _OVERWRITTEN),) if has_policy else ()


def adopted_ledger(status: TFJobStatus, meta: ObjectMeta) -> Ledger:
    """The ledger for a status without our ledger; if the status says that the job has ended, with that result."""
    ends = [one for one in status.conditions or () if one.type in ("Succeeded", "Failed") and one.status == "True"]
    if not ends:
        return status.trainwright
    ended_at = status.completion_time or ends[-1].last_transition_time or ""
    return ended_elsewhere(ends[-1].type, str(ended_at), meta)


def managed_elsewhere(document: Body) -> bool:
    """Whether `managedBy` is another controller. That controller also reports the errors of the manifest."""
    part: object = document
    for key in ("spec", "runPolicy", "managedBy"):
        part = part.get(key) if isinstance(part, dict) else None
    return isinstance(part, str) and _is_other(part)


def _is_other(manager: str | UnsetType) -> bool:
    return bool(manager) and manager != MANAGED_BY


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
        REASON,
        MESSAGE,
    ),
    default=default,
    check=check,
    check_edit=check_edit,
    translate=translate,
    render=render,
    suspend=suspend,
    scale=scale,
    cel=CEL_RULES,
    versions=VERSIONS,
    # Running becomes true when the first leading replica runs. The write of this change may wait, because we write the
    # status at once when all replicas run.
    deferrable=("Running",),
    phase_of=phase_of,
    event=event,
    gangs=gangs.ALL,
    reports_pods=True,
    reports_running=False,
    has_ttl=True,
    adopted_ledger=adopted_ledger,
    controller_names=("training-operator", "tf-operator", "tf-job-operator"),
    managed_elsewhere=managed_elsewhere,
)
