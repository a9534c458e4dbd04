# SPDX-License-Identifier: Apache-2.0
"""What an API server refuses of a pod although its shape is right: names, paths and fields that cannot be meant.

Called by `template` for every container and volume. A name or path that leads out of its place is a mistake at best.

What is wrong with a pod template, for any kind: its shape against `podtable`, then what one field asks of another.

`base.load` asks for both of every kind's templates, also where the rest of a manifest cannot be read. The template
itself is never re-modelled: it is looked at, and goes to the pod as it is.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import Any

from msgspec import Struct, inspect

from trainwright.kinds.decode import MOST, DecodeProblems, walk
from trainwright.kinds.podtable import ROOT, TYPES
from trainwright.kinds.scalars import item, under
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown
from trainwright.model.units import quantity

Place = tuple[str, Body]
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LAST_PORT = 65535
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]")
#: What `fieldRef` in an environment may name.
FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels['…']",
    "metadata.annotations['…']",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)


def check_spelling(containers: list[Place], volumes: list[Place]) -> Iterator[Problem]:
    """Everything of this sort in one pod."""
    for path, body in (*containers, *volumes):
        yield from _label(body.get("name"), f"{path}.name")
    for path, container in containers:
        yield from _ports(container, path)
        yield from _mount_paths(container, path)
        yield from _fields(container, path)
    for path, volume in volumes:
        for source in ("configMap", "secret"):
            yield from _items(volume.get(source), f"{path}.{source}")


def _label(name: Any, path: str) -> Iterator[Problem]:
    if isinstance(name, str) and name and not _LABEL.fullmatch(name):
        expected = "use at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
        yield Problem(path, f"{name[:60]!r} cannot be a name here: {expected}")


def _ports(container: Body, path: str) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for place, port in _named_entries(container.get("ports"), f"{path}.ports"):
        number, name = port.get("containerPort"), port.get("name")
        if type(number) is int and not 0 < number <= _LAST_PORT:
            yield Problem(f"{place}.containerPort", f"expected a port from 1 to {_LAST_PORT}, found {shown(number)}")
        if isinstance(name, str) and name and first.setdefault(name, place) != place:
            yield Problem(f"{place}.name", f"{name!r} is already the name of {first[name]}; each port needs its own")


def _mount_paths(container: Body, path: str) -> Iterator[Problem]:
    for place, mount in _named_entries(container.get("volumeMounts"), f"{path}.volumeMounts"):
        if mount.get("mountPath") == "":
            yield Problem(f"{place}.mountPath", "may not be empty: expected a path such as /data")
        yield from _inside(mount.get("subPath"), f"{place}.subPath")


def _items(source: Any, path: str) -> Iterator[Problem]:
    for place, entry in _named_entries(source.get("items") if isinstance(source, dict) else None, f"{path}.items"):
        yield from _inside(entry.get("path"), f"{place}.path")


def _inside(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        yield Problem(path, f"{value[:60]!r} leads out of the volume: expected a relative path without `..`")


def _fields(container: Body, path: str) -> Iterator[Problem]:
    for place, entry in _named_entries(container.get("env"), f"{path}.env"):
        given = entry.get("valueFrom")
        ref = given.get("fieldRef") if isinstance(given, dict) else None
        field = ref.get("fieldPath") if isinstance(ref, dict) else None
        if isinstance(field, str) and field not in FIELDS and not _SUBSCRIPT.fullmatch(field):
            message = f"{field[:60]!r} is not known; expected {', '.join(FIELDS)}"
            yield Problem(f"{place}.valueFrom.fieldRef.fieldPath", message, nearest(field, FIELDS))


def _named_entries(entries: Any, path: str) -> Iterator[Place]:
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield item(path, index), entry


_SCALARS: dict[str, inspect.Type] = {
    "any": inspect.AnyType(),
    "bool": inspect.BoolType(),
    "float": inspect.FloatType(),
    "int": inspect.IntType(),
    "intOrString": inspect.UnionType((inspect.IntType(), inspect.StrType())),
    "quantity": inspect.DecimalType(),
    "str": inspect.StrType(),
    "time": inspect.DateTimeType(),
}
_PULL = ("Always", "IfNotPresent", "Never")
_MESSAGES = ("File", "FallbackToLogsOnError")
_SELECTS = ("In", "NotIn", "Exists", "DoesNotExist")
#: The words that an API server takes in a field of a type; it takes "" for a field that is not set.
_ENUMERATIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Container", "imagePullPolicy"): _PULL,
    ("Container", "terminationMessagePolicy"): _MESSAGES,
    ("ContainerPort", "protocol"): ("TCP", "UDP", "SCTP"),
    ("EphemeralContainer", "imagePullPolicy"): _PULL,
    ("EphemeralContainer", "terminationMessagePolicy"): _MESSAGES,
    ("HTTPGetAction", "scheme"): ("HTTP", "HTTPS"),
    ("HostPathVolumeSource", "type"): (
        "DirectoryOrCreate",
        "Directory",
        "FileOrCreate",
        "File",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ),
    ("ImageVolumeSource", "pullPolicy"): _PULL,
    ("LabelSelectorRequirement", "operator"): _SELECTS,
    ("NodeSelectorRequirement", "operator"): (*_SELECTS, "Gt", "Lt"),
    ("PodSecurityContext", "fsGroupChangePolicy"): ("OnRootMismatch", "Always"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("PreemptLowerPriority", "Never"),
    ("SeccompProfile", "type"): ("RuntimeDefault", "Localhost", "Unconfined"),
    ("Toleration", "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("Toleration", "operator"): ("Exists", "Equal", "Gt", "Lt"),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("VolumeMount", "mountPropagation"): ("None", "HostToContainer", "Bidirectional"),
}
_SHARED = "/dev/shm"  # noqa: S108 - a path inside the pod
#: So many known names are listed and searched for a near one: absurd templates must not cost minutes.
_LISTED = 32
_Place = tuple[str, Body]


def read_all(document: Body, found: DecodeProblems) -> dict[str, Body]:
    """All templates of a manifest, by their paths."""
    every = islice(templates(document.get("spec"), "spec"), MOST)
    return {path: read(template, path, found) for path, template in every}


def read(template: Body, path: str, found: DecodeProblems) -> Body:
    """What can be read of the template at `path`, as `decode.walk` returns it; what is wrong goes to `found`."""
    clean: Body = walk(_type(ROOT), template, path, found)
    return clean


def templates(part: object, path: str) -> Iterator[_Place]:
    """Every mapping called `template`, wherever the kind keeps it; manifests are not deep, the reader sees to that."""
    if isinstance(part, dict):
        for key, inner in part.items():
            if key == "template" and isinstance(inner, dict):
                yield under(path, key), inner
            else:
                yield from templates(inner, under(path, key))
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from templates(inner, item(path, index))


def check(template: Body, path: str) -> Iterator[Problem]:
    """What one field of the template at `path` demands of another. Its shape is right."""
    spec, where = _mapping(template.get("spec")), f"{path}.spec"
    containers = [*_entries(spec, "initContainers", where), *_entries(spec, "containers", where)]
    given = [*_entries(spec, "volumes", where)]
    volumes = {str(body.get("name")): (place, body) for place, body in given}
    meaning = chain(
        _some(template, spec, where),
        _names(containers, "container"),
        _names(given, "volume"),
        check_spelling(containers, given),
        chain.from_iterable(_limits(body, f"{place}.resources") for place, body in containers),
        chain.from_iterable(_mounts(body, place, volumes) for place, body in containers),
    )
    return islice(meaning, MOST)


@cache
def _type(spelling: str) -> inspect.Type:
    """The table's word for a type as a type that `decode` can walk."""
    if spelling in _SCALARS:
        return _SCALARS[spelling]
    if spelling.startswith("["):
        return inspect.ListType(_type(spelling[1:-1]))
    if spelling.startswith("{"):
        return inspect.DictType(inspect.StrType(), _type(spelling[1:-1]))
    fields = (
        inspect.Field(name, name, _field_type(spelling, name, word), required=word.endswith("!"))
        for name, word in TYPES[spelling].items()
    )
    return inspect.StructType(Struct, tuple(fields))


