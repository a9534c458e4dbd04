# SPDX-License-Identifier: Apache-2.0
"""The pods and services of an AITrainingJob."""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.kinds.aitrainingjob import environment
from trainwright.kinds.aitrainingjob.environment import container_ports, main_containers, main_ports
from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec
from trainwright.model.child import Observed
from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import ObjectMeta
from trainwright.model.site import Site

GROUP = "elasticdeeplearning.ai"
_HOST_NETWORK_DNS = "ClusterFirstWithHostNet"


class AIDialect(Struct, frozen=True):
    """The dialect of one job. `spec` includes the defaults."""

    spec: AITrainingJobSpec
    metadata: ObjectMeta

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with variables, scheduler and the original controller's labels; kubelets restart nothing."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        spec["restartPolicy"] = "Never"
        if self.spec.scheduler_name:
            spec["schedulerName"] = self.spec.scheduler_name
        if spec.get("hostNetwork") and not spec.get("dnsPolicy"):
            # The variables contain names of services. The DNS of the cluster knows them; the DNS of the node does not.
            spec["dnsPolicy"] = _HOST_NETWORK_DNS
        return {
            "metadata": {**given, "labels": self._labels(job, replica, given.get("labels") or {})},
            "spec": {**spec, **self._containers(job, replica, site)},
        }

    def _labels(self, job: Job, replica: Replica, given: dict[str, str]) -> dict[str, str]:
        """The labels of the job, of the template and of the original controller; later values override earlier ones."""
        role = replica.role.name.lower()
        labels = {
            **given,
            **_selector(job, replica),
            "JobName": job.key.name,
            "PodRole": role,
            "RestartCount": str(environment.restarts(job, replica.role.name)),
        }
        if self.spec.priority:
            labels["priority"] = self.spec.priority
        return {**(self.metadata.labels or {}), **labels}

    def _containers(self, job: Job, replica: Replica, site: Site) -> Body:
        """Every container with our variables after the user's own: the last entry of a name takes effect."""
        template = replica.role.template
        spec = template.get("spec") or {}
        env = environment.variables(job, self.spec, replica, site)
        mains = {one["name"] for one in main_containers(template)}
        containers = []
        for container in spec.get("containers") or ():
            ports = container_ports(container) if container["name"] in mains else ()
            containers.append(_with_env(container, [*env, environment.ports_variable(job, replica, site, ports)]))
        init_containers = [_with_env(one, env) for one in spec.get("initContainers") or ()]
        return {"containers": containers} | ({"initContainers": init_containers} if init_containers else {})

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the site does not matter
        """A service with the main ports; its selector has only the original controller's labels."""
        names = _selector(job, replica)
        exposed = [{"name": f"aitj-{port}", "port": port} for port in main_ports(replica.role.template)]
        return {"metadata": {"labels": names}, "spec": {"selector": names} | ({"ports": exposed} if exposed else {})}

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - always empty
        """This kind has no extras."""
        return ()

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Every role, with its main ports."""
        return {role.name: main_ports(role.template) for role in job.roles}


def _selector(job: Job, replica: Replica) -> dict[str, str]:
    return {
        "GroupName": GROUP,
        "TrainingJobName": job.key.name,
        "TrainingJobReplicaName": replica.role.name.lower(),
        "TrainingJobReplicaIndex": str(replica.index),
    }


def _with_env(container: Body, env: list[Body]) -> Body:
    return container | {"env": [*(container.get("env") or ()), *env]}
