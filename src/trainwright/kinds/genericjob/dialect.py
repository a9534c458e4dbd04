# SPDX-License-Identifier: Apache-2.0
"""The pods, services and pod group of a GenericJob."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.kinds import gangs
from trainwright.kinds.genericjob.environment import fill_container, variables
from trainwright.kinds.genericjob.wire import GenericJobSpec, ReplicaDebugSet, ResumeSpec, T9kScheduler
from trainwright.model.child import Observed
from trainwright.model.job import Body, Gang, Job, Replica
from trainwright.model.site import Site

GANG = Gang(gangs.T9K_API)
DEBUG_COMMAND = ("sleep", "inf")
#: Fields that debug mode removes, because a probe would restart the container that waits for the debugger.
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


class GenericDialect(Struct, frozen=True):
    """The dialect of one job."""

    spec: GenericJobSpec

    @property
    def scheduler(self) -> T9kScheduler | None:
        """The settings of the T9k scheduler, if the job asks for that scheduler."""
        return self.spec.scheduler.t9k_scheduler if self.spec.scheduler is not None else None

    def pod(self, job: Job, replica: Replica, site: Site) -> Body:
        """The template in its run mode, with the variables filled in and the labels of the original controller."""
        given = replica.role.template.get("metadata") or {}
        spec = dict(replica.role.template.get("spec") or {})
        # Only the controller restarts replicas: if a kubelet did it, the finish rules would not see the failure.
        spec["restartPolicy"] = "Never"
        self._apply_mode(job, replica.role.name, spec)
        values = variables(job, self.spec, replica, site)
        for group in ("initContainers", "containers"):
            if spec.get(group):
                spec[group] = [fill_container(container, values) for container in spec[group]]
        labels = dict(given.get("labels") or {}) | self.labels(job, replica.name)
        if self.scheduler is not None and GANG.api in site.gangs:
            spec["schedulerName"] = gangs.T9K.scheduler
            request = gangs.GangRequest(job.key.name, 0, self.scheduler.queue)
            labels |= gangs.SCHEDULERS[gangs.T9K_API].labels(request, replica.role.name)
        return {"metadata": {**given, "labels": labels}, "spec": spec}

    def labels(self, job: Job, name: str) -> dict[str, str]:
        """The labels that the original controller puts on every pod."""
        return {
            "genericjob": job.key.name,
            "genericjob-replica": name,
            "tensorstack.dev/component": "genericjob",
            "tensorstack.dev/component-type": "user",
            "tensorstack.dev/owner-name": job.key.name,
        }

    def service(self, job: Job, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - the site does not matter
        """A service with the user's ports; its selector has only the original controller's labels."""
        names = {"genericjob": job.key.name, "genericjob-replica": replica.name}
        ports = self.spec.service.ports if self.spec.service is not None else ()
        exposed = [
            {key: text for key, text in msgspec.to_builtins(port, order="sorted").items() if text != ""}
            for port in ports
        ]
        return {"metadata": {"labels": names}, "spec": {"selector": names} | ({"ports": exposed} if exposed else {})}

    def extras(self, job: Job, observed: Observed, site: Site) -> tuple[Body, ...]:  # noqa: ARG002 - pods do not matter
        """The pod group of an unfinished job that asks for the T9k scheduler, if the cluster has it."""
        scheduler = self.scheduler
        idle = job.ledger.outcome is not None or job.lifecycle.suspended
        if scheduler is None or idle or GANG.api not in site.gangs:
            return ()
        members = sum(role.replicas for role in job.roles)
        spec = {"minMember": members, "queue": scheduler.queue or "default", "priority": scheduler.priority}
        return ({"apiVersion": GANG.api, "kind": "PodGroup", "metadata": {"name": job.key.name}, "spec": spec},)

    def endpoints(self, job: Job) -> Mapping[str, tuple[int, ...]]:
        """Every role, without ports, if the job has a service: templates may contain the host of any replica."""
        return {role.name: () for role in job.roles} if self.spec.service is not None else {}

    def _apply_mode(self, job: Job, role: str, spec: Body) -> None:
        """Replace the command: in debug mode by the debug command, after the first resume by the resume command."""
        mode = self.spec.run_mode
        if mode is None:
            return
        if mode.debug is not None and mode.debug.enabled:
            _debug(spec, next((one for one in mode.debug.replica_specs if one.type == role), None))
        elif mode.pause is not None and job.ledger.resumes:
            _resume(spec, next((one for one in mode.pause.resume_specs if one.type == role), None))


def _debug(spec: Body, settings: ReplicaDebugSet | None) -> None:
    """Let every container wait. Arguments and probes belong to the replaced command, so they are removed."""
    command = list((settings.command if settings is not None else ()) or DEBUG_COMMAND)
    dropped = ("args", *_PROBES)
    spec["containers"] = [
        {key: value for key, value in container.items() if key not in dropped} | {"command": command}
        for container in spec.get("containers") or ()
    ]
    if settings is not None and settings.skip_init_container:
        spec.pop("initContainers", None)


def _resume(spec: Body, settings: ResumeSpec | None) -> None:
    """Start the main container with the given command and arguments; what is not given stays as in the template."""
    if settings is None:
        return
    given: Mapping[str, Any] = {"command": list(settings.command), "args": list(settings.args)}
    first, *rest = spec["containers"]
    spec["containers"] = [first | {key: value for key, value in given.items() if value}, *rest]
    if settings.skip_init_container:
        spec.pop("initContainers", None)