def _field_type(spelling: str, name: str, word: str) -> inspect.Type:
    known = _ENUMERATIONS.get((spelling, name))
    return _type(word.removesuffix("!")) if known is None else inspect.LiteralType((*known, ""))


def _mapping(value: Any) -> Body:
    """Its shape may be wrong, which has been said; here it only must not hurt."""
    return value if isinstance(value, dict) else {}


def _entries(body: Body, key: str, path: str) -> Iterator[_Place]:
    entries = body.get(key)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield item(f"{path}.{key}", index), entry


def _some(template: Body, spec: Body, path: str) -> Iterator[Problem]:
    if template.get("spec") is None:
        yield Problem(path, "missing; expected a mapping with a list of containers")
    if spec.get("containers") == []:
        yield Problem(f"{path}.containers", "may not be empty: a pod needs at least one container")


def _names(entries: list[_Place], what: str) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for path, body in entries:
        name = body.get("name")
        if name == "":
            yield Problem(f"{path}.name", "may not be empty")
        elif isinstance(name, str) and first.setdefault(name, path) != path:
            yield Problem(f"{path}.name", f"{name!r} is already the name of {first[name]}; each {what} needs its own")


def _limits(container: Body, path: str) -> Iterator[Problem]:
    resources = _mapping(container.get("resources"))
    limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
    parts = {name for group in (limits, requests) for name in group if _extended(name) and _is_part(group[name])}
    for group, given in (("limits", limits), ("requests", requests)):
        for name in [name for name in given if name in parts and _is_part(given[name])]:
            yield Problem(under(f"{path}.{group}", name), f"expected a whole number of devices, found {given[name]}")
    for name in [name for name in limits if name in requests and name not in parts]:
        limit, request = quantity(limits[name]), quantity(requests[name])
        if limit is None or request is None:
            continue
        found = f"the limit is {limits[name]}, the request {requests[name]}"
        if limit < request:
            yield Problem(under(f"{path}.limits", name), f"limits may not be below requests: {found}")
        elif limit > request and _extended(name):
            yield Problem(under(f"{path}.limits", name), f"of devices, limit and request must be equal: {found}")


