# SPDX-License-Identifier: Apache-2.0
"""The pods, services and pod group of a TFJob."""

from collections.abc import Mapping

from msgspec import UNSET, Struct

from trainwright.kinds import gangs
from trainwright.kinds.tfjob import environment
from trainwright.kinds.tfjob.policies import POD_POLICIES, restart_policy
from trainwright.kinds.tfjob.wire import CONTAINER, PORT, PORT_NAME, WORKER, SchedulingPolicy, TFJobSpec, leading_type
from trainwright.model.child import Observed
from trainwright.model.job import Body, Gang, Job, Replica
from trainwright.model.meta import ObjectMeta
from trainwright.model.site import Site

PREFIX = "training.kubeflow.org"
CONTROLLER = "tfjob-controller"
#: kubectl's own annotation of the job; the pod group does not get it.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class TFDialect(Struct, frozen=True):
    """The dialect of one job. `spec` includes the defaults."""

    spec: TFJobSpec
    metadata: ObjectMeta

    @property
    def scheduling(self) -> SchedulingPolicy | None:
        """The scheduling policy of the job, or None."""
        return self.spec.run_policy.scheduling_policy if self.spec.run_policy is not None else None

    @property
    def gang(self) -> Gang:
        """A scheduling policy asks for a gang. Without it, a job is a gang only if the operator's settings say so."""
        return gangs.ANY if self.scheduling is not None else gangs.ANY_UNASKED

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with port, `TF_CONFIG`, the restart policy of its type and the original controller's labels."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        spec["restartPolicy"] = POD_POLICIES[restart_policy(self.spec, replica.role.name)]
        spec["containers"] = self._containers(job, replica, site)
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
        env = environment.variables(job, self.spec, replica, site)
        containers = list((replica.role.template.get("spec") or {}).get("containers") or ())
        main = next((place for place, one in enumerate(containers) if one.get("name") == CONTAINER), None)
        if main is not None:
            containers[main] = _with_env(_with_port(containers[main]), env)
        return containers

    def _labels(self, job: Job, replica: Replica) -> dict[str, str]:
        """The labels by which services select pods and users find them."""
        return {
            f"{PREFIX}/operator-name": CONTROLLER,
            f"{PREFIX}/job-name": job.key.name,
            f"{PREFIX}/replica-type": replica.role.name.lower(),
            f"{PREFIX}/replica-index": str(replica.index),
        }

    def _leader_label(self, replica: Replica) -> dict[str, str]:
        """The label that marks the leader: every chief has it; in a job without a chief, worker 0 has it."""
        name = leading_type(self.spec)
        leads = replica.role.name == name and (name != WORKER or replica.index == 0)
        return {f"{PREFIX}/job-role": "master"} if leads else {}

    # -- services --------------------------------------------------------------------------------------------------

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the site does not matter
        """A service with the training container's ports; its selector has only the original controller's labels."""
        names = self._labels(job, replica)
        ports = _with_port(environment.container_of(replica.role.template))["ports"]
        return {"metadata": {"labels": names}, "spec": {"selector": names, "ports": _exposed(ports)}}

    # -- the gang --------------------------------------------------------------------------------------------------

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - pods do not matter
        """The pod group of an unfinished job that is a gang, if the cluster has a scheduler for it."""
        gang = self.gang.at(site)
        if gang is None or job.ledger.outcome is not None or job.lifecycle.suspended:
            return ()
        spec = gangs.SCHEDULERS[gang.api].spec(self._request(job))
        annotations = {key: text for key, text in (self.metadata.annotations or {}).items() if key != _APPLIED}
        metadata: Body = {"name": job.key.name} | ({"annotations": annotations} if annotations else {})
        return ({"apiVersion": gang.api, "kind": "PodGroup", "metadata": metadata, "spec": spec},)

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """The roles that `TF_CONFIG` lists, each with its port."""
        return {name: (port,) for name, _, port in environment.sizes_of(job)}

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


def _with_port(container: Body) -> Body:
    """The container with the default port, unless it has a port of that name."""
    ports = container.get("ports") or []
    if any(port.get("name") == PORT_NAME for port in ports):
        return container
    return container | {"ports": [*ports, {"name": PORT_NAME, "containerPort": PORT}]}


def _exposed(ports: list[Body]) -> list[Body]:
    """Each port number once. Every port gets a name, because a service with several ports requires names."""
    named: dict[int, str] = {}
    for port in ports:
        number, name = port["containerPort"], port.get("name") or ""
        named[number] = name if name == PORT_NAME else named.get(number) or name
    return [{"name": name or f"port-{number}", "port": number} for number, name in named.items()]
