# SPDX-License-Identifier: Apache-2.0
"""Paths that a pod names on this machine: hostPath with its types, subPath without a way out. Called by `volumes`."""

import posixpath
import stat
from pathlib import Path

from trainwright.local.agent.refusals import Unconfigured
from trainwright.model.job import Body
from trainwright.model.problem import nearest

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


def check(host: Body, path: str) -> str:
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


def inner(part: str, path: str) -> str:
    """A path below a volume, as it is written: relative, and not upwards."""
    if part.startswith("/") or ".." in part.split("/"):
        raise Unconfigured(path, f"expected a path below the volume, found {part!r}")
    return posixpath.normpath(part) if part else ""


def below(source: str, part: str, path: str, *, make: bool) -> str:
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
