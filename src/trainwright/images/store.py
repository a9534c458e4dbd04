# SPDX-License-Identifier: Apache-2.0
"""The folder with images, `$TRAINWRIGHT_IMAGES` or `$XDG_CACHE_HOME/trainwright/images`:

    names/KEY.json               a name of an image, and the id of that image
    records/ID.json              an image: its layers, and how its containers start. The time of the file: its last use
    layers/FORM/CHAIN/fs         the files of a layer (`unpack.main` explains the forms)
    layers/FORM/CHAIN/layer.json the full chain id of the layer, and its size
    blobs/HASH, blobs/HASH.part  downloads; they are removed as soon as they are unpacked
    locks/                       lock files; the kernel releases the locks of a killed process

Every file and every folder of a layer is written under another name and then renamed, so that none is ever incomplete.
An image belongs to one user: files of root may be setuid, and those of ordinary users all belong to that user.
"""

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from trainwright.errors import ImageError
from trainwright.images.manifests import ProcessConfig
from trainwright.images.reference import ImageReference
from trainwright.images.unpack import DESCRIPTION, FILES, FLAT

_STORE_LOCK = "store"
#: Digits of a chain id in the name of a folder. With them, 127 layers fit into the options of one mount.
_CHAIN_DIGITS = 16

_Read = TypeVar("_Read")


