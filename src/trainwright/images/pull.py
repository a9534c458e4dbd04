# SPDX-License-Identifier: Apache-2.0
"""Pulls an image from its registry into the store. Layers are unpacked while others are downloaded."""

from contextlib import suppress

from msgspec import Struct

from trainwright.errors import ImageError
from trainwright.images.download import Downloads
from trainwright.images.install import ImageToInstall, LayerBlob, install, missing_layers, unpacker
from trainwright.images.manifests import (
    Descriptor,
    ImageIndex,
    ImageManifest,
    choose_platform,
    decode_config,
    decode_manifest,
)
from trainwright.images.progress import ImageProgress
from trainwright.images.reference import ImageReference
from trainwright.images.registry import FetchedManifest, RegistryClient
from trainwright.images.store import ImageName, ImageRecord, ImageStore
from trainwright.images.transport import HttpTransport

_MAX_INDEXES = 3


class Pulled(Struct, frozen=True):
    """The image in the store. `digest` is that of its manifest; `new` is false if the image was already there."""

    record: ImageRecord
    digest: str
    new: bool


def pull(store: ImageStore, reference: ImageReference, progress: ImageProgress) -> Pulled:
    """Pull an image, unless the store has the image that the registry has under this name. Raises ImageError.

    Another process that pulls the same image at the same time waits, and then finds it there.
    """
    store.prepare()
    transport = HttpTransport()
    try:
        with store.pulling(str(reference)):
            return _pull(store, RegistryClient(reference, transport), progress)
    finally:
        transport.close()


def _pull(store: ImageStore, client: RegistryClient, progress: ImageProgress) -> Pulled:
    reference = client.reference
    fetched = client.manifest(reference.version)
    found = store.find(reference)
    if found is not None and found[1].digest == fetched.digest:
        return Pulled(found[0], fetched.digest, new=False)
    manifest = _manifest(client, fetched)
    title = reference.familiar()
    config = decode_config(client.small_blob(manifest.config.digest), len(manifest.layers), title)
    image = ImageToInstall(
        manifest.config.digest,
        config,
        (ImageName(str(reference), manifest.config.digest, fetched.digest),),
        title,
    )
    return Pulled(_fetch(store, client, manifest.layers, image, progress), fetched.digest, new=True)


def _manifest(client: RegistryClient, fetched: FetchedManifest) -> ImageManifest:
    """The manifest for this machine, perhaps by way of an index."""
    title = client.reference.familiar()
    for _ in range(_MAX_INDEXES):
        decoded = decode_manifest(fetched.data, fetched.media_type, title)
        if not isinstance(decoded, ImageIndex):
            return decoded
        chosen = choose_platform(decoded.manifests, title)
        fetched = client.manifest(chosen.digest)
    raise ImageError(f"{title}: found more than {_MAX_INDEXES} indexes within each other")


def _fetch(
    store: ImageStore,
    client: RegistryClient,
    layers: tuple[Descriptor, ...],
    image: ImageToInstall,
    progress: ImageProgress,
) -> ImageRecord:
    with unpacker(store) as process:
        missing = [layers[number] for number in missing_layers(store, process.form, image)]
        progress.begin(image.title, len(layers), len(missing), sum(layer.size for layer in missing))
        downloads = Downloads(client, store.blobs, missing, progress.downloaded)
        try:
            record = install(
                store,
                process,
                image,
                lambda number: LayerBlob(downloads.wait(layers[number]), 0, layers[number].size),
                progress,
            )
        finally:
            downloads.stop()
        for layer in missing:
            with suppress(OSError):
                (store.blobs / layer.digest.partition(":")[2]).unlink(missing_ok=True)
    return record
