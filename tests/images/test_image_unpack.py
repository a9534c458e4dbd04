# SPDX-License-Identifier: Apache-2.0
"""Layers are unpacked as the image specification says, by root and by an ordinary user, and cannot leave their root."""

import errno
import shutil
import stat
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from image_builder import entry, folder, hard_link, layer, symlink
from unpacked import SeenEntry, remove_layers, unpack

REG, DIR, LNK, FIFO = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO
LONG = "n" * 130 + "/" + "m" * 140
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)

BASE = layer(
    folder("d"),
    entry("d/old", b"old"),
    folder("opaque"),
    entry("opaque/old", b"old"),
    folder("remade"),
    entry("remade/old", b"old"),
    folder("strict", 0o555),
    folder("usr"),
    folder("usr/lib"),
    symlink("lib", "usr/lib"),
    entry("file-to-folder", b"file"),
    folder("folder-to-file"),
    entry("folder-to-file/inner", b"x"),
    entry("gone", b"gone"),
    entry("linked", b"linked"),
    folder("tree/one/two"),
    entry("tree/one/two/three", b"3"),
    symlink("was-link", "usr"),
)
CHANGES = layer(
    entry(".wh.gone"),
    entry(".wh.tree"),
    entry("opaque/new", b"new"),
    entry("opaque/.wh..wh..opq"),
    entry("opaque/later", b"later"),
    entry(".wh.remade"),
    folder("remade"),
    entry("remade/new", b"new"),
    entry("strict/new", b"new"),
    entry("lib/through-link", b"lib"),
    folder("file-to-folder"),
    entry("file-to-folder/inner", b"x"),
    entry("folder-to-file", b"file"),
    hard_link("other-name", "linked"),
    folder("was-link"),
    entry("d/.wh.new"),
    entry("d/new", b"kept"),
    entry("unlisted/parent/file", b"x"),
)
EXPECTED = {
    "d/old": "old",
    "d/new": "kept",
    "opaque/new": "new",
    "opaque/later": "later",
    "remade/new": "new",
    "strict/new": "new",
    "usr/lib/through-link": "lib",
    "lib": "usr/lib",
    "file-to-folder/inner": "x",
    "folder-to-file": "file",
    "linked": "linked",
    "other-name": "linked",
    "unlisted/parent/file": "x",
}


def texts(seen: dict[str, SeenEntry]) -> dict[str, str]:
    return {path: one.text for path, one in seen.items() if one.kind != DIR}


def test_the_changes_of_a_layer(place: Path, who: str) -> None:
    done = unpack(place, who, [BASE, CHANGES])
    seen = done.look()

    assert done.form == ("overlay" if who == "root" else "overlay-user")
    assert texts(seen) == EXPECTED
    assert (seen["strict"].mode, seen["unlisted"].mode, seen["was-link"].kind) == ("0o555", "0o755", DIR)
    assert (seen["linked"].links, seen["other-name"].links) == (2, 2)


def test_a_flat_root_has_the_same_files(place: Path, who: str) -> None:
    """The store is on overlayfs, which cannot be the upper folder of an overlay: the usual case within a container."""
    if who == "user":
        pytest.skip("an ordinary user cannot mount outside of a namespace")
    for name in ("lower", "upper", "work", "layers"):
        (place / name).mkdir()
    mount = (
        f"mount -t overlay overlay -o lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work {place}/layers"
    )
    under = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    done = unpack(place, who, [BASE, CHANGES], under=under, form="flat")

    assert (done.form, "overlayfs cannot be used" in done.answers[0]["reason"]) == ("flat", True)
    shutil.rmtree(place / "layers")
    (place / "upper").rename(place / "layers")
    assert texts(done.look()) == EXPECTED


def test_owners_modes_times_attributes_and_special_files(place: Path, who: str) -> None:
    seen = unpack(
        place,
        who,
        [
            layer(
                folder(".", 0o711, mtime=5),
                folder("times", 0o1777, mtime=77),
                entry("times/inner", b"x", mtime=88),
                entry("setuid", b"x", mode=0o4755, uid=200000, gid=42),
                entry("attribute", b"x", xattrs={"user.color": b"blue"}),
                entry("capable", b"x", mode=0o755, xattrs={"security.capability": CAPABILITY}),
                entry("hostile", b"x", xattrs={"user.overlay.opaque": b"y", "trusted.overlay.redirect": b"/etc"}),
                entry("fifo", type=tarfile.FIFOTYPE, mode=0o622),
                entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
                entry("whiteout", type=tarfile.CHRTYPE, devmajor=0, devminor=0),
                entry(f"{LONG}/file", b"long"),
                entry("caf\u00e9", b"utf-8"),
            )
        ],
    ).look()
    mine = (0, 0) if who == "root" else (place.stat().st_uid, place.stat().st_gid)

    assert (seen["."].mode, seen["."].mtime) == ("0o711", 5)
    assert (seen["times"].mode, seen["times"].mtime, seen["times/inner"].mtime) == ("0o1777", 77, 88)
    assert seen["setuid"].mode == "0o4755"
    assert (seen["setuid"].uid, seen["setuid"].gid) == ((200000, 42) if who == "root" else mine)
    assert seen["attribute"].attributes == ("user.color",)
    assert seen["capable"].attributes == (("security.capability",) if who == "root" else ())
    assert seen["hostile"].attributes == ()
    assert (seen["fifo"].kind, seen["fifo"].mode) == (FIFO, "0o622")
    assert {"null", "whiteout"} & set(seen) == set()
    assert (seen[f"{LONG}/file"].text, seen["caf\u00e9"].text) == ("long", "utf-8")


