# SPDX-License-Identifier: Apache-2.0
"""Secrets, ConfigMaps and claims that a pod names and that are not there. Pure; asked by `preflight`.

The agent says the same about each container when it comes to it; here it is said of all of them, before anything runs.

Volumes and mountPaths that this machine cannot give a pod, by runtime. Asked by `preflight`.

Only volumes that some container mounts are looked at: the agent makes no others.
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
    """The objects that a job may refer to: their names and keys, by kind; `coming` are ConfigMaps that it makes."""

    def __init__(self, objects: Iterable[Body], namespace: str, coming: frozenset[str] = frozenset()) -> None:
        self._coming = coming
        self._keys: dict[str, dict[str, set[str]]] = {}
        for body in objects:
            meta = body.get("metadata") or {}
            if (meta.get("namespace") or namespace) == namespace:
                keys = (key for part in ("data", "stringData", "binaryData") for key in body.get(part) or ())
                self._keys.setdefault(str(body.get("kind")), {})[str(meta.get("name"))] = set(keys)

    def lacks(self, kind: str, ref: Body, word: str, path: str) -> Problem | None:
        """What is wrong with a reference to an object, by the word that names it, or with the key that it names."""
        name, key = str(ref.get(word) or ""), ref.get("key")
        if ref.get("optional") or (kind == "ConfigMap" and name in self._coming):
            return None
        known = self._keys.get(kind, {})
        if name not in known:
            has = f"the files have {', '.join(sorted(known))}" if known else f"the files have no {kind}"
            return Problem(f"{path}.{word}", f"there is no {kind} {name!r}; {has}", nearest(name, known))
        if key is not None and key not in known[name]:
            has = ", ".join(sorted(known[name])) or "no keys"
            message = f"{kind} {name!r} has no key {key!r}; it has {has}"
            return Problem(f"{path}.key", message, nearest(str(key), known[name]))
        return None


def of_container(container: Body, path: str, known: KnownObjects, given: frozenset[str]) -> Iterator[Problem]:
    """What the environment of a container refers to in vain, but for variables that are given from elsewhere."""
    for index, source in enumerate(container.get("envFrom") or ()):
        for word, kind in IN_ENVIRONMENT:
            if source.get(word):
                yield from _some(known.lacks(kind, source[word], "name", f"{item(f'{path}.envFrom', index)}.{word}"))
    for index, entry in enumerate(container.get("env") or ()):
        for word, kind in IN_VARIABLE:
            ref = (entry.get("valueFrom") or {}).get(word)
            if ref and entry.get("name") not in given:
                place = f"{item(f'{path}.env', index)}.valueFrom.{word}"
                yield from _some(known.lacks(kind, ref, "name", place))


def of_volume(volume: Body, path: str, known: KnownObjects) -> Iterator[Problem]:
    """What a volume refers to in vain: an object, or single keys of it."""
    yield from _of_sources(volume, path, known, IN_VOLUME)
    for index, part in enumerate((volume.get("projected") or {}).get("sources") or ()):
        yield from _of_sources(part, item(f"{path}.projected.sources", index), known, IN_PROJECTED)


def _of_sources(
    body: Body, path: str, known: KnownObjects, sources: tuple[tuple[str, str, str], ...]
) -> Iterator[Problem]:
    for source, kind, word in sources:
        ref = body.get(source)
        if not ref:
            continue
        absent = known.lacks(kind, ref, word, f"{path}.{source}")
        yield from _some(absent)
        for index, one in enumerate(ref.get("items") or () if absent is None else ()):
            asked = {"optional": ref.get("optional"), word: ref.get(word), "key": one.get("key")}
            yield from _some(known.lacks(kind, asked, word, item(f"{path}.{source}.items", index)))


def _some(problem: Problem | None) -> tuple[Problem, ...]:
    return (problem,) if problem is not None else ()


#: Stands for what only a node knows; the values do not matter here.
_FACTS = environment.PodFacts("", "", "", {})


def check(spec: Body, path: str, known: KnownObjects, *, sandboxed: bool) -> Iterator[Problem]:
    """What is wrong with the mounts of a pod, then with the volumes behind them."""
    volumes = {str(one.get("name")): (place, one) for place, one in _entries(spec, "volumes", path)}
    used: dict[str, None] = {}
    for place, mount in _mounts(spec, path):
        name = str(mount.get("name"))
        if name in volumes and not sandboxed and not _there_anyway(mount, volumes[name][1]):
            yield _unmountable(place, mount)
        elif name in volumes and (sandboxed or target_of(mount) not in PRESENT_PATHS):
            used[name] = None
    for name in used:
        yield from _volume(*volumes[name], known)
        yield from _written(spec, *volumes[name])


def _entries(body: Body, key: str, path: str) -> Iterator[tuple[str, Body]]:
    return ((item(f"{path}.{key}", index), one) for index, one in enumerate(body.get(key) or ()))


def _mounts(spec: Body, path: str) -> Iterator[tuple[str, Body]]:
    for group in ("initContainers", "containers"):
        for place, container in _entries(spec, group, path):
            yield from _entries(container, "volumeMounts", place)


def _there_anyway(mount: Body, volume: Body) -> bool:
    """Whether the path is what it should be without a mount."""
    target = target_of(mount)
    return target in PRESENT_PATHS or same_path(volume, str(mount.get("subPath") or ""), target)


def _unmountable(path: str, mount: Body) -> Problem:
    message = (
        f"nothing can be mounted at {target_of(mount)} in the process runtime, where pods see this machine's files"
    )
    ways = "use `--runtime sandbox`, or a hostPath of that same path"
    return Problem(f"{path}.mountPath", f"{message} as they are; {ways}")


def _volume(path: str, volume: Body, known: KnownObjects) -> Iterator[Problem]:
    if not any(word in SUPPORTED for word in volume):
        yield unsupported(path, volume).problem
    yield from of_volume(volume, path, known)
    if isinstance(volume.get("hostPath"), dict):
        yield from _host_path(volume["hostPath"], f"{path}.hostPath")


def _written(spec: Body, path: str, volume: Body) -> Iterator[Problem]:
    """What the agent would refuse of a volume that it writes itself: the agent's own code says so."""
    pod: Body = {"metadata": {}, "spec": spec}
    for place, kind, body in _parts(volume, path):
        if kind == "serviceAccountToken":
            message = f"there are no service accounts here: the file {body.get('path')!r} is left out"
            yield Problem(f"{place}.{kind}", message, warning=True)
        elif kind == "downwardAPI":
            try:
                volumes.downward_files(pod, body, _FACTS, 0, f"{place}.{kind}")
            except ContainerConfigError as refusal:
                yield refusal.problem
        elif kind not in volumes.PROJECTED_SOURCES:
            message = f"{kind} is not supported here; expected one of {', '.join(volumes.PROJECTED_SOURCES)}"
            yield Problem(place, message, nearest(kind, volumes.PROJECTED_SOURCES))


