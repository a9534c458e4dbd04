# SPDX-License-Identifier: Apache-2.0
"""Every command that the documents show works as shown, and every file they name is there.

A block of commands is a session: they run in order, from the root of the repository, with a state folder of their own;
one that ends with `&` goes on beside the others until the end of the block.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.cli.state import is_live

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
Session = tuple[str, ...]
#: How it is installed. These need a network; a test below does the same without one.
INSTALL: list[Session] = [
    ("pipx install .", "uv tool install ."),
    ("pip wheel --no-deps --wheel-dir dist .", "pipx install dist/trainwright-0.1.0-py3-none-any.whl"),
]
#: What an example keeps from one run to the next: it would be done one day, before the next command is typed.
SAVED = Path(f"/var/tmp/trainwright-pause-{os.getuid()}.json")  # noqa: S108 - as it is written there


def sessions() -> list[Session]:
    """The commands of each block, comments and prompts off."""
    found: dict[Session, None] = {}
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = (line.split(" #")[0].removeprefix("$ ").strip() for line in block.splitlines())
            found[tuple(line for line in lines if line)] = None
    return [session for session in found if session]


def commands() -> list[str]:
    return [line for session in sessions() for line in session]


RUNNABLE = [session for session in sessions() if all(line.startswith("trainwright ") for line in session)]


@pytest.mark.parametrize("session", RUNNABLE, ids=[" ; ".join(session) for session in RUNNABLE])
def test_the_commands_of_a_block_work_as_shown(session: Session, tmp_path: Path) -> None:
    env = os.environ | {"TRAINWRIGHT_STATE": str(tmp_path)}
    if any("pause.yaml" in line for line in session):
        SAVED.unlink(missing_ok=True)
    beside: list[subprocess.Popen[bytes]] = []
    try:
        for line in session:
            words = [sys.executable, "-m", "trainwright", *shlex.split(line.split(" | ", maxsplit=1)[0])[1:]]
            if words[-1] == "&":
                beside.append(subprocess.Popen(words[:-1], cwd=ROOT, env=env, stdout=subprocess.DEVNULL))
                wait_for_it(env)
            else:
                run(words, env)
    finally:
        if is_live(tmp_path / ".engine" / "lock"):  # a command of the block has failed
            subprocess.run(
                [sys.executable, "-m", "trainwright", "down", "--end", "--grace", "1s"], env=env, check=False
            )
        for process in beside:
            process.send_signal(signal.SIGINT)
        assert [process.wait(PATIENCE) for process in beside] == [process.returncode for process in beside]


def run(words: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
    assert done.stdout or "logs" in words  # a job may have printed nothing yet


def wait_for_it(env: dict[str, str]) -> None:
    """Until the run that was just started can be reached, and has a replica that runs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        words = [sys.executable, "-m", "trainwright", "get", "-o", "wide"]
        seen = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
        if "Running" in seen or "Paused" in seen:
            return
        time.sleep(0.1)
    raise AssertionError(f"it does not run: {seen}")


def test_every_make_command_shown_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {shlex.split(line)[1] for line in commands() if line.startswith("make ")}

    assert shown
    assert shown <= targets


def test_no_other_command_is_shown_and_no_block_mixes_them() -> None:
    others = [block for block in sessions() if not all(line.startswith(("trainwright ", "make ")) for line in block)]
    assert sorted(others) == sorted(INSTALL)
    assert [
        block for block in sessions() if block not in INSTALL and len({line.split()[0] for line in block}) > 1
    ] == []


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    """What `pipx` and `uv` do, without either and without a network: the wheel, a new environment, an empty folder."""
    dist, venv, folder = tmp_path / "dist", tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(dist), str(ROOT)], check=True, cwd=tmp_path)
    (wheel,) = dist.iterdir()
    assert INSTALL[1][1].endswith(f"/{wheel.name}")
    # As `pipx` does it: the new environment has no pip of its own, since to install one takes seconds.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", "--no-compile", str(wheel)], check=True)
    # What it depends on is borrowed from the environment of the tests, and our own sources are not.
    (place,) = venv.glob("lib/python3*/site-packages")
    borrowed = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    for path in [entry for folder_ in borrowed for entry in folder_.iterdir() if "trainwright" not in entry.name]:
        if not (place / path.name).exists() and path.suffix != ".pth":
            (place / path.name).symlink_to(path)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "TRAINWRIGHT_STATE": str(tmp_path / "state")}

    def trainwright(*words: str) -> str:
        how = {"cwd": folder, "env": env, "capture_output": True, "text": True, "timeout": 60, "check": False}
        done = subprocess.run([str(venv / "bin/trainwright"), *words], **how)  # type: ignore[call-overload]  # noqa: PLW1510 - it is among them
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        out: str = done.stdout
        return out

    assert "worker-0 | hello\n" in trainwright("run", "--", "python3", "-c", "print('hello')")
    assert "wrote job.yaml" in trainwright("init")
    assert "train succeeded" in trainwright("run", "job.yaml")


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    assert [link for link in targets if not (page.parent / link).exists()] == []
