# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a pod template, for any kind: its shape against `podtable`, then what one field asks of another.

`base.load` asks for both of every kind's templates, also where the rest of a manifest cannot be read. The template
itself is never re-modelled: it is looked at, and goes to the pod as it is.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import Any

from msgspec import Struct, inspect

from trainwright.kinds import spelling
from trainwright.kinds.decode import MOST, Found, walk
from trainwright.kinds.paths import item, under
from trainwright.kinds.podtable import ROOT, TYPES
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest
from trainwright.model.units import quantity

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
_SHARED = "/dev/shm"  # noqa: S108 - a path inside the pod
#: So many known names are listed and searched for a near one: absurd templates must not cost minutes.
_LISTED = 32
_Place = tuple[str, Body]


def read_all(document: Body, found: Found) -> dict[str, Body]:
    """All templates of a manifest, by their paths."""
    every = islice(templates(document.get("spec"), "spec"), MOST)
    return {path: read(template, path, found) for path, template in every}


def read(template: Body, path: str, found: Found) -> Body:
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
        spelling.check(containers, given),
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
        inspect.Field(name, name, _type(word.removesuffix("!")), required=word.endswith("!"))
        for name, word in TYPES[spelling].items()
    )
    return inspect.StructType(Struct, tuple(fields))


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
