# SPDX-License-Identifier: Apache-2.0
"""Finds problems of a pod's volumes, and references to missing Secrets, ConfigMaps and volume claims.

The agent reports the same problems when it starts a container; these checks report all problems before anything runs.
The checks ignore volumes that no container mounts, because the agent does not create such volumes.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trainwright.kinds.scalars import item
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest
from trainwright.node import environment, volumes
from trainwright.node.sources import IN_ENVIRONMENT, IN_PROJECTED, IN_VARIABLE, IN_VOLUME, ContainerConfigError
from trainwright.node.volumes import HOST_PATH_TYPES, PRESENT_PATHS, SUPPORTED, same_path, target_of, unsupported


class KnownObjects:
    """The names and keys of objects that a job can use, by kind. `created` are ConfigMaps that the job creates."""

    def __init__(self, objects: Iterable[Body], namespace: str, created: frozenset[str] = frozenset()) -> None:
        self._created = created
        self._keys: dict[str, dict[str, set[str]]] = {}
        for body in objects:
            meta = body.get("metadata") or {}
            if (meta.get("namespace") or namespace) == namespace:
                keys = (key for part in ("data", "stringData", "binaryData") for key in body.get(part) or ())
                self._keys.setdefault(str(body.get("kind")), {})[str(meta.get("name"))] = set(keys)
        #: The names of ConfigMaps that the job would create but that exist already.
        self.conflicts = self._keys.get("ConfigMap", {}).keys() & created

    def missing(self, kind: str, ref: Body, path: str, name_field: str = "name") -> Iterator[Problem]:
        """A problem if a reference is to an object that does not exist, or to a key that the object does not have."""
        name, key = str(ref.get(name_field) or ""), ref.get("key")
        if ref.get("optional") or (kind == "ConfigMap" and name in self._created):
            return
        known = self._keys.get(kind, {})
        if name not in known:
            has = f"the files have {', '.join(sorted(known))}" if known else f"the files have no {kind}"
            yield Problem(f"{path}.{name_field}", f"there is no {kind} {name!r}; {has}", nearest(name, known))
        elif key is not None and key not in known[name]:
            has = ", ".join(sorted(known[name])) or "no keys"
            message = f"{kind} {name!r} has no key {key!r}; it has {has}"
            yield Problem(f"{path}.key", message, nearest(str(key), known[name]))


def environment_problems(container: Body, path: str, known: KnownObjects, given: frozenset[str]) -> Iterator[Problem]:
    """References to missing objects in a container's environment. Skips `given`: the command line sets these."""
    for place, source in _indexed(container, "envFrom", path):
        for field, kind in IN_ENVIRONMENT:
            if source.get(field):
                yield from known.missing(kind, source[field], f"{place}.{field}")
    for place, entry in _indexed(container, "env", path):
        for field, kind in IN_VARIABLE:
            ref = (entry.get("valueFrom") or {}).get(field)
            if ref and entry.get("name") not in given:
                yield from known.missing(kind, ref, f"{place}.valueFrom.{field}")


def volume_references(volume: Body, path: str, known: KnownObjects) -> Iterator[Problem]:
    """Problems for references from a volume to missing objects or missing keys."""
    yield from _source_references(volume, path, known, IN_VOLUME)
    for place, part in _indexed(volume.get("projected") or {}, "sources", f"{path}.projected"):
        yield from _source_references(part, place, known, IN_PROJECTED)


def _source_references(
    body: Body, path: str, known: KnownObjects, sources: tuple[tuple[str, str, str], ...]
) -> Iterator[Problem]:
    for source, kind, name_field in sources:
        ref = body.get(source)
        if not ref:
            continue
        problems = tuple(known.missing(kind, ref, f"{path}.{source}", name_field))
        yield from problems
        for place, one in _indexed({} if problems else ref, "items", f"{path}.{source}"):
            item_ref = {"optional": ref.get("optional"), name_field: ref.get(name_field), "key": one.get("key")}
            yield from known.missing(kind, item_ref, place, name_field)


#: Placeholders for values that only a node knows; the checks do not use these values.
_FACTS = environment.PodFacts("", "", "", {})


