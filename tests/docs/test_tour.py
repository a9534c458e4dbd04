# SPDX-License-Identifier: Apache-2.0
"""The tour and CONTRIBUTING name functions and files: each of them exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: `module.name` with the file that it links to.
LINKS = re.findall(r"\[`([\w.]+)`\]\(\.\./src/trainwright/([\w/]+)\.py\)", TOUR)
#: Files of the source tree that CONTRIBUTING names.
PLACES = sorted(set(re.findall(r"`(\w+(?:/\w+)+\.py)`", CONTRIBUTING)))


@pytest.mark.parametrize(("name", "file"), LINKS)
def test_the_tour_names_what_exists(name: str, file: str) -> None:
    path = file.removesuffix("/__init__").replace("/", ".")
    assert name.startswith(f"{path}."), f"{name} is not in {file}.py"
    found = import_module(f"trainwright.{path}")
    for part in name.removeprefix(f"{path}.").split("."):
        found = getattr(found, part)


def test_the_tour_has_links() -> None:
    assert len(LINKS) > 30


@pytest.mark.parametrize("file", PLACES)
def test_contributing_names_files_that_exist(file: str) -> None:
    assert (ROOT / "src/trainwright" / file).is_file()


def test_contributing_says_where_to_change_things() -> None:
    assert len(PLACES) >= 15


def test_contributing_shows_every_package() -> None:
    tree = re.findall(r"^ +(\w+)/ ", CONTRIBUTING, re.MULTILINE)
    source = ROOT / "src/trainwright"
    packages = {path.parent.name for path in source.rglob("__init__.py") if path.parent.parent != source / "kinds"}
    assert set(tree) == packages - {"trainwright"}
