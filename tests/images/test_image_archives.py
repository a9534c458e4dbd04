# SPDX-License-Identifier: Apache-2.0
"""Images from files: what docker, podman, skopeo and buildx write, compressed or not, and what is refused."""

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import cluster_images
import pytest
from image_builder import (
    BuiltImage,
    digest,
    docker_archive,
    entry,
    layer,
    oci_layout,
    small_image,
    tar_of,
    write_files,
)

from trainwright.errors import ImageError, TrainwrightError, UsageError
from trainwright.images.archives import load
from trainwright.images.progress import SilentProgress
from trainwright.images.reference import ImageReference, parse_reference
from trainwright.images.store import ImageStore
from trainwright.images.unpack import compression

IMAGE = small_image("a", Cmd=["a"])
FULL = {"org.opencontainers.image.ref.name": "lab/a:1"}


def zstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        pytest.skip("needs zstd")
    return subprocess.run([shutil.which("zstd") or "", "-c", "-q"], input=data, capture_output=True, check=True).stdout


def loaded(store: ImageStore, data: bytes, name: ImageReference | None = None) -> dict[str, str]:
    """Load an archive with these bytes: the names of its images, and the text of the file `a` in them."""
    file = store.root / "archive"
    file.write_bytes(data)
    return texts(store, str(file), name)


def texts(store: ImageStore, source: str, name: ImageReference | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in load(store, source, name, SilentProgress()):
        top = store.files(one.record.form, one.record.chains[-1])
        found |= {reference.familiar(): (top / "a").read_text() for reference in one.names}
    assert list(store.blobs.iterdir()) == []
    return found


def test_docker_save(store: ImageStore) -> None:
    assert loaded(store, docker_archive(IMAGE, "lab/a:1", "registry.example/b")) == {
        "lab/a:1": "a",
        "registry.example/b:latest": "a",
    }
    record = store.find(parse_reference("lab/a:1"))
    assert record is not None
    assert (record[0].process.cmd, record[0].id, record[1].digest) == (("a",), digest(IMAGE.config), "")


def test_docker_save_with_a_layer_that_occurs_twice(store: ImageStore) -> None:
    first = layer(entry("x", b"x"))
    assert loaded(store, docker_archive(BuiltImage([first, first, layer(entry("a", b"a"))]), "b")) == {"b:latest": "a"}


def test_docker_save_since_version_25(store: ImageStore) -> None:
    """Both forms in one archive; only docker's has all names."""
    names = [f"blobs/sha256/{digest(blob)[7:]}" for blob in IMAGE.blobs]
    manifest = [{"Config": f"blobs/sha256/{digest(IMAGE.config)[7:]}", "RepoTags": ["lab/a:1", "b:2"], "Layers": names}]
    files = {**oci_layout(IMAGE, {}), "manifest.json": json.dumps(manifest).encode()}

    assert loaded(store, tar_of(files)) == {"lab/a:1": "a", "b:2": "a"}


def test_the_archives_for_the_nodes_of_test_clusters(store: ImageStore) -> None:
    program = store.root / "busybox"
    program.write_bytes(b"program")
    file = store.root / "archive"
    file.write_bytes(cluster_images.archive(cluster_images.BUSYBOX, program, ["sh"]))
    (one,) = load(store, str(file), None, SilentProgress())

    top = store.files(one.record.form, one.record.chains[-1])
    assert [name.familiar() for name in one.names] == [cluster_images.BUSYBOX]
    assert ((top / "bin/sh").read_bytes(), (top / "tmp").stat().st_mode & 0o7777) == (b"program", 0o1777)


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ({"org.opencontainers.image.ref.name": "docker.io/lab/a:1"}, "lab/a:1"),
        ({"io.containerd.image.name": "docker.io/lab/a:1", "org.opencontainers.image.ref.name": "1"}, "lab/a:1"),
    ],
    ids=["podman", "buildx"],
)
@pytest.mark.parametrize("nested", [False, True], ids=["manifest", "index"])
@pytest.mark.parametrize("folder", [False, True], ids=["archive", "folder"])
def test_oci_layouts(
    store: ImageStore, tmp_path: Path, annotations: dict[str, str], name: str, nested: bool, folder: bool
) -> None:
    files = oci_layout(IMAGE, annotations, nested=nested)
    if folder:
        assert texts(store, str(write_files(tmp_path / "layout", files))) == {name: "a"}
    else:
        assert loaded(store, tar_of({f"./{path}": data for path, data in files.items()})) == {name: "a"}


