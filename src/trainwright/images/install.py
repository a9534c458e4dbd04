# SPDX-License-Identifier: Apache-2.0
"""Puts the layers of one image into the store, in the process of `unpack`, and then writes the record of the image."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from trainwright.errors import ImageError
from trainwright.images.manifests import ImageConfig, ProcessConfig, chain_ids
from trainwright.images.progress import ImageProgress
from trainwright.images.store import ImageName, ImageRecord, ImageStore, folder_name, storage_error
from trainwright.images.unpack import FLAT

Report = Callable[[int], None]


class LayerBlob(Struct, frozen=True):
    """The bytes of a layer, compressed or not: a file, or a part of an archive."""

    path: Path
    offset: int
    size: int


class ImageToInstall(Struct, frozen=True):
    """An image whose layers are not unpacked yet."""

    id: str
    config: ImageConfig
    names: tuple[ImageName, ...]
    #: How messages call it.
    title: str


class Unpacker:
    """The process that unpacks layers. `form` is the form in which it stores them."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        if sys.platform != "linux":
            raise ImageError(f"images can be unpacked only on Linux, and this is {sys.platform}")
        # -P: Python must not import from the current folder. The own process group: Ctrl-C is for this process only.
        command = [sys.executable, "-P", "-m", "trainwright.images.unpack.main", str(store.layers)]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self.pid = self._process.pid
        try:
            answer = self._answer()
            self.form, self.reason = str(answer["form"]), str(answer["reason"])
        except BaseException:
            self.close()
            raise

    def unpack(
        self, chain: str, lower: Sequence[str], blobs: Sequence[dict[str, Any]], report: Callable[[int], None]
    ) -> None:
        """Unpack one layer onto those beneath it. Raises ImageError."""
        order = {
            "chain": chain,
            "name": folder_name(chain),
            "lower": [folder_name(one) for one in reversed(lower)],
            "blobs": list(blobs),
        }
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the next answer says why
        consumed = 0
        while "done" not in (answer := self._answer()):
            report(answer["consumed"] - consumed)
            consumed = answer["consumed"]
        report(sum(blob["size"] for blob in blobs) - consumed)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise ImageError(f"the process that unpacks layers {how}")
        answer: dict[str, Any] = json.loads(line)
        if "error" not in answer:
            return answer
        if "errno" in answer:
            raise storage_error(self._store.root, answer["errno"], answer["error"])
        raise ImageError(str(answer["error"]))


@contextmanager
def unpacker(store: ImageStore) -> Iterator[Unpacker]:
    """The process for the layers of one image. It ends with the block."""
    process = Unpacker(store)
    try:
        yield process
    finally:
        process.close()


def missing_layers(store: ImageStore, form: str, image: ImageToInstall) -> list[int]:
    """The numbers of the layers that must be unpacked: for a flat image all of them or none."""
    chains = chain_ids(image.config.rootfs.diff_ids)
    if form == FLAT:
        return [*range(len(chains))] if chains and store.layer(form, chains[-1]) is None else []
    return [number for number, chain in enumerate(chains) if store.layer(form, chain) is None]


def install(
    store: ImageStore,
    process: Unpacker,
    image: ImageToInstall,
    blobs: Callable[[int], LayerBlob],
    progress: ImageProgress,
) -> ImageRecord:
    """Unpack the missing layers, the lowest first, and store the image. `blobs` returns the bytes of one layer, and may
    wait for them. Raises ImageError. The caller has called `ImageStore.adding` or `pulling`."""
    chains = chain_ids(image.config.rootfs.diff_ids)
    missing = missing_layers(store, process.form, image)
    if process.reason:
        progress.note(f"the layers of each image are stored as one folder, since {process.reason}")
    try:
        for numbers, chain, lower in _steps(process.form, chains, missing):
            orders = [_order(blobs(number), image.config.rootfs.diff_ids[number]) for number in numbers]
            process.unpack(chain, lower, orders, progress.unpacked)
        record = ImageRecord(
            image.id,
            process.form,
            str(image.config.platform),
            chains,
            time.time(),
            image.config.config or ProcessConfig(),
        )
        _save(store, record, image.names)
    except ImageError as error:
        raise type(error)(f"{image.title}: {error}") from None
    except OSError as error:
        raise storage_error(store.root, error.errno, error.strerror or str(error)) from None
    return record


def _save(store: ImageStore, record: ImageRecord, names: Sequence[ImageName]) -> None:
    """Store the record. A record in another form is replaced, unless it is in use: `sweep` would remove its layers."""
    old = store.record(record.id)
    lock = None
    if old is not None and old.form != record.form:
        lock = store.try_lock_image(record.id)
        if lock is None:
            raise ImageError(f"a running job uses the image in the form {old.form!r}; end the job first")
    try:
        store.save(record, names)
    finally:
        if lock is not None:
            os.close(lock)


def _steps(
    form: str, chains: Sequence[str], missing: Sequence[int]
) -> Iterable[tuple[Sequence[int], str, Sequence[str]]]:
    """The layers of each step, the chain id of its result, and the layers beneath. A flat image is one step."""
    if missing and form == FLAT:
        return [(missing, chains[-1], ())]
    return [((number,), chains[number], chains[:number]) for number in missing]


def _order(blob: LayerBlob, diff_id: str) -> dict[str, Any]:
    return {"path": str(blob.path), "offset": blob.offset, "size": blob.size, "diffId": diff_id}
