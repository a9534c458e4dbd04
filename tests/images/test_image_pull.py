# SPDX-License-Identifier: Apache-2.0
"""Pulls from a real registry on this machine: what is fetched, what is verified, and what goes wrong."""

import gzip
import json
import os
import signal
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from image_builder import HERE, BuiltImage, digest, docker_manifest, entry, index_of, layer, manifest_of, small_image
from registry_server import RunningRegistry, running

from trainwright.errors import ImageError, ImageNotFoundError, RegistryUnreachableError
from trainwright.images.install import unpacker
from trainwright.images.progress import SilentProgress
from trainwright.images.pull import Pulled, pull
from trainwright.images.reference import parse_reference
from trainwright.images.store import ImageStore, layer_keys

BIG = BuiltImage(
    [layer(entry("data", bytes(range(256)) * 4000))], compress=lambda data: gzip.compress(data, 0, mtime=0)
)


class Counted(SilentProgress):
    """Adds up what was reported."""

    def __init__(self) -> None:
        self.here = self.unpacked_bytes = self.size = 0
        self.lock = threading.Lock()

    def begin(self, image: str, layers: int, missing: int, size: int) -> None:  # noqa: ARG002 - not counted
        self.size = size

    def downloaded(self, number: int) -> None:
        with self.lock:
            self.here += number

    def unpacked(self, number: int) -> None:
        self.unpacked_bytes += number


def get(store: ImageStore, registry: RunningRegistry, name: str) -> Pulled:
    return pull(store, parse_reference(f"{registry.host}/{name}"), SilentProgress())


def content(store: ImageStore, pulled: Pulled, path: str) -> bytes:
    """A file of the top layer that has it."""
    form, chains = pulled.record.form, layer_keys(pulled.record.form, pulled.record.chains)
    places = [store.files(form, chain) / path for chain in reversed(chains)]
    return next(place for place in places if place.exists()).read_bytes()


def test_an_image(store: ImageStore, registry: RunningRegistry) -> None:
    image = small_image("a", Entrypoint=["/bin/a"], Cmd=["b"], Env=["X=1"], User="7:8", WorkingDir="/w")
    name = registry.state.add("lab/a:1", image)
    progress = Counted()
    done = pull(store, parse_reference(f"{registry.host}/lab/a:1"), progress)
    size = sum(map(len, image.blobs))

    assert (done.new, done.digest, done.record.id) == (True, name, digest(image.config))
    assert done.record.process.entrypoint == ("/bin/a",)
    assert (done.record.process.cmd, done.record.process.env) == (("b",), ("X=1",))
    assert (done.record.process.user, done.record.process.working_dir) == ("7:8", "/w")
    assert (content(store, done, "a"), content(store, done, "etc/base")) == (b"a", b"base")
    assert (progress.size, progress.here, progress.unpacked_bytes) == (size, size, size)
    assert list(store.blobs.iterdir()) == []


