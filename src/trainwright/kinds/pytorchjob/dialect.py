# SPDX-License-Identifier: Apache-2.0
"""What only a PyTorchJob has besides pods and services: an init container of its workers, and an autoscaler."""

from collections.abc import Mapping
from typing import Any

from trainwright.kinds.kubeflow.replicas import MASTER, WORKER
from trainwright.kinds.pytorchjob.wire import PyTorchJobSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.site import LEADER, Site, WaitRules


def init_containers(job: Job, replica: Replica, site: Site) -> list[Body]:
    """The containers in which a worker waits until the name of its master resolves."""
    if site.waiting is None or replica.role.name != WORKER or MASTER not in job.sizes:
        return []
    master = job.key.replica_name(MASTER, 0)
    return [_with_name(one, master) for one in site.waiting.containers] or [_wait(site.waiting, master)]


def _wait(rules: WaitRules, master: str) -> Body:
    look = f"nslookup {master} || getent hosts {master}"
    fail = f"i=$((i+1)); [ $i -ge {rules.tries} ] && exit 1"
    return {
        "name": "init-pytorch",
        "image": rules.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"i=0; until {look}; do {fail}; echo waiting for master; sleep 2; done"],
        "resources": {"requests": {"cpu": "50m", "memory": "10Mi"}, "limits": {"cpu": "100m", "memory": "20Mi"}},
    }


def _with_name(part: Any, master: str) -> Any:
    """A copy in which all texts have the name of the master."""
    if isinstance(part, Mapping):
        return {key: _with_name(inner, master) for key, inner in part.items()}
    if isinstance(part, list):
        return [_with_name(inner, master) for inner in part]
    return part.replace(LEADER, master) if isinstance(part, str) else part


def extras(job: Job, spec: PyTorchJobSpec, site: Site) -> tuple[Body, ...]:
    """The autoscaler of a job that has metrics for it. It writes the number of workers."""
    policy = spec.elastic_policy
    if policy is None or policy.metrics is None or not site.has_autoscaler:
        return ()
    target = {"apiVersion": job.owner.api_version, "kind": job.owner.kind, "name": job.key.name}
    autoscaler: Body = {
        "scaleTargetRef": target,
        "minReplicas": policy.min_replicas,
        "maxReplicas": policy.max_replicas,
        "metrics": list(policy.metrics),
    }
    kind = "HorizontalPodAutoscaler"
    return ({"apiVersion": "autoscaling/v2", "kind": kind, "metadata": {"name": job.key.name}, "spec": autoscaler},)
