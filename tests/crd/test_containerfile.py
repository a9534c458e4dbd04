# SPDX-License-Identifier: Apache-2.0
"""The Containerfile, as far as that needs no builder: it fits the repository and what the manifests expect of it.

`tests/cluster/test_cluster_install.py` builds it and runs what comes of it.
"""

import re
from fnmatch import fnmatch
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from trainwright import __version__
from trainwright.crd.install import InstallOptions, manifests

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
LINES = re.sub(r"\\\n", " ", TEXT).splitlines()


def told(word: str) -> list[str]:
    """What stands behind an instruction, wherever it is."""
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(f"{word} ")]


def sources() -> list[str]:
    copied = [words.split() for words in told("COPY") if not words.startswith("--from")]
    return [name for *names, _ in copied for name in names]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    rules = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]

    assert [name for name in sources() if not (ROOT / name).exists()] == []
    assert rules[1] == "*"
    assert sorted(kept) == sorted(sources())


def test_the_package_can_be_built_from_what_is_copied() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'^(?:readme = |license-files = \[|path = )"([^"]+)"', project, re.MULTILINE)

    assert len(named) == 3
    assert [name for name in named if not any(fnmatch(name, f"{source}*") for source in sources())] == []


def test_versions_agree() -> None:
    found = re.findall(r"trainwright:([\d.]+)", TEXT) + re.findall(r'image\.version="([^"]+)"', TEXT)
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    python = re.search(r"^ARG PYTHON=(\d+\.\d+)\.\d+-slim-\w+$", TEXT, re.MULTILINE)

    assert set(found) == {__version__}
    assert oldest
    assert python
    assert [int(part) for part in python[1].split(".")] >= [int(part) for part in oldest[1].split(".")]
    assert set(told("FROM")) == {"python:${PYTHON} AS build", "python:${PYTHON}"}


def test_packages_are_locked_and_hashed() -> None:
    installs = [line for line in told("RUN") if " install " in line]

    assert installs
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)


def test_only_what_building_needs_is_taken_out_again() -> None:
    """Everything in the lock file that is there for the sake of the extra `build`, and nothing else of it."""
    (step,) = [line for line in told("RUN") if " uninstall " in line]
    removed = set(step.partition("uninstall --yes")[2].partition("&&")[0].split())

    assert removed == _locked() - _closure("trainwright")


def _locked() -> set[str]:
    lock = (ROOT / "requirements" / "run.txt").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))


def _closure(name: str) -> set[str]:
    """What a distribution needs to run, and what that needs, as far as the lock file goes."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for text in requires(todo.pop()) or ():
            one = Requirement(text)
            if one.name.lower() in _locked() - found and (one.marker is None or one.marker.evaluate({"extra": ""})):
                found.add(one.name.lower())
                todo.append(one.name)
    return found


def test_it_runs_as_the_user_that_the_manifests_name_and_writes_nothing() -> None:
    deployment = next(
        body for body in manifests(InstallOptions(image="a", namespace="b")) if body["kind"] == "Deployment"
    )
    security = deployment["spec"]["template"]["spec"]["securityContext"]

    assert told("USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert told("ENTRYPOINT") == ['["trainwright"]']
    assert "PYTHONDONTWRITEBYTECODE=1" in TEXT