def test_an_image_that_is_there_needs_one_request(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    first = get(store, registry, "lab/a:1")
    registry.state.seen.clear()
    again = get(store, registry, "lab/a:1")

    assert (again.new, again.record, len(registry.state.seen)) == (False, first.record, 1)


def test_only_the_missing_layers_of_a_new_image_are_fetched(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    get(store, registry, "lab/a:1")
    registry.state.seen.clear()
    new = small_image("b")
    registry.state.add("lab/a:1", new)
    done = get(store, registry, "lab/a:1")

    assert (done.new, content(store, done, "b")) == (True, b"b")
    assert {one.path.rpartition("/")[2] for one in registry.state.asked("/blobs/")} == {
        digest(new.config),
        digest(new.blobs[1]),
    }
    assert [len(one.names) for one in store.images()] == [1, 0]  # the old image has lost its name


def test_a_digest_finds_an_image_that_was_pulled_by_tag(store: ImageStore, registry: RunningRegistry) -> None:
    name = registry.state.add("lab/a:1", small_image("a"))
    get(store, registry, "lab/a:1")

    assert store.find(parse_reference(f"{registry.host}/lab/a@{name}")) is not None
    assert store.find(parse_reference(f"{registry.host}/lab/b@{name}")) is None


@pytest.mark.parametrize("by_digest", [False, True])
def test_an_index_has_an_image_for_this_machine(store: ImageStore, registry: RunningRegistry, by_digest: bool) -> None:
    image = small_image("a")
    attestation = {"os": "unknown", "architecture": "unknown"}
    index = index_of((b"x", attestation), (b"y", {"os": "linux", "architecture": "mips"}), (image.manifest, HERE))
    name = registry.state.add("lab/a:1", image, index)
    done = get(store, registry, f"lab/a@{name}" if by_digest else "lab/a:1")

    assert (done.digest, content(store, done, "a")) == (digest(index), b"a")


def test_no_image_for_this_machine(store: ImageStore, registry: RunningRegistry) -> None:
    plan9, unknown = {"os": "plan9", "architecture": "mips"}, {"os": "unknown", "architecture": "unknown"}
    registry.state.add("lab/a:1", small_image(), index_of((b"x", plan9), (b"y", unknown)))
    registry.state.add("lab/b:1", BuiltImage([layer(entry("a"))], platform=plan9))
    here = f"{HERE['os']}/{HERE['architecture']}"

    with pytest.raises(ImageNotFoundError, match=f"found images for plan9/mips; expected {here}"):
        get(store, registry, "lab/a:1")
    with pytest.raises(ImageNotFoundError, match=f"found an image for plan9/mips, expected {here}"):
        get(store, registry, "lab/b:1")


def test_a_manifest_of_docker(store: ImageStore, registry: RunningRegistry) -> None:
    image = small_image("a")
    registry.state.add("lab/a:1", image, docker_manifest(image))

    assert content(store, get(store, registry, "lab/a:1"), "a") == b"a"


def test_a_layer_on_other_layers_is_another_layer(store: ImageStore, registry: RunningRegistry) -> None:
    """The second layer removes everything in `d`, so that its folder depends on the layer beneath."""
    top = layer(entry("d/.wh..wh..opq"), entry("d/new", b"new"))
    for name in ("a", "b"):
        registry.state.add(f"lab/{name}:1", BuiltImage([layer(entry(f"d/{name}", b"x")), top]))
    one, two = get(store, registry, "lab/a:1").record, get(store, registry, "lab/b:1").record

    assert one.chains[1] != two.chains[1]
    assert all(store.is_complete(record) for record in (one, two))


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


def test_a_download_that_is_cut_goes_on_from_there(store: ImageStore, registry: RunningRegistry) -> None:
    (blob,) = map(digest, BIG.blobs)
    registry.state.add("lab/a:1", BIG)
    registry.state.cuts[blob] = [300_000, 400_000]
    progress = Counted()
    pull(store, parse_reference(f"{registry.host}/lab/a:1"), progress)

    starts = [one.headers.get("Range") for one in registry.state.asked(blob)]
    assert starts == [None, "bytes=300000-", "bytes=700000-"]
    assert progress.here == progress.size


def test_a_registry_that_cannot_resume_starts_again(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", BIG)
    registry.state.cuts[digest(BIG.blobs[0])] = [300_000]
    registry.state.resumes = False
    progress = Counted()
    pull(store, parse_reference(f"{registry.host}/lab/a:1"), progress)

    assert (progress.here, len(registry.state.asked(digest(BIG.blobs[0])))) == (progress.size, 2)


def test_a_failed_pull_leaves_its_bytes_for_the_next(
    store: ImageStore, registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.images.download._FIRST_PAUSE_SECONDS", 0.0)
    (blob,) = map(digest, BIG.blobs)
    registry.state.add("lab/a:1", BIG)
    registry.state.cuts[blob] = [300_000, *[0] * 5]
    with pytest.raises(RegistryUnreachableError, match=r"stopped at 300000 of \d+ bytes: .*goes on from there"):
        get(store, registry, "lab/a:1")
    registry.state.seen.clear()
    get(store, registry, "lab/a:1")

    assert [one.headers.get("Range") for one in registry.state.asked(blob)] == ["bytes=300000-"]


def test_wrong_bytes_are_fetched_again_once(store: ImageStore, registry: RunningRegistry) -> None:
    (blob,) = map(digest, BIG.blobs)
    registry.state.add("lab/a:1", BIG)
    registry.state.wrong[blob] = 1
    assert get(store, registry, "lab/a:1").new
    registry.state.add("lab/b:1", small_image("b"))
    wrong = digest(small_image("b").blobs[1])
    registry.state.wrong[wrong] = 2
    with pytest.raises(ImageError, match=f"the registry sent other bytes than the digest {wrong} says, twice"):
        get(store, registry, "lab/b:1")

    assert store.find(parse_reference(f"{registry.host}/lab/b:1")) is None


def test_a_damaged_part_of_an_earlier_download_does_no_harm(store: ImageStore, registry: RunningRegistry) -> None:
    (blob,) = map(digest, BIG.blobs)
    registry.state.add("lab/a:1", BIG)
    (store.blobs / f"{blob[7:]}.part").write_bytes(b"garbage" * 1000)

    assert get(store, registry, "lab/a:1").new


@pytest.mark.parametrize("date", [False, True])
def test_a_registry_may_ask_for_a_pause(store: ImageStore, registry: RunningRegistry, date: bool) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    after = formatdate(time.time() - 5, usegmt=True) if date else "0"
    registry.state.refusals = [(429, {"Retry-After": after}), (503, {})]

    assert get(store, registry, "lab/a:1").new
    assert len(registry.state.asked("/manifests/1")) == 3


def test_a_long_pause_is_left_to_the_user(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    registry.state.refusals = [(429, {"Retry-After": "3600"})]

    with pytest.raises(RegistryUnreachableError, match=r"too many requests \(429\).*try again in 3600 s"):
        get(store, registry, "lab/a:1")


def test_credentials_do_not_go_to_the_server_of_a_redirect(
    store: ImageStore, registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {registry.host: {"username": "ann", "password": "s3cret:word"}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    image = small_image("a")
    with running() as other:
        registry.state.add("lab/a:1", image)
        other.state.add("lab/a:1", image)
        registry.state.auth, registry.state.redirect = "basic", other.url
        done = get(store, registry, "lab/a:1")

    assert content(store, done, "a") == b"a"
    assert len(other.state.seen) == 3
    assert not [one for one in other.state.seen if "Authorization" in one.headers]
    assert [one for one in registry.state.asked("/blobs/") if "Authorization" in one.headers]


def test_a_redirect_without_end(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    registry.state.redirect = registry.url

    with pytest.raises(ImageError, match="found more than 5 redirects"):
        get(store, registry, "lab/a:1")


# -- what a registry may not send --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (b"{", "found a manifest that is not valid"),
        (b'{"schemaVersion": 1}', "found a manifest of version 1, expected version 2"),
        (manifest_of(b"x", [b"y"]).replace(digest(b"y").encode(), b"sha512:00"), "found the digest 'sha512:00'"),
        (
            manifest_of(b"x", [b"y"]).replace(b"layer.v1.tar+gzip", b"layer.v1.tar+encrypted"),
            "expected a tar archive",
        ),
    ],
    ids=["json", "old", "digest", "type"],
)
def test_manifests_that_are_refused(store: ImageStore, registry: RunningRegistry, manifest: bytes, error: str) -> None:
    registry.state.manifests["lab/a", "1"] = manifest

    with pytest.raises(ImageError, match=error):
        get(store, registry, "lab/a:1")


def test_another_manifest_than_the_digest_says(store: ImageStore, registry: RunningRegistry) -> None:
    name = registry.state.add("lab/a:1", small_image("a"))
    registry.state.manifests["lab/a", name] = small_image("b").manifest

    with pytest.raises(ImageError, match="the registry sent a manifest with the digest sha256:"):
        get(store, registry, f"lab/a@{name}")


def test_another_configuration_than_the_digest_says(store: ImageStore, registry: RunningRegistry) -> None:
    image = small_image("a")
    registry.state.add("lab/a:1", image)
    registry.state.blobs[digest(image.config)] = small_image("b").config

    with pytest.raises(ImageError, match=f"instead of {digest(image.config)}"):
        get(store, registry, "lab/a:1")


def test_layers_that_the_configuration_does_not_describe(store: ImageStore, registry: RunningRegistry) -> None:
    image = small_image("a")
    registry.state.add("lab/a:1", image, manifest_of(image.config, image.blobs[:1]))

    with pytest.raises(ImageError, match="the configuration describes 2 layers, and the manifest has 1"):
        get(store, registry, "lab/a:1")


# -- what does not exist -----------------------------------------------------------------------------------------------


def test_a_wrong_tag_shows_the_nearest(store: ImageStore, registry: RunningRegistry) -> None:
    for tag in ("2.7.0-cuda12", "2.7.0-cpu"):
        registry.state.add(f"lab/a:{tag}", small_image("a"))

    with pytest.raises(ImageNotFoundError) as caught:
        get(store, registry, "lab/a:2.7.0-cuda11")
    assert str(caught.value) == (
        f"{registry.host} has lab/a, but not with the tag '2.7.0-cuda11'; it has 2.7.0-cuda12, 2.7.0-cpu; "
        "did you mean `2.7.0-cuda12`?"
    )


def test_a_registry_that_is_not_there(store: ImageStore, registry: RunningRegistry) -> None:
    with running() as gone:
        pass
    with pytest.raises(RegistryUnreachableError) as caught:
        get(store, gone, "lab/a:1")
    assert str(caught.value).startswith(
        f"{gone.host}/lab/a:1 cannot be pulled: no answer from {gone.host}: Connection refused; check the name"
    )
    assert "`trainwright images load FILE`" in str(caught.value)


# -- several at the same time ------------------------------------------------------------------------------------------


def test_two_pulls_of_one_image_fetch_it_once(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    registry.state.gate = threading.Event()
    done: list[Pulled] = []
    threads = [threading.Thread(target=lambda: done.append(get(store, registry, "lab/a:1"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    registry.state.gate.set()
    for thread in threads:
        thread.join()

    assert sorted(one.new for one in done) == [False, True]
    assert len(registry.state.asked("/blobs/")) == 3


def test_a_killed_process_of_layers_is_an_error(store: ImageStore) -> None:
    with unpacker(store) as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ImageError, match="the process that unpacks layers was killed by signal 9"):
            process.unpack(digest(b"x"), (), [], lambda _: None)
