# SPDX-License-Identifier: Apache-2.0
"""TFJobs by their policies alone, through the real kind: what a policy compiles to, and whole jobs to drive."""

from typing import Any

import msgspec
from msgspec import Struct

from trainwright.kinds.base import load
from trainwright.kinds.tfjob import TFJOB, policies
from trainwright.kinds.tfjob.wire import RunPolicy, TFJobSpec
from trainwright.model.job import Body, CleanUp, Job, Restart
from trainwright.model.meta import ObjectMeta
from trainwright.model.rule import Rule
from trainwright.testing.factories import UID

FAILED_POD = policies.FAILED_POD
_TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "tensorflow"}]}}


class TFJob(Struct, frozen=True):
    """What of a TFJob's spec is policy. Roles: type to (replicas, restartPolicy)."""

    roles: dict[str, tuple[int, str]]
    success_policy: str = ""
    dynamic_worker: bool = False
    backoff_limit: int | None = None
    clean_pod_policy: str = "None"
    active_deadline: int | None = None
    ttl: int | None = None
    suspend: bool = False


def manifest(job: TFJob) -> Body:
    """The whole manifest."""
    run_policy: dict[str, Any] = {
        "backoffLimit": job.backoff_limit,
        "cleanPodPolicy": job.clean_pod_policy,
        "activeDeadlineSeconds": job.active_deadline,
        "ttlSecondsAfterFinished": job.ttl,
        "suspend": job.suspend,
    }
    specs = {
        name: {"replicas": replicas, "restartPolicy": policy, "template": _TEMPLATE}
        for name, (replicas, policy) in job.roles.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "job", "namespace": "default", "uid": UID},
        "spec": {
            "tfReplicaSpecs": specs,
            "successPolicy": job.success_policy,
            "enableDynamicWorker": job.dynamic_worker,
            "runPolicy": {key: value for key, value in run_policy.items() if value is not None},
        },
    }


def _spec(job: TFJob) -> TFJobSpec:
    return msgspec.convert(manifest(job)["spec"], TFJobSpec)


def success(job: TFJob) -> Rule:
    return policies.success(_spec(job))


def failure(job: TFJob) -> Rule:
    return policies.failure(_spec(job))


def restart(policy: str) -> Restart:
    return policies.RESTARTS[policy]


def clean_up(policy: str) -> CleanUp:
    spec = TFJobSpec({}, run_policy=msgspec.convert({"cleanPodPolicy": policy}, RunPolicy))
    return policies.lifecycle(spec, ObjectMeta()).clean


def compiled(job: TFJob) -> Job:
    """The job in the internal model."""
    loaded = load(TFJOB, manifest(job))
    assert loaded.errors == ()
    return loaded.job
