# SPDX-License-Identifier: Apache-2.0
"""Sizes within their bounds: the first thing `reconcile` does, so that every later step sees the size that counts.

A role that may be resized while it runs has bounds; a wanted size outside them counts as the nearer bound. Resizing to
what a cluster can hold will be decided here too.
"""

from msgspec.structs import replace

from trainwright.model.job import Job, Role


def bounded(job: Job) -> Job:
    """The job with every elastic role within its bounds."""
    if all([role.elastic is None for role in job.roles]):  # noqa: C419 - asked on every pass, and a list is cheaper
        return job
    return replace(job, roles=tuple(_bounded(role) for role in job.roles))


def _bounded(role: Role) -> Role:
    if role.elastic is None:
        return role
    return replace(role, replicas=min(max(role.replicas, role.elastic.least), role.elastic.most))
