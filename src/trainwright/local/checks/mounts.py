# SPDX-License-Identifier: Apache-2.0
"""Volumes and mountPaths that this machine cannot give a pod, by runtime. Asked by `preflight`.

Only volumes that some container mounts are looked at: the agent makes no others.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from trainwright.kinds.paths import item
from trainwright.local.agent import fields, projected
from trainwright.local.agent.paths import KINDS
from trainwright.local.agent.refusals import Unconfigured
from trainwright.local.agent.volumes import GIVEN, SUPPORTED, same_path, target_of, unsupported
from trainwright.local.checks.references import Known, of_volume
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest

#: Stands for what only a node knows; the values do not matter here.
_FACTS = fields.Facts("", "", "", {})


def check(spec: Body, path: str, known: Known, *, sandboxed: bool) -> Iterator[Problem]:
    """What is wrong with the mounts of a pod, then with the volumes behind them."""
    volumes = {str(one.get("name")): (place, one) for place, one in _entries(spec, "volumes", path)}
    used: dict[str, None] = {}
    for place, mount in _mounts(spec, path):
        name = str(mount.get("name"))
        if name in volumes and not sandboxed and not _there_anyway(mount, volumes[name][1]):
            yield _unmountable(place, mount)
        elif name in volumes and (sandboxed or target_of(mount) not in GIVEN):
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
    return target in GIVEN or same_path(volume, str(mount.get("subPath") or ""), target)


def _unmountable(path: str, mount: Body) -> Problem:
    message = (
        f"nothing can be mounted at {target_of(mount)} in the process runtime, where pods see this machine's files"
    )
    ways = "use `--runtime sandbox`, or a hostPath of that same path"
    return Problem(f"{path}.mountPath", f"{message} as they are; {ways}")


def _volume(path: str, volume: Body, known: Known) -> Iterator[Problem]:
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
                projected.of_pod(pod, body, _FACTS, 0, f"{place}.{kind}")
            except Unconfigured as refusal:
                yield refusal.problem
        elif kind not in projected.KNOWN:
            message = f"{kind} is not supported here; expected one of {', '.join(projected.KNOWN)}"
            yield Problem(place, message, nearest(kind, projected.KNOWN))


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
    elif kind and kind not in KINDS:
        message = f"{kind!r} is not known; expected {', '.join(KINDS)}"
        yield Problem(f"{path}.type", message, nearest(kind, KINDS))
    elif not Path(where).exists():
        if not kind.endswith("OrCreate"):
            hint = "" if kind else "; `type: DirectoryOrCreate` makes it"
            yield Problem(f"{path}.path", f"there is no {where} on this machine{hint}", _beside(Path(where)))
    elif kind and not KINDS[kind][0](Path(where).stat().st_mode):
        yield Problem(f"{path}.path", f"{where} is not {KINDS[kind][1]}, as its type {kind} asks")


def _beside(place: Path) -> str:
    """The neighbour that was probably meant."""
    try:
        found = nearest(place.name, sorted(one.name for one in place.parent.iterdir()))
    except OSError:
        return ""
    return str(place.with_name(found)) if found else ""
