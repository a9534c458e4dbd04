# SPDX-License-Identifier: Apache-2.0
"""Image manifests, indexes and configurations of OCI and docker: what we read of them, and the choice of a platform."""

import hashlib
import platform
from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

from trainwright.errors import ImageError, ImageNotFoundError
from trainwright.images.reference import is_digest

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)
_INDEXES = {OCI_INDEX, DOCKER_INDEX}
_LAYER_ENDS = (".tar", ".tar+gzip", ".tar+zstd", ".tar.gzip", ".tar.zstd")
_UNKNOWN = "unknown"  # the platform of attestations, which are no images
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}
_MAX_LAYERS = 500


class Platform(Struct, frozen=True):
    """The platform of one image, with the words of Go."""

    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(Struct, frozen=True, rename="camel"):
    """A blob or a manifest: its digest and its size."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] = field(default_factory=dict)


class ImageIndex(Struct, frozen=True, rename="camel"):
    """A list of manifests, one for each platform."""

    manifests: tuple[Descriptor, ...]


class ImageManifest(Struct, frozen=True, rename="camel"):
    """One image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class ProcessConfig(Struct, frozen=True, rename="pascal", omit_defaults=True):
    """How containers of the image start, unless a manifest says otherwise."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    user: str = ""
    working_dir: str = ""
    stop_signal: str = ""


class _RootFs(Struct, frozen=True):
    diff_ids: tuple[str, ...] = ()


class ImageConfig(Struct, frozen=True):
    """The configuration of an image."""

    architecture: str = ""
    os: str = ""
    variant: str = ""
    config: ProcessConfig | None = None
    rootfs: _RootFs = _RootFs()

    @property
    def platform(self) -> Platform:
        """The platform for which the image was built."""
        return Platform(self.architecture, self.os, self.variant)


class _Typed(Struct, rename="camel"):
    media_type: str = ""
    schema_version: int = 2
    manifests: msgspec.Raw = msgspec.Raw(b"")


def sha256(data: bytes) -> str:
    """The digest of these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def this_platform() -> Platform:
    """The platform of this machine."""
    machine = platform.machine()
    return Platform(_ARCHITECTURES.get(machine, machine), "linux", "v8" if machine == "aarch64" else "")


def decode_manifest(data: bytes, media_type: str, what: str) -> ImageIndex | ImageManifest:
    """Decode an index or a manifest. The type in the document counts more than `media_type`. Raises ImageError."""
    try:
        typed = msgspec.json.decode(data, type=_Typed)
        found = typed.media_type or media_type.partition(";")[0].strip()
        if typed.schema_version != 2:
            raise ImageError(f"{what}: found a manifest of version {typed.schema_version}, expected version 2")
        if found in _INDEXES or (found not in ACCEPTED and bytes(typed.manifests)):
            return msgspec.json.decode(data, type=ImageIndex)
        manifest = msgspec.json.decode(data, type=ImageManifest)
    except msgspec.MsgspecError as error:
        raise ImageError(
            f"{what}: found a manifest that is not valid ({error}), expected one of OCI or docker"
        ) from None
    _check_manifest(manifest, what)
    return manifest


def _check_manifest(manifest: ImageManifest, what: str) -> None:
    for one in (manifest.config, *manifest.layers):
        if not is_digest(one.digest):
            raise ImageError(
                f"{what}: found the digest {one.digest[:80]!r}, expected sha256: and 64 hexadecimal digits"
            )
        if one.size < 0:
            raise ImageError(f"{what}: found a blob of {one.size} bytes")
    for layer in manifest.layers:
        if layer.media_type and not layer.media_type.endswith(_LAYER_ENDS):
            raise ImageError(f"{what}: found a layer of type {layer.media_type!r}, expected a tar archive")
    if len(manifest.layers) > _MAX_LAYERS:
        raise ImageError(f"{what}: found {len(manifest.layers)} layers, expected at most {_MAX_LAYERS}")


def decode_config(data: bytes, layers: int, what: str) -> ImageConfig:
    """Decode the configuration of an image with so many layers. Raises ImageError."""
    try:
        config = msgspec.json.decode(data, type=ImageConfig)
    except msgspec.MsgspecError as error:
        raise ImageError(f"{what}: the configuration of the image is not valid: {error}") from None
    found = config.rootfs.diff_ids
    if len(found) != layers or not all(map(is_digest, found)):
        raise ImageError(f"{what}: the configuration describes {len(found)} layers, and the manifest has {layers}")
    wanted = this_platform()
    if (config.os or wanted.os, config.architecture or wanted.architecture) != (wanted.os, wanted.architecture):
        raise ImageNotFoundError(f"{what}: found an image for {config.platform}, expected {wanted}")
    return config


def choose_platform(manifests: Sequence[Descriptor], what: str) -> Descriptor:
    """The manifest for this machine. Raises ImageNotFoundError, which lists the platforms that there are."""
    wanted = this_platform()
    known = [
        one for one in manifests if one.platform is None or _UNKNOWN not in (one.platform.os, one.platform.architecture)
    ]
    fitting = [
        one
        for one in known
        if one.platform is None or (one.platform.os, one.platform.architecture) == (wanted.os, wanted.architecture)
    ]
    exact = [one for one in fitting if one.platform is not None and one.platform.variant in ("", wanted.variant)]
    if found := exact or fitting:
        return found[0]
    names = ", ".join(sorted({str(one.platform) for one in known})) or "none"
    raise ImageNotFoundError(f"{what}: found images for {names}; expected {wanted}, the platform of this machine")


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """The chain id of each layer: it names the layer together with all layers beneath it."""
    chains: list[str] = []
    for diff_id in diff_ids:
        chains.append(sha256(f"{chains[-1]} {diff_id}".encode()) if chains else diff_id)
    return tuple(chains)
