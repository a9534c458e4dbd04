# SPDX-License-Identifier: Apache-2.0
"""`trainwright images` as users call it: root and an ordinary user, a terminal and a pipe, and kill -9 at any time."""

import json
import os
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from image_builder import BuiltImage, digest, docker_archive, entry, layer, small_image
from registry_server import RunningRegistry
from sandboxed import SOURCE, as_who, python

from patience import PATIENCE


def command(who: str) -> list[str]:
    """The command line as this user; skips the test if that user has no Python with our dependencies."""
    found = [*as_who(who), python(who) or "", "-m", "trainwright", "images"]
    tried = subprocess.run([*found, "--help"], env=environment(Path("/")), capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("this user has no Python with the dependencies of trainwright")
    return found


def environment(place: Path) -> dict[str, str]:
    """An environment with a store in this folder. Modules are found there by every Python of this version."""
    modules = f"{SOURCE}{os.pathsep}{sysconfig.get_path('purelib')}"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "PYTHONPATH": modules,
        "TRAINWRIGHT_IMAGES": f"{place}/images",
    }


class Images:
    """Runs `trainwright images` with one store."""

    def __init__(self, place: Path, who: str) -> None:
        self.place, self.command, self.env = place, command(who), environment(place)

    def __call__(self, *words: str, code: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        """Standard output and standard error."""
        done = subprocess.run(
            [*self.command, *words], env=self.env, input=stdin, capture_output=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode(), done.stderr.decode()

    def names(self) -> list[str]:
        return self("list", "-o", "name")[0].split()


@pytest.fixture
def images(place: Path, who: str) -> Images:
    return Images(place, who)


def test_the_life_of_an_image(images: Images, registry: RunningRegistry) -> None:
    image = small_image("a")
    name = registry.state.add("lab/a:1", image)
    full = f"{registry.host}/lab/a:1"

    assert images("list")[0] == f"no images in {images.place}/images; `trainwright images pull NAME` gets one\n"
    size = sum(map(len, image.blobs))
    assert images("pull", full) == (f"pulled {full} ({name})\n", f"{full}: 2 layers, {size} B\n")
    assert images("pull", full) == (f"up to date: {full} ({name})\n", "")
    assert (
        images("load", "-", stdin=docker_archive(image, "lab/b:2"))[0] == f"loaded lab/b:2 ({digest(image.config)})\n"
    )
    table = [line.split() for line in images("list")[0].splitlines()]
    short = digest(image.config)[7:19]
    assert [row[:5] for row in table] == [
        ["IMAGE", "ID", "LAYERS", "SIZE", "USED"],
        [full, short, "2", "20.0", "KiB"],
        ["lab/b:2", short, "2", "20.0", "KiB"],
    ]
    (listed,) = json.loads(images("list", "-o", "json")[0])
    assert (listed["digest"], listed["names"]) == (name, [full, "docker.io/lab/b:2"])
    assert images("prune", "--older-than", "1d", "--dry-run")[0] == "nothing to remove\n"
    assert images("rm", "lab/b:2")[0] == "freed 0 B\n"
    assert images("prune", "--max-size", "1", "--dry-run")[0] == f"would remove {full}\n"
    assert images("prune", "--max-size", "1")[0] == f"removed {full}\nfreed 20.0 KiB\n"
    assert images.names() == []


def test_errors_are_one_line_with_an_exit_code(images: Images, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))

    for words, code, text in [
        (["pull", "Busybox"], 2, "is not the name of an image"),
        (["pull", f"{registry.host}/lab/a:2"], 3, "has lab/a, but not with the tag '2'; it has 1"),
        (["load", "/nowhere.tar"], 2, "there is no such file"),
        (["rm", "nothing"], 2, "the store has no image 'nothing'; it is empty"),
        (["prune", "--max-size", "many"], 2, "is not a size"),
    ]:
        out, error = images(*words, code=code)
        assert (out, text in error) == ("", True), error
        assert "Traceback" not in error


def test_progress_bars_on_a_terminal(images: Images, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", BuiltImage([layer(entry("a", os.urandom(300_000)))]))
    master, slave = os.openpty()
    env = images.env | {"TERM": "xterm-256color", "COLUMNS": "120"}
    words = [*images.command, "pull", f"{registry.host}/lab/a:1"]
    process = subprocess.Popen(words, env=env, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 65536):
            shown += part
    except OSError:
        pass  # Linux reports the end of a terminal as an error
    finally:
        os.close(master)

    assert process.wait(PATIENCE) == 0
    assert (b"lab/a:1: downloaded" in shown, b"lab/a:1: unpacked" in shown) == (True, True)


def test_a_killed_pull_does_not_affect_the_next(images: Images, registry: RunningRegistry, place: Path) -> None:
    """The kills are spread over the time that a pull takes: while it asks, downloads, unpacks and removes."""
    blobs = [layer(*(entry(f"{number}/{name}", os.urandom(20_000)) for name in range(50))) for number in range(4)]
    registry.state.add("lab/a:1", BuiltImage(blobs))
    words = [*images.command, "pull", f"{registry.host}/lab/a:1"]
    begun = time.monotonic()
    images("pull", f"{registry.host}/lab/a:1")
    whole = time.monotonic() - begun
    for part in range(1, 9):
        images("prune", "--max-size", "0")
        process = subprocess.Popen(words, env=images.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole * part / 9)
        process.kill()
        process.wait()
        assert images.names() in ([], [f"{registry.host}/lab/a:1"])
    images("pull", f"{registry.host}/lab/a:1")
    assert images.names() == [f"{registry.host}/lab/a:1"]
    until_swept(images, place)


def until_swept(images: Images, place: Path) -> None:
    """Until a prune leaves only complete layers: a killed pull's process may still be ending."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        images("prune")
        left = list((place / "images/layers").glob("*/.new-*")) + list((place / "images/blobs").iterdir())
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(left)


def test_ctrl_c_ends_a_pull_that_waits_for_bytes(images: Images, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    registry.state.gate = threading.Event()
    process = subprocess.Popen(
        [*images.command, "pull", f"{registry.host}/lab/a:1"], env=images.env, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: bool(registry.state.asked("/blobs/")))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        registry.state.gate.set()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_a_list_imports_neither_ssl_nor_aiohttp(images: Images) -> None:
    code = "import sys; from trainwright.cli.main import run; run(['images', 'list']); "
    code += "print(sorted({'ssl', 'aiohttp', 'asyncio', 'rich'} & set(sys.modules)))"
    interpreter: Sequence[str] = images.command[: images.command.index("-m")]
    done = subprocess.run([*interpreter, "-c", code], env=images.env, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_full_disk(images: Images, who: str, registry: RunningRegistry, place: Path) -> None:
    if who == "user":
        pytest.skip("an ordinary user cannot mount a small disk")
    registry.state.add("lab/a:1", BuiltImage([layer(entry("a", bytes(3_000_000)))]))
    (place / "images").mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place / "images")]
    subprocess.run(mount, check=True)
    try:
        _, error = images("pull", f"{registry.host}/lab/a:1", code=3)
        assert f"the disk of {place}/images is full; remove images with `trainwright images prune`" in error
        assert images.names() == []
    finally:
        subprocess.run(["/bin/umount", str(place / "images")], check=True)


def test_ctrl_c_on_a_terminal_prints_no_traceback(images: Images, registry: RunningRegistry) -> None:
    """The terminal sends SIGINT to all processes of the command."""
    registry.state.add("lab/a:1", small_image("a"))
    registry.state.gate = threading.Event()
    words = [*images.command, "pull", f"{registry.host}/lab/a:1"]
    process = subprocess.Popen(words, env=images.env, stderr=subprocess.PIPE, process_group=0)
    try:
        wait_for(lambda: bool(registry.state.asked(digest(small_image("a").blobs[0]))))
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        registry.state.gate.set()

    assert (process.returncode, b"Traceback" in error) == (130, False), error


def test_names_are_completed(images: Images) -> None:
    images("load", "-", stdin=docker_archive(small_image("a"), "lab/b:2", "other:1"))
    words = [*images.command[: images.command.index("images")]]
    env = images.env | {
        "_TRAINWRIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": "trainwright images rm la",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == ["plain,lab/b:2"]


def test_a_store_on_overlayfs_has_flat_images(images: Images, who: str, place: Path) -> None:
    if who == "user":
        pytest.skip("an ordinary user cannot mount outside of a namespace")
    for name in ("lower", "upper", "work", "images"):
        (place / name).mkdir()
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    mount = f"mount -t overlay overlay -o {options} {place}/images"
    images.command[:0] = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    archive = docker_archive(small_image("a", "b"), "lab/a:1")
    _, notice = images("load", "-", stdin=archive)
    (listed,) = json.loads(images("list", "-o", "json")[0])
    files = {path.name for path in (place / "upper/layers/flat").glob("*/fs/**/*") if path.is_file()}

    assert "notice: the layers of each image are stored as one folder, since overlayfs cannot be used in" in notice
    assert (listed["form"], listed["layers"], files) == ("flat", 2, {"a", "b", "base"})
    assert "freed 20.0 KiB" in images("rm", "lab/a:1")[0]
    assert list((place / "upper/layers/flat").iterdir()) == []
