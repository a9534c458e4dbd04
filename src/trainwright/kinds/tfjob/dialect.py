# SPDX-License-Identifier: Apache-2.0
"""How a TFJob spells its pods, services and pod group. `core.render` calls it for what a plan creates."""

from collections.abc import Mapping

from msgspec import UNSET, Struct

from trainwright.kinds import gangs
from trainwright.kinds.tfjob import environment
from trainwright.kinds.tfjob.policies import POD_POLICIES, restarts
from trainwright.kinds.tfjob.wire import CONTAINER, PORT, PORT_NAME, WORKER, SchedulingPolicy, TFJobSpec, leader
from trainwright.model.child import Observed
from trainwright.model.job import Body, Gang, Job, Replica
from trainwright.model.meta import ObjectMeta
from trainwright.model.site import Site

PREFIX = "training.kubeflow.org"
CONTROLLER = "tfjob-controller"
_ENV = "TF_CONFIG"
#: kubectl's notes to itself: the job's are not the group's.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class TFDialect(Struct, frozen=True):
    """The dialect of one job. `spec` has its defaults filled in."""

    spec: TFJobSpec
    metadata: ObjectMeta

    @property
    def scheduling(self) -> SchedulingPolicy | None:
        """What the job says about its gang, if it wants one."""
        return self.spec.run_policy.scheduling_policy if self.spec.run_policy is not None else None

    @property
    def gang(self) -> Gang:
        """Every job may be one where the operator is told so; one that has a policy for it is wherever it can be."""
        return gangs.ANY if self.scheduling is not None else gangs.ANY_UNASKED

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with the port, `TF_CONFIG` and restart policy that its type has, and the original's labels."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        spec["restartPolicy"] = POD_POLICIES[restarts(self.spec, replica.role.name)]
        spec["containers"] = self._containers(job, replica, site)
        labels = {**(given.get("labels") or {}), **self._labels(job, replica), **self._leads(replica)}
        annotations = dict(given.get("annotations") or {})
        gang = self.gang.at(site)
        if gang is not None:
            form, wish, role = gangs.FORMS[gang.api], self._wish(job), replica.role.name.lower()
            spec["schedulerName"] = spec.get("schedulerName") or gang.scheduler_at(site)
            labels |= form.labels(wish, role)
            annotations |= form.annotations(wish, role)
        return {"metadata": {**given, "labels": labels, "annotations": annotations}, "spec": spec}

    def _containers(self, job: Job, replica: Replica, site: Site) -> list[Body]:
        value = environment.tf_config(job, replica, site, dynamic=self.spec.enable_dynamic_worker)
        containers = list((replica.role.template.get("spec") or {}).get("containers") or ())
        main = next((place for place, one in enumerate(containers) if one.get("name") == CONTAINER), None)
        if main is not None:
            containers[main] = _trained(containers[main], value)
        return containers

    def _labels(self, job: Job, replica: Replica) -> dict[str, str]:
        """By which services select, and people find."""
        return {
            f"{PREFIX}/operator-name": CONTROLLER,
            f"{PREFIX}/job-name": job.key.name,
            f"{PREFIX}/replica-type": replica.role.name.lower(),
            f"{PREFIX}/replica-index": str(replica.index),
        }

    def _leads(self, replica: Replica) -> dict[str, str]:
        """Every chief; without one, worker 0."""
        name = leader(self.spec)
        leads = replica.role.name == name and (name != WORKER or replica.index == 0)
        return {f"{PREFIX}/job-role": "master"} if leads else {}

    # -- services --------------------------------------------------------------------------------------------------

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the same at every site
        """The ports of the container that trains; selected by the original's labels alone."""
        names = self._labels(job, replica)
        ports = _ported(environment.container_of(replica.role.template))["ports"]
        return {"metadata": {"labels": names}, "spec": {"selector": names, "ports": _exposed(ports)}}

    # -- the gang --------------------------------------------------------------------------------------------------

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - needs nothing seen
        """The pod group of a live job that wants one, where there is a scheduler for it."""
        gang = self.gang.at(site)
        if gang is None or job.ledger.outcome is not None or job.lifecycle.suspended:
            return ()
        spec = gangs.FORMS[gang.api].spec(self._wish(job))
        annotations = {key: text for key, text in (self.metadata.annotations or {}).items() if key != _APPLIED}
        metadata: Body = {"name": job.key.name} | ({"annotations": annotations} if annotations else {})
        return ({"apiVersion": gang.api, "kind": "PodGroup", "metadata": metadata, "spec": spec},)

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Everybody whom `TF_CONFIG` lists."""
        return environment.endpoints(job)

    def _wish(self, job: Job) -> gangs.GangRequest:
        policy = self.scheduling or SchedulingPolicy()
        members = policy.min_available
        least = sum(role.replicas for role in job.roles) if members is UNSET else members
        resources = policy.min_resources
        return gangs.GangRequest(
            job.key.name,
            least,
            policy.queue,
            policy.priority_class,
            gangs.total_needs(job, least) if resources is UNSET else dict(resources),
            None if policy.schedule_timeout_seconds is UNSET else policy.schedule_timeout_seconds,
        )


def _trained(container: Body, value: str | None) -> Body:
    """The container with its port, and with the cluster it belongs to; the last entry of a name wins."""
    container = _ported(container)
    if value is None:
        return container
    return container | {"env": [*(container.get("env") or ()), {"name": _ENV, "value": value}]}


def _ported(container: Body) -> Body:
    """The container with the port that everybody expects, unless it names one itself."""
    ports = container.get("ports") or []
    if any(port.get("name") == PORT_NAME for port in ports):
        return container
    return container | {"ports": [*ports, {"name": PORT_NAME, "containerPort": PORT}]}


def _exposed(ports: list[Body]) -> list[Body]:
    """Each number once, and each with a name, as services demand it of several."""
    named: dict[int, str] = {}
    for port in ports:
        number, name = port["containerPort"], port.get("name") or ""
        named[number] = name if name == PORT_NAME else named.get(number) or name
    return [{"name": name or f"port-{number}", "port": number} for number, name in named.items()]