def _parts(volume: Body, path: str) -> Iterator[tuple[str, str, Body]]:
    """The path, kind and body of each source of a projected volume, or of the one of a downwardAPI volume."""
    if volume.get("downwardAPI"):
        yield path, "downwardAPI", volume["downwardAPI"]
    for place, part in _entries(volume.get("projected") or {}, "sources", f"{path}.projected"):
        yield from ((place, kind, body or {}) for kind, body in part.items())


def _host_path(host: Mapping[str, object], path: str) -> Iterator[Problem]:
    where, kind = str(host.get("path", "")), str(host.get("type") or "")
    if not where.startswith("/"):
        yield Problem(f"{path}.path", f"expected an absolute path, found {where!r}")
    elif not Path(where).exists():
        if not kind.endswith("OrCreate"):
            hint = "" if kind else "; `type: DirectoryOrCreate` makes it"
            yield Problem(f"{path}.path", f"there is no {where} on this machine{hint}", _beside(Path(where)))
    elif kind and not HOST_PATH_TYPES[kind][0](Path(where).stat().st_mode):
        yield Problem(f"{path}.path", f"{where} is not {HOST_PATH_TYPES[kind][1]}, as its type {kind} asks")


def _beside(place: Path) -> str:
    """The neighbour that was probably meant."""
    try:
        found = nearest(place.name, sorted(one.name for one in place.parent.iterdir()))
    except OSError:
        return ""
    return str(place.with_name(found)) if found else ""
