# SPDX-License-Identifier: Apache-2.0
"""Every example that is made to be run opens with how to run it, and is valid without a warning."""

import ast
import json
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from examples_driver import EXAMPLES

from trainwright.cli.main import run

FILES = sorted([EXAMPLES / "quickstart.yaml", *(EXAMPLES / "local").glob("*.yaml")])
each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def heading(path: Path) -> list[str]:
    """The comment that a file opens with."""
    return list(takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()))


def test_there_is_one_for_each_feature() -> None:
    assert [path.stem for path in FILES if path.parent != EXAMPLES] == [
        "checkpoint",
        "debug",
        "failure",
        "gang",
        "pause",
        "ports",
        "settings",
    ]


@each
def test_it_opens_with_what_it_shows_and_how_to_run_it(path: Path) -> None:
    assert 3 <= len(heading(path)) <= 8
    assert f"#   trainwright run {path.relative_to(EXAMPLES.parent).as_posix()}" in heading(path)
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 120] == []


@each
def test_its_job_is_called_like_the_file(path: Path) -> None:
    *_, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))

    assert job["metadata"]["name"] == path.stem


@each
def test_it_is_valid_without_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(path)]) == 0
    assert "0 invalid, 0 warnings" in capsys.readouterr().out


@each
def test_it_can_be_planned(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-o", "json", str(path)]) == 0
    phases = [step["phase"] for step in json.loads(capsys.readouterr().out)["steps"]]
    assert phases[0] == ("Paused" if path.stem == "pause" else "Pending")
    assert phases[-1] == ("Running" if path.stem == "debug" else "Succeeded")


@each
def test_any_python_of_today_can_read_its_programs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "-o", "json", str(path)])
    pods = [body for body in json.loads(capsys.readouterr().out)["objects"] if body["kind"] == "Pod"]
    commands = [container["command"] for pod in pods for container in pod["spec"]["containers"]]

    for command in commands:
        if command[:2] == ["python3", "-uc"]:
            ast.parse(command[2], feature_version=(3, 8))
    assert {command[0] for command in commands} == {"sleep" if path.stem == "debug" else "python3"}
