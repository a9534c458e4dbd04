# SPDX-License-Identifier: Apache-2.0
"""Paths that a pod names on this machine: hostPath with its types, subPath without a way out. Called by `volumes`.

The files of a ConfigMap or Secret volume: which they are, and writing them. Called by `volumes`.

Volumes that are put together from several sources: tokens, ConfigMaps, Secrets, the pod itself. For `volumes`.

Every pod of a Kubernetes cluster has one, unless it says otherwise: the token of its service account.

The volumes of a pod: where each comes from on this machine and where containers see it. `worker` calls `mounts`.

In the process runtime nothing can be mounted: a mountPath is honoured only if it is what it would be anyway. `contents`
writes the files of ConfigMaps and Secrets, `paths` looks after hostPaths and subPaths.
"""

import posixpath
import stat
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from trainwright.model.job import Body
from trainwright.model.problem import nearest
from trainwright.model.units import quantity
from trainwright.node import environment
from trainwright.node.environment import PodFacts, expand
from trainwright.node.sources import CLAIM, CONFIG_MAP, SECRET, Sources, Unconfigured, missing, token
from trainwright.node.supervisor.protocol import Mount

#: What the types of a hostPath ask for.
KINDS = {
    "Directory": (stat.S_ISDIR, "a folder"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a folder"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def check_host_path(host: Body, path: str) -> str:
    """The path of a hostPath, made if its type says so; refused if it is not what its type says."""
    where, kind = str(host.get("path", "")), str(host.get("type") or "")
    if not where.startswith("/"):
        raise Unconfigured(f"{path}.path", f"expected an absolute path, found {where!r}")
    if kind and kind not in KINDS:
        raise Unconfigured(f"{path}.type", f"{kind!r} is not known; expected {', '.join(KINDS)}", nearest(kind, KINDS))
    place = Path(where)
    if kind == "DirectoryOrCreate" and not place.exists():
        place.mkdir(parents=True, exist_ok=True)
    if kind == "FileOrCreate" and not place.exists():
        place.touch()
    if not place.exists():
        hint = "" if kind else "; `type: DirectoryOrCreate` makes it"
        raise Unconfigured(f"{path}.path", f"there is no {where} on this machine{hint}", _beside(place))
    if kind and not KINDS[kind][0](place.stat().st_mode):
        raise Unconfigured(f"{path}.path", f"{where} is not {KINDS[kind][1]}, as its type {kind} asks")
    return where


def inner_path(part: str, path: str) -> str:
    """A path below a volume, as it is written: relative, and not upwards."""
    if part.startswith("/") or ".." in part.split("/"):
        raise Unconfigured(path, f"expected a path below the volume, found {part!r}")
    return posixpath.normpath(part) if part else ""


def path_below(source: str, part: str, path: str, *, make: bool) -> str:
    """The place of a part of a volume; a folder is made there if nothing is. Links must not lead out of the volume."""
    root = Path(source).resolve()
    place = root / part
    if not place.resolve().is_relative_to(root):
        raise Unconfigured(path, f"{part!r} leads out of the volume")
    if not place.exists():
        if not make:
            raise Unconfigured(path, f"the volume has no {part!r}", _beside(place))
        place.mkdir(parents=True, exist_ok=True)
    return str(place)


def _beside(place: Path) -> str:
    """The neighbour that was probably meant."""
    try:
        return nearest(place.name, sorted(one.name for one in place.parent.iterdir()))
    except OSError:
        return ""


_MODE = 0o644

#: By file name: what is in it, and its mode.
Files = dict[str, tuple[bytes, int]]


def config_map_files(body: Body) -> dict[str, bytes]:
    """Its keys with what they hold: text and binary."""
    found = {key: str(value).encode() for key, value in (body.get("data") or {}).items()}
    return found | {key: b64decode(value) for key, value in (body.get("binaryData") or {}).items()}


def secret_files(body: Body) -> dict[str, bytes]:
    """Its keys with what they hold."""
    return {key: b64decode(value) for key, value in (body.get("data") or {}).items()}


def write_files(folder: str, data: dict[str, bytes], source: Body, path: str) -> None:
    """Put the keys, or those that `items` chooses, into the folder."""
    replace_files(folder, chosen_files(data, source, path))


def replace_files(folder: str, files: Files) -> None:
    """Have these files in the folder. One that changes is replaced: who reads it reads the old or the new."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and place.read_bytes() == content:
            place.chmod(mode)
            continue
        beside = place.with_name(f".{place.name}.new")
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(place)


def chosen_files(data: dict[str, bytes], source: Body, path: str) -> Files:
    """The files of the keys."""
    default = int(source.get("defaultMode") or _MODE)
    items = source.get("items")
    if not items:
        return {key: (content, default) for key, content in data.items()}
    found: Files = {}
    for index, item in enumerate(items):
        key, where = str(item.get("key", "")), f"{path}.items[{index}]"
        if key in data:
            found[inner_path(str(item.get("path", "")), f"{where}.path")] = data[key], int(item.get("mode") or default)
        elif not source.get("optional"):
            has = ", ".join(sorted(data)) or "no keys"
            raise Unconfigured(f"{where}.key", f"there is no key {key!r}; it has {has}", nearest(key, data))
    return found


PROJECTED_SOURCES = ("serviceAccountToken", "configMap", "secret", "downwardAPI")


def projected_files(pod: Body, source: Body, found: Sources, facts: environment.PodFacts, path: str) -> Files:
    """Everything in a `projected` volume."""
    made: Files = {}
    mode = int(source.get("defaultMode") or _MODE)
    for index, part in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{index}]"
        match part:
            case {"serviceAccountToken": wanted}:
                made |= _token(wanted, found, mode, where)
            case {"configMap": wanted}:
                made |= _keys(pod, CONFIG_MAP, wanted, found, mode, f"{where}.configMap")
            case {"secret": wanted}:
                made |= _keys(pod, SECRET, wanted, found, mode, f"{where}.secret")
            case {"downwardAPI": wanted}:
                made |= downward_files(pod, wanted, facts, mode, f"{where}.downwardAPI")
            case _:
                raise Unconfigured(
                    where, f"{', '.join(part)}: not supported here; expected one of {', '.join(PROJECTED_SOURCES)}"
                )
    return made


def downward_files(pod: Body, source: Body, facts: environment.PodFacts, mode: int, path: str) -> Files:
    """What a pod tells about itself: the items of a `downwardAPI`."""
    made: Files = {}
    for index, item in enumerate(source.get("items") or ()):
        where = f"{path}.items[{index}]"
        name = inner_path(str(item.get("path", "")), f"{where}.path")
        made[name] = _told(pod, item, facts, where).encode(), int(item.get("mode") or mode)
    return made


def _told(pod: Body, item: Body, facts: environment.PodFacts, path: str) -> str:
    match item:
        case {"fieldRef": {"fieldPath": "metadata.labels" | "metadata.annotations" as field}}:
            pairs = sorted((pod["metadata"].get(field[9:]) or {}).items())
            return "\n".join(f'{key}="{_escaped(str(value))}"' for key, value in pairs)
        case {"fieldRef": ref}:
            return environment.pod_field(ref, pod, facts, f"{path}.fieldRef")
        case {"resourceFieldRef": ref}:
            return environment.resource_field(ref, pod, {}, facts, f"{path}.resourceFieldRef")
    raise Unconfigured(path, "expected fieldRef or resourceFieldRef")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _token(wanted: Body, found: Sources, mode: int, path: str) -> Files:
    """Without service accounts (`trainwright run`) the file is left out, and preflight has said so."""
    body = found.get(token(wanted))
    if body is None:
        return {}
    name = inner_path(str(wanted.get("path", "")), f"{path}.serviceAccountToken.path")
    return {name: (str(body["token"]).encode(), mode)}


def _keys(pod: Body, kind: str, wanted: Body, found: Sources, mode: int, path: str) -> Files:
    name = str(wanted.get("name", ""))
    body = found.get((kind, name))
    if body is None and not wanted.get("optional"):
        raise missing(f"{path}.name", kind, name, str(pod["metadata"].get("namespace", "")))
    data = (config_map_files if kind == CONFIG_MAP else secret_files)(body or {})
    return chosen_files(data, {"defaultMode": mode, **wanted}, path)


SHARED = "/dev/shm"  # noqa: S108 - a path inside the pod
#: Paths at which a process finds all it needs without a mount.
GIVEN = (SHARED, "/var/run/secrets/kubernetes.io/serviceaccount")
#: What API servers put into every pod; it did not ask for it.
_INJECTED = "kube-api-access-"
SUPPORTED = ("emptyDir", "hostPath", "configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI")


class VolumeInput(Struct, frozen=True):
    """Whose volumes they are, and where they are kept."""

    pod: Body
    #: The pod's own folder.
    folder: str
    #: The folder of the claims of its namespace.
    claims: str
    sandboxed: bool
    sources: Sources
    facts: PodFacts

    @property
    def namespace(self) -> str:
        """Where its Secrets, ConfigMaps and claims are."""
        return str(self.pod["metadata"].get("namespace", ""))


def mounts(room: VolumeInput, container: Body, path: str, known: Mapping[str, str]) -> list[Mount]:
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


def renew(room: VolumeInput) -> None:
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


def _mount(
    room: VolumeInput, wanted: Body, where: str, volume: tuple[str, Body], known: Mapping[str, str]
) -> Mount | None:
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
        source = path_below(source, part, f"{where}.subPath", make=not closed)
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
        return inner_path(expand(str(wanted["subPathExpr"]), known), f"{where}.subPathExpr")
    return inner_path(str(wanted.get("subPath") or ""), f"{where}.subPath")


def _check_unmounted(target: str, where: str, place: str, body: Body, part: str) -> None:
    """The process runtime: fine if the path is there without a mount."""
    if target in GIVEN or str(body.get("name", "")).startswith(_INJECTED):
        return
    if same_path(body, part, target):
        check_host_path(body["hostPath"], f"{place}.hostPath")
        return
    message = (
        f"nothing can be mounted at {target} in the process runtime, where pods see this machine's files as they are;"
        ' "--runtime sandbox" can, and so does a hostPath of that same path'
    )
    raise Unconfigured(f"{where}.mountPath", message)


def _source(room: VolumeInput, place: str, volume: Body) -> tuple[str, bool]:
    """Where a volume is on this machine, and whether it can only be read."""
    folder = f"{room.folder}/volumes/{volume['name']}"
    match volume:
        case {"emptyDir": _}:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return folder, False
        case {"hostPath": host}:
            return check_host_path(host, f"{place}.hostPath"), False
        case {"configMap": source}:
            data = _data(room, CONFIG_MAP, source, "name", f"{place}.configMap")
            write_files(folder, config_map_files(data), source, f"{place}.configMap")
            return folder, True
        case {"secret": source}:
            data = _data(room, SECRET, source, "secretName", f"{place}.secret")
            write_files(folder, secret_files(data), source, f"{place}.secret")
            return folder, True
        case {"persistentVolumeClaim": claim}:
            data = _data(room, CLAIM, claim, "claimName", f"{place}.persistentVolumeClaim")
            return _claimed(room, claim, data, f"{place}.persistentVolumeClaim"), bool(claim.get("readOnly"))
        case {"projected": source}:
            files = projected_files(room.pod, source, room.sources, room.facts, f"{place}.projected")
            replace_files(folder, files)
            return folder, True
        case {"downwardAPI": source}:
            mode = int(source.get("defaultMode") or _MODE)
            replace_files(folder, downward_files(room.pod, source, room.facts, mode, f"{place}.downwardAPI"))
            return folder, True
    raise unsupported(place, volume)


def unsupported(place: str, volume: Body) -> Unconfigured:
    """What is said of a volume of none of the supported types."""
    kinds = [word for word in volume if word != "name"]
    message = f"{', '.join(kinds) or 'nothing'} is not supported here; expected one of {', '.join(SUPPORTED)}"
    return Unconfigured(place, message, nearest(kinds[0], SUPPORTED) if kinds else "")


def _claimed(room: VolumeInput, claim: Body, data: Body, path: str) -> str:
    """The folder of a claim: on a cluster that of the volume that it is bound to, else one of its own."""
    if "volume" not in data:
        folder = f"{room.claims}/{claim['claimName']}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        return folder
    spec = (data["volume"] or {}).get("spec") or {}
    if spec.get("hostPath"):
        return check_host_path(spec["hostPath"], f"{path}: spec.hostPath of its volume")
    if spec.get("local"):
        return check_host_path(spec["local"], f"{path}: spec.local of its volume")
    text = "is not bound to a volume yet" if not data["volume"] else "has a volume that cannot be mounted here"
    message = f"claim {claim['claimName']!r} {text}; expected one of hostPath or local"
    raise Unconfigured(f"{path}.claimName", message)


def _data(room: VolumeInput, kind: str, source: Body, word: str, path: str) -> Body:
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