def _extended(name: object) -> bool:
    """Whether a resource is one of devices, such as nvidia.com/gpu, which Kubernetes counts and never shares."""
    domain, slash, _ = str(name).rpartition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _is_part(amount: object) -> bool:
    found = quantity(amount)
    return found is not None and found != found.to_integral_value()


def _mounts(container: Body, path: str, volumes: dict[str, _Place]) -> Iterator[Problem]:
    for place, mount in _entries(container, "volumeMounts", path):
        name = mount.get("name")
        if isinstance(name, str) and name not in volumes:
            yield _no_volume(f"{place}.name", name, [*volumes][:_LISTED])
        elif isinstance(name, str) and str(mount.get("mountPath")).rstrip("/") == _SHARED:
            yield from _shared_memory(container, *volumes[name])


def _no_volume(path: str, name: str, known: list[str]) -> Problem:
    listed = f"the template has {', '.join(known)}" if known else "the template has no volumes"
    return Problem(path, f"there is no volume {name!r}; {listed}", nearest(name, known))


def _shared_memory(container: Body, path: str, volume: Body) -> Iterator[Problem]:
    """Pages in /dev/shm count against the container's memory limit: a larger one is a promise that kills the pod."""
    empty = _mapping(volume.get("emptyDir"))
    memory = _mapping(_mapping(container.get("resources")).get("limits")).get("memory")
    size, limit = quantity(empty.get("sizeLimit")), quantity(memory)
    if empty.get("medium") == "Memory" and size is not None and limit is not None and size > limit:
        message = f"{empty['sizeLimit']} of shared memory is more than the container's memory limit of {memory}"
        yield Problem(f"{path}.emptyDir.sizeLimit", f"{message}, against which it counts", warning=True)
