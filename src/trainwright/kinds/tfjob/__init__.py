# SPDX-License-Identifier: Apache-2.0
"""TFJob, `kubeflow.org/v1` and `v1alpha2`, as a `Kind`."""

from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.kind import make_kind
from trainwright.kinds.kubeflow.wire import RunPolicy
from trainwright.kinds.tfjob import checks, environment, policies
from trainwright.kinds.tfjob.conditions import TEXTS
from trainwright.kinds.tfjob.wire import (
    MAIN,
    REPLICA_TYPES,
    RESTART_POLICY,
    VERSIONS,
    TFJob,
    TFJobSpec,
    TFJobStatus,
    defaults_version,
)
from trainwright.model.job import Job

T = TypeVar("T")
#: By version: the restart policy and the clean-up policy of a job that sets none.
_DEFAULT_RESTART = {version.name: version.defaults[RESTART_POLICY] for version in VERSIONS}
_DEFAULT_CLEAN_UP = {"v1": "None", "v1alpha2": "Running"}


def default(spec: TFJobSpec) -> TFJobSpec:
    """Set the defaults of the job's version; fields in their old place move to `runPolicy`."""
    restart = _DEFAULT_RESTART[defaults_version(spec)]
    replicas = {
        key: replace(one, restart_policy=one.restart_policy or restart) for key, one in spec.replica_specs.items()
    }
    return replace(spec, replica_specs=replicas, run_policy=_run_policy(spec))


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


def complete_status(status: TFJobStatus, job: Job) -> TFJobStatus:
    """Jobs of `v1alpha2` have the counts under the old name too."""
    spec = getattr(job.dialect, "spec", None)  # None for an invalid job
    is_v1alpha2 = spec is not None and spec.trainwright.defaults == "v1alpha2"
    return replace(status, tf_replica_statuses=status.replica_statuses) if is_v1alpha2 else status


TENSORFLOW = Framework(
    name="TFJob",
    field="tfReplicaSpecs",
    types=REPLICA_TYPES,
    main=MAIN,
    texts=TEXTS,
    wire=TFJob,
    status=TFJobStatus,
    variables=environment.variables,
    endpoints=environment.endpoints,
    variable_names=("TF_CONFIG",),
    in_all_containers=False,
    default=default,
    adjust_policy=policies.adjust_policy,
    success=policies.success,
    failure=policies.failure,
    variants=({}, {"successPolicy": policies.ALL_WORKERS}, {"enableDynamicWorker": True}),
    check_replicas=checks.check_replicas,
    check=checks.check,
    complete_status=complete_status,
)
TFJOB = make_kind(
    TENSORFLOW, versions=VERSIONS, controller_names=("training-operator", "tf-operator", "tf-job-operator")
)
