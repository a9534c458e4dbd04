# SPDX-License-Identifier: Apache-2.0
"""How a PaddleJob spells its pods, services, ConfigMap and pod group.

`core.render` calls it for what a plan creates; `peers` has the addresses.
"""

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
    elastic,
    intranet,
    main_of,
    roles,
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
        """Every job may be one where the operator is told so; none where a role has a scheduler of its own."""
        if self.strangers:
            return None
        return gangs.ANY if self.spec.scheduling_policy is not None else gangs.ANY_UNASKED

    @property
    def strangers(self) -> tuple[str, ...]:
        """Schedulers that templates name and that start no gangs: a group that waits for their pods never starts."""
        named = [_spec(replica).get("schedulerName") for replica in _templates(self.spec)]
        return tuple(sorted({str(one) for one in named if one} - {gang.scheduler for gang in gangs.ALL}))

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with what Paddle needs to find its peers, and the original's labels."""
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
            form, wish = gangs.FORMS[gang.api], self._wish(job)
            spec["schedulerName"] = spec.get("schedulerName") or gang.scheduler_at(site)
            labels |= form.labels(wish, role)
            annotations |= form.annotations(wish, role) | _noted(job, replica, wish, gang)
        return {"metadata": {**given, "labels": labels, "annotations": annotations}, "spec": spec}

    def _restart_policy(self, role: str, spec: Body) -> str:
        """What the user says; by name workers may come back in place, as whoever is elastic must."""
        if elastic(self.spec):
            return "OnFailure"
        usual = "OnFailure" if role == WORKER and intranet(self.spec) == SERVICE else "Never"
        return str(spec.get("restartPolicy") or usual)

    def _containers(self, job: Job, replica: Replica, site: Site) -> list[Body]:
        containers = list(_spec(replica.role.template).get("containers") or ())
        place = main_of(containers)
        main = containers[place]
        said = list(main.get("env") or ())
        changed: Body = {"env": environment.variables(job, self.spec, replica, site, said)}
        if replica.role.gate:
            changed["envFrom"] = [*(main.get("envFrom") or ()), {"configMapRef": {"name": replica.role.gate}}]
        if intranet(self.spec) in (SERVICE, HOST):
            # On a host's network this also keeps the scheduler from putting two that would meet on one node.
            changed["ports"] = _with(main.get("ports") or [], environment.peer_port(job, replica.name))
        containers[place] = main | changed
        return containers

    # -- services --------------------------------------------------------------------------------------------------

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the same at every site
        """All ports that a replica may listen at, under its own name."""
        first = environment.peer_port(job, replica.name)
        ports = [{"name": f"p-{place}", "port": first + place} for place in range(environment.PORT_BLOCK)]
        return {"spec": {"selector": {NAME: replica.name}, "ports": ports}}

    # -- the job's own ---------------------------------------------------------------------------------------------

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        """The ConfigMap once it can be written, and the pod group where there is a scheduler for it."""
        if job.ledger.outcome is not None or job.lifecycle.suspended:
            return ()
        return (*self._group(job, site), *self._map(job, observed, site))

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Every replica; its ports are in the ledger."""
        return {role.name: () for role in job.roles}

    def _map(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:
        if elastic(self.spec):
            return ()
        data = environment.peer_data(job, self.spec, observed, site)
        metadata = {"name": job.key.name, "labels": {NAME: job.key.name}}
        return () if data is None else ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},)

    def _group(self, job: Job, site: Site) -> tuple[Body, ...]:
        gang = self.gang.at(site) if self.gang is not None else None
        if gang is None:
            return ()
        spec = gangs.FORMS[gang.api].spec(self._wish(job))
        return ({"apiVersion": gang.api, "kind": "PodGroup", "metadata": {"name": job.key.name}, "spec": spec},)

    def _wish(self, job: Job) -> gangs.GangRequest:
        policy = self.spec.scheduling_policy or SchedulingPolicy()
        least = self._least(job) if policy.min_available is UNSET else policy.min_available
        given, total = policy.min_resources, sum(role.replicas for role in job.roles)
        resources = gangs.total_needs(job, total, inits=True) if given is UNSET else dict(given)
        return gangs.GangRequest(job.key.name, least, policy.queue, policy.priority_class, resources)

    def _least(self, job: Job) -> int:
        """Everybody; of workers that may be fewer, so many."""
        total, one = sum(role.replicas for role in job.roles), self.spec.worker
        if not elastic(self.spec) or one is None or one.requests is UNSET:
            return total
        return min(max(one.requests, 1), total)


def _templates(spec: PaddleJobSpec) -> list[Body]:
    return [one.template for one in roles(spec).values() if one.template is not UNSET]


def _spec(template: Body) -> Body:
    found = template.get("spec")
    return dict(found) if isinstance(found, dict) else {}


def _with(ports: list[Body], number: int) -> list[Body]:
    """The ports with this one among them."""
    if any(port.get("containerPort") == number for port in ports):
        return ports
    return [*ports, {"containerPort": number}]


def _noted(job: Job, replica: Replica, wish: gangs.GangRequest, gang: Gang) -> dict[str, str]:
    """What volcano reads of its own jobs' pods."""
    if gang.api != gangs.VOLCANO_API:
        return {}
    epoch = next((book.epoch for book in job.ledger.roles if book.name == replica.role.name), 0)
    return {
        f"{_VOLCANO}/job-name": wish.name,
        f"{_VOLCANO}/job-version": str(epoch),
        f"{_VOLCANO}/queue-name": wish.queue,
    }
