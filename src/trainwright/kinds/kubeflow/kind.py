# SPDX-License-Identifier: Apache-2.0
"""Make a `Kind` from a `Framework`: defaults, the job in the internal model, and the status of another controller."""

from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds import gangs
from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, ScalePaths, ended_elsewhere, translated
from trainwright.kinds.kubeflow import policies
from trainwright.kinds.kubeflow.checks import cel_rules, check, check_edit, scale, suspend
from trainwright.kinds.kubeflow.conditions import event
from trainwright.kinds.kubeflow.dialect import KubeflowDialect
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.kubeflow.status import phase_of, render
from trainwright.kinds.kubeflow.wire import KubeflowSpec, KubeflowStatus, RunPolicy
from trainwright.kinds.kubeflow.writer import make_writer
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ObjectMeta

#: The value of `managedBy` for jobs that we manage; with any other value we ignore the job.
MANAGED_BY = "kubeflow.org/training-operator"
_OVERWRITTEN = "Restart policy in pod template will be overwritten by restart policy in replica spec"


def make_kind(framework: Framework, **more: Any) -> Kind:
    """The kind of a framework. `more`: fields of `Kind` that differ from the other kinds of Kubeflow v1."""
    compiled = SimpleNamespace(
        success=framework.success_rule,
        failure=framework.failure_rule,
        roles=lambda spec, _meta: policies.roles(framework, spec),
        lifecycle=policies.lifecycle,
    )

    def translate(job: Any) -> Job:
        """The job in the internal model."""
        spec, dialect = job.spec, KubeflowDialect(framework, job.spec, job.metadata)
        unmanaged = spec.run_policy is not None and _is_other(spec.run_policy.managed_by)
        return translated(kind, job, compiled, dialect, gang=dialect.gang, unmanaged=unmanaged, remarks=_remarks(spec))

    shared: dict[str, Any] = {
        "group": "kubeflow.org",
        "version": "v1",
        "name": framework.name,
        "plural": f"{framework.name.lower()}s",
        "short_names": (),
        "wire": framework.wire,
        "status": framework.status,
        "columns": (
            Column("State", "string", ".status.conditions[-1:].type"),
            Column("Age", "date", ".metadata.creationTimestamp"),
            REASON,
            MESSAGE,
        ),
        "default": partial(default, framework),
        "check": partial(check, framework),
        "check_edit": check_edit,
        "translate": translate,
        "render": partial(render, framework),
        "writer": make_writer(framework),
        "suspend": suspend,
        "scale": partial(scale, framework),
        "scale_paths": _scale_paths(framework) if framework.has_scale else None,
        "cel": cel_rules(framework),
        # Running becomes true when the first leading replica runs. The write of this change may wait, because we write
        # the status at once when all replicas run.
        "deferrable": ("Running",),
        "phase_of": phase_of,
        "event": partial(event, framework),
        "gangs": gangs.ALL,
        "reports_pods": True,
        "reports_running": False,
        "has_ttl": True,
        "adopted_ledger": adopted_ledger,
        "controller_names": ("training-operator",),
        "managed_elsewhere": managed_elsewhere,
    }
    kind = Kind(**(shared | more))
    return kind


def _scale_paths(framework: Framework) -> ScalePaths:
    counts = f".status.replicaStatuses.{WORKER}"
    return ScalePaths(f".{framework.path}.{WORKER}.replicas", f"{counts}.active", f"{counts}.selector")


def default(framework: Framework, job: Any) -> Any:
    """Fill in the fields that the user left out."""
    spec = framework.default(job.spec)
    policy = spec.run_policy or RunPolicy()
    if policy.clean_pod_policy is UNSET:
        policy = replace(policy, clean_pod_policy="None")
    replicas = {
        key: replace(one, restart_policy=one.restart_policy or framework.restart_policy)
        for key, one in spec.replica_specs.items()
    }
    return replace(job, spec=replace(spec, replica_specs=replicas, run_policy=policy))


def _remarks(spec: KubeflowSpec) -> tuple[tuple[str, str], ...]:
    """The warning that the original controller emits if a template has a restart policy."""
    has_policy = any((one.template.get("spec") or {}).get("restartPolicy") for one in spec.replica_specs.values())
    return (("SetPodTemplateRestartPolicy", _OVERWRITTEN),) if has_policy else ()


def adopted_ledger(status: KubeflowStatus, meta: ObjectMeta) -> Ledger:
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