@pytest.mark.parametrize("compress", [gzip.compress, zstd, bz2.compress, lzma.compress])
def test_compressed_archives(store: ImageStore, compress: Callable[[bytes], bytes]) -> None:
    assert loaded(store, compress(docker_archive(IMAGE, "lab/a:1"))) == {"lab/a:1": "a"}


@pytest.mark.parametrize("compress", [gzip.compress, zstd, lambda data: data])
def test_compressed_layers(store: ImageStore, compress: Callable[[bytes], bytes]) -> None:
    image = BuiltImage(IMAGE.layers, compress=compress)
    assert loaded(store, tar_of(oci_layout(image, FULL))) == {"lab/a:1": "a"}


def test_a_layer_of_several_gzip_members(store: ImageStore) -> None:
    image = BuiltImage(IMAGE.layers, compress=lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]))
    assert loaded(store, tar_of(oci_layout(image, FULL))) == {"lab/a:1": "a"}


def test_zstd_that_nothing_can_read(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zstd(docker_archive(IMAGE, "lab/a:1"))
    monkeypatch.setattr(compression, "_ZSTD_MODULES", ())
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(
        ImageError, match=r"expected Python 3\.14, the Python package backports\.zstd, or the program zstd"
    ):
        loaded(store, data)


def test_damaged_zstd(store: ImageStore) -> None:
    with pytest.raises(ImageError, match="the zstd data is damaged"):
        loaded(store, zstd(docker_archive(IMAGE, "lab/a:1"))[:-20])


def test_a_name_for_an_image_without_one(store: ImageStore) -> None:
    """skopeo writes only a tag."""
    data = tar_of(oci_layout(IMAGE, {"org.opencontainers.image.ref.name": "latest"}))
    with pytest.raises(UsageError, match="found an image without a name, expected one; give it with --name NAME"):
        loaded(store, data)

    assert loaded(store, data, parse_reference("lab/b:2")) == {"lab/b:2": "a"}


def test_one_name_for_two_images(store: ImageStore) -> None:
    both = docker_archive(IMAGE, "a:1")
    manifest = json.dumps([{"Config": "c", "RepoTags": ["a"], "Layers": []}] * 2).encode()
    data = tar_of({"manifest.json": manifest, "c": BuiltImage([]).config})
    with pytest.raises(UsageError, match="found 2 images, expected one image for --name"):
        loaded(store, data, parse_reference("b"))

    assert loaded(store, both) == {"a:1": "a"}


EXPECTED = "expected an archive of `docker save` or `podman save`, or an OCI layout"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"hello" * 200, f"found a file that is not a tar archive .*; {EXPECTED}"),
        (tar_of({"x": b"y"}), f"found neither manifest.json nor index.json; {EXPECTED}"),
        (gzip.compress(tar_of({"x": b"y"}))[:-9], f"the gzip data ends too early; {EXPECTED}"),
        (tar_of({"manifest.json": b"{"}), "manifest.json is not valid"),
        (tar_of({"manifest.json": b"[]"}), "found no image"),
        (tar_of({"manifest.json": b'[{"Config": "c", "Layers": []}]'}), "the archive has no file 'c'"),
        (tar_of({**oci_layout(IMAGE, FULL), f"blobs/sha256/{digest(IMAGE.config)[7:]}": b"{}"}), "has the digest"),
        (
            tar_of({**oci_layout(IMAGE, FULL), f"blobs/sha256/{digest(IMAGE.blobs[1])[7:]}": IMAGE.blobs[0]}),
            r"lab/a:1: the unpacked layer has the checksum",
        ),
    ],
    ids=["text", "tar", "cut", "json", "empty", "missing", "config", "layer"],
)
def test_what_is_refused(store: ImageStore, data: bytes, error: str) -> None:
    with pytest.raises(TrainwrightError, match=error):
        loaded(store, data)

    assert store.images() == []


def test_a_file_that_is_not_there(store: ImageStore) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        load(store, str(store.root / "missing.tar"), None, SilentProgress())
