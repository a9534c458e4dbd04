# SPDX-License-Identifier: Apache-2.0
"""Which jobs need an etcd in which their replicas meet: `run` warns where it was given none, `plan` says so."""

from collections.abc import Iterable

from trainwright.model.job import Job

OPTION = "--etcd-server HOST:PORT"
#: A template that sets one of these names an etcd itself.
_OWN = frozenset({"PADDLE_ELASTIC_SERVER", "PADDLE_MASTER"})


def needs_etcd(job: Job, variables: Iterable[str] = ()) -> bool:
    """Whether replicas meet in an etcd that neither their template nor these variables of every container name."""
    return not _OWN & set(variables) and any(role.size_key and not _named(role.template) for role in job.roles)


def _named(template: object) -> bool:
    spec = template.get("spec") if isinstance(template, dict) else None
    containers = (spec.get("containers") if isinstance(spec, dict) else None) or ()
    return any(one.get("name") in _OWN for container in containers for one in container.get("env") or ())
