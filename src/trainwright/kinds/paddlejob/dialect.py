# SPDX-License-Identifier: Apache-2.0
"""The pods, services, ConfigMap and pod group of a PaddleJob."""

from collections.abc import Mapping

from msgspec import UNSET, Struct

from trainwright.kinds import gangs
from trainwright.kinds.paddlejob import environment
from trainwright.kinds.paddlejob.wire import (
    HOST,
    SERVICE,
    WORKER,
    PaddleJobSpec,
    SchedulingPolicy,
    intranet,
    is_elastic,
    main_of,
    role_specs,
)
from trainwright.model.child import Observed
from trainwright.model.job import Body, Gang, Job, Replica
from trainwright.model.site import Site

CONTROLLER = "paddlejob-controller"
NAME, TYPE, RESOURCE = "paddle-res-name", "paddle-res-type", "paddle-resource"
_VOLCANO = "volcano.sh"


class PaddleDialect(Struct, frozen=True):
    """The dialect of one job."""

    spec: PaddleJobSpec

    @property
    def gang(self) -> Gang | None:
        """The gang of the job; None if a template sets a scheduler that does not schedule gangs.

        A job with a scheduling policy asks for a gang. Any other job is a gang only if the operator's settings say so.
        """
        if self.other_schedulers:
            return None
        return gangs.ANY if self.spec.scheduling_policy is not None else gangs.ANY_UNASKED

    @property
    def other_schedulers(self) -> tuple[str, ...]:
        """Schedulers in templates that do not schedule gangs: a gang with pods of such a scheduler never starts."""
        templates = [one.template for one in role_specs(self.spec).values() if one.template is not UNSET]
        named = [_spec(template).get("schedulerName") for template in templates]
        return tuple(sorted({str(one) for one in named if one} - {gang.scheduler for gang in gangs.ALL}))

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with the variables by which Paddle finds its peers, and the original controller's labels."""
        template, name = replica.role.template, replica.name
        given, role = template.get("metadata") or {}, replica.role.name
        spec = _spec(template) | {"hostname": name, "subdomain": name}
        spec["restartPolicy"] = self._restart_policy(role, spec)
        spec["containers"] = self._containers(job, replica, site)
        if intranet(self.spec) == HOST:
            spec["hostNetwork"] = True
            spec["dnsPolicy"] = spec.get("dnsPolicy") or "ClusterFirstWithHostNet"
        labels = {**(given.get("labels") or {}), NAME: name, TYPE: role}
        annotations = {**(given.get("annotations") or {}), RESOURCE: role}
        gang = self.gang.at(site) if self.gang is not None else None
        if gang is not None:
            scheduler, request = gangs.SCHEDULERS[gang.api], self._request(job)
            spec["schedulerName"] = spec.get("schedulerName") or gang.scheduler_at(site)
            labels |= scheduler.labels(request, role)
            annotations |= scheduler.annotations(request, role) | _volcano_annotations(job, replica, request, gang)
        return {"metadata": {**given, "labels": labels, "annotations": annotations}, "spec": spec}

    def _restart_policy(self, role: str, spec: Body) -> str:
        """OnFailure if elastic; else the user's policy. Default: OnFailure for workers with services, else Never."""
        if is_elastic(self.spec):
            return "OnFailure"
        default = "OnFailure" if role == WORKER and intranet(self.spec) == SERVICE else "Never"
        return str(spec.get("restartPolicy") or default)

    def _containers(self, job: Job, replica: Replica, site: Site) -> list[Body]:
        containers = list(_spec(replica.role.template).get("containers") or ())
        place = main_of(containers)
        main = containers[place]
        env = list(main.get("env") or ())
        changed: Body = {"env": [*env, *environment.variables(job, self.spec, replica, site, env)]}
        if replica.role.gate:
            changed["envFrom"] = [*(main.get("envFrom") or ()), {"configMapRef": {"name": replica.role.gate}}]
        if intranet(self.spec) in (SERVICE, HOST):
            # On the host network, this port keeps the scheduler from placing two pods with the same port on one node.
            changed["ports"] = _with_port(main.get("ports") or [], environment.peer_port(job, replica.name))
        containers[place] = main | changed
        return containers

    # -- services --------------------------------------------------------------------------------------------------

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the site does not matter
        """A service with the name of the replica and all ports that the replica may listen on."""
        first = environment.peer_port(job, replica.name)
        ports = [{"name": f"p-{place}", "port": first + place} for place in range(environment.PORT_BLOCK)]
        return {"spec": {"selector": {NAME: replica.name}, "ports": ports}}

    # -- the ConfigMap and the pod group ---------------------------------------------------------------------------

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        """The ConfigMap once all addresses are known, and the pod group if the cluster has a scheduler for it."""
        if job.ledger.outcome is not None or job.lifecycle.suspended:
            return ()
        return (*self._pod_group(job, site), *self._config_map(job, observed, site))

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Every role; the ports of its replicas are in the ledger."""
        return {role.name: () for role in job.roles}

    def _config_map(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        if is_elastic(self.spec):
            return ()
        data = environment.peer_data(job, self.spec, observed, site)
        metadata = {"name": job.key.name, "labels": {NAME: job.key.name}}
        return () if data is None else ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},)

    def _pod_group(self, job: Job, site: Site) -> tuple[Body, ...]:
        gang = self.gang.at(site) if self.gang is not None else None
        if gang is None:
            return ()
        spec = gangs.SCHEDULERS[gang.api].spec(self._request(job))
        return ({"apiVersion": gang.api, "kind": "PodGroup", "metadata": {"name": job.key.name}, "spec": spec},)

    def _request(self, job: Job) -> gangs.GangRequest:
        policy = self.spec.scheduling_policy or SchedulingPolicy()
        members = self._default_members(job) if policy.min_available is UNSET else policy.min_available
        given, total = policy.min_resources, sum(role.replicas for role in job.roles)
        resources = gangs.total_requests(job, total, include_init=True) if given is UNSET else dict(given)
        return gangs.GangRequest(job.key.name, members, policy.queue, policy.priority_class, resources)

    def _default_members(self, job: Job) -> int:
        """All pods; for an elastic job the minimum number of workers."""
        total, worker = sum(role.replicas for role in job.roles), self.spec.worker
        if not is_elastic(self.spec) or worker is None or worker.requests is UNSET:
            return total
        return min(max(worker.requests, 1), total)


def _spec(template: Body) -> Body:
    found = template.get("spec")
    return dict(found) if isinstance(found, dict) else {}


def _with_port(ports: list[Body], number: int) -> list[Body]:
    """The ports, and this port if it is not among them."""
    if any(port.get("containerPort") == number for port in ports):
        return ports
    return [*ports, {"containerPort": number}]


def _volcano_annotations(job: Job, replica: Replica, request: gangs.GangRequest, gang: Gang) -> dict[str, str]:
    """The annotations that volcano reads from the pods of its own jobs."""
    if gang.api != gangs.VOLCANO_API:
        return {}
    epoch = next((one.epoch for one in job.ledger.roles if one.name == replica.role.name), 0)
    return {
        f"{_VOLCANO}/job-name": request.name,
        f"{_VOLCANO}/job-version": str(epoch),
        f"{_VOLCANO}/queue-name": request.queue,
    }
