# SPDX-License-Identifier: Apache-2.0
"""Every example says how to run it, loads without a word, and comes to its end as its first lines promise."""

import ast
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from tfjob_driver import Driver, conditions

from trainwright.kinds.base import load
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Body

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted((EXAMPLES / "tfjob").glob("*.yaml"))
each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
#: Whose success is the job's.
DECIDES = {"alpha": ["master-0"], "dist-mnist": ["chief-0"], "smoke": ["worker-0", "worker-1"]}


def document(path: Path) -> Body:
    documents: list[Body] = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    job = documents[-1]
    return job | {"metadata": job["metadata"] | {"uid": "uid", "generation": 1, "namespace": "lab"}}


def test_there_is_one_for_each_way_to_train() -> None:
    names = ["alpha", "dist-mnist", "dynamic", "mnist", "multi-worker", "simple", "smoke"]
    assert [path.stem for path in FILES] == names


@each
def test_it_opens_with_what_it_shows_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    heading = list(takewhile(lambda line: line.startswith("#"), lines))

    assert 3 <= len(heading) <= 8
    assert f"#   trainwright run {path.relative_to(EXAMPLES.parent).as_posix()}" in heading
    assert [line for line in lines if len(line) > 120] == []
    assert document(path)["metadata"]["name"] == path.stem


@each
def test_it_loads_without_a_word(path: Path) -> None:
    assert load(TFJOB, document(path)).problems == ()


@each
def test_any_python_of_today_can_read_its_programs(path: Path) -> None:
    for one in document(path)["spec"]["tfReplicaSpecs"].values():
        for container in one["template"]["spec"]["containers"]:
            assert container["command"][:2] == ["python3", "-uc"]
            ast.parse(container["command"][2], feature_version=(3, 8))


@each
def test_it_comes_to_its_end(path: Path) -> None:
    body = document(path)
    body["metadata"]["name"] = "demo"
    driver = Driver(body).running()

    assert conditions(driver.end(*DECIDES.get(path.stem, ["worker-0"])))[-1] == "Succeeded"
