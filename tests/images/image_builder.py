# SPDX-License-Identifier: Apache-2.0
"""Builds images for tests, entry by entry, and writes them as docker, podman and other programs do."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from trainwright.images.manifests import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, this_platform

Entry = tuple[tarfile.TarInfo, bytes]
HERE = {"os": this_platform().os, "architecture": this_platform().architecture}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def entry(name: str, content: bytes = b"", **attributes: Any) -> Entry:
    """An entry of a layer; a file unless `type` says otherwise. `xattrs` are extended attributes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o644, 1_000_000_000
    given: dict[str, bytes] = attributes.pop("xattrs", {})
    info.pax_headers = {f"SCHILY.xattr.{key}": value.decode("utf-8", "surrogateescape") for key, value in given.items()}
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content


def folder(name: str, mode: int = 0o755, **attributes: Any) -> Entry:
    return entry(name, type=tarfile.DIRTYPE, mode=mode, **attributes)


def symlink(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.SYMTYPE, linkname=target, mode=0o777)


def hard_link(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*entries: Entry) -> bytes:
    """A tar archive, in the form that docker writes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class BuiltImage(Struct):
    """An image: its plain layers, and the blobs in which a registry has them."""

    layers: list[bytes]
    process: dict[str, Any] = field(default_factory=dict)
    compress: Any = lambda data: gzip.compress(data, 1, mtime=0)
    platform: dict[str, str] = field(default_factory=lambda: dict(HERE))

    @property
    def config(self) -> bytes:
        rootfs = {"type": "layers", "diff_ids": [digest(one) for one in self.layers]}
        return json.dumps({**self.platform, "config": self.process, "rootfs": rootfs}).encode()

    @property
    def blobs(self) -> list[bytes]:
        return [self.compress(one) for one in self.layers]

    @property
    def manifest(self) -> bytes:
        return manifest_of(self.config, self.blobs)


def manifest_of(config: bytes, blobs: Sequence[bytes], kind: str = OCI_MANIFEST) -> bytes:
    config_type = "application/vnd.oci.image.config.v1+json"
    layer_type = "application/vnd.oci.image.layer.v1.tar+gzip"
    described = {"mediaType": config_type, "digest": digest(config), "size": len(config)}
    layers = [{"mediaType": layer_type, "digest": digest(blob), "size": len(blob)} for blob in blobs]
    return json.dumps({"schemaVersion": 2, "mediaType": kind, "config": described, "layers": layers}).encode()


def index_of(*images: tuple[bytes, dict[str, str]]) -> bytes:
    """An index of manifests, each with its platform."""
    listed = [
        {"mediaType": OCI_MANIFEST, "digest": digest(data), "size": len(data), "platform": platform}
        for data, platform in images
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed}).encode()


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    made = [entry(name, data) for name, data in files.items()]
    return layer(*made, *(symlink(name, target) for name, target in (links or {}).items()))


def docker_archive(image: BuiltImage, *names: str) -> bytes:
    """What `docker save` wrote before version 25: a folder per layer, and a link for a layer that occurs twice."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    listed: list[str] = []
    first: dict[bytes, str] = {}
    for number, one in enumerate(image.layers):
        name = f"{number:064x}/layer.tar"
        listed.append(name)
        if one in first:
            links[name] = f"../{first[one]}"
        else:
            files[name] = one
            first[one] = name
    config = f"{digest(image.config)[7:]}.json"
    manifest = [{"Config": config, "RepoTags": list(names) or None, "Layers": listed}]
    return tar_of({**files, config: image.config, "manifest.json": json.dumps(manifest).encode()}, links)


def oci_layout(image: BuiltImage, annotations: dict[str, str], *, nested: bool = False) -> dict[str, bytes]:
    """The files of an OCI layout; with `nested`, the index of the layout has an index, as buildx writes it."""
    data = index_of((b"another", {"os": "plan9", "architecture": "mips"}), (image.manifest, HERE))
    kind, top = (OCI_INDEX, data) if nested else (OCI_MANIFEST, image.manifest)
    listed = [{"mediaType": kind, "digest": digest(top), "size": len(top), "annotations": annotations}]
    blobs = [image.config, image.manifest, data, *image.blobs]
    return {
        **{f"blobs/sha256/{digest(blob)[7:]}": blob for blob in blobs},
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": listed}).encode(),
    }


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def docker_manifest(image: BuiltImage) -> bytes:
    """The manifest in docker's own format."""
    return manifest_of(image.config, image.blobs, DOCKER_MANIFEST)


def small_image(*names: str, **process: Any) -> BuiltImage:
    """Two layers with a file for each name."""
    first = layer(folder("etc"), entry("etc/base", b"base"))
    return BuiltImage([first, layer(*(entry(name, name.encode()) for name in names))], process)
