# SPDX-License-Identifier: Apache-2.0
"""Write a job of any kind as a PaddleJob. Its replicas find each other by services."""

from collections.abc import Iterator

from trainwright.kinds import gangs
from trainwright.kinds.paddlejob.policies import CLEAN_UPS
from trainwright.kinds.paddlejob.wire import ROLES, SERVICE
from trainwright.kinds.writing import Templates, Writer, pod_group
from trainwright.model.job import Body, Job

_POLICY = "spec.runPolicy"


def write(job: Job, templates: Templates) -> Iterator[Body]:
    """One manifest for each success policy."""
    spec: Body = {"cleanPodPolicy": _clean_up(job), "intranet": SERVICE}
    if job.gang is not None and job.gang.asked:
        group = pod_group(job, gangs.VOLCANO_API)
        found = {"queue": group.get("queue"), "priorityClass": group.get("priorityClassName")}
        spec["schedulingPolicy"] = {key: value for key, value in found.items() if value}
    roles = {role.name.lower(): role for role in job.roles}
    for name in ROLES:
        if name in roles:
            spec[name] = {"replicas": roles[name].replicas, "template": templates[roles[name].name]}
    for success in ("All", "Workers"):
        yield {"spec": spec | {"runPolicy": _run_policy(job) | {"successPolicy": success}}}


def _clean_up(job: Job) -> str:
    wanted = job.lifecycle.clean
    names = [
        name
        for name, one in CLEAN_UPS.items()
        if name and (one.succeeded, one.failed) == (wanted.succeeded, wanted.failed)
    ]
    return names[0] if names else "Never"


def _run_policy(job: Job) -> Body:
    life = job.lifecycle
    found: Body = {} if life.restarts_allowed is None else {"backoffLimit": life.restarts_allowed}
    found |= {} if life.deadline is None else {"activeDeadlineSeconds": int(life.deadline.seconds)}
    found |= {} if life.ttl is None else {"ttlSecondsAfterFinished": int(life.ttl)}
    return found | ({"suspend": True} if life.suspended else {})


WRITER = Writer(
    write,
    {
        "role": ("spec.{role}",),
        "template": ("spec.{role}.template",),
        "restart": ("spec.{role}.template.spec.restartPolicy", "spec.{role}"),
        "scope": ("spec.intranet",),
        "network": ("spec.intranet",),
        "limit": (f"{_POLICY}.backoffLimit",),
        "backoff": (f"{_POLICY}.backoffLimit",),
        "success": (f"{_POLICY}.successPolicy",),
        "clean-up": ("spec.cleanPodPolicy",),
        "deadline": (f"{_POLICY}.activeDeadlineSeconds",),
        "ttl": (f"{_POLICY}.ttlSecondsAfterFinished",),
        "suspend": (f"{_POLICY}.suspend",),
        "gang": ("spec.schedulingPolicy",),
        "elastic": ("spec.elastic",),
        "rate": ("metadata.annotations",),
    },
)
