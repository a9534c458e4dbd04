# SPDX-License-Identifier: Apache-2.0
"""The volumes of a pod: where each comes from on this machine and where containers see it. `worker` calls `mounts`.

In the process runtime nothing can be mounted: a mountPath is honoured only if it is what it would be anyway. `contents`
writes the files of ConfigMaps and Secrets, `paths` looks after hostPaths and subPaths.
"""

import posixpath
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from trainwright.local.agent import contents, paths, projected
from trainwright.local.agent.environment import expand
from trainwright.local.agent.fields import Facts
from trainwright.local.agent.refusals import Unconfigured, missing
from trainwright.local.agent.sources import CLAIM, CONFIG_MAP, SECRET, Sources
from trainwright.local.supervisor.protocol import Mount
from trainwright.model.job import Body
from trainwright.model.problem import nearest
from trainwright.model.units import quantity

SHARED = "/dev/shm"  # noqa: S108 - a path inside the pod
#: Paths at which a process finds all it needs without a mount.
GIVEN = (SHARED, "/var/run/secrets/kubernetes.io/serviceaccount")
#: What API servers put into every pod; it did not ask for it.
_INJECTED = "kube-api-access-"
SUPPORTED = ("emptyDir", "hostPath", "configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI")
_MODE = 0o644


class Room(Struct, frozen=True):
    """Whose volumes they are, and where they are kept."""

    pod: Body
    #: The pod's own folder.
    folder: str
    #: The folder of the claims of its namespace.
    claims: str
    sandboxed: bool
    sources: Sources
    facts: Facts

    @property
    def namespace(self) -> str:
        """Where its Secrets, ConfigMaps and claims are."""
        return str(self.pod["metadata"].get("namespace", ""))


def mounts(room: Room, container: Body, path: str, known: Mapping[str, str]) -> list[Mount]:
    """All mounts of a container. Makes folders and files; raises Unconfigured, or OSError if the disk will not."""
    spec = room.pod["spec"]
    volumes = {volume["name"]: (place, volume) for place, volume in enumerate(spec.get("volumes") or ())}
    found = []
    for index, wanted in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{index}]"
        if wanted.get("name") not in volumes:
            raise _unknown(f"{where}.name", str(wanted.get("name")), list(volumes))
        place, volume = volumes[wanted["name"]]
        made = _mount(room, wanted, where, (f"spec.volumes[{place}]", volume), known)
        found += [made] if made is not None else []
    return found


def renew(room: Room) -> None:
    """Write the files of projected volumes anew, where they are there already."""
    for place, volume in enumerate(room.pod["spec"].get("volumes") or ()):
        if "projected" in volume and Path(f"{room.folder}/volumes/{volume['name']}").exists():
            _source(room, f"spec.volumes[{place}]", volume)


def shared(pod: Body) -> int | None:
    """The size of the pod's /dev/shm, where it sets one; 0 or None: the machine's usual size."""
    spec = pod["spec"]
    sized = {
        volume["name"]: _size(volume["emptyDir"])
        for volume in spec.get("volumes") or ()
        if (volume.get("emptyDir") or {}).get("medium") == "Memory"
    }
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]) if sized else ():
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") in sized and posixpath.normpath(mount["mountPath"]) == SHARED:
                return sized[mount["name"]]
    return None


def _mount(room: Room, wanted: Body, where: str, volume: tuple[str, Body], known: Mapping[str, str]) -> Mount | None:
    target = target_of(wanted)
    place, body = volume
    part = _part(wanted, where, known)
    if not room.sandboxed:
        _check_unmounted(target, where, place, body, part)
        return None
    memory = (body.get("emptyDir") or {}).get("medium") == "Memory"
    if memory and target == SHARED:
        return None
    if memory and part:
        raise Unconfigured(f"{where}.subPath", "a volume in memory can only be mounted as a whole")
    source, closed = _source(room, place, body)
    if part:
        source = paths.below(source, part, f"{where}.subPath", make=not closed)
    mount: Mount = {"source": source, "target": target, "readonly": closed or bool(wanted.get("readOnly"))}
    if memory:
        mount["tmpfs"] = _size(body["emptyDir"])
    return mount


def target_of(mount: Body) -> str:
    """Where a mount is; the kubelet takes a relative path for one below `/`."""
    return posixpath.normpath(posixpath.join("/", str(mount.get("mountPath", ""))))


