# SPDX-License-Identifier: Apache-2.0
"""The differences between the pods of a job and the pods of its conversion: variables, commands, volumes, labels.

Pods are compared as programs see them: after the controller and the kubelet have filled in all variables. The full name
of a replica's host (`a-worker-0.lab.svc`) and its short name (`a-worker-0`) are the same host.
"""

import re
from collections.abc import Iterator, Mapping

from trainwright.kinds.conversion.difference import Difference
from trainwright.kinds.conversion.pods import Rendering, containers, environment, expanded
from trainwright.kinds.conversion.templates import LISTED, OWN_PREFIX, Place
from trainwright.model.job import Body, Job, Role

#: Parts of a container that are compared on their own, or that each kind sets in its own way.
_APART = ("name", "env", "command", "args", "ports")
#: Parts of a pod that each kind sets in its own way. Every kind gives a pod the name of its replica.
_OF_KIND = ("containers", "initContainers", "restartPolicy", "hostname", "subdomain", "schedulerName")

#: Maximum number of characters of a value in a message.
_MAX_SHOWN = 60


def missing_variables(source: Job, result: Job) -> dict[Place, tuple[str, ...]]:
    """By container: the variables of the source that the result does not set to the same value in every replica."""
    found: dict[Place, tuple[str, ...]] = {}
    for role, other in _pairs(source, result):
        for place, before, after in _containers(source, role, result, other):
            names = [name for name in before if _short(before[name], source) != _short(after.get(name), result)]
            found[place] = tuple(dict.fromkeys((*found.get(place, ()), *names)))
    return {place: names for place, names in found.items() if names}


def _containers(source: Job, role: Role, result: Job, other: Role) -> Iterator[tuple[Place, Body, Body]]:
    """The variables of each container of each replica, in the source and in the result."""
    for index in range(role.replicas):
        after = {(group, place): one for group, place, one in containers(Rendering(result).pod(other, index))}
        for group, place, one in containers(Rendering(source).pod(role, index)):
            yield (role.name, group, place), environment(one), environment(after.get((group, place)) or {})


def _pairs(source: Job, result: Job) -> Iterator[tuple[Role, Role]]:
    for role in source.roles:
        other = Rendering(result).role(role.name)
        if other is not None:
            yield role, other


def _short(text: str | None, job: Job) -> str | None:
    """The text with short names of hosts."""
    if text is None:
        return None
    name, namespace = re.escape(job.key.name), re.escape(job.key.namespace)
    host = re.compile(rf"\b({name}-[a-z0-9-]+-\d+)\.{namespace}(?:\.svc)?(?![a-z0-9-])", re.IGNORECASE)
    return host.sub(lambda match: match[1].lower(), text)


def compare_pods(source: Job, result: Job) -> Iterator[Difference]:
    """Every difference between the pods."""
    for role, other in _pairs(source, result):
        if role.replicas and role.replicas == other.replicas:
            yield from _variables(source, role, result, other)
            yield from _commands(source, role, result, other)
            yield from _rest(source, role, result, other)
            yield from _restarts_in_place(source, role, result, other)
    yield from _more_variables(source, result)
    yield from _full_names(source, result)
    yield from _labels(source, result)


# -- what a program sees ---------------------------------------------------------------------------------------------


def _variables(source: Job, role: Role, result: Job, other: Role) -> Iterator[Difference]:
    missing: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for _, before, after in _containers(source, role, result, other):
        for name in before:
            if name.startswith(OWN_PREFIX) or _short(before[name], source) == _short(after.get(name), result):
                continue
            if name in after:
                wrong.setdefault(name, f"{name} is {_cut(after[name])} instead of {_cut(before[name])}")
            else:
                missing.setdefault(name, before[name])
    if missing:
        message = f"programs get {', '.join(missing)}; the result does not set {'it' if len(missing) == 1 else 'them'}"
        yield Difference("template", message, role.name)
    for text in wrong.values():
        yield Difference("template", f"in the result, {text}", role.name)


