# SPDX-License-Identifier: Apache-2.0
"""The labels that training-operator gives to the pods and services of every kind. Services select pods by them."""

from trainwright.kinds.kubeflow.framework import Framework

_PREFIX = "training.kubeflow.org"
#: The label of the leader's pods.
JOB_ROLE = f"{_PREFIX}/job-role"


def replica_labels(framework: Framework, job: str, role: str, index: int) -> dict[str, str]:
    """The labels of one replica."""
    return _role_labels(framework, job, role) | {f"{_PREFIX}/replica-index": str(index)}


def selector(framework: Framework, job: str, role: str) -> str:
    """The label selector for all pods of a role, as text; the keys are sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted(_role_labels(framework, job, role).items()))


def _role_labels(framework: Framework, job: str, role: str) -> dict[str, str]:
    return {
        f"{_PREFIX}/operator-name": framework.controller,
        f"{_PREFIX}/job-name": job,
        f"{_PREFIX}/replica-type": role.lower(),
    }
