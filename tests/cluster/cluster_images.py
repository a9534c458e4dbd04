# SPDX-License-Identifier: Apache-2.0
"""Container images made from files, since none can be pulled: what `ctr image import` takes.

`cluster_container` gives them to its node. Pods name them with `imagePullPolicy: Never`.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

#: A shell and what goes with it; the name under which pods ask for it.
BUSYBOX = "trainwright.test/busybox:1"
#: What holds a pod's namespaces.
PAUSE = "trainwright.test/pause:1"
_APPLETS = (
    *(
        "sh",
        "cat",
        "echo",
        "env",
        "hostname",
        "id",
        "ip",
        "ls",
        "nslookup",
        "sleep",
        "stty",
        "tar",
        "test",
        "true",
        "tty",
    ),
    *("false", "wget"),
)


def archive(name: str, busybox: Path, entry: Sequence[str]) -> bytes:
    """An image with one layer: that busybox, and its names."""
    layer = _layer(busybox)
    made_of = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": _architecture(), "os": "linux", "rootfs": made_of}
    config |= {"config": {"Entrypoint": list(entry), "Env": ["PATH=/bin"]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, "layer.tar", layer)
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return out.getvalue()


def _layer(busybox: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "etc", "proc", "sys", "dev", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _architecture() -> str:
    """As Go calls it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
