# SPDX-License-Identifier: Apache-2.0
"""AITrainingJobs by their policies alone, through the real kind: what a policy compiles to, and whole jobs to drive."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.kinds.aitrainingjob import AITRAININGJOB, policies
from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec, ReplicaSpec
from trainwright.kinds.base import load
from trainwright.model.job import Body, CleanUp, Job, RequestedEnd, Restart
from trainwright.model.meta import ObjectMeta
from trainwright.model.rule import Rule
from trainwright.testing.factories import UID

FAILED_POD, NODE = policies.FAILED_POD, policies.NODE
_TEMPLATE = {"spec": {"containers": [{"name": "aitj-main", "image": "python"}]}}


class Replicas(Struct, frozen=True):
    """What of a replica spec is policy, with its defaults."""

    replicas: int = 1
    complete: str = "All"
    fail: str = "Any"
    restart: str = "Never"
    scope: str = "All"
    limit: int | None = None
    helpers: tuple[str, ...] = ()


class AITrainingJob(Struct, frozen=True):
    """What of an AITrainingJob is policy, with its defaults."""

    roles: dict[str, Replicas]
    complete: str = "All"
    fail: str = "Any"
    exit_codes: Any = ""
    clean_pod_policy: str = "All"
    time_limit: int | None = None
    annotations: Mapping[str, str] = {}


def replica(one: Replicas) -> Body:
    """A replica spec."""
    helpers = [{"name": name, "image": "python"} for name in one.helpers]
    limit = {} if one.limit is None else {"restartLimit": one.limit}
    return {
        "replicas": one.replicas,
        "completePolicy": one.complete,
        "failPolicy": one.fail,
        "restartPolicy": one.restart,
        "restartScope": one.scope,
        "template": {"spec": {"containers": [*_TEMPLATE["spec"]["containers"], *helpers]}},
        **limit,
    }


def manifest(job: AITrainingJob) -> Body:
    """The whole manifest."""
    limit = {} if job.time_limit is None else {"timeLimit": job.time_limit}
    return {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "job", "namespace": "default", "uid": UID, "annotations": dict(job.annotations)},
        "spec": {
            "replicaSpecs": {name: replica(one) for name, one in job.roles.items()},
            "completePolicy": job.complete,
            "failPolicy": job.fail,
            "restartingExitCode": job.exit_codes,
            "cleanPodPolicy": job.clean_pod_policy,
            **limit,
        },
    }


def _spec(job: AITrainingJob) -> AITrainingJobSpec:
    return msgspec.convert(manifest(job)["spec"], AITrainingJobSpec)


def success(job: AITrainingJob) -> Rule:
    return policies.success(_spec(job))


def failure(job: AITrainingJob) -> Rule:
    return policies.failure(_spec(job))


def restart(one: Replicas, exit_codes: Any) -> Restart:
    return policies.restart(msgspec.convert(replica(one), ReplicaSpec), exit_codes)


def ending(annotations: Mapping[str, str]) -> RequestedEnd | None:
    return policies.ending(annotations)


def clean_up(policy: str) -> CleanUp:
    return policies.lifecycle(_spec(AITrainingJob({"a": Replicas()}, clean_pod_policy=policy)), ObjectMeta()).clean


def compiled(job: AITrainingJob) -> Job:
    """The job in the internal model."""
    loaded = load(AITRAININGJOB, manifest(job))
    assert loaded.errors == ()
    return loaded.job