def check(spec: Body, path: str, known: KnownObjects, *, sandboxed: bool) -> Iterator[Problem]:
    """The problems of a pod's mounts, then the problems of the mounted volumes."""
    volumes = {str(one.get("name")): (place, one) for place, one in _indexed(spec, "volumes", path)}
    used: dict[str, None] = {}
    mounts = (one for place, container in containers(spec, path) for one in _indexed(container, "volumeMounts", place))
    for place, mount in mounts:
        name, target = str(mount.get("name")), target_of(mount)
        present = not sandboxed and target in PRESENT_PATHS
        if name not in volumes or present:
            continue
        if sandboxed or same_path(volumes[name][1], str(mount.get("subPath") or ""), target):
            used[name] = None
        else:
            yield _unmountable(place, target)
    for name in used:
        yield from _volume_problems(*volumes[name], known)
        yield from _written_files(spec, *volumes[name])


def _indexed(body: Body, key: str, path: str) -> Iterator[tuple[str, Body]]:
    return ((item(f"{path}.{key}", index), one) for index, one in enumerate(body.get(key) or ()))


def containers(spec: Body, path: str) -> Iterator[tuple[str, Body]]:
    """All containers of a pod with their paths."""
    for group in ("initContainers", "containers"):
        yield from _indexed(spec, group, path)


def _unmountable(path: str, target: str) -> Problem:
    place = f"at {target} in the process runtime, where pods see this machine's files as they are"
    advice = "use `--runtime sandbox`, or a hostPath of that same path"
    return Problem(f"{path}.mountPath", f"nothing can be mounted {place}; {advice}")


def _volume_problems(path: str, volume: Body, known: KnownObjects) -> Iterator[Problem]:
    if not any(field in SUPPORTED for field in volume):
        yield unsupported(path, volume).problem
    yield from volume_references(volume, path, known)
    if isinstance(volume.get("hostPath"), dict):
        yield from _host_path_problems(volume["hostPath"], f"{path}.hostPath")


def _written_files(spec: Body, path: str, volume: Body) -> Iterator[Problem]:
    """Problems of downwardAPI and projected volumes. The check of downwardAPI calls the agent's own function."""
    pod: Body = {"metadata": {}, "spec": spec}
    for place, kind, body in _sources(volume, path):
        if kind == "serviceAccountToken":
            message = f"there are no service accounts here: the file {body.get('path')!r} is left out"
            yield Problem(f"{place}.{kind}", message, warning=True)
        elif kind == "downwardAPI":
            try:
                volumes.downward_files(pod, body, _FACTS, 0, f"{place}.{kind}")
            except ContainerConfigError as error:
                yield error.problem
        elif kind not in volumes.PROJECTED_SOURCES:
            message = f"{kind} is not supported here; expected one of {', '.join(volumes.PROJECTED_SOURCES)}"
            yield Problem(place, message, nearest(kind, volumes.PROJECTED_SOURCES))


def _sources(volume: Body, path: str) -> Iterator[tuple[str, str, Body]]:
    """The path, kind and body of each source of a projected volume, or of the only source of a downwardAPI volume."""
    if volume.get("downwardAPI"):
        yield path, "downwardAPI", volume["downwardAPI"]
    for place, part in _indexed(volume.get("projected") or {}, "sources", f"{path}.projected"):
        yield from ((place, kind, body or {}) for kind, body in part.items())


def _host_path_problems(host: Mapping[str, object], path: str) -> Iterator[Problem]:
    text, kind = str(host.get("path", "")), str(host.get("type") or "")
    if not text.startswith("/"):
        yield Problem(f"{path}.path", f"expected an absolute path, found {text!r}")
    elif not Path(text).exists():
        if not kind.endswith("OrCreate"):
            hint = "" if kind else "; `type: DirectoryOrCreate` makes it"
            yield Problem(f"{path}.path", f"there is no {text} on this machine{hint}", _nearest_file(Path(text)))
    elif kind and not HOST_PATH_TYPES[kind][0](Path(text).stat().st_mode):
        yield Problem(f"{path}.path", f"{text} is not {HOST_PATH_TYPES[kind][1]}, as its type {kind} asks")


def _nearest_file(place: Path) -> str:
    """The path of the file in the same folder that has the most similar name."""
    try:
        found = nearest(place.name, sorted(one.name for one in place.parent.iterdir()))
    except OSError:
        return ""
    return str(place.with_name(found)) if found else ""
