# SPDX-License-Identifier: Apache-2.0
"""The volumes of a pod: where each volume is on this machine, and where containers see it.

The files of ConfigMaps, Secrets, projected volumes and the downward API are written to the pod's folder. In the process
runtime nothing can be mounted: a mount is accepted only if its mountPath shows the same files without a mount.
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
from trainwright.node.sources import (
    CLAIM,
    CONFIG_MAP,
    SECRET,
    ContainerConfigError,
    Sources,
    referenced,
    token_source,
)
from trainwright.node.supervisor.protocol import Mount

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path inside the pod
#: Paths that exist for a process of this machine without a mount, or that the process does not need.
PRESENT_PATHS = (_SHARED_MEMORY, "/var/run/secrets/kubernetes.io/serviceaccount")
#: API servers add a volume with a service account token to pods. The name of this volume has this prefix.
_INJECTED_PREFIX = "kube-api-access-"
SUPPORTED = ("emptyDir", "hostPath", "configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI")
PROJECTED_SOURCES = ("serviceAccountToken", "configMap", "secret", "downwardAPI")
#: For each type of a hostPath: the function that checks the file mode, and the description in messages.
HOST_PATH_TYPES = {
    "Directory": (stat.S_ISDIR, "a folder"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a folder"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}
_DEFAULT_FILE_MODE = 0o644

#: The content and the mode of each file, by file name.
Files = dict[str, tuple[bytes, int]]


class VolumeInput(Struct, frozen=True):
    """The pod, its folders, and the objects that its volumes refer to."""

    pod: Body
    #: The pod's own folder.
    folder: str
    #: The folder with the volumes of all claims in the pod's namespace.
    claims: str
    sandboxed: bool
    sources: Sources
    facts: PodFacts


def mounts(subject: VolumeInput, container: Body, path: str, variables: Mapping[str, str]) -> list[Mount]:
    """All mounts of a container. Creates folders and files. Raises ContainerConfigError, or OSError from the disk."""
    spec = subject.pod["spec"]
    volumes = {
        volume["name"]: (f"spec.volumes[{index}]", volume) for index, volume in enumerate(spec.get("volumes") or ())
    }
    found = []
    for index, wanted in enumerate(container.get("volumeMounts") or ()):
        mount_path = f"{path}.volumeMounts[{index}]"
        if wanted.get("name") not in volumes:
            listed = f"the pod has {', '.join(volumes)}" if volumes else "the pod has no volumes"
            name = str(wanted.get("name"))
            message = f"there is no volume {name!r}; {listed}"
            raise ContainerConfigError(f"{mount_path}.name", message, nearest(name, list(volumes)))
        made = _mount(subject, wanted, mount_path, volumes[wanted["name"]], variables)
        found += [made] if made is not None else []
    return found


def rewrite_projected(subject: VolumeInput) -> None:
    """Write the files of the projected volumes again, but only of volumes that have a folder already."""
    for index, volume in enumerate(subject.pod["spec"].get("volumes") or ()):
        if "projected" in volume and Path(f"{subject.folder}/volumes/{volume['name']}").exists():
            _volume_folder(subject, f"spec.volumes[{index}]", volume)


def shared_memory_size(pod: Body) -> int | None:
    """The size of the pod's /dev/shm in bytes. 0 or None: no volume sets it, so the supervisor chooses it."""
    spec = pod["spec"]
    sizes = {
        volume["name"]: _size_limit(volume["emptyDir"])
        for volume in spec.get("volumes") or ()
        if (volume.get("emptyDir") or {}).get("medium") == "Memory"
    }
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]) if sizes else ():
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") in sizes and posixpath.normpath(mount["mountPath"]) == _SHARED_MEMORY:
                return sizes[mount["name"]]
    return None


def target_of(mount: Body) -> str:
    """The absolute mountPath. A relative path counts as a path below `/`, as for a kubelet."""
    return posixpath.normpath(posixpath.join("/", str(mount.get("mountPath", ""))))


def same_path(volume: Body, sub_path: str, target: str) -> bool:
    """Whether the volume (or its sub-path) is a hostPath, and has the same path on the machine as in the container."""
    host = (volume.get("hostPath") or {}).get("path")
    return host is not None and posixpath.normpath(posixpath.join(str(host), sub_path)) == target


def unsupported(path: str, volume: Body) -> ContainerConfigError:
    """The error for a volume that has none of the supported types."""
    types = [field for field in volume if field != "name"]
    message = f"{', '.join(types) or 'nothing'} is not supported here; expected one of {', '.join(SUPPORTED)}"
    return ContainerConfigError(path, message, nearest(types[0], SUPPORTED) if types else "")


