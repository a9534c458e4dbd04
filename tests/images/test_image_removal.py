# SPDX-License-Identifier: Apache-2.0
"""Images and layers are removed by name, size and age, and never while they are in use."""

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
from image_builder import BuiltImage, docker_archive, entry, layer

from trainwright.errors import ImageError, UsageError
from trainwright.images.archives import load
from trainwright.images.progress import SilentProgress
from trainwright.images.reference import parse_reference
from trainwright.images.removal import PruneLimits, choose, prune, remove, sweep
from trainwright.images.store import ImageRecord, ImageStore, folder_name

DAY = 86400.0
BASE = layer(entry("base", b"x" * 20000))
MANY = 1 << 40


def add(store: ImageStore, *names: str, days: float = 0, size: int = 1) -> ImageRecord:
    """An image of two layers, the lower one shared by all, that was last used some days ago."""
    file = store.root / "archive"
    file.write_bytes(docker_archive(BuiltImage([BASE, layer(entry(names[0], b"x" * size))]), *names))
    (one,) = load(store, str(file), None, SilentProgress())
    record = store.records / f"{one.record.id[7:]}.json"
    os.utime(record, (time.time() - days * DAY,) * 2)
    return one.record


def names(store: ImageStore) -> list[str]:
    return [parse_reference(name.reference).familiar() for image in store.images() for name in image.names]


def layers(store: ImageStore) -> set[str]:
    return {path.name for form in store.layers.iterdir() for path in form.iterdir()}


def folders(*records: ImageRecord) -> set[str]:
    return {folder_name(chain) for record in records for chain in record.chains}


def test_a_removed_image_takes_the_layers_that_no_other_has(store: ImageStore) -> None:
    add(store, "a:1")
    kept = add(store, "b:1")
    done = remove(store, ["a:1"])

    assert (names(store), layers(store)) == (["b:1"], folders(kept))
    assert (len(done.images), done.size > 0, done.swept) == (1, True, True)


def test_a_name_of_several_is_only_a_name(store: ImageStore) -> None:
    record = add(store, "a:1", "b:1")
    remove(store, ["a:1"])
    assert (names(store), layers(store)) == (["b:1"], folders(record))
    remove(store, [record.id[7:19]])
    assert (names(store), layers(store)) == ([], set())


def test_an_image_in_use_stays(store: ImageStore) -> None:
    record = add(store, "a:1", days=90)
    lock = store.use(record)
    assert lock is not None
    os.utime(store.records / f"{record.id[7:]}.json", (0, 0))
    with pytest.raises(ImageError, match="a:1 is in use by a running job; end the job first"):
        remove(store, ["a:1"])
    done = prune(store, PruneLimits(0, 1.0))
    assert ([len(done.images), len(done.skipped)], names(store), layers(store)) == ([0, 1], ["a:1"], folders(record))
    os.close(lock)

    assert len(prune(store, PruneLimits(0)).images) == 1
    assert layers(store) == set()
    assert store.use(record) is None


def test_the_least_recently_used_images_are_pruned_first(store: ImageStore) -> None:
    old = add(store, "old:1", days=3, size=50000)
    add(store, "oldest:1", days=4, size=50000)
    new = add(store, "new:1", size=50000)

    assert prune(store, PruneLimits(MANY)).images == ()
    prune(store, PruneLimits(160000))
    assert (names(store), layers(store)) == (["new:1", "old:1"], folders(old, new))
    os.close(store.use(old) or 0)  # a use makes it the youngest
    prune(store, PruneLimits(100000))
    assert names(store) == ["old:1"]


def test_old_images_are_pruned(store: ImageStore) -> None:
    add(store, "old:1", days=31)
    add(store, "new:1", days=29)

    assert len(choose(store, PruneLimits(MANY, 30 * DAY))) == 1
    assert names(store) == ["new:1", "old:1"]
    prune(store, PruneLimits(MANY, 30 * DAY))
    assert names(store) == ["new:1"]


def test_an_image_that_lost_its_name_is_pruned(store: ImageStore) -> None:
    add(store, "a:1", size=1)
    new = add(store, "a:1", size=2)
    assert len(store.images()) == 2
    prune(store, PruneLimits(MANY))

    assert layers(store) == folders(new)


def test_nothing_is_swept_while_a_process_adds_an_image(store: ImageStore) -> None:
    record = add(store, "a:1")
    with store.adding():
        done = remove(store, ["a:1"])
        assert (done.swept, layers(store)) == (False, folders(record))
    sweep(store)
    assert layers(store) == set()


def test_remains_of_killed_processes_are_swept(store: ImageStore) -> None:
    record = add(store, "a:1")
    form = store.layers / record.form
    dead, alive = form / ".new-dead", form / ".new-alive"
    for path in (dead, alive):
        (path / "work").mkdir(parents=True, mode=0o000)
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    young, old, whole = (store.blobs / name for name in ("1.part", "2.part", "3"))
    for path in (young, old, whole):
        path.touch()
    os.utime(old, (time.time() - 2 * DAY,) * 2)
    sweep(store)

    assert (dead.exists(), alive.exists()) == (False, True)
    assert (young.exists(), old.exists(), whole.exists()) == (True, False, False)
    assert layers(store) == folders(record) | {".new-alive"}
    os.close(lock)


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("lab/trian:1", "the store has no image 'lab/trian:1'; did you mean `lab/train:1`?"),
        ("zzz", "the store has no image 'zzz'; the store has lab/train:1"),
    ],
)
def test_an_unknown_name(store: ImageStore, word: str, error: str) -> None:
    add(store, "lab/train:1")
    with pytest.raises(UsageError) as caught:
        remove(store, [word])

    assert str(caught.value) == error


def test_an_image_in_use_keeps_its_form(store: ImageStore) -> None:
    """A store that was used without privileges before: its layers have another form."""
    here = add(store, "a:1").form
    other = "overlay-user" if here != "overlay-user" else "flat"
    shutil.rmtree(store.layers / other, ignore_errors=True)
    (store.layers / here).rename(store.layers / other)
    file = next(store.records.iterdir())
    file.write_bytes(file.read_bytes().replace(f'"form":"{here}"'.encode(), f'"form":"{other}"'.encode()))
    record = store.images()[0].record
    lock = store.use(record)
    assert lock is not None
    with pytest.raises(ImageError, match=f"a running job uses the image in the form '{other}'"):
        add(store, "a:1")
    os.close(lock)

    assert add(store, "a:1").form == here


def test_damaged_records_count_as_absent(store: ImageStore) -> None:
    record = add(store, "a:1")
    (store.records / f"{record.id[7:]}.json").write_bytes(b"{")

    assert (store.images(), store.find(parse_reference("a:1"))) == ([], None)


def test_a_layer_that_is_gone_makes_the_image_incomplete(store: ImageStore) -> None:
    record = add(store, "a:1")
    (store.layers / record.form / folder_name(record.chains[0])).rename(store.root / "away")

    assert store.find(parse_reference("a:1")) is None
    add(store, "a:1")
    assert store.find(parse_reference("a:1")) is not None


def test_a_folder_where_nothing_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="set TRAINWRIGHT_IMAGES to a folder in which you can write"):
        ImageStore(tmp_path / "file/images").prepare()
