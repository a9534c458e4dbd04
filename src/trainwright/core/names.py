# SPDX-License-Identifier: Apache-2.0
"""What children are called. All four kinds agree: `<job>-<role in lower case>-<index>`, for the pod and its service."""

from trainwright.model.job import Job


def stem(job: Job, role: str) -> str:
    """What the names of a role's replicas begin with; the index follows."""
    return f"{job.key.name}-{role.lower()}-".replace("/", "-")


def child(job: Job, role: str, index: int) -> str:
    """The name of a replica's pod and service."""
    return f"{stem(job, role)}{index}"