def _mount(
    subject: VolumeInput, wanted: Body, path: str, volume: tuple[str, Body], variables: Mapping[str, str]
) -> Mount | None:
    """One mount; None if the container sees the files without a mount."""
    target = target_of(wanted)
    volume_path, body = volume
    field = "subPathExpr" if wanted.get("subPathExpr") else "subPath"
    text = str(wanted.get(field) or "")
    sub_path = _inner_path(expand(text, variables) if field == "subPathExpr" else text, f"{path}.{field}")
    if not subject.sandboxed:
        _check_without_mount(target, path, volume_path, body, sub_path)
        return None
    in_memory = (body.get("emptyDir") or {}).get("medium") == "Memory"
    if in_memory and target == _SHARED_MEMORY:
        return None
    if in_memory and sub_path:
        raise ContainerConfigError(f"{path}.subPath", "a volume in memory can only be mounted as a whole")
    source, is_read_only = _volume_folder(subject, volume_path, body)
    if sub_path:
        source = _path_below(source, sub_path, f"{path}.subPath", create=not is_read_only)
    mount: Mount = {"source": source, "target": target, "readonly": is_read_only or bool(wanted.get("readOnly"))}
    if in_memory:
        mount["tmpfs"] = _size_limit(body["emptyDir"])
    return mount


def _check_without_mount(target: str, path: str, volume_path: str, body: Body, sub_path: str) -> None:
    """In the process runtime: refuse a mount unless its path shows the same files without the mount."""
    if target in PRESENT_PATHS or str(body.get("name", "")).startswith(_INJECTED_PREFIX):
        return
    if same_path(body, sub_path, target):
        _check_host_path(body["hostPath"], f"{volume_path}.hostPath")
        return
    message = (
        f"nothing can be mounted at {target} in the process runtime, where pods see this machine's files as they are;"
        ' "--runtime sandbox" can mount it, and a hostPath of the same path works here, too'
    )
    raise ContainerConfigError(f"{path}.mountPath", message)


def _volume_folder(subject: VolumeInput, path: str, volume: Body) -> tuple[str, bool]:
    """Where the volume is on this machine, and whether it is read-only. Creates folders and files."""
    folder = f"{subject.folder}/volumes/{volume['name']}"
    match volume:
        case {"emptyDir": _}:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return folder, False
        case {"hostPath": host}:
            return _check_host_path(host, f"{path}.hostPath"), False
        case {"configMap": source}:
            files = _object_files(subject, CONFIG_MAP, source, "name", f"{path}.configMap")
        case {"secret": source}:
            files = _object_files(subject, SECRET, source, "secretName", f"{path}.secret")
        case {"persistentVolumeClaim": claim}:
            return _claim_folder(subject, claim, f"{path}.persistentVolumeClaim"), bool(claim.get("readOnly"))
        case {"projected": source}:
            files = _projected_files(subject, source, f"{path}.projected")
        case {"downwardAPI": source}:
            mode = int(source.get("defaultMode") or _DEFAULT_FILE_MODE)
            files = downward_files(subject.pod, source, subject.facts, mode, f"{path}.downwardAPI")
        case _:
            raise unsupported(path, volume)
    _write_files(folder, files)
    return folder, True


def _claim_folder(subject: VolumeInput, claim: Body, path: str) -> str:
    """The folder of a claim: in a cluster the folder of its PersistentVolume, in the engine a folder of its own."""
    data = referenced(subject.sources, CLAIM, claim, path, subject.pod, name_field="claimName") or {}
    if "volume" not in data:
        folder = f"{subject.claims}/{claim['claimName']}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        return folder
    spec = (data["volume"] or {}).get("spec") or {}
    for field in ("hostPath", "local"):
        if spec.get(field):
            return _check_host_path(spec[field], f"{path}: spec.{field} of its volume")
    text = "is not bound to a volume yet" if not data["volume"] else "has a volume that cannot be mounted here"
    message = f"claim {claim['claimName']!r} {text}; expected one of hostPath or local"
    raise ContainerConfigError(f"{path}.claimName", message)


def _size_limit(empty_dir: Body) -> int:
    """The size limit in bytes; 0: no limit."""
    return int(quantity(empty_dir.get("sizeLimit") or 0) or 0)


def _projected_files(subject: VolumeInput, source: Body, path: str) -> Files:
    files: Files = {}
    mode = int(source.get("defaultMode") or _DEFAULT_FILE_MODE)
    for index, part in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{index}]"
        match part:
            case {"serviceAccountToken": wanted}:
                # Without service accounts (`trainwright run`) no token file is written. The preflight check reports it.
                if body := subject.sources.get(token_source(wanted)):
                    name = _inner_path(str(wanted.get("path", "")), f"{where}.serviceAccountToken.path")
                    files[name] = str(body["token"]).encode(), mode
            case {"configMap": wanted}:
                wanted = {"defaultMode": mode, **wanted}
                files |= _object_files(subject, CONFIG_MAP, wanted, "name", f"{where}.configMap")
            case {"secret": wanted}:
                wanted = {"defaultMode": mode, **wanted}
                files |= _object_files(subject, SECRET, wanted, "name", f"{where}.secret")
            case {"downwardAPI": wanted}:
                files |= downward_files(subject.pod, wanted, subject.facts, mode, f"{where}.downwardAPI")
            case _:
                expected = ", ".join(PROJECTED_SOURCES)
                raise ContainerConfigError(where, f"{', '.join(part)}: not supported here; expected one of {expected}")
    return files


