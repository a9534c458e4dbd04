# SPDX-License-Identifier: Apache-2.0
"""Loads images from files: archives of `docker save` and `podman save`, and OCI layouts (a folder or an archive).

The archive may be compressed. Its layers are unpacked where they are: only a compressed archive is copied first.
"""

import posixpath
import secrets
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct, field

from trainwright.errors import ImageError, UsageError
from trainwright.images.install import ImageToInstall, LayerBlob, install, missing_layers, unpacker
from trainwright.images.manifests import (
    Descriptor,
    ImageIndex,
    ImageManifest,
    choose_platform,
    decode_config,
    decode_manifest,
    sha256,
)
from trainwright.images.progress import ImageProgress
from trainwright.images.reference import ImageReference, parse_reference
from trainwright.images.store import ImageName, ImageRecord, ImageStore
from trainwright.images.unpack.compression import LayerError, Slice, compression_of, plain_chunks

STDIN = "-"
_DOCKER_MANIFEST, _OCI_INDEX = "manifest.json", "index.json"
_FULL_NAME, _TAG = "io.containerd.image.name", "org.opencontainers.image.ref.name"
_EXPECTED = "expected an archive of `docker save` or `podman save`, or an OCI layout"
_MAX_SMALL_BYTES = 8 << 20
_MAX_LINKS = 5
_HEAD_BYTES = 16
_COPY_BYTES = 1 << 20


class LoadedImage(Struct, frozen=True):
    """An image that is now in the store, and its names."""

    record: ImageRecord
    names: tuple[ImageReference, ...]


class _DockerImage(Struct, rename="pascal"):
    """An entry of manifest.json in an archive of `docker save`."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = field(default=None)


class _FoundImage(Struct, frozen=True):
    """One image of an archive: its configuration, the files of its layers, its names, the digest of its manifest."""

    config: bytes
    layers: tuple[LayerBlob, ...]
    names: tuple[str, ...]
    digest: str = ""


class ArchiveFiles:
    """The files of an archive or a layout, by name."""

    def __init__(self, shown: str, files: dict[str, LayerBlob], links: dict[str, str]) -> None:
        self.shown, self._files, self._links = shown, files, links

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def blob(self, name: str) -> LayerBlob:
        """A file. Raises ImageError."""
        found = self._find(name)
        if found is None:
            raise ImageError(f"{self.shown}: the archive has no file {name!r}, which it describes")
        return found

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises ImageError."""
        blob = self.blob(name)
        if blob.size > _MAX_SMALL_BYTES:
            raise ImageError(f"{self.shown}: {name} has {blob.size} bytes, expected at most {_MAX_SMALL_BYTES}")
        with blob.path.open("rb") as file:
            return Slice(file, blob.offset, blob.size).read(blob.size)

    def read_verified(self, descriptor: Descriptor) -> bytes:
        """The blob of an OCI layout with this digest. Raises ImageError."""
        data = self.read(_blob_name(descriptor))
        if sha256(data) != descriptor.digest:
            raise ImageError(f"{self.shown}: the blob {descriptor.digest} has the digest {sha256(data)}")
        return data

    def _find(self, name: str) -> LayerBlob | None:
        """Old versions of docker store a layer that two images share as a link."""
        for _ in range(_MAX_LINKS):
            if name not in self._links:
                break
            name = self._links[name]
        return self._files.get(name)


def load(store: ImageStore, source: str, name: ImageReference | None, progress: ImageProgress) -> list[LoadedImage]:
    """Load all images of a file; `-` is standard input. `name` is for an image without a name. Raises ImageError."""
    store.prepare()
    with store.adding(), _opened(store, source) as files:
        found = _images(files)
        if name is not None and len(found) != 1:
            raise UsageError(f"{files.shown}: found {len(found)} images, expected one image for --name")
        named = [(image, _names(files, image, name)) for image in found]
        return [_install(store, files, image, names, progress) for image, names in named]


def _install(
    store: ImageStore,
    files: ArchiveFiles,
    image: _FoundImage,
    names: tuple[ImageReference, ...],
    progress: ImageProgress,
) -> LoadedImage:
    title, identity = names[0].familiar(), sha256(image.config)
    config = decode_config(image.config, len(image.layers), f"{files.shown}: {title}")
    sizes = tuple(layer.size for layer in image.layers)
    stored = tuple(ImageName(str(one), identity, image.digest) for one in names)
    wanted = ImageToInstall(identity, config, stored, f"{files.shown}: {title}")
    with unpacker(store) as process:
        missing = missing_layers(store, process.form, wanted)
        size = sum(sizes[number] for number in missing)
        progress.begin(title, len(sizes), len(missing), size)
        progress.downloaded(size)
        return LoadedImage(install(store, process, wanted, lambda number: image.layers[number], progress), names)


