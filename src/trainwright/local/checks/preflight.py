# SPDX-License-Identifier: Apache-2.0
"""Queues that a manifest names and that a local run does not have. Pure.

A cluster holds a job back until its queue admits it, and counts what the job uses against the queue's quota. Here
nothing does either.

What can never work on this machine, found before anything is started. `run` shows it like problems of the manifest.

It looks at the pods as they will be made (a run mode may replace commands) and says where in the manifest they come
from. What may still come right by waiting is no problem here: the scheduler and the agents say that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.base import load
from trainwright.kinds.gangs import T9K_QUEUE_LABEL
from trainwright.kinds.registry import find
from trainwright.kinds.scalars import item, under
from trainwright.kinds.template import templates
from trainwright.local.checks import mounts
from trainwright.local.checks.mounts import KnownObjects, of_container
from trainwright.local.scheduling.affinity import refusal, terms
from trainwright.local.scheduling.cache import NodeInfo, offer
from trainwright.local.scheduling.reasons import Asks, impossible, short
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.problem import Problem
from trainwright.model.site import Site
from trainwright.node.devices.inventory import GPU
from trainwright.node.requests import asks, total

#: Fields that name a queue: GenericJob; TFJob and PaddleJob; PaddleJob.
_FIELDS = (
    ("spec", "scheduler", "t9kScheduler", "queue"),
    ("spec", "runPolicy", "schedulingPolicy", "queue"),
    ("spec", "schedulingPolicy", "queue"),
)
#: Labels and annotations by which Kueue, Volcano and the T9k scheduler know the queue of a job or a pod.
_NAMES = (
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    T9K_QUEUE_LABEL,
)
_IGNORED = "`trainwright run` ignores queues: the job starts as soon as its replicas fit, and no quota is counted"


def check_queues(document: Body) -> Iterator[Problem]:
    """One warning for a job that names queues, however often it does."""
    for path, queue in _named(document):
        yield Problem(path, f"queue {queue!r}: {_IGNORED}", warning=True)
        return


def _named(document: Body) -> Iterator[tuple[str, str]]:
    for way in _FIELDS:
        found: Any = document
        for key in way:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found:
            yield ".".join(way), found
    yield from _in_metadata(document, "metadata")
    for path, template in templates(document.get("spec"), "spec"):
        yield from _in_metadata(template, f"{path}.metadata")


def _in_metadata(body: Body, path: str) -> Iterator[tuple[str, str]]:
    meta = body.get("metadata") or {}
    for part in ("labels", "annotations"):
        given = meta.get(part) or {}
        yield from ((under(f"{path}.{part}", name), given[name]) for name in _NAMES if given.get(name))


_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_PRETEND_GPUS = "; `--gpus N` pretends that there are GPUs"
_AS_YOU = "not used here: every process runs as the user who started the engine"


class RolePods(Struct, frozen=True):
    """The pods of one role: what they will be, and where in the manifest that is written."""

    role: Role
    path: str
    spec: Body

    @property
    def asks(self) -> Asks:
        """What each of them takes."""
        return tuple(sorted(asks(self.spec).items()))


def check(
    document: Body, objects: Iterable[Body], nodes: Iterable[Body], runtime: str, variables: Iterable[str] = ()
) -> tuple[Problem, ...]:
    """All problems of a valid job here; `objects` are the Secrets, ConfigMaps and claims that come with it.

    `variables` are those that every container is given, whatever its manifest says.
    """
    kind = find(str(document.get("apiVersion")), str(document.get("kind")))
    loaded = load(kind, document) if kind is not None else None
    if loaded is None or loaded.errors:
        return ()
    job, offers = loaded.job, [offer(node) for node in nodes]
    parts = tuple(_parts(job, document))
    given = list(objects)
    known = KnownObjects(given, job.key.namespace, frozenset(role.gate for role in job.roles if role.gate))
    found = [*_namesake(job, given), *check_queues(document), *_together(job, parts, offers)]
    for part in parts:
        found += _containers(job, part, known, frozenset(variables))
        found += mounts.check(part.spec, part.path, known, sandboxed=runtime == "sandbox")
        found += _fit(part, offers)
        found += _passed_over(part)
    return tuple(dict.fromkeys(found))


def _namesake(job: Job, objects: Iterable[Body]) -> Iterator[Problem]:
    """A ConfigMap under the name that the job needs for its own: pods would wait for that one for ever."""
    for body in objects:
        meta = body.get("metadata") or {}
        there = (meta.get("namespace") or job.key.namespace) == job.key.namespace
        if body.get("kind") == "ConfigMap" and there and any(role.gate == meta.get("name") for role in job.roles):
            message = f"the job makes a ConfigMap {job.key.name!r}, and the files have one of that name: rename either"
            yield Problem("metadata.name", message)


def _parts(job: Job, document: Body) -> Iterator[RolePods]:
    places = list(templates(document.get("spec"), "spec"))
    for role in job.roles:
        replica = Replica(role, 0, 0, job.key.replica_name(role.name, 0))
        spec = job.dialect.pod(job, replica, Site())["spec"]
        # Roles with the same template have one each, in the order of the document.
        path = next((path for path, template in places if template == role.template), "spec")
        places = [place for place in places if place[0] != path]
        yield RolePods(role, f"{path}.spec", spec)


def _each(part: RolePods) -> Iterator[tuple[str, Body]]:
    for group in ("initContainers", "containers"):
        for index, container in enumerate(part.spec.get(group) or ()):
            yield item(f"{part.path}.{group}", index), container


def _containers(job: Job, part: RolePods, known: KnownObjects, variables: frozenset[str]) -> Iterator[Problem]:
    for path, container in _each(part):
        if not container.get("command"):
            message = "missing; the image is not used here, so its entrypoint is not known: name the program to run"
            # A job that begins paused may be given another command when it goes on.
            yield Problem(f"{path}.command", message, warning=job.lifecycle.suspended)
        if container.get("restartPolicy") == "Always" and ".initContainers[" in path:
            message = "Always is not supported here: an init container must end before the next one begins"
            yield Problem(f"{path}.restartPolicy", message)
        yield from of_container(container, path, known, variables)


def _fit(part: RolePods, offers: Sequence[NodeInfo]) -> Iterator[Problem]:
    """A pod that no node could hold even if it were empty, or that no node may have."""
    never = impossible(part.asks, {one.name: one.total for one in offers})
    if never:
        yield Problem(_asking(part), f"can never fit: {never}{_hint(part.asks, never)}")
    wanted = terms(part.spec)
    if wanted.unsupported:
        yield Problem(part.path, f"{wanted.unsupported} is not supported here")
        return
    refusals = [refusal(wanted, replace(one.traits, ready=True)) for one in offers]
    if refusals and all(refusals):
        names = "nodeSelector" if part.spec.get("nodeSelector") else "affinity" if wanted.affinity else "tolerations"
        yield Problem(f"{part.path}.{names}", f"no node here will have such a pod: {offers[0].name}: {refusals[0]}")


def _hint(asks: Asks, never: str) -> str:
    """How the user says that there are devices which this machine does not know of."""
    for name, _ in asks:
        if "/" in name and f"{name}: " in never:
            return _PRETEND_GPUS if name == GPU else f"; `--device {name}=N` says that there are N"
    return ""


def _asking(part: RolePods) -> str:
    """Where the request is written, if it is in one place."""
    asking = [path for path, container in _each(part) if container.get("resources")]
    return f"{asking[0]}.resources" if len(asking) == 1 else f"{part.path}.containers"


def _together(job: Job, parts: Sequence[RolePods], offers: Sequence[NodeInfo]) -> Iterator[Problem]:
    """A gang that all nodes together cannot hold never starts; other jobs only run in turns."""
    if not offers:
        return
    # What even one pod cannot have is told of that pod alone.
    most = {name: max(one.total.get(name, 0) for one in offers) for part in parts for name, _ in part.asks}
    told = {name for part in parts for name, amount in part.asks if amount > most[name]}
    needs = total({one: n * part.role.replicas for one, n in part.asks if one not in told} for part in parts)
    lacking = short(tuple(sorted(needs.items())), total(one.total for one in offers))
    if not lacking:
        return
    count = sum(part.role.replicas for part in parts)
    pods = f"{count} pod{'s' * (count != 1)}"
    if job.gang is not None and job.gang.asked:
        yield Problem("spec", f"can never fit: gang needs {pods} at once: {lacking}")
    else:
        yield Problem("spec", f"not all {count} replicas can run at the same time: {lacking}", warning=True)


def _passed_over(part: RolePods) -> Iterator[Problem]:
    """What is not done here although somebody may count on it."""
    for path, container in _each(part):
        for word in _PROBES:
            probe = container.get(word) or {}
            if probe and not probe.get("exec"):
                yield Problem(
                    f"{path}.{word}", "only exec probes are run here; this one counts as passed", warning=True
                )
        if (container.get("securityContext") or {}).get("runAsUser") is not None:
            yield Problem(f"{path}.securityContext.runAsUser", _AS_YOU, warning=True)
    if (part.spec.get("securityContext") or {}).get("runAsUser") is not None:
        yield Problem(f"{part.path}.securityContext.runAsUser", _AS_YOU, warning=True)
