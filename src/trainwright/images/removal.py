# SPDX-License-Identifier: Apache-2.0
"""Removal of images: by name, by size and age, and the removal of what killed processes have left behind.

An image that a process uses is never removed: the process holds a lock of the image (`ImageStore.use`). Layers belong
to all images that name them, and are removed when no image names them any more.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from trainwright.errors import ImageError, UsageError
from trainwright.images.reference import parse_reference
from trainwright.images.store import ImageName, ImageStore, StoredImage, folder_name, layer_keys
from trainwright.images.unpack import FORMS, SCRATCH_PREFIX
from trainwright.images.unpack.trees import remove_tree
from trainwright.model.problem import nearest

#: Partial downloads older than this are removed: a pull that failed is usually repeated earlier.
_PARTIAL_SECONDS = 86400.0
_MIN_ID_DIGITS = 6
LayerKey = tuple[str, str]


class PruneLimits(Struct, frozen=True):
    """Which images `prune` removes: those unused for `max_age` seconds, then the least recently used until the layers
    of all others have at most `max_bytes`. Images without a name are always removed."""

    max_bytes: int
    max_age: float | None = None


class Removed(Struct, frozen=True):
    """What was removed. `skipped` are images in use. If `swept` is false, layers stay: a process adds an image."""

    images: tuple[StoredImage, ...]
    size: int
    skipped: tuple[StoredImage, ...] = ()
    swept: bool = True


def image_layers(image: StoredImage) -> set[LayerKey]:
    """The form and the chain id of each folder that an image needs."""
    return {(image.record.form, chain) for chain in layer_keys(image.record.form, image.record.chains)}


def layers_size(store: ImageStore, layers: Iterable[LayerKey]) -> int:
    """The bytes of these layers."""
    found = (store.layer(form, chain) for form, chain in layers)
    return sum(layer.bytes for layer in found if layer is not None)


def find_images(store: ImageStore, words: Sequence[str]) -> list[tuple[StoredImage, ImageName | None]]:
    """The images with these names or ids, and the name if a name was given. Raises UsageError."""
    known = store.images()
    return [_find_image(known, word) for word in words]


def _find_image(known: Sequence[StoredImage], word: str) -> tuple[StoredImage, ImageName | None]:
    digits = word.removeprefix("sha256:")
    by_id = [one for one in known if one.record.id.partition(":")[2].startswith(digits)]
    if len(digits) >= _MIN_ID_DIGITS and len(by_id) == 1:
        return by_id[0], None
    reference = str(parse_reference(word))
    for image in known:
        for name in image.names:
            if name.reference == reference:
                return image, name
    familiar = [parse_reference(name.reference).familiar() for image in known for name in image.names]
    near = nearest(word, familiar)
    hint = f"; did you mean `{near}`?" if near else ""
    listed = f"; the store has {', '.join(familiar[:5])}" if familiar and not near else ""
    raise UsageError(f"the store has no image {word!r}{hint}{listed or ('' if familiar else '; it is empty')}")


def remove(store: ImageStore, words: Sequence[str]) -> Removed:
    """Remove images by name or id; if an image has more names, only this name. Raises UsageError and ImageError."""
    removed: list[StoredImage] = []
    for image, name in find_images(store, words):
        if name is not None and len(image.names) > 1:
            store.forget_name(name)
            continue
        if not _forget(store, image):
            shown = parse_reference(image.names[0].reference).familiar() if image.names else image.record.id
            raise ImageError(f"{shown} is in use by a running job; end the job first")
        removed.append(image)
    size, swept = sweep(store)
    return Removed(tuple(removed), size, swept=swept)


def prune(store: ImageStore, limits: PruneLimits) -> Removed:
    """Remove images beyond the limits, except those in use, and everything that no image needs."""
    removed: list[StoredImage] = []
    skipped: list[StoredImage] = []
    for image in choose(store, limits):
        (removed if _forget(store, image) else skipped).append(image)
    size, swept = sweep(store)
    return Removed(tuple(removed), size, tuple(skipped), swept)


def choose(store: ImageStore, limits: PruneLimits) -> list[StoredImage]:
    """The images beyond the limits, whether in use or not, the least recently used first."""
    now = time.time()
    kept = sorted(store.images(), key=lambda one: store.last_used(one.record))
    old = [
        one
        for one in kept
        if not one.names or (limits.max_age is not None and now - store.last_used(one.record) > limits.max_age)
    ]
    kept = [one for one in kept if one not in old]
    while kept and layers_size(store, set().union(*map(image_layers, kept))) > limits.max_bytes:
        old.append(kept.pop(0))
    return old


def _forget(store: ImageStore, image: StoredImage) -> bool:
    """Remove the record of an image; False if the image is in use."""
    lock = store.try_lock_image(image.record.id)
    if lock is None:
        return False
    try:
        store.forget(image)
    finally:
        os.close(lock)
    return True


def sweep(store: ImageStore) -> tuple[int, bool]:
    """Remove layers that no image names, and the remains of killed processes. Return the bytes of the removed layers,
    and whether the store was swept: not while a process adds an image, since no record names its layers yet."""
    lock = store.try_lock_store()
    if lock is None:
        return 0, False
    try:
        needed = {(form, folder_name(chain)) for one in store.images() for form, chain in image_layers(one)}
        size = 0
        for form in FORMS:
            for folder in _entries(store.layers / form):
                if folder.name.startswith(SCRATCH_PREFIX):
                    _remove_scratch(folder)
                elif (form, folder.name) not in needed:
                    size += _remove_layer(store, form, folder)
        _remove_blobs(store.blobs)
    finally:
        os.close(lock)
    return size, True


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _remove_layer(store: ImageStore, form: str, folder: Path) -> int:
    """Rename a layer before removing it, so that a killed removal leaves no layer that looks complete."""
    size = store.stored_bytes(form, folder.name)
    scratch = folder.with_name(f"{SCRATCH_PREFIX}{secrets.token_hex(6)}")
    folder.rename(scratch)
    remove_tree(str(scratch))
    return size


def _remove_scratch(folder: Path) -> None:
    """Remove a scratch folder, unless the process that made it still lives."""
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(str(folder))
        except BlockingIOError:
            return
        finally:
            os.close(lock)


def _remove_blobs(folder: Path) -> None:
    """No process adds an image now. A partial download stays for a while, so that a pull can go on with it."""
    for file in _entries(folder):
        with suppress(FileNotFoundError):
            if file.suffix != ".part" or time.time() - file.stat().st_mtime > _PARTIAL_SECONDS:
                file.unlink()