# -- the file ----------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(store: ImageStore, source: str) -> Iterator[ArchiveFiles]:
    """The files of the archive. A copy of a compressed archive is removed at the end."""
    path = Path(source)
    if source != STDIN and path.is_dir():
        yield ArchiveFiles(source, _folder_files(path), {})
        return
    copy = store.blobs / f"load-{secrets.token_hex(6)}"
    try:
        with sys.stdin.buffer if source == STDIN else path.open("rb") as file:
            head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES] if hasattr(file, "peek") else b""
            if source == STDIN or compression_of(head):
                _copy(file, copy)
                path = copy
        shown = "standard input" if source == STDIN else source
        yield _tar_files(path, shown)
    except FileNotFoundError:
        raise UsageError(f"{source}: there is no such file; {_EXPECTED}") from None
    except OSError as error:
        raise ImageError(f"{source}: {error.strerror or error}") from None
    except LayerError as error:
        raise ImageError(f"{source}: {error}; {_EXPECTED}") from None
    finally:
        copy.unlink(missing_ok=True)


def _copy(file: IO[bytes], target: Path) -> None:
    """Copy and decompress a file that may be a pipe."""
    with target.open("xb") as out:
        for chunk in plain_chunks(file):
            out.write(chunk)


def _tar_files(path: Path, shown: str) -> ArchiveFiles:
    files: dict[str, LayerBlob] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = _normal(member.name)
                if member.isreg() and not member.issparse():
                    files[name] = LayerBlob(path, member.offset_data, member.size)
                elif member.islnk():
                    links[name] = _normal(member.linkname)
                elif member.issym():
                    links[name] = _normal(posixpath.join(posixpath.dirname(name), member.linkname))
    except tarfile.TarError as error:
        raise ImageError(f"{shown}: found a file that is not a tar archive ({error}); {_EXPECTED}") from None
    return ArchiveFiles(shown, files, links)


def _folder_files(folder: Path) -> dict[str, LayerBlob]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): LayerBlob(path, 0, path.stat().st_size) for path in found}


def _normal(name: str) -> str:
    return posixpath.normpath(f"/{name}").lstrip("/")


# -- the images --------------------------------------------------------------------------------------------------------


def _images(files: ArchiveFiles) -> list[_FoundImage]:
    """The images of the archive. Docker 25 and later write both forms, and only docker's has all names."""
    if _DOCKER_MANIFEST in files:
        found = _docker_images(files)
    elif _OCI_INDEX in files:
        found = _oci_images(files)
    else:
        raise ImageError(f"{files.shown}: found neither {_DOCKER_MANIFEST} nor {_OCI_INDEX}; {_EXPECTED}")
    if not found:
        raise ImageError(f"{files.shown}: found no image; {_EXPECTED}")
    return found


def _docker_images(files: ArchiveFiles) -> list[_FoundImage]:
    try:
        listed = msgspec.json.decode(files.read(_DOCKER_MANIFEST), type=list[_DockerImage])
    except msgspec.MsgspecError as error:
        raise ImageError(f"{files.shown}: {_DOCKER_MANIFEST} is not valid: {error}") from None
    return [
        _FoundImage(
            files.read(_normal(one.config)),
            tuple(files.blob(_normal(layer)) for layer in one.layers),
            one.repo_tags or (),
        )
        for one in listed
    ]


def _oci_images(files: ArchiveFiles) -> list[_FoundImage]:
    index = decode_manifest(files.read(_OCI_INDEX), "", f"{files.shown}: {_OCI_INDEX}")
    if not isinstance(index, ImageIndex):
        raise ImageError(f"{files.shown}: {_OCI_INDEX} is not an index of images")
    by_name: dict[str, list[Descriptor]] = {}
    for one in index.manifests:
        by_name.setdefault(_annotated_name(one), []).append(one)
    return [_oci_image(files, name, choose_platform(ones, files.shown)) for name, ones in by_name.items()]


def _oci_image(files: ArchiveFiles, name: str, chosen: Descriptor) -> _FoundImage:
    first, decoded = chosen, _decoded(files, chosen)
    while isinstance(decoded, ImageIndex):
        chosen = choose_platform(decoded.manifests, files.shown)
        decoded = _decoded(files, chosen)
    return _FoundImage(
        files.read_verified(decoded.config),
        tuple(files.blob(_blob_name(layer)) for layer in decoded.layers),
        (name,) if name else (),
        first.digest,
    )


def _decoded(files: ArchiveFiles, descriptor: Descriptor) -> ImageIndex | ImageManifest:
    return decode_manifest(files.read_verified(descriptor), descriptor.media_type, files.shown)


def _blob_name(descriptor: Descriptor) -> str:
    return _normal(f"blobs/{descriptor.digest.replace(':', '/')}")


def _annotated_name(descriptor: Descriptor) -> str:
    """The name of an image in a layout; empty if the layout has only a tag, as skopeo writes it."""
    if name := descriptor.annotations.get(_FULL_NAME):
        return name
    name = descriptor.annotations.get(_TAG, "")
    return name if "/" in name or ":" in name else ""


def _names(files: ArchiveFiles, image: _FoundImage, given: ImageReference | None) -> tuple[ImageReference, ...]:
    names: Sequence[ImageReference] = [given] if given is not None else [parse_reference(name) for name in image.names]
    if not names:
        raise UsageError(f"{files.shown}: found an image without a name, expected one; give it with --name NAME")
    return tuple(names)