def test_a_layer_without_its_root_keeps_the_root_beneath(place: Path, who: str) -> None:
    seen = unpack(place, who, [layer(folder(".", 0o750, mtime=7)), layer(entry("file", b"x"))]).look()

    assert seen["."].mode == "0o750"


@pytest.mark.parametrize(
    "name",
    ["../../escaped", "/escaped", "a/../../../escaped", "inside/escaped"],
    ids=["dots", "absolute", "inner", "link"],
)
def test_names_and_links_stay_inside(place: Path, who: str, name: str) -> None:
    seen = unpack(place, who, [layer(symlink("inside", "../../../.."), entry(name, b"x"))]).look()

    assert texts(seen) == {"inside": "../../../..", "escaped": "x"}
    assert not [path for path in place.rglob("escaped") if "layers" not in path.parts]


def test_an_absolute_link_leads_to_the_root_of_the_image(place: Path, who: str) -> None:
    target = place / "outside"
    target.mkdir()
    target.chmod(0o777)
    done = unpack(place, who, [layer(symlink("way", str(target))), layer(entry("way/file", b"x"))])

    assert "symbolic link to something that the image does not have" in done.error
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ([layer(entry(".wh.."))], "a whiteout of '.'"),
        ([layer(folder("a"), entry("a/.wh..."))], "a whiteout of '..'"),
        ([layer(hard_link("a", "missing"))], "hard link to 'missing', which the image does not have"),
        ([layer(hard_link("a", "../../../../../../etc/passwd"))], "which the image does not have"),
        ([layer(entry("a", b"x" * 9000))[:5000]], "ends in the middle of a file"),
        ([b"no archive " * 100], "not a tar archive"),
        ([b"\x1f\x8b" + b"broken" * 100], "the gzip data is damaged"),
        ([layer(entry("x" * 300, b"x"))], "File name too long"),
        ([layer(entry("d/" * 300 + "x", b"x"))], "folders within folders"),
        ([layer(entry("a", b"x"), entry("a/b", b"x"))], "Not a directory"),
        ([entry("a", size=-512)[0].tobuf(tarfile.GNU_FORMAT) + bytes(2048)], "a negative size"),
    ],
    ids=["dot", "dots", "link", "escape", "cut", "text", "gzip", "name", "deep", "file", "size"],
)
def test_hostile_and_damaged_layers_are_refused(place: Path, who: str, layers: list[bytes], error: str) -> None:
    done = unpack(place, who, layers)

    assert error in done.error
    assert [path.name for path in (place / "layers" / done.form).iterdir()] == []


def test_other_bytes_than_the_image_expects_are_refused(place: Path, who: str) -> None:
    wrong = f"sha256:{'0' * 64}"
    done = unpack(place, who, [layer(entry("a", b"x"))], ids=[wrong])

    assert done.error.startswith("the unpacked layer has the checksum sha256:")
    assert done.error.endswith(f"and the image expects {wrong}")
    assert [path.name for path in (place / "layers" / done.form).iterdir()] == []


def test_127_layers(place: Path, who: str) -> None:
    layers = [layer(entry(f"file-{number}", b"x"), entry("same", str(number).encode())) for number in range(127)]
    seen = unpack(place, who, layers).look()

    assert len(texts(seen)) == 128
    assert seen["same"].text == "126"


def test_the_owner_can_remove_what_was_unpacked(place: Path, who: str) -> None:
    """Also folders that nobody may read or change."""
    closed = layer(
        folder("closed", 0o000), entry("closed/file", b"x"), folder("strict", 0o555), entry("strict/file", b"x")
    )
    done = unpack(place, who, [closed, layer(entry(".wh.closed"), entry("strict/new", b"x"))])
    assert not done.error
    remove_layers(place, who)

    assert not (place / "layers").exists()


def test_a_full_disk_leaves_nothing(place: Path, who: str) -> None:
    if who == "user":
        pytest.skip("an ordinary user cannot mount a small disk")
    (place / "layers").mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place / "layers")], check=True)
    try:
        done = unpack(place, who, [layer(entry("small", b"x")), layer(entry("large", b"x" * 1_000_000))])
        left = [path.name for path in (place / "layers" / done.form).iterdir() if path.name.startswith(".")]
    finally:
        subprocess.run(["/bin/umount", str(place / "layers")], check=True)

    assert (done.answers[-1]["errno"], left) == (errno.ENOSPC, [])


def test_root_of_a_user_namespace(place: Path, who: str) -> None:
    """For example in a container of rootless podman: it may mount, but has neither all ids nor all attributes."""
    if who == "user":
        pytest.skip("this is about root")
    owned = layer(entry("file", b"x", uid=200000, gid=42), symlink("link", "file"), folder("d"), entry("d/old", b"x"))
    done = unpack(
        place, who, [owned, layer(entry(".wh.d"), folder("d"), entry("d/new", b"x"))], under=["unshare", "-Urm"]
    )

    assert done.form == "overlay-user"
    assert texts(done.look()) == {"file": "x", "link": "file", "d/new": "x"}