def downward_files(pod: Body, source: Body, facts: PodFacts, mode: int, path: str) -> Files:
    """The files of a `downwardAPI`: one file for each item."""
    files: Files = {}
    for index, item in enumerate(source.get("items") or ()):
        where = f"{path}.items[{index}]"
        name = _inner_path(str(item.get("path", "")), f"{where}.path")
        files[name] = _downward_value(pod, item, facts, where).encode(), int(item.get("mode") or mode)
    return files


def _downward_value(pod: Body, item: Body, facts: PodFacts, path: str) -> str:
    match item:
        case {"fieldRef": {"fieldPath": "metadata.labels" | "metadata.annotations" as field}}:
            pairs = sorted((pod["metadata"].get(field.removeprefix("metadata.")) or {}).items())
            return "\n".join(f'{key}="{_escaped(str(value))}"' for key, value in pairs)
        case {"fieldRef": ref}:
            return environment.pod_field(ref, pod, facts, f"{path}.fieldRef")
        case {"resourceFieldRef": ref}:
            return environment.resource_field(ref, pod, {}, facts, f"{path}.resourceFieldRef")
    raise ContainerConfigError(path, "expected fieldRef or resourceFieldRef")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _object_files(subject: VolumeInput, kind: str, source: Body, name_field: str, path: str) -> Files:
    """A file for each key of a ConfigMap or Secret, or for each of `items` if the source has `items`."""
    body = referenced(subject.sources, kind, source, path, subject.pod, name_field=name_field) or {}
    texts, encoded = body.get("data") or {}, body.get("binaryData") or {}
    if kind == SECRET:
        texts, encoded = {}, texts
    data = {key: str(value).encode() for key, value in texts.items()}
    data |= {key: b64decode(value) for key, value in encoded.items()}
    default_mode = int(source.get("defaultMode") or _DEFAULT_FILE_MODE)
    items = source.get("items")
    if not items:
        return {key: (content, default_mode) for key, content in data.items()}
    files: Files = {}
    for index, item in enumerate(items):
        key, where = str(item.get("key", "")), f"{path}.items[{index}]"
        if key in data:
            name = _inner_path(str(item.get("path", "")), f"{where}.path")
            files[name] = data[key], int(item.get("mode") or default_mode)
        elif not source.get("optional"):
            has = ", ".join(sorted(data)) or "no keys"
            raise ContainerConfigError(f"{where}.key", f"there is no key {key!r}; it has {has}", nearest(key, data))
    return files


def _write_files(folder: str, files: Files) -> None:
    """Write the files. A changed file is replaced in one step: a reader sees the old or the new content."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.read_bytes() == content:
            file.chmod(mode)
            continue
        temporary = file.with_name(f".{file.name}.new")
        temporary.write_bytes(content)
        temporary.chmod(mode)
        temporary.replace(file)


def _check_host_path(host: Body, path: str) -> str:
    """The path of a hostPath. Creates the path if its type says so; refuses a path of another type."""
    where, kind = str(host.get("path", "")), str(host.get("type") or "")
    if not where.startswith("/"):
        raise ContainerConfigError(f"{path}.path", f"expected an absolute path, found {where!r}")
    if kind and kind not in HOST_PATH_TYPES:
        message = f"{kind!r} is not known; expected {', '.join(HOST_PATH_TYPES)}"
        raise ContainerConfigError(f"{path}.type", message, nearest(kind, HOST_PATH_TYPES))
    file = Path(where)
    if kind == "DirectoryOrCreate" and not file.exists():
        file.mkdir(parents=True, exist_ok=True)
    if kind == "FileOrCreate" and not file.exists():
        file.touch()
    if not file.exists():
        hint = "" if kind else "; `type: DirectoryOrCreate` makes it"
        message = f"there is no {where} on this machine{hint}"
        raise ContainerConfigError(f"{path}.path", message, _nearest_neighbour(file))
    if kind and not HOST_PATH_TYPES[kind][0](file.stat().st_mode):
        message = f"{where} is not {HOST_PATH_TYPES[kind][1]}, as its type {kind} asks"
        raise ContainerConfigError(f"{path}.path", message)
    return where


def _inner_path(text: str, path: str) -> str:
    """The normalised path of a file in a volume: it must be relative and without `..`."""
    if text.startswith("/") or ".." in text.split("/"):
        raise ContainerConfigError(path, f"expected a path below the volume, found {text!r}")
    return posixpath.normpath(text) if text else ""


def _path_below(volume: str, sub_path: str, path: str, *, create: bool) -> str:
    """The absolute path of a sub-path. A symbolic link must not lead out of the volume."""
    root = Path(volume).resolve()
    file = root / sub_path
    if not file.resolve().is_relative_to(root):
        raise ContainerConfigError(path, f"{sub_path!r} leads out of the volume")
    if not file.exists():
        if not create:
            raise ContainerConfigError(path, f"the volume has no {sub_path!r}", _nearest_neighbour(file))
        file.mkdir(parents=True, exist_ok=True)
    return str(file)


def _nearest_neighbour(file: Path) -> str:
    """The most similar name in the same folder."""
    try:
        return nearest(file.name, sorted(one.name for one in file.parent.iterdir()))
    except OSError:
        return ""
