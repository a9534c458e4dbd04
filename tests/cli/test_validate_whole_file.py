# SPDX-License-Identifier: Apache-2.0
"""A part of a file that is no manifest hides no problem of the other parts, in `validate` and in `run`."""

from pathlib import Path

import msgspec
import pytest

from trainwright.cli.main import run

JOB = """\
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata:
  name: fine
spec:
  replicaSpecs:
    - type: worker
      template:
        spec:
          containers:
            - name: train
              image: python:3.12
"""
#: Two problems: on lines 6 and 8.
WRONG = JOB.replace("spec:\n  rep", "spec:\n  cleanUpPolicy: Most\n  rep").replace(
    "worker\n", "worker\n      replicas: -1\n"
)
BAD_YAML = "apiVersion: v1\nkind: [\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "job.yaml"


def places(text: str) -> list[str]:
    """`FILE:LINE` of every error."""
    return [line.partition(": error: ")[0] for line in text.splitlines() if ": error: " in line]


def test_problems_before_a_syntax_error_are_reported_before_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{WRONG}---\n{BAD_YAML}", encoding="utf-8")

    assert run(["validate", "job.yaml"]) == 2
    told = capsys.readouterr().out
    assert places(told)[:2] == ["job.yaml:6", "job.yaml:9"]
    assert len(places(told)) == 3
    assert ": error: document 2: not valid YAML" in told.splitlines()[2]
    assert told.splitlines()[-1] == "0 documents valid, 2 invalid, 0 warnings"


def test_a_duplicate_key_before_a_syntax_error_in_the_same_document(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("a: 1\na: 2\nb: [\n", encoding="utf-8")

    assert run(["validate", "job.yaml"]) == 2
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "job.yaml:2: error: document 1: key 'a' is given twice, on lines 1 and 2"
    assert "document 1: not valid YAML" in second


def test_duplicate_keys_hide_no_other_problem(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = WRONG.replace("name: fine", "name: other\n  name: fine").replace("image:", "image: a\n              image:")
    file.write_text(text, encoding="utf-8")

    assert run(["validate", "job.yaml"]) == 2
    told = capsys.readouterr().out
    assert places(told) == ["job.yaml:5", "job.yaml:7", "job.yaml:10", "job.yaml:16"]
    assert "(GenericJob default/fine): key 'name' is given twice, on lines 4 and 5" in told, "the last value counts"


def test_a_duplicate_key_in_an_item_of_a_list_belongs_to_that_item(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("apiVersion: v1\nkind: List\nitems:\n- kind: A\n- kind: B\n  kind: C\n", encoding="utf-8")

    assert run(["validate", "-o", "json", "job.yaml"]) == 2
    found = msgspec.json.decode(capsys.readouterr().out)["documents"]
    repeated = [any("given twice" in one["message"] for one in finding["problems"]) for finding in found]
    assert repeated == [False, True]


def test_more_duplicate_keys_than_anybody_reads(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("a: 1\n" * 5000, encoding="utf-8")

    assert run(["validate", "job.yaml"]) == 2
    assert 100 <= capsys.readouterr().out.count("is given twice") <= 101


def test_a_document_that_is_a_list_hides_no_other_document(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"- 1\n---\n{WRONG}---\nkind: TFJobs\napiVersion: kubeflow.org/v1\n", encoding="utf-8")

    assert run(["validate", "job.yaml"]) == 2
    told = capsys.readouterr().out
    assert places(told)[:4] == ["job.yaml:1", "job.yaml:8", "job.yaml:11", "job.yaml:18"]
    assert "document 1: expected a mapping that begins with `apiVersion:`, found a list of 1" in told
    assert "document 3: kind: 'TFJobs'" in told


@pytest.mark.parametrize(
    "broken", [pytest.param("- 1\n", id="a list"), pytest.param("a: 1\na: 2\n", id="duplicate key")]
)
def test_run_reports_every_problem_and_starts_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    file.write_text(f"{broken}---\n{WRONG}---\n{broken}", encoding="utf-8")

    assert run(["run", "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert "spec.cleanUpPolicy: expected one of" in told
    assert "spec.replicaSpecs[0].replicas: expected" in told
    word = "expected a mapping that begins" if broken == "- 1\n" else "is given twice"
    assert "document 1: " in told
    assert f"document 3: {word}" in told.replace("key 'a' ", "")
