# SPDX-License-Identifier: Apache-2.0
"""Unpacks layers with the real process, as root or as an ordinary user, and shows what a container would see."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from image_builder import digest
from msgspec import Struct
from sandboxed import SOURCE, as_who, python

from trainwright.images.manifests import chain_ids
from trainwright.images.store import folder_name, layer_keys

_START = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from trainwright.images.unpack.main import main; main()"
#: Mounts an overlay of the given folders, the top first, and prints what is in it: for each path its type, mode, owner,
#: time, content or target, number of links, and attributes.
_LOOK = f"""
import json, os, stat, sys
sys.path.insert(0, {str(SOURCE)!r})
from trainwright import kernel
folder, form, *layers = sys.argv[1:]
os.chdir(folder)
root = os.path.join(folder, layers[0])
os.geteuid() and kernel.enter_user_namespace(None)
if len(layers) > 1:
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    root = os.path.join(folder, "root")
    os.mkdir(root)
    options = "lowerdir=" + ":".join(layers) + (",userxattr" if form != "overlay" else "")
    kernel.mount("overlay", root, "overlay", 0, options)
found = {{}}
for here, folders, files in os.walk(root):
    for name in [".", *files, *(one for one in folders if os.path.islink(os.path.join(here, one)))]:
        path = os.path.normpath(os.path.join(here, name))
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        text = os.readlink(path) if kind == stat.S_IFLNK else ""
        if kind == stat.S_IFREG:
            text = open(path, "rb").read().decode("latin-1")
        attributes = os.listxattr(path, follow_symlinks=False)
        found[os.path.relpath(path, root)] = [kind, oct(stat.S_IMODE(info.st_mode)), info.st_uid, info.st_gid,
            int(info.st_mtime), text, info.st_nlink, attributes]
json.dump(found, sys.stdout)
"""


class SeenEntry(Struct, frozen=True, array_like=True):
    """One path of a root."""

    kind: int
    mode: str
    uid: int
    gid: int
    mtime: int
    text: str
    links: int
    attributes: tuple[str, ...]


class Unpacking(Struct, kw_only=True):
    """What the process said, and the folder with its layers."""

    who: str
    folder: Path
    answers: list[dict[str, Any]]
    chains: tuple[str, ...]
    code: int

    @property
    def form(self) -> str:
        return str(self.answers[0]["form"])

    @property
    def error(self) -> str:
        return str(self.answers[-1].get("error", ""))

    def look(self) -> dict[str, SeenEntry]:
        """What a container sees, by path."""
        assert not self.error, self.error
        names = [f"{folder_name(chain)}/fs" for chain in reversed(layer_keys(self.form, self.chains))]
        place = self.folder / "layers" / self.form
        command = [*as_who(self.who), python(self.who) or "", "-E", "-s", "-S", "-c", _LOOK, str(place), self.form]
        done = subprocess.run([*command, *names], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return msgspec.json.decode(done.stdout, type=dict[str, SeenEntry])


def unpack(
    folder: Path,
    who: str,
    layers: Sequence[bytes],
    *,
    under: Sequence[str] = (),
    form: str = "",
    ids: Sequence[str] = (),
) -> Unpacking:
    """Unpack layers, the lowest first. `form` is the form that the process will choose, if it is not an overlay."""
    for number, data in enumerate(layers):
        (folder / f"blob-{number}").write_bytes(data)
    ids = ids or [digest(data) for data in layers]
    chains = chain_ids(ids)
    blobs = [
        {"path": str(folder / f"blob-{number}"), "offset": 0, "size": len(data), "diffId": ids[number]}
        for number, data in enumerate(layers)
    ]
    if form == "flat":
        orders = [{"chain": chains[-1], "name": folder_name(chains[-1]), "lower": [], "blobs": blobs}]
    else:
        orders = [
            {
                "chain": chain,
                "name": folder_name(chain),
                "lower": [folder_name(one) for one in reversed(chains[:number])],
                "blobs": [blobs[number]],
            }
            for number, chain in enumerate(chains)
        ]
    command = [*under, *as_who(who), python(who) or "", "-E", "-s", "-S", "-c", _START, str(folder / "layers")]
    text = "".join(json.dumps(order) + "\n" for order in orders).encode()
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers, done.stderr.decode()
    return Unpacking(who=who, folder=folder, answers=answers, chains=chains, code=done.returncode)


def remove_layers(folder: Path, who: str) -> None:
    """Remove the folder of all layers as that user, without namespaces."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from trainwright.images.unpack.trees import remove_tree; "
    code += "remove_tree(sys.argv[1])"
    command = [*as_who(who), python(who) or "", "-E", "-s", "-S", "-c", code, str(folder / "layers")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
