# SPDX-License-Identifier: Apache-2.0
"""How an AITrainingJob spells its pods and services. `core.render` calls it for what a plan creates."""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.kinds.aitrainingjob import environment
from trainwright.kinds.aitrainingjob.environment import counting, ports, ports_of
from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec
from trainwright.model.child import Observed
from trainwright.model.job import Body, Job, Replica
from trainwright.model.meta import ObjectMeta
from trainwright.model.site import Site

GROUP = "elasticdeeplearning.ai"
_DNS = "ClusterFirstWithHostNet"


class AIDialect(Struct, frozen=True):
    """The dialect of one job. `spec` has its defaults filled in."""

    spec: AITrainingJobSpec
    metadata: ObjectMeta

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template with the variables, the job's scheduler and the original's labels; no kubelet restarts it."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        spec["restartPolicy"] = "Never"
        if self.spec.scheduler_name:
            spec["schedulerName"] = self.spec.scheduler_name
        if spec.get("hostNetwork") and not spec.get("dnsPolicy"):
            # The variables name services, which the node's own resolver does not know.
            spec["dnsPolicy"] = _DNS
        return {
            "metadata": {**given, "labels": self._labels(job, replica, given.get("labels") or {})},
            "spec": {**spec, **self._containers(job, replica, site)},
        }

    def _labels(self, job: Job, replica: Replica, given: dict[str, str]) -> dict[str, str]:
        """Ours over the template's, and of the job's own those that nobody has said."""
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
        """Every container with the variables after the user's own, of which the last of a name wins."""
        template = replica.role.template
        found = template.get("spec") or {}
        told = environment.variables(job, replica, site)
        counted = {one["name"] for one in counting(template)}
        containers = [
            _with(
                one, [*told, environment.own_ports(job, replica, site, ports_of(one) if one["name"] in counted else ())]
            )
            for one in found.get("containers") or ()
        ]
        inits = [_with(one, told) for one in found.get("initContainers") or ()]
        return {"containers": containers} | ({"initContainers": inits} if inits else {})

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the same at every site
        """The ports that count; selected by the original's labels alone."""
        names = _selector(job, replica)
        exposed = [{"name": f"aitj-{port}", "port": port} for port in ports(replica.role.template)]
        return {"metadata": {"labels": names}, "spec": {"selector": names} | ({"ports": exposed} if exposed else {})}

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - there are none
        """Nothing besides."""
        return ()

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Every replica, at the ports that count."""
        return {role.name: ports(role.template) for role in job.roles}


def _selector(job: Job, replica: Replica) -> dict[str, str]:
    return {
        "GroupName": GROUP,
        "TrainingJobName": job.key.name,
        "TrainingJobReplicaName": replica.role.name.lower(),
        "TrainingJobReplicaIndex": str(replica.index),
    }


def _with(container: Body, env: list[Body]) -> Body:
    return container | {"env": [*(container.get("env") or ()), *env]}