class ImageRecord(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One image that is unpacked. `id` is the digest of its configuration; `added` is in seconds since 1970."""

    id: str
    form: str
    platform: str
    chains: tuple[str, ...]
    added: float
    process: ProcessConfig = field(default_factory=ProcessConfig)


class ImageName(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A name of an image. `digest` is that of the manifest in the registry; empty for an image from a file."""

    reference: str
    id: str
    digest: str = ""


class StoredLayer(Struct, frozen=True):
    """The description of an unpacked layer: `bytes` is the size of its tar archive."""

    chain: str
    bytes: int
    entries: int


class StoredImage(NamedTuple):
    """An image with its names; an image that another has replaced under its name has none."""

    record: ImageRecord
    names: tuple[ImageName, ...]


def default_root() -> Path:
    """The folder of the store."""
    if given := os.environ.get("TRAINWRIGHT_IMAGES"):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "trainwright/images"


def storage_error(root: Path, number: int | None, text: str) -> ImageError:
    """The error for a failed write to the store. `number` is the errno."""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return ImageError(
            f"the disk of {root} is full; remove images with `trainwright images prune`, "
            "or set TRAINWRIGHT_IMAGES to a folder on a larger disk"
        )
    return ImageError(f"{root}: {text}")


def layer_keys(form: str, chains: Sequence[str]) -> tuple[str, ...]:
    """The chain ids of the folders that an image needs, the lowest first. A flat image is one folder."""
    return tuple(chains[-1:] if form == FLAT else chains)


def folder_name(chain: str) -> str:
    """The name of a layer's folder."""
    return chain.partition(":")[2][:_CHAIN_DIGITS]


class ImageStore:
    """Reads and writes the store. Several processes can use one store at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layers, self.blobs, self.locks = root / "layers", root / "blobs", root / "locks"
        self.names, self.records = root / "names", root / "records"

    def prepare(self) -> None:
        """Make the folders. Raises ImageError."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
            for folder in (self.layers, self.blobs, self.locks, self.names, self.records):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ImageError(
                f"images cannot be stored in {self.root}: {error.strerror or error}; "
                "set TRAINWRIGHT_IMAGES to a folder in which you can write"
            ) from None

    # -- layers --------------------------------------------------------------------------------------------------------

    def layer(self, form: str, chain: str) -> StoredLayer | None:
        """The layer with this chain id; None if it is not there. Raises ImageError if its place is taken."""
        found = _read(self.layers / form / folder_name(chain) / DESCRIPTION, StoredLayer)
        if found is not None and found.chain != chain:
            raise ImageError(f"the layers {chain} and {found.chain} have the same folder; one of them is hostile")
        return found

    def stored_bytes(self, form: str, folder: str) -> int:
        """The size of the layer in this folder; 0 if it has no description."""
        found = _read(self.layers / form / folder / DESCRIPTION, StoredLayer)
        return found.bytes if found is not None else 0

    def files(self, form: str, chain: str) -> Path:
        """The folder with the files of a layer."""
        return self.layers / form / folder_name(chain) / FILES

    def is_complete(self, record: ImageRecord) -> bool:
        """Whether all layers of the image are there."""
        return all(self.layer(record.form, chain) is not None for chain in layer_keys(record.form, record.chains))

    # -- images --------------------------------------------------------------------------------------------------------

    def find(self, reference: ImageReference) -> tuple[ImageRecord, ImageName] | None:
        """The image with this name. A digest is also found if the image was pulled by a tag of the same repository."""
        name = _read(self._name_file(str(reference)), ImageName)
        if name is None and reference.digest:
            known = (one for one in self._names() if one.digest == reference.digest)
            name = next((one for one in known if one.reference.startswith(f"{reference.name}:")), None)
        record = self.record(name.id) if name is not None else None
        return (record, name) if record is not None and name is not None and self.is_complete(record) else None

    def record(self, image: str) -> ImageRecord | None:
        """The image with this id."""
        return _read(self._record_file(image), ImageRecord)

    def images(self) -> list[StoredImage]:
        """All images, sorted by name; images without a name are last."""
        names: dict[str, list[ImageName]] = {}
        for name in self._names():
            names.setdefault(name.id, []).append(name)
        records = (_read(file, ImageRecord) for file in _json_files(self.records))
        found = [
            StoredImage(record, tuple(sorted(names.get(record.id, ()), key=lambda one: one.reference)))
            for record in records
            if record is not None
        ]
        return sorted(found, key=lambda one: (not one.names, [name.reference for name in one.names], one.record.id))

    def save(self, record: ImageRecord, names: Sequence[ImageName]) -> None:
        """Store an image whose layers are complete, and give it these names."""
        _write(self._record_file(record.id), record)
        for name in names:
            _write(self._name_file(name.reference), name)

    def forget_name(self, name: ImageName) -> None:
        """Remove a name; the image stays."""
        self._name_file(name.reference).unlink(missing_ok=True)

    def forget(self, image: StoredImage) -> None:
        """Remove an image and its names; its layers stay until `removal.sweep`."""
        for name in image.names:
            self.forget_name(name)
        self._record_file(image.record.id).unlink(missing_ok=True)

    def last_used(self, record: ImageRecord) -> float:
        """When the image was last added or used, in seconds since 1970."""
        try:
            return self._record_file(record.id).stat().st_mtime
        except OSError:
            return record.added

    def _names(self) -> Iterator[ImageName]:
        found = (_read(file, ImageName) for file in _json_files(self.names))
        return (name for name in found if name is not None)

    def _record_file(self, image: str) -> Path:
        return self.records / f"{image.partition(':')[2]}.json"

    def _name_file(self, reference: str) -> Path:
        return self.names / f"{hashlib.sha256(reference.encode()).hexdigest()[:32]}.json"

    # -- locks ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def pulling(self, reference: str) -> Iterator[None]:
        """Wait until no other process pulls this image, and keep `removal.sweep` away from new layers."""
        name = self._open_lock(f"name-{hashlib.sha256(reference.encode()).hexdigest()[:32]}")
        try:
            fcntl.flock(name, fcntl.LOCK_EX)
            with self.adding():
                yield
        finally:
            os.close(name)

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep `removal.sweep` away from layers that no record names yet."""
        lock = self._open_lock(_STORE_LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    def use(self, record: ImageRecord) -> int | None:
        """Protect an image from removal until the returned descriptor is closed; None if it was removed just now."""
        lock = self._open_lock(self._image_lock(record.id))
        fcntl.flock(lock, fcntl.LOCK_SH)
        if self.record(record.id) is None or not self.is_complete(record):
            os.close(lock)
            return None
        with suppress(OSError):
            os.utime(self._record_file(record.id))
        return lock

    def try_lock_image(self, image: str) -> int | None:
        """Lock an image for its removal until the returned descriptor is closed; None if it is in use."""
        return self._try_lock(self._image_lock(image))

    def try_lock_store(self) -> int | None:
        """Lock the store for the removal of layers; None if a process adds an image."""
        return self._try_lock(_STORE_LOCK)

    def _image_lock(self, image: str) -> str:
        return f"image-{image.partition(':')[2]}"

    def _try_lock(self, name: str) -> int | None:
        lock = self._open_lock(name)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _open_lock(self, name: str) -> int:
        return os.open(self.locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9a-f]*.json"))


def _read(file: Path, kind: type[_Read]) -> _Read | None:
    """The content of a file; None if it does not exist or is damaged: then the image is pulled again."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(file: Path, value: Struct) -> None:
    new = file.with_name(f".{secrets.token_hex(6)}")
    try:
        new.write_bytes(msgspec.json.encode(value))
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
