# SPDX-License-Identifier: Apache-2.0
"""Builds an image as a Containerfile says, line by line, where there is no builder: each RUN in a chroot, as root.

It knows what ours needs and refuses the rest. FROM is answered with the Python of `cluster_python`, whatever version it
names. `cluster_container`'s node takes what comes of it.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cluster_binaries import MissingError
from cluster_python import python_root
from msgspec import Struct, field

#: Of this machine, for pip.
_PASSED = re.compile(r"PIP_|SSL_|.*_proxy$|.*_PROXY$")
_USUAL = "/usr/local/bin:/usr/bin:/bin"
Config = dict[str, Any]


class Step(Struct, frozen=True):
    """One instruction: `RUN`, and what stands behind it."""

    word: str
    rest: str


class Stage(Struct):
    """One image in the making."""

    root: Path
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    config: Config = field(default_factory=dict)


def steps(text: str) -> list[Step]:
    """The instructions of a Containerfile, arguments filled in."""
    whole = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    found: list[Step] = []
    arguments: dict[str, str] = {}
    for line in (line.strip() for line in whole.splitlines() if line.strip()):
        word, _, rest = line.partition(" ")
        rest = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], " ".join(rest.split()))
        if word == "ARG":
            name, _, arguments[name] = rest.partition("=")
        found.append(Step(word, rest))
    return found


def build(containerfile: Path, context: Path, work: Path, busybox: Path) -> Stage:
    """The last stage. A step that fails says what it printed; MissingError if that was for want of packages."""
    python_root(base := work / "base", busybox)
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for step in steps(containerfile.read_text()):
        match step.word:
            case "ARG":
                pass
            case "FROM":
                name = step.rest.rpartition(" AS ")[2]
                shutil.copytree(base, work / f"stage-{len(stages)}", symlinks=True, ignore=_no_devices)
                stage = stages[name] = Stage(work / f"stage-{len(stages)}")
                os.mknod(stage.root / "dev" / "null", 0o20666, os.makedev(1, 3))
            case _:
                _do(stage, step, context, stages)
    return stage


def _no_devices(_folder: str, names: list[str]) -> set[str]:
    return {"null"} & set(names)


def _do(stage: Stage, step: Step, context: Path, stages: dict[str, Stage]) -> None:
    match step.word:
        case "WORKDIR":
            stage.workdir = step.rest
            _inside(stage, step.rest).mkdir(parents=True, exist_ok=True)
        case "COPY":
            _copy(stage, step.rest.split(), context, stages)
        case "RUN":
            _run(stage, step.rest)
        case "ENV":
            stage.env |= pairs(step.rest)
        case "LABEL":
            stage.config["Labels"] = pairs(step.rest)
        case "USER":
            stage.config["User"] = step.rest
        case "ENTRYPOINT" | "CMD":
            stage.config[{"ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}[step.word]] = json.loads(step.rest)
        case word:
            raise ValueError(f"{word} is not known here")


def pairs(text: str) -> dict[str, str]:
    """`a=b c="d e"`."""
    return {name: value.strip('"') for name, value in re.findall(r'(\S+?)=("[^"]*"|\S+)', text)}


def _inside(stage: Stage, path: str) -> Path:
    """Where a path of the image is on this machine."""
    return stage.root / os.path.normpath(PurePosixPath(stage.workdir, path)).lstrip("/")


def _copy(stage: Stage, words: list[str], context: Path, stages: dict[str, Stage]) -> None:
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    for name in names:
        path, to = source / name.lstrip("/"), _inside(stage, target)
        if path.is_dir():
            shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            to = to / path.name if target.endswith("/") else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)


def _run(stage: Stage, script: str) -> None:
    passed = {key: value for key, value in os.environ.items() if _PASSED.match(key)}
    words = ["chroot", str(stage.root), "/bin/sh", "-ec", f"cd {stage.workdir}; {script}"]
    env = {"PATH": f"{_USUAL}:{os.defpath}:/usr/sbin", "HOME": "/root", **passed, **stage.env}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode and "Could not find a version" in done.stderr + done.stdout:
        raise MissingError(f"an image cannot be built: pip finds no packages: {done.stderr.strip().splitlines()[-1]}")
    if done.returncode:
        raise AssertionError(f"RUN {script}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")


# -- the image -----------------------------------------------------------------------------------------------------


def pack(stage: Stage, names: Sequence[str], to: Path) -> Path:
    """The image, under each of these names, as `ctr image import` takes it."""
    layer = to.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(stage.root, ".", filter=_plain)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    env = [f"{key}={value}" for key, value in ({"PATH": _USUAL} | stage.env).items()]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {**stage.config, "Env": env, "WorkingDir": stage.workdir},
    }
    (parts := to.with_suffix(".parts")).mkdir()
    (parts / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]
    (parts / "manifest.json").write_text(json.dumps(manifest))
    layer.rename(parts / "layer.tar")
    with tarfile.open(to, "w") as tar:
        for part in sorted(parts.iterdir()):
            tar.add(part, part.name)
    shutil.rmtree(parts)
    return to


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Everything is root's, and a node makes its own devices."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return None if entry.ischr() else entry
