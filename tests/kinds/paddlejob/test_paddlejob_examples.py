# SPDX-License-Identifier: Apache-2.0
"""Every example says how to run it, loads without a word, and comes to its end as its first lines promise."""

import ast
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from paddlejob_driver import Driver

from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.model.job import Body

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted((EXAMPLES / "paddlejob").glob("*.yaml"))
each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
#: What else has to be said to run it here.
OPTIONS = {"elastic": "--etcd-server HOST:PORT ", "resnet": "--gpus 2 "}
#: The two whose names the documents spell so.
NAMES = {"design": "wide-ande-deep", "overview": "wide-and-deep"}


def document(path: Path) -> Body:
    documents: list[Body] = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    job = documents[-1]
    return job | {"metadata": job["metadata"] | {"uid": "uid", "generation": 1, "namespace": "lab"}}


def programs(path: Path) -> list[str]:
    """Those in commands, and those in a ConfigMap beside the job."""
    *beside, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    found = [text for body in beside for name, text in (body.get("data") or {}).items() if name.endswith(".py")]
    roles = [job["spec"][role] for role in ("ps", "worker") if role in job["spec"]]
    commands = [container["command"] for role in roles for container in role["template"]["spec"]["containers"]]
    return found + [words[-1] for words in commands if "-uc" in words]


def test_there_is_one_for_each_of_the_originals_and_of_its_documents() -> None:
    wide = ["wide_and_deep", "wide_and_deep_podip", "wide_and_deep_service", "wide_and_deep_volcano"]
    assert [path.stem for path in FILES] == ["deepfm", "design", "elastic", "overview", "resnet", "simple", *wide]


@each
def test_it_opens_with_what_it_shows_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    heading = list(takewhile(lambda line: line.startswith("#"), lines))

    assert 3 <= len(heading) <= 8
    options, file = OPTIONS.get(path.stem, ""), path.relative_to(EXAMPLES.parent).as_posix()
    assert f"#   trainwright run {options}{file}" in heading
    assert [line for line in lines if len(line) > 120] == []
    assert document(path)["metadata"]["name"] == NAMES.get(path.stem, path.stem.replace("_", "-"))


@each
def test_it_loads_without_a_word(path: Path) -> None:
    assert load(PADDLEJOB, document(path)).problems == ()


@each
def test_any_python_of_today_can_read_its_programs(path: Path) -> None:
    texts = programs(path)

    for text in texts:
        ast.parse(text, feature_version=(3, 8))
    assert texts or path.stem == "simple"  # which has Paddle's own


@each
def test_it_comes_to_its_end(path: Path) -> None:
    body = document(path)
    body["metadata"]["name"] = "demo"
    driver = Driver(body)
    driver.run()
    workers = [name.removeprefix("demo-") for name in driver.pods() if "-worker-" in name]
    servers = [name.removeprefix("demo-") for name in driver.pods() if "-ps-" in name]
    by_workers = body["spec"].get("runPolicy", {}).get("successPolicy") == "Workers"

    assert driver.phase == "Running"
    assert driver.end(*workers)["phase"] == ("Completed" if by_workers or not servers else "Running")
    if not by_workers:
        assert driver.end(*servers)["phase"] == "Completed"
