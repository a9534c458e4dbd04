# SPDX-License-Identifier: Apache-2.0
"""The pods, services and pod group of the kinds of Kubeflow v1."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct

from trainwright.kinds import gangs
from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.labels import JOB_ROLE, replica_labels
from trainwright.kinds.kubeflow.policies import POD_POLICIES
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.kubeflow.wire import RunPolicy, SchedulingPolicy
from trainwright.model.child import Observed
from trainwright.model.job import Body, Gang, Job, Replica
from trainwright.model.meta import ObjectMeta
from trainwright.model.site import Site

#: kubectl's own annotation of the job; the pod group does not get it.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class KubeflowDialect(Struct, frozen=True):
    """The dialect of one job. `spec` includes the defaults."""

    framework: Framework
    spec: Any
    metadata: ObjectMeta

    @property
    def scheduling(self) -> SchedulingPolicy | None:
        """The scheduling policy of the job, or None."""
        policy: RunPolicy | None = self.spec.run_policy
        return policy.scheduling_policy if policy is not None else None

    @property
    def gang(self) -> Gang:
        """A scheduling policy asks for a gang. Without it, a job is a gang only if the operator's settings say so."""
        return gangs.ANY if self.scheduling is not None else gangs.ANY_UNASKED

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with port, variables, the restart policy of its type and the original controller's labels."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        spec["restartPolicy"] = POD_POLICIES[self.framework.policy_of(self.spec, replica.role.name)]
        spec["containers"] = self._containers(job, replica, site)
        if more := self.framework.init_containers(job, replica, site):
            spec["initContainers"] = [*(spec.get("initContainers") or ()), *more]
        labels = {**(given.get("labels") or {}), **self._labels(job, replica), **self._leader_label(replica)}
        annotations = dict(given.get("annotations") or {})
        gang = self.gang.at(site)
        if gang is not None:
            scheduler, request, role = gangs.SCHEDULERS[gang.api], self._request(job), replica.role.name.lower()
            spec["schedulerName"] = spec.get("schedulerName") or gang.scheduler_at(site)
            labels |= scheduler.labels(request, role)
            annotations |= scheduler.annotations(request, role)
        return {"metadata": {**given, "labels": labels, "annotations": annotations}, "spec": spec}

    def _containers(self, job: Job, replica: Replica, site: Site) -> list[Body]:
        framework = self.framework
        env = framework.variables(job, self.spec, replica, site)
        containers = []
        for container in (replica.role.template.get("spec") or {}).get("containers") or ():
            trains = container.get("name") == framework.main.name
            with_port = framework.main.with_port(container) if trains else container
            containers.append(_with_env(with_port, env) if trains or framework.in_all_containers else container)
        return containers

    def _labels(self, job: Job, replica: Replica) -> dict[str, str]:
        """The labels by which services select pods and users find them."""
        return replica_labels(self.framework, job.key.name, replica.role.name, replica.index)

    def _leader_label(self, replica: Replica) -> dict[str, str]:
        """The label that marks the leader: every leader has it; in a job without a leader, worker 0 may have it."""
        name = self.framework.types.leading(self.spec)
        leads = name != WORKER or (self.framework.marks_worker and replica.index == 0)
        return {JOB_ROLE: "master"} if leads and replica.role.name == name else {}

    # -- services --------------------------------------------------------------------------------------------------

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the site does not matter
        """A service with the training container's ports; its selector has only the original controller's labels."""
        names = self._labels(job, replica)
        main = self.framework.main
        ports = main.with_port(main.find(replica.role.template))["ports"]
        return {"metadata": {"labels": names}, "spec": {"selector": names, "ports": _exposed(ports, main.port_name)}}

    # -- the gang, and other objects of the whole job ----------------------------------------------------------------

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - pods do not matter
        """The objects of a job that has not ended and is not suspended; all are removed then."""
        if job.ledger.outcome is not None or job.lifecycle.suspended:
            return ()
        return *self._pod_group(job, site), *self.framework.extras(job, self.spec, site)

    def _pod_group(self, job: Job, site: Site) -> tuple[Body, ...]:
        """The pod group of a job that is a gang, if the cluster has a scheduler for it."""
        gang = self.gang.at(site)
        if gang is None:
            return ()
        spec = gangs.SCHEDULERS[gang.api].spec(self._request(job))
        annotations = {key: text for key, text in (self.metadata.annotations or {}).items() if key != _APPLIED}
        metadata: Body = {"name": job.key.name} | ({"annotations": annotations} if annotations else {})
        return ({"apiVersion": gang.api, "kind": "PodGroup", "metadata": metadata, "spec": spec},)

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """The roles whose addresses the variables contain, each with its ports."""
        return self.framework.endpoints(job, self.spec)

    def _request(self, job: Job) -> gangs.GangRequest:
        policy = self.scheduling or SchedulingPolicy()
        members = policy.min_available
        least = sum(role.replicas for role in job.roles) if members is UNSET else members
        resources = policy.min_resources
        return gangs.GangRequest(
            job.key.name,
            least,
            policy.queue,
            policy.priority_class,
            gangs.total_requests(job, least) if resources is UNSET else dict(resources),
            None if policy.schedule_timeout_seconds is UNSET else policy.schedule_timeout_seconds,
        )


def _with_env(container: Body, env: list[Body]) -> Body:
    """The container with these variables after the user's own: the last entry of a name takes effect."""
    return container | {"env": [*(container.get("env") or ()), *env]} if env else container


def _exposed(ports: list[Body], main: str) -> list[Body]:
    """Each port number once. Every port gets a name, because a service with several ports requires names."""
    named: dict[int, str] = {}
    for port in ports:
        number, name = port["containerPort"], port.get("name") or ""
        named[number] = name if name == main else named.get(number) or name
    return [{"name": name or f"port-{number}", "port": number} for number, name in named.items()]
