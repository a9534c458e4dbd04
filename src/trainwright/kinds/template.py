# SPDX-License-Identifier: Apache-2.0
"""Check the pod templates of any kind: their shape against `podtable`, then what an API server would refuse.

The template is only checked here. It stays a plain mapping, and this module does not change it.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any

from msgspec import Struct, inspect

from trainwright.kinds.decode import MAX_PROBLEMS, DecodeProblems, walk
from trainwright.kinds.podtable import ROOT, TYPES
from trainwright.kinds.scalars import item, under
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown
from trainwright.model.units import quantity

#: A part of the template, and its path.
Place = tuple[str, Body]

_SCALARS: dict[str, inspect.Type] = {
    "any": inspect.AnyType(),
    "bool": inspect.BoolType(),
    "int": inspect.IntType(),
    "intOrString": inspect.UnionType((inspect.IntType(), inspect.StrType())),
    "quantity": inspect.DecimalType(),
    "str": inspect.StrType(),
    "time": inspect.DateTimeType(),
}
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
#: (type, field) -> the values that an API server accepts. It also accepts "", as if the field were not set.
_ALLOWED_VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("Container", "imagePullPolicy"): _PULL_POLICIES,
    ("Container", "terminationMessagePolicy"): _MESSAGE_POLICIES,
    ("ContainerPort", "protocol"): ("TCP", "UDP", "SCTP"),
    ("EphemeralContainer", "imagePullPolicy"): _PULL_POLICIES,
    ("EphemeralContainer", "terminationMessagePolicy"): _MESSAGE_POLICIES,
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
    ("ImageVolumeSource", "pullPolicy"): _PULL_POLICIES,
    ("LabelSelectorRequirement", "operator"): _SELECTOR_OPERATORS,
    ("NodeSelectorRequirement", "operator"): (*_SELECTOR_OPERATORS, "Gt", "Lt"),
    ("PodSecurityContext", "fsGroupChangePolicy"): ("OnRootMismatch", "Always"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("PreemptLowerPriority", "Never"),
    ("SeccompProfile", "type"): ("RuntimeDefault", "Localhost", "Unconfined"),
    ("Toleration", "effect"): ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("Toleration", "operator"): ("Exists", "Equal", "Gt", "Lt"),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("VolumeMount", "mountPropagation"): ("None", "HostToContainer", "Bidirectional"),
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_PORT = 65535
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path inside the pod
#: At most this many known names are listed and compared, so that a check of a huge template does not take minutes.
_MAX_NAMES_LISTED = 32
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]")
#: The fields that `fieldRef` of an environment variable can refer to.
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


# -- the shape -------------------------------------------------------------------------------------------------------


def read_all(document: Body, found: DecodeProblems) -> dict[str, Body]:
    """All templates of a manifest, by their paths."""
    first = islice(templates(document.get("spec"), "spec"), MAX_PROBLEMS)
    return {path: read(template, path, found) for path, template in first}


def read(template: Body, path: str, found: DecodeProblems) -> Body:
    """The readable part of the template at `path`, as `decode.walk` returns it; problems are added to `found`."""
    clean: Body = walk(_type(ROOT), template, path, found)
    return clean


def templates(part: object, path: str) -> Iterator[Place]:
    """Every mapping called `template` in the manifest. The recursion is safe: the parser has limited the depth."""
    if isinstance(part, dict):
        for key, inner in part.items():
            if key == "template" and isinstance(inner, dict):
                yield under(path, key), inner
            else:
                yield from templates(inner, under(path, key))
    elif isinstance(part, list):
        for index, inner in enumerate(part):
            yield from templates(inner, item(path, index))


@cache
def _type(spelling: str) -> inspect.Type:
    """Translate the spelling of a type in `podtable` to a type that `decode` can walk."""
    if spelling in _SCALARS:
        return _SCALARS[spelling]
    if spelling.startswith("["):
        return inspect.ListType(_type(spelling[1:-1]))
    if spelling.startswith("{"):
        return inspect.DictType(inspect.StrType(), _type(spelling[1:-1]))
    fields = (
        inspect.Field(name, name, _field_type(spelling, name, inner), required=inner.endswith("!"))
        for name, inner in TYPES[spelling].items()
    )
    return inspect.StructType(Struct, tuple(fields))


def _field_type(struct: str, name: str, spelling: str) -> inspect.Type:
    allowed = _ALLOWED_VALUES.get((struct, name))
    return _type(spelling.removesuffix("!")) if allowed is None else inspect.LiteralType((*allowed, ""))


# -- the checks ------------------------------------------------------------------------------------------------------


def check(template: Body, path: str) -> Iterator[Problem]:
    """Problems of the template at `path` beyond its shape."""
    spec, where = pod_spec(template), f"{path}.spec"
    containers = [*entries(spec, "initContainers", where), *entries(spec, "containers", where)]
    given = [*entries(spec, "volumes", where)]
    volumes = {str(body.get("name")): (place, body) for place, body in given}
    problems = chain(
        _required(template, spec, where),
        _unique_names(containers, "container"),
        _unique_names(given, "volume"),
        _spelling(containers, given),
        chain.from_iterable(_limits(body, f"{place}.resources") for place, body in containers),
        chain.from_iterable(_mounts(body, place, volumes) for place, body in containers),
    )
    return islice(problems, MAX_PROBLEMS)


def _mapping(value: Any) -> Body:
    """The value, or an empty mapping if its shape is wrong: another message reports the wrong shape."""
    return value if isinstance(value, dict) else {}


def pod_spec(template: Body) -> Body:
    """The `spec` of a template, which may have any shape."""
    return _mapping(template.get("spec"))


def entries(body: Any, key: str, path: str) -> Iterator[Place]:
    """The mappings in the list `body[key]`, each with its path. `path` is the path of `body`. Any shape is allowed."""
    listed = _mapping(body).get(key)
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(entry, dict):
            yield item(f"{path}.{key}", index), entry


def check_image(container: Body, path: str) -> Iterator[Problem]:
    """Check that the container at `path` has an image, without which no kubelet can start it."""
    if not container.get("image"):
        yield Problem(f"{path}.image", "missing; expected the name of an image")


def check_written(container: Body, path: str, names: Collection[str]) -> Iterator[Problem]:
    """Warn about variables of the user that the controller writes too."""
    for place, entry in entries(container, "env", path):
        if (name := entry.get("name")) in names:
            message = f"{name} is written by the controller, whose value comes after this one and wins"
            yield Problem(place, message, warning=True)


def _required(template: Body, spec: Body, path: str) -> Iterator[Problem]:
    if template.get("spec") is None:
        yield Problem(path, "missing; expected a mapping with a list of containers")
    if spec.get("containers") == []:
        yield Problem(f"{path}.containers", "may not be empty: a pod needs at least one container")


def _unique_names(entries: Iterable[Place], what: str) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for path, body in entries:
        name = body.get("name")
        if name == "":
            yield Problem(f"{path}.name", "may not be empty")
        elif isinstance(name, str) and first.setdefault(name, path) != path:
            yield Problem(f"{path}.name", f"{name!r} is already the name of {first[name]}; each {what} needs its own")


def _spelling(containers: list[Place], volumes: list[Place]) -> Iterator[Problem]:
    """Names, ports, paths and field references that an API server refuses although their shape is right."""
    for path, body in (*containers, *volumes):
        yield from _label(body.get("name"), f"{path}.name")
    for path, container in containers:
        yield from _ports(container, path)
        yield from _mount_paths(container, path)
        yield from _field_refs(container, path)
    for path, volume in volumes:
        for source in ("configMap", "secret"):
            for place, entry in entries(volume.get(source), "items", f"{path}.{source}"):
                yield from _relative_path(entry.get("path"), f"{place}.path")


def _label(name: Any, path: str) -> Iterator[Problem]:
    if isinstance(name, str) and name and not _LABEL.fullmatch(name):
        expected = "use at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
        yield Problem(path, f"{name[:60]!r} cannot be a name here: {expected}")


def _ports(container: Body, path: str) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for place, port in entries(container, "ports", path):
        number, name = port.get("containerPort"), port.get("name")
        if type(number) is int and not 0 < number <= _MAX_PORT:
            yield Problem(f"{place}.containerPort", f"expected a port from 1 to {_MAX_PORT}, found {shown(number)}")
        if isinstance(name, str) and name and first.setdefault(name, place) != place:
            yield Problem(f"{place}.name", f"{name!r} is already the name of {first[name]}; each port needs its own")


def _mount_paths(container: Body, path: str) -> Iterator[Problem]:
    for place, mount in entries(container, "volumeMounts", path):
        if mount.get("mountPath") == "":
            yield Problem(f"{place}.mountPath", "may not be empty: expected a path such as /data")
        yield from _relative_path(mount.get("subPath"), f"{place}.subPath")


def _relative_path(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        yield Problem(path, f"{value[:60]!r} leads out of the volume: expected a relative path without `..`")


def _field_refs(container: Body, path: str) -> Iterator[Problem]:
    for place, entry in entries(container, "env", path):
        field = _mapping(_mapping(entry.get("valueFrom")).get("fieldRef")).get("fieldPath")
        if isinstance(field, str) and field not in FIELDS and not _SUBSCRIPT.fullmatch(field):
            message = f"{field[:60]!r} is not known; expected {', '.join(FIELDS)}"
            yield Problem(f"{place}.valueFrom.fieldRef.fieldPath", message, nearest(field, FIELDS))


def _limits(container: Body, path: str) -> Iterator[Problem]:
    resources = _mapping(container.get("resources"))
    limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
    fractions = {
        name for group in (limits, requests) for name in group if _extended(name) and _is_fraction(group[name])
    }
    for group, given in (("limits", limits), ("requests", requests)):
        for name in [name for name in given if name in fractions and _is_fraction(given[name])]:
            yield Problem(under(f"{path}.{group}", name), f"expected a whole number of devices, found {given[name]}")
    for name in [name for name in limits if name in requests and name not in fractions]:
        limit, request = quantity(limits[name]), quantity(requests[name])
        if limit is None or request is None:
            continue
        found = f"the limit is {limits[name]}, the request {requests[name]}"
        if limit < request:
            yield Problem(under(f"{path}.limits", name), f"limits may not be below requests: {found}")
        elif limit > request and _extended(name):
            yield Problem(under(f"{path}.limits", name), f"limit and request of a device must be equal: {found}")


def _extended(name: object) -> bool:
    """Whether a resource is a device such as nvidia.com/gpu, which Kubernetes counts and never shares."""
    domain, slash, _ = str(name).rpartition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _is_fraction(amount: object) -> bool:
    found = quantity(amount)
    return found is not None and found != found.to_integral_value()


def _mounts(container: Body, path: str, volumes: dict[str, Place]) -> Iterator[Problem]:
    for place, mount in entries(container, "volumeMounts", path):
        name = mount.get("name")
        if isinstance(name, str) and name not in volumes:
            known = [*volumes][:_MAX_NAMES_LISTED]
            listed = f"the template has {', '.join(known)}" if known else "the template has no volumes"
            yield Problem(f"{place}.name", f"there is no volume {name!r}; {listed}", nearest(name, known))
        elif isinstance(name, str) and str(mount.get("mountPath")).rstrip("/") == _SHARED_MEMORY:
            yield from _shared_memory(container, *volumes[name])


def _shared_memory(container: Body, path: str, volume: Body) -> Iterator[Problem]:
    """Warn if /dev/shm is larger than the memory limit. Its content counts as memory, so the kernel kills the pod."""
    empty = _mapping(volume.get("emptyDir"))
    memory = _mapping(_mapping(container.get("resources")).get("limits")).get("memory")
    size, limit = quantity(empty.get("sizeLimit")), quantity(memory)
    if empty.get("medium") == "Memory" and size is not None and limit is not None and size > limit:
        message = f"{empty['sizeLimit']} of shared memory is more than the container's memory limit of {memory}"
        yield Problem(f"{path}.emptyDir.sizeLimit", f"{message}, against which it counts", warning=True)
