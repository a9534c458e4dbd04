# SPDX-License-Identifier: Apache-2.0
"""Checks jobs before a run starts anything, and reports what can never work on this machine.

The checks use the pods as they will be created (a run mode can replace commands) and report paths in the manifest.
Some problems can go away later, for example too few free resources. Only the scheduler and the agents report these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.base import load
from trainwright.kinds.gangs import T9K_QUEUE_LABEL
from trainwright.kinds.registry import find
from trainwright.kinds.scalars import under
from trainwright.kinds.template import templates
from trainwright.local.checks import mounts
from trainwright.local.checks.mounts import KnownObjects, containers, environment_problems
from trainwright.local.scheduling.affinity import refusal, terms
from trainwright.local.scheduling.cache import NodeInfo, node_info
from trainwright.local.scheduling.reasons import Requests, never_fits, shortage
from trainwright.model.child import Observed
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.problem import Problem
from trainwright.model.site import Site
from trainwright.node.devices.inventory import GPU
from trainwright.node.requests import asks, total
from trainwright.runtime.ports import AUTOSCALERS

#: Paths of fields with the name of a queue. Line 1 is for GenericJob, line 2 for TFJob and PaddleJob, 3 for PaddleJob.
_QUEUE_FIELDS = (
    ("spec", "scheduler", "t9kScheduler", "queue"),
    ("spec", "runPolicy", "schedulingPolicy", "queue"),
    ("spec", "schedulingPolicy", "queue"),
)
#: Labels and annotations that tell Kueue, Volcano and the T9k scheduler the queue of a job or a pod.
_QUEUE_LABELS = (
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    T9K_QUEUE_LABEL,
)
_QUEUE_MESSAGE = "`trainwright run` ignores queues: the job starts as soon as its replicas fit, and no quota is counted"
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_GPUS_HINT = "; `--gpus N` pretends that there are N GPUs"
#: The parts of this engine's site that matter for pods.
_SITE = Site(waiting=None, has_autoscaler=False)
#: The field with the metrics of a PyTorchJob's autoscaler.
_METRICS = "spec.elasticPolicy.metrics"
_METRICS_MESSAGE = "there is no autoscaler here, so the number of workers stays; use `trainwright scale`"
_RUN_AS_MESSAGE = "not used here: every process runs as the user who started the engine"


class RolePods(Struct, frozen=True):
    """The pods of one role: the spec of the pods, and the path of this spec in the manifest."""

    role: Role
    path: str
    spec: Body

    @property
    def requests(self) -> Requests:
        """The requests of each pod."""
        return tuple(sorted(asks(self.spec).items()))


def check(
    document: Body, objects: Iterable[Body], nodes: Iterable[Body], runtime: str, variables: Iterable[str] = ()
) -> tuple[Problem, ...]:
    """All problems of a valid job on this machine; `objects` are the Secrets, ConfigMaps and volume claims of the run.

    `variables` are the names of environment variables that every container gets from the command line.
    """
    kind = find(str(document.get("apiVersion")), str(document.get("kind")))
    loaded = load(kind, document) if kind is not None else None
    if loaded is None or loaded.errors:
        return ()
    job, node_infos = loaded.job, [node_info(node) for node in nodes]
    all_pods = tuple(_role_pods(job, document))
    known = KnownObjects(objects, job.key.namespace, frozenset(role.gate for role in job.roles if role.gate))
    found = [*_name_conflict(job, known), *check_queues(document), *_capacity_problems(job, all_pods, node_infos)]
    found += _autoscaler(job)
    for pods in all_pods:
        found += _container_problems(job, pods, known, frozenset(variables))
        found += mounts.check(pods.spec, pods.path, known, sandboxed=runtime == "sandbox")
        found += _placement_problems(pods, node_infos)
        found += _ignored_fields(pods)
    return tuple(dict.fromkeys(found))


def _name_conflict(job: Job, known: KnownObjects) -> Iterator[Problem]:
    """Report a ConfigMap of the user that has the same name as the job's gate. The job's pods would wait for ever."""
    if known.conflicts:
        message = f"the job creates a ConfigMap {job.key.name!r}, but the files have one, too: rename one of them"
        yield Problem("metadata.name", message)


def _autoscaler(job: Job) -> Iterator[Problem]:
    """Warn about an autoscaler, which the job has on a cluster."""
    extras = job.dialect.extras(job, Observed(), Site())
    if any(body["kind"] == AUTOSCALERS.kind for body in extras):
        yield Problem(_METRICS, _METRICS_MESSAGE, warning=True)


def _role_pods(job: Job, document: Body) -> Iterator[RolePods]:
    candidates = list(templates(document.get("spec"), "spec"))
    for role in job.roles:
        replica = Replica(role, 0, 0, job.key.replica_name(role.name, 0))
        spec = job.dialect.pod(job, replica, _SITE)["spec"]
        # Find the template of the role in the manifest. Roles with equal templates get different paths.
        path = next((path for path, template in candidates if template == role.template), "spec")
        candidates = [one for one in candidates if one[0] != path]
        yield RolePods(role, f"{path}.spec", spec)


def _container_problems(job: Job, pods: RolePods, known: KnownObjects, variables: frozenset[str]) -> Iterator[Problem]:
    for path, container in containers(pods.spec, pods.path):
        if not container.get("command"):
            message = "missing; the image is not used here, so its entrypoint is not known: name the program to run"
            # For a suspended job this is only a warning, because the user can add a command before the job is resumed.
            yield Problem(f"{path}.command", message, warning=job.lifecycle.suspended)
        if container.get("restartPolicy") == "Always" and ".initContainers[" in path:
            message = "Always is not supported here: an init container must end before the next one begins"
            yield Problem(f"{path}.restartPolicy", message)
        yield from environment_problems(container, path, known, variables)


def _placement_problems(pods: RolePods, node_infos: Sequence[NodeInfo]) -> Iterator[Problem]:
    """Report a pod that does not fit on any empty node, or that no node accepts."""
    reason = never_fits(pods.requests, {one.name: one.total for one in node_infos})
    if reason:
        yield Problem(_requests_path(pods), f"can never fit: {reason}{_hint(pods.requests, reason)}")
    required = terms(pods.spec)
    if required.unsupported:
        yield Problem(pods.path, f"{required.unsupported} is not supported here")
        return
    refusals = [refusal(required, replace(one.traits, ready=True)) for one in node_infos]
    if refusals and all(refusals):
        field = "nodeSelector" if pods.spec.get("nodeSelector") else "affinity" if required.affinity else "tolerations"
        yield Problem(f"{pods.path}.{field}", f"no node here accepts such a pod: {node_infos[0].name}: {refusals[0]}")


def _hint(requests: Requests, reason: str) -> str:
    """If a device is missing: a hint with the option that declares such devices. Otherwise empty text."""
    for name, _ in requests:
        if "/" in name and f"{name}: " in reason:
            return _GPUS_HINT if name == GPU else f"; `--device {name}=N` declares N of them"
    return ""


def _requests_path(pods: RolePods) -> str:
    """If only one container has requests, the path of these requests; otherwise the path of the list `containers`."""
    paths = [path for path, container in containers(pods.spec, pods.path) if container.get("resources")]
    return f"{paths[0]}.resources" if len(paths) == 1 else f"{pods.path}.containers"


def _capacity_problems(job: Job, all_pods: Sequence[RolePods], node_infos: Sequence[NodeInfo]) -> Iterator[Problem]:
    """Report a gang that needs more than all nodes have. For a job without a gang, this is only a warning."""
    if not node_infos:
        return
    # If one pod requests more of a resource than every node has, `_placement_problems` reports it, so skip it here.
    names = {name for pods in all_pods for name, _ in pods.requests}
    largest = {name: max(one.total.get(name, 0) for one in node_infos) for name in names}
    reported = {name for pods in all_pods for name, amount in pods.requests if amount > largest[name]}
    needs = total({one: n * pods.role.replicas for one, n in pods.requests if one not in reported} for pods in all_pods)
    missing = shortage(tuple(sorted(needs.items())), total(one.total for one in node_infos))
    if not missing:
        return
    count = sum(pods.role.replicas for pods in all_pods)
    number = f"{count} pod{'s' * (count != 1)}"
    if job.gang is not None and job.gang.asked:
        yield Problem("spec", f"can never fit: gang needs {number} at once: {missing}")
    else:
        yield Problem("spec", f"not all {count} replicas can run at the same time: {missing}", warning=True)


def _ignored_fields(pods: RolePods) -> Iterator[Problem]:
    """Warn about fields that have no effect here."""
    for path, container in containers(pods.spec, pods.path):
        for probe_name in _PROBES:
            probe = container.get(probe_name) or {}
            if probe and not probe.get("exec"):
                message = "only exec probes are run here; this one counts as passed"
                yield Problem(f"{path}.{probe_name}", message, warning=True)
        if (container.get("securityContext") or {}).get("runAsUser") is not None:
            yield Problem(f"{path}.securityContext.runAsUser", _RUN_AS_MESSAGE, warning=True)
    if (pods.spec.get("securityContext") or {}).get("runAsUser") is not None:
        yield Problem(f"{pods.path}.securityContext.runAsUser", _RUN_AS_MESSAGE, warning=True)


def check_queues(document: Body) -> Iterator[Problem]:
    """At most one warning that queues are ignored here. On a cluster, a job starts when its queue admits it."""
    for path, queue in _queues(document):
        yield Problem(path, f"queue {queue!r}: {_QUEUE_MESSAGE}", warning=True)
        return


def _queues(document: Body) -> Iterator[tuple[str, str]]:
    for keys in _QUEUE_FIELDS:
        found: Any = document
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found:
            yield ".".join(keys), found
    yield from _in_metadata(document, "metadata")
    for path, template in templates(document.get("spec"), "spec"):
        yield from _in_metadata(template, f"{path}.metadata")


def _in_metadata(body: Body, path: str) -> Iterator[tuple[str, str]]:
    meta = body.get("metadata") or {}
    for part in ("labels", "annotations"):
        given = meta.get(part) or {}
        yield from ((under(f"{path}.{part}", name), given[name]) for name in _QUEUE_LABELS if given.get(name))