def _cut(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def _commands(source: Job, role: Role, result: Job, other: Role) -> Iterator[Difference]:
    """Commands and arguments that differ. A text that the kubelet would fill in otherwise differs too."""
    changed: dict[str, None] = {}
    for index in range(role.replicas):
        pods = Rendering(source).pod(role, index), Rendering(result).pod(other, index)
        before, after = ({(group, at): one for group, at, one in containers(pod)} for pod in pods)
        for place, one in before.items():
            for key in ("command", "args"):
                if _texts(one, key) != _texts(after.get(place) or {}, key):
                    changed.setdefault(f"{key} of container {one['name']}")
    for text in changed:
        yield Difference("template", f"the {text} differs: the new kind fills in other variables", role.name)


def _texts(container: Body, key: str) -> list[str]:
    known = environment(container)
    return [expanded(text, known) for text in container.get(key) or ()]


def _rest(source: Job, role: Role, result: Job, other: Role) -> Iterator[Difference]:
    """Everything else of the first pod: volumes, resources, images, node selectors."""
    before, after = Rendering(source).pod(role, 0)["spec"], Rendering(result).pod(other, 0)["spec"]
    changed = [key for key in before if key not in _OF_KIND and before[key] != after.get(key)]
    others = {(group, at): one for group, at, one in containers({"spec": after})}
    for group, at, one in containers({"spec": before}):
        new = others.get((group, at)) or {}
        changed += [f"{group}[{at}].{key}" for key in one if key not in _APART and one[key] != new.get(key)]
    if changed:
        yield Difference("template", f"{', '.join(changed)} of the pods differs in the result", role.name)


def _restarts_in_place(source: Job, role: Role, result: Job, other: Role) -> Iterator[Difference]:
    """The kubelet restarts a container in its pod; a controller replaces the pod, and loses its emptyDir volumes."""
    before, after = Rendering(source).pod(role, 0)["spec"], Rendering(result).pod(other, 0)["spec"]
    if before.get("restartPolicy", "Always") == "Never" or after.get("restartPolicy") != "Never":
        return
    empty = [str(one.get("name")) for one in before.get("volumes") or () if "emptyDir" in one]
    if empty:
        message = (
            f"a restarted container finds its files in {', '.join(empty)} again; in the result a new pod has new ones"
        )
        yield Difference("template", message, role.name)


# -- notes -----------------------------------------------------------------------------------------------------------


def _more_variables(source: Job, result: Job) -> Iterator[Difference]:
    """Variables that programs do not get in the source, at least not in every replica."""
    names: dict[str, None] = {}
    for role, other in _pairs(source, result):
        for _, before, after in _containers(source, role, result, other):
            names |= {name: None for name in after if name not in before and LISTED not in name}
    if names:
        yield Difference("spec", f"some programs of the result also get {', '.join(names)}", lost=False)


def _full_names(source: Job, result: Job) -> Iterator[Difference]:
    names: dict[str, None] = {}
    for role, other in _pairs(source, result):
        for _, before, after in _containers(source, role, result, other):
            same = [name for name in before if name in after and before[name] != after[name]]
            names |= {name: None for name in same if _short(before[name], source) == _short(after[name], result)}
    if names:
        message = f"in the result, {', '.join(names)} contains short host names, which resolve in the job's namespace"
        yield Difference("spec", message, lost=False)


def _labels(source: Job, result: Job) -> Iterator[Difference]:
    """Labels of the source's kind that pods of the result do not have."""
    gone: dict[str, None] = {}
    for role, other in _pairs(source, result):
        if role.replicas:
            before, after = (_pod_labels(job, one) for job, one in ((source, role), (result, other)))
            gone |= {key: None for key in before if key not in after}
    if gone:
        message = f"pods of the result do not have the label{'s' * (len(gone) != 1)} {', '.join(gone)}"
        yield Difference("labels", f"{message}: adapt selectors that use them", lost=False)


def _pod_labels(job: Job, role: Role) -> Mapping[str, str]:
    return (Rendering(job).pod(role, 0).get("metadata") or {}).get("labels") or {}
