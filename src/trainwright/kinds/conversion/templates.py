# SPDX-License-Identifier: Apache-2.0
"""The pod templates for the new manifest: what the source's kind puts into each pod, without what differs by replica.

`templates` leaves out the variables that the source's kind adds. `with_variables` adds those that the new kind does not
set itself. If the new kind fills in variables (it has a notation), a value may contain the index of the replica, the
number of replicas and hosts. A value that depends on the index in any other way becomes a list of variables, one for
each replica, and one variable that selects from them: the kubelet replaces `$(RANK_OF_REPLICA_1)`.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.conversion.pods import GROUPS, UNUSED_INDEX, Rendering, containers, symbolic_site
from trainwright.kinds.writing import Notation, Templates, replica_of
from trainwright.model.job import Body, Job, Role

#: Keys of a pod spec that the new kind sets itself.
_OF_KIND = ("restartPolicy", *GROUPS)
#: The longest list of variables for one value that differs by replica.
_MAX_LISTED = 256
#: The part of a name by which a variable for one replica is recognized.
LISTED = "_OF_REPLICA_"
#: Variables with this prefix are for Trainwright, not for programs.
OWN_PREFIX = "TRAINWRIGHT_"

#: The position of a container: role, list of containers, position in the list.
Place = tuple[str, str, int]


class SourcePods(Struct, frozen=True):
    """The pods of the source, with hosts in the notation of the new kind."""

    plain: Rendering
    restarted: Rendering
    #: By role: the same job with one more replica of this role.
    resized: Mapping[str, Rendering]
    notation: Notation | None = None


def source_pods(job: Job, notation: Notation | None) -> SourcePods:
    """The pods of a job, for templates of a kind with this notation."""
    plain = Rendering(job)
    if notation is not None:
        roles = tuple(replace(role, template=_escaped(role.template, notation.escape)) for role in job.roles)
        plain = Rendering(replace(job, roles=roles), symbolic_site(job, notation))
    resized = {role.name: plain.resized(role.name) for role in job.roles}
    return SourcePods(plain, plain.restarted(), resized, notation)


def _escaped(template: Body, escape: Callable[[str], str]) -> Body:
    """The template; texts in which the new kind fills in variables are escaped."""
    spec = dict(template.get("spec") or {})
    for group in GROUPS:
        if spec.get(group):
            spec[group] = [_escaped_container(one, escape) for one in spec[group]]
    return template | {"spec": spec}


def _escaped_container(container: Body, escape: Callable[[str], str]) -> Body:
    lists = {key: [escape(text) for text in container[key]] for key in ("command", "args") if container.get(key)}
    env = [one | {"value": escape(one["value"])} if one.get("value") else one for one in container.get("env") or ()]
    return container | lists | ({"env": env} if env else {})


# -- templates without variables -------------------------------------------------------------------------------------


def templates(source: SourcePods) -> Templates:
    """A template for each role, without the variables that the source's kind adds to the containers of the user."""
    return {role.name: _template(source, role) for role in source.plain.job.roles}


def _template(source: SourcePods, role: Role) -> Body:
    pods = [source.plain.pod(role, 0), source.plain.pod(role, UNUSED_INDEX), source.restarted.pod(role, 0)]
    first, *others = [pod["spec"] for pod in pods]
    spec = {
        key: part
        for key, part in first.items()
        if key not in _OF_KIND and all(other.get(key) == part for other in others)
    }
    given = {(group, one["name"]): one for group, _, one in containers(role.template)}
    for group in GROUPS:
        if first.get(group):
            spec[group] = [_with_env_of(one, given.get((group, one["name"]))) for one in first[group]]
    return _metadata(source, role, [pod.get("metadata") or {} for pod in pods]) | {"spec": spec}


def _with_env_of(container: Body, given: Body | None) -> Body:
    """The container with the variables of the user's container; a container that the kind adds keeps its variables."""
    if given is None:
        return container
    rest = {key: part for key, part in container.items() if key != "env"}
    return rest | ({"env": given["env"]} if given.get("env") else {})


def _metadata(source: SourcePods, role: Role, found: list[Body]) -> Body:
    """Labels and annotations that all pods of the role have, without the labels by which services find pods."""
    dropped = selector_labels(source.plain.job, role)
    metadata = {key: part for key, part in (role.template.get("metadata") or {}).items() if part}
    for key in ("labels", "annotations"):
        maps = [one.get(key) or {} for one in found]
        kept = {
            name: value
            for name, value in maps[0].items()
            if name not in dropped and all(other.get(name) == value for other in maps[1:])
        }
        metadata = {name: part for name, part in metadata.items() if name != key} | ({key: kept} if kept else {})
    return {"metadata": metadata} if metadata else {}


def selector_labels(job: Job, role: Role) -> frozenset[str]:
    """The labels by which the services of a role find their pods: they belong to the source's kind."""
    body = job.dialect.service(job, replica_of(job, role, 0), Rendering(job).site) if role.service else {}
    return frozenset((body.get("spec") or {}).get("selector") or ())


