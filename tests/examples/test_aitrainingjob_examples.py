# SPDX-License-Identifier: Apache-2.0
"""Every example of an AITrainingJob opens with how to run it, is valid without a warning, and can be planned."""

import ast
import json
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from examples_driver import EXAMPLES

from trainwright.cli.main import run

FILES = sorted((EXAMPLES / "aitrainingjob").glob("*.yaml"))
each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
#: Every value of a policy, and where it is set; what is not said counts as well.
POLICIES = {
    "restartPolicy": {"Always", "OnFailure", "OnNodeFail", "Never", "ExitCode", "OnNodeFailWithExitCode"},
    "restartScope": {"All", "Replica", "Pod"},
    "completePolicy": {"Any", "Rank0", "All", "None"},
    "failPolicy": {"Any", "Rank0", "All", "None"},
    "edlPolicy": {"Auto", "Manual", "Never"},
}


def job(path: Path) -> dict[str, dict[str, object]]:
    *_, body = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return dict(body)


@pytest.mark.parametrize("policy", POLICIES)
def test_there_is_one_for_each_policy(policy: str) -> None:
    roles = [role for path in FILES for role in job(path)["spec"]["replicaSpecs"].values()]  # type: ignore[attr-defined]

    assert {role[policy] for role in roles if policy in role} == POLICIES[policy]


@pytest.mark.parametrize(
    ("field", "values"),
    [("cleanPodPolicy", {"All", "None"}), ("completePolicy", {"Any"}), ("failPolicy", {"All", "None"})],
)
def test_there_is_one_for_each_policy_of_the_job(field: str, values: set[str]) -> None:
    assert {job(path)["spec"].get(field) for path in FILES} - {None} == values


@each
def test_it_opens_with_what_it_shows_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    heading = list(takewhile(lambda line: line.startswith("#"), lines))

    assert 3 <= len(heading) <= 8
    commands = [line for line in heading if line.startswith("#   trainwright run ")]
    assert [line.split()[-1] for line in commands] == [path.relative_to(EXAMPLES.parent).as_posix()]
    assert [line for line in lines if len(line) > 120] == []
    assert job(path)["metadata"]["name"] == path.stem


@each
def test_it_is_valid_without_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--strict", str(path)]) == 0
    assert "0 invalid, 0 warnings" in capsys.readouterr().out


@each
def test_it_can_be_planned_and_any_python_of_today_can_read_its_program(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "-o", "json", str(path)]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["steps"][0]["phase"] == "Pending"
    for pod in (body for body in planned["objects"] if body["kind"] == "Pod"):
        for container in pod["spec"]["containers"]:
            if container["command"][:2] == ["python3", "-uc"]:
                ast.parse(container["command"][2], feature_version=(3, 8))
