# SPDX-License-Identifier: Apache-2.0
"""Write a job of any kind as a kind of Kubeflow v1, and the paths of the settings that these kinds share."""

from collections.abc import Iterator

from trainwright.kinds import gangs
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.policies import RETRYABLE
from trainwright.kinds.writing import Templates, Writer, least_clean_up, pod_group, restart_limit
from trainwright.model.cause import CauseKind
from trainwright.model.job import Body, CleanPods, Job, Restart, Role

_CLEAN = {CleanPods.NONE: "None", CleanPods.UNFINISHED: "Running", CleanPods.ALL: "All"}
_RUN_POLICY = "spec.runPolicy"


def make_writer(framework: Framework) -> Writer:
    """The writer of one kind."""

    def write(job: Job, templates: Templates) -> Iterator[Body]:
        """One manifest for each of the kind's own settings."""
        specs = {
            name: _replica_spec(framework, job, role, templates[role.name])
            for role in job.roles
            if (name := framework.types.canonical(role.name) or framework.types.canonical(role.name.capitalize()))
        }
        policy = _run_policy(job)
        for variant in framework.variants:
            yield {"spec": {"runPolicy": policy, **variant, framework.field: specs}}

    return Writer(write, _paths(framework))


def _replica_spec(framework: Framework, job: Job, role: Role, template: Body) -> Body:
    policy = _restart_policy(role.restart, restart_limit(job, role))
    renamed = _with_main(framework.main.name, role, template)
    return {"replicas": role.replicas, "restartPolicy": policy, "template": renamed}


def _restart_policy(restart: Restart, limit: int | None) -> str:
    if CauseKind.EXIT not in restart.causes or limit == 0:
        return "Never"
    if CauseKind.COMPLETED in restart.causes:
        return "Always"
    return "ExitCode" if restart.codes == RETRYABLE else "OnFailure"


def _with_main(name: str, role: Role, template: Body) -> Body:
    """The template; the container that trains has the name that this kind requires."""
    listed = list((template.get("spec") or {}).get("containers") or ())
    mains = [at for at, one in enumerate(listed) if one["name"] in role.main_containers] or range(len(listed))
    if len(mains) != 1 or any(one["name"] == name for one in listed):
        return template
    listed[mains[0]] = listed[mains[0]] | {"name": name}
    return template | {"spec": template["spec"] | {"containers": listed}}


def _run_policy(job: Job) -> Body:
    life = job.lifecycle
    found: Body = {"cleanPodPolicy": _CLEAN[least_clean_up(job)]}
    limit = life.restarts_allowed
    if limit is None and sum(role.replicas for role in job.roles) == 1:
        limit = next(restart_limit(job, role) for role in job.roles if role.replicas)
    if limit is not None:
        # The restart that reaches the limit fails the job.
        found["backoffLimit"] = limit + 1
    if life.deadline is not None:
        found["activeDeadlineSeconds"] = int(life.deadline.seconds)
    if life.ttl is not None:
        found["ttlSecondsAfterFinished"] = int(life.ttl)
    if life.suspended:
        found["suspend"] = True
    if job.gang is not None and job.gang.asked:
        found["schedulingPolicy"] = _scheduling_policy(job)
    return found


def _scheduling_policy(job: Job) -> Body:
    """The settings of the pod group, as the first gang scheduler that the job may use gets them."""
    apis = [one.api for one in job.gang.choices()] if job.gang is not None else []
    group = pod_group(job, apis[0]) if apis else {}
    found = {"queue": group.get("queue"), "priorityClass": group.get("priorityClassName")}
    if apis[:1] != [gangs.T9K_API] and group.get("minMember") != sum(role.replicas for role in job.roles):
        found["minAvailable"] = group.get("minMember")
    return {key: value for key, value in found.items() if value}


def _paths(framework: Framework) -> dict[str, tuple[str, ...]]:
    """The paths of all settings. Some were directly under `spec` before version 1.0 of TFJob."""
    role = f"{framework.path}.{{role}}"
    return {
        "role": (role,),
        "template": (f"{role}.template",),
        "restart": (f"{role}.restartPolicy",),
        "limit": (f"{_RUN_POLICY}.backoffLimit", "spec.backoffLimit"),
        "backoff": (f"{_RUN_POLICY}.backoffLimit", "spec.backoffLimit"),
        "success": ("spec.successPolicy",) if framework.variants != ({},) else (framework.path,),
        "failure": (framework.path,),
        "clean-up": (f"{_RUN_POLICY}.cleanPodPolicy", "spec.cleanPodPolicy"),
        "deadline": (f"{_RUN_POLICY}.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
        "ttl": (f"{_RUN_POLICY}.ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"),
        "suspend": (f"{_RUN_POLICY}.suspend",),
        "gang": (f"{_RUN_POLICY}.schedulingPolicy",),
        "managed": (f"{_RUN_POLICY}.managedBy",),
        "elastic": ("spec.elasticPolicy", role),
        "rate": ("metadata.annotations",),
    }