# -- variables -------------------------------------------------------------------------------------------------------


class WithVariables(Struct, frozen=True):
    """Templates with variables."""

    templates: Templates
    #: Variables whose values fit only the present number of replicas.
    fixed: frozenset[str] = frozenset()


def with_variables(source: SourcePods, given: Templates, missing: Mapping[Place, tuple[str, ...]]) -> WithVariables:
    """The templates with these variables, as far as their values can be written."""
    found = dict(given)
    fixed: set[str] = set()
    for (role_name, group, position), names in missing.items():
        role = source.plain.role(role_name)
        assert role is not None  # noqa: S101 - `missing` contains roles of the source
        entries: list[Body] = []
        for name in names:
            if name.startswith(OWN_PREFIX):
                continue
            variable = Variable(source, role, group, position, name)
            entries += variable.entries()
            fixed |= {name} if variable.is_fixed() else set()
        found[role.name] = _with_entries(found[role.name], group, position, entries)
    return WithVariables(found, frozenset(fixed))


def _with_entries(template: Body, group: str, position: int, entries: list[Body]) -> Body:
    listed = list(template["spec"][group])
    names = {entry["name"] for entry in entries}
    own = [entry for entry in listed[position].get("env") or () if entry["name"] not in names]
    if entries:
        listed[position] = listed[position] | {"env": [*own, *entries]}
    return template | {"spec": template["spec"] | {group: listed}}


class Variable(Struct, frozen=True):
    """One variable of the containers at one position of a role."""

    source: SourcePods
    role: Role
    group: str
    position: int
    name: str

    def entries(self) -> list[Body]:
        """The entries of `env` for this variable in the template; none if its values cannot be written."""
        values = [self._entry(self.source.plain, index) for index in range(self.role.replicas)]
        first = values[0] if values else self._entry(self.source.plain, UNUSED_INDEX)
        if first is None or self._entry(self.source.restarted, 0) != self._entry(self.source.plain, 0):
            return []
        if (text := self._text()) is not None:
            return [{"name": self.name, "value": text}]
        if all(value == first for value in values):
            return [first]
        return self._listed([value or {} for value in values]) if self.source.notation is not None else []

    def is_fixed(self) -> bool:
        """Whether the value in the template does not follow a change of the number of replicas."""
        entries = self.entries()
        if not entries:
            return False
        text, index = str(entries[-1].get("value")), self.role.replicas - 1
        return len(entries) > 1 or any(
            self._value(other, index) != self._filled(text, other, index) for other in self.source.resized.values()
        )

    def _text(self) -> str | None:
        """One text in the notation that gives every replica its value; None if there is no such text."""
        notation, plain = self.source.notation, self.source.plain
        if notation is None or (text := self._value(plain, UNUSED_INDEX)) is None:
            return None
        text = re.sub(rf"(?<!\d){UNUSED_INDEX}(?!\d)", notation.rank, text)
        if any(self._filled(text, plain, index) != self._value(plain, index) for index in range(self.role.replicas)):
            return None
        for role in plain.job.roles:
            counted = re.sub(rf"(?<![\d\[]){role.replicas}(?![\d\]])", notation.count(role.name), text)
            checked = (plain, *self.source.resized.values())
            if all(self._filled(counted, one, 0) == self._value(one, 0) for one in checked):
                return counted
        return text

    def _filled(self, text: str, rendering: Rendering, index: int) -> str:
        """The text as the new kind fills it in; hosts stay in the notation."""
        notation = self.source.notation
        if notation is None:
            return text
        for role in rendering.job.roles:
            text = text.replace(notation.count(role.name), str(role.replicas))
        return text.replace(notation.rank, str(index))

    def _listed(self, values: list[Body]) -> list[Body]:
        """One variable for each replica, and the variable itself, which selects one of them."""
        notation = self.source.notation
        if notation is None or len(values) > _MAX_LISTED:
            return []
        prefix = f"{self.name}{LISTED}"
        listed = [value | {"name": f"{prefix}{index}"} for index, value in enumerate(values)]
        return [*listed, {"name": self.name, "value": f"$({prefix}{notation.rank})"}]

    def _entry(self, rendering: Rendering, index: int) -> Body | None:
        """The entry of the variable in the pod of a replica, None if it has no such variable."""
        role = rendering.role(self.role.name)
        assert role is not None  # noqa: S101 - every rendering of the source has the same roles
        listed = rendering.pod(role, index)["spec"].get(self.group) or ()
        env = (listed[self.position].get("env") or ()) if self.position < len(listed) else ()
        return next((dict(entry) for entry in reversed(env) if entry["name"] == self.name), None)

    def _value(self, rendering: Rendering, index: int) -> str | None:
        """The value as text; None if the variable has another source, or does not exist."""
        entry = self._entry(rendering, index)
        return None if entry is None or entry.get("valueFrom") else str(entry.get("value") or "")
