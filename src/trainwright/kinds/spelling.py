# SPDX-License-Identifier: Apache-2.0
"""What an API server refuses of a pod although its shape is right: names, paths and fields that cannot be meant.

Called by `template` for every container and volume. A name or path that leads out of its place is a mistake at best.
"""

import re
from collections.abc import Iterator
from typing import Any

from trainwright.kinds.paths import item
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown

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


def check(containers: list[Place], volumes: list[Place]) -> Iterator[Problem]:
    """Everything of this sort in one pod."""
    for path, body in (*containers, *volumes):
        yield from _label(body.get("name"), f"{path}.name")
    for path, container in containers:
        yield from _ports(container, path)
        yield from _mounts(container, path)
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
    for place, port in _entries(container.get("ports"), f"{path}.ports"):
        number, name = port.get("containerPort"), port.get("name")
        if type(number) is int and not 0 < number <= _LAST_PORT:
            yield Problem(f"{place}.containerPort", f"expected a port from 1 to {_LAST_PORT}, found {shown(number)}")
        if isinstance(name, str) and name and first.setdefault(name, place) != place:
            yield Problem(f"{place}.name", f"{name!r} is already the name of {first[name]}; each port needs its own")


def _mounts(container: Body, path: str) -> Iterator[Problem]:
    for place, mount in _entries(container.get("volumeMounts"), f"{path}.volumeMounts"):
        if mount.get("mountPath") == "":
            yield Problem(f"{place}.mountPath", "may not be empty: expected a path such as /data")
        yield from _inside(mount.get("subPath"), f"{place}.subPath")


def _items(source: Any, path: str) -> Iterator[Problem]:
    for place, entry in _entries(source.get("items") if isinstance(source, dict) else None, f"{path}.items"):
        yield from _inside(entry.get("path"), f"{place}.path")


def _inside(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        yield Problem(path, f"{value[:60]!r} leads out of the volume: expected a relative path without `..`")


def _fields(container: Body, path: str) -> Iterator[Problem]:
    for place, entry in _entries(container.get("env"), f"{path}.env"):
        given = entry.get("valueFrom")
        ref = given.get("fieldRef") if isinstance(given, dict) else None
        field = ref.get("fieldPath") if isinstance(ref, dict) else None
        if isinstance(field, str) and field not in FIELDS and not _SUBSCRIPT.fullmatch(field):
            message = f"{field[:60]!r} is not known; expected {', '.join(FIELDS)}"
            yield Problem(f"{place}.valueFrom.fieldRef.fieldPath", message, nearest(field, FIELDS))


def _entries(entries: Any, path: str) -> Iterator[Place]:
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield item(path, index), entry