def same_path(volume: Body, part: str, target: str) -> bool:
    """Whether the volume is a hostPath of the very path at which it, or this part of it, is mounted."""
    host = (volume.get("hostPath") or {}).get("path")
    return host is not None and posixpath.normpath(posixpath.join(str(host), part)) == target


def _part(wanted: Body, where: str, known: Mapping[str, str]) -> str:
    """The part of the volume that is mounted."""
    if wanted.get("subPathExpr"):
        return paths.inner(expand(str(wanted["subPathExpr"]), known), f"{where}.subPathExpr")
    return paths.inner(str(wanted.get("subPath") or ""), f"{where}.subPath")


def _check_unmounted(target: str, where: str, place: str, body: Body, part: str) -> None:
    """The process runtime: fine if the path is there without a mount."""
    if target in GIVEN or str(body.get("name", "")).startswith(_INJECTED):
        return
    if same_path(body, part, target):
        paths.check(body["hostPath"], f"{place}.hostPath")
        return
    message = (
        f"nothing can be mounted at {target} in the process runtime, where pods see this machine's files as they are;"
        ' "--runtime sandbox" can, and so does a hostPath of that same path'
    )
    raise Unconfigured(f"{where}.mountPath", message)


def _source(room: Room, place: str, volume: Body) -> tuple[str, bool]:
    """Where a volume is on this machine, and whether it can only be read."""
    folder = f"{room.folder}/volumes/{volume['name']}"
    match volume:
        case {"emptyDir": _}:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return folder, False
        case {"hostPath": host}:
            return paths.check(host, f"{place}.hostPath"), False
        case {"configMap": source}:
            data = _data(room, CONFIG_MAP, source, "name", f"{place}.configMap")
            contents.write(folder, contents.of_config_map(data), source, f"{place}.configMap")
            return folder, True
        case {"secret": source}:
            data = _data(room, SECRET, source, "secretName", f"{place}.secret")
            contents.write(folder, contents.of_secret(data), source, f"{place}.secret")
            return folder, True
        case {"persistentVolumeClaim": claim}:
            data = _data(room, CLAIM, claim, "claimName", f"{place}.persistentVolumeClaim")
            return _claimed(room, claim, data, f"{place}.persistentVolumeClaim"), bool(claim.get("readOnly"))
        case {"projected": source}:
            files = projected.files(room.pod, source, room.sources, room.facts, f"{place}.projected")
            contents.put(folder, files)
            return folder, True
        case {"downwardAPI": source}:
            mode = int(source.get("defaultMode") or _MODE)
            contents.put(folder, projected.of_pod(room.pod, source, room.facts, mode, f"{place}.downwardAPI"))
            return folder, True
    raise unsupported(place, volume)


def unsupported(place: str, volume: Body) -> Unconfigured:
    """What is said of a volume of none of the supported types."""
    kinds = [word for word in volume if word != "name"]
    message = f"{', '.join(kinds) or 'nothing'} is not supported here; expected one of {', '.join(SUPPORTED)}"
    return Unconfigured(place, message, nearest(kinds[0], SUPPORTED) if kinds else "")


def _claimed(room: Room, claim: Body, data: Body, path: str) -> str:
    """The folder of a claim: on a cluster that of the volume that it is bound to, else one of its own."""
    if "volume" not in data:
        folder = f"{room.claims}/{claim['claimName']}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        return folder
    spec = (data["volume"] or {}).get("spec") or {}
    if spec.get("hostPath"):
        return paths.check(spec["hostPath"], f"{path}: spec.hostPath of its volume")
    if spec.get("local"):
        return paths.check(spec["local"], f"{path}: spec.local of its volume")
    text = "is not bound to a volume yet" if not data["volume"] else "has a volume that cannot be mounted here"
    message = f"claim {claim['claimName']!r} {text}; expected one of hostPath or local"
    raise Unconfigured(f"{path}.claimName", message)


def _data(room: Room, kind: str, source: Body, word: str, path: str) -> Body:
    """The object behind a volume; an optional one that is not there is empty."""
    name = str(source.get(word, ""))
    found = room.sources.get((kind, name))
    if found is None and not source.get("optional"):
        raise missing(f"{path}.{word}", kind, name, room.namespace)
    return found or {}


def _size(empty: Body) -> int:
    """Bytes; 0: no limit of its own."""
    return int(quantity(empty.get("sizeLimit") or 0) or 0)


def _unknown(path: str, name: str, known: list[str]) -> Unconfigured:
    listed = f"the pod has {', '.join(known)}" if known else "the pod has no volumes"
    return Unconfigured(path, f"there is no volume {name!r}; {listed}", nearest(name, known))
