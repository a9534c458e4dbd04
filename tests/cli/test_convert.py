# SPDX-License-Identifier: Apache-2.0
"""`trainwright convert`: what it writes where, its exit codes, and a run of what it has written."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_command import CommandRunner

from trainwright.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples"
XGBOOST, TIMED = str(EXAMPLES / "xgboostjob" / "simple.yaml"), str(EXAMPLES / "jaxjob" / "psum.yaml")
Body = dict[str, Any]
SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1\n2\n"}}


class Convert:
    """The command, in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        code = run(["convert", *words])
        return code, *self._capsys.readouterr()

    def file(self, *bodies: Body) -> str:
        path = self.folder / "jobs.yaml"
        path.write_text(yaml.safe_dump_all(bodies), encoding="utf-8")
        return str(path)


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    return Convert(tmp_path, capsys)


def job(file: str) -> Body:
    found: Body = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    return found


def test_a_job_without_losses_is_printed(convert: Convert) -> None:
    code, out, err = convert(XGBOOST)

    assert code == 0
    assert yaml.safe_load(out)["kind"] == "GenericJob"
    assert "          - |\n            import os, socket, time\n" in out
    assert [line for line in err.splitlines() if ": note: " not in line] == []


def test_losses_are_warnings_with_line_and_path_and_nothing_is_written(convert: Convert) -> None:
    code, out, err = convert(TIMED)

    assert (code, out) == (1, "")
    where = next(at for at, line in enumerate(Path(TIMED).read_text().splitlines(), 1) if "backoffLimit" in line)
    assert err.startswith(
        f"{TIMED}:{where}: warning: spec.runPolicy.backoffLimit: all replicas together may be restarted"
    )
    assert err.endswith(
        "nothing is written, because something would be lost; to write the manifest anyway, give --lossy\n"
    )


def test_lossy_writes_it_anyway(convert: Convert) -> None:
    code, out, err = convert(TIMED, "--lossy")

    assert code == 0
    assert yaml.safe_load(out)["kind"] == "GenericJob"
    assert ": warning: spec.runPolicy.backoffLimit: " in err


def test_a_job_that_the_kind_cannot_have_is_never_written(convert: Convert) -> None:
    code, out, err = convert(TIMED, "--to", "xgboostjob", "--lossy")

    assert (code, out) == (1, "")
    assert "warning: spec: the result would be no valid XGBoostJob: spec.xgbReplicaSpecs.Master: must be present" in err
    assert "the new kind cannot have such a job at all" in err


def test_every_job_is_converted_and_other_objects_stay(convert: Convert) -> None:
    file = convert.file(SETTINGS, job(XGBOOST), job(str(EXAMPLES / "tfjob" / "alpha.yaml")))
    code, out, _ = convert(file)

    assert code == 0
    first, *others = yaml.safe_load_all(out)
    assert first == SETTINGS
    assert [one["kind"] for one in others] == ["GenericJob", "GenericJob"]


def test_one_lossy_job_of_several_stops_all(convert: Convert) -> None:
    code, out, _ = convert(convert.file(job(XGBOOST), job(TIMED)))

    assert (code, out) == (1, "")


def test_json_has_one_object_or_a_list(convert: Convert) -> None:
    assert json.loads(convert("-o", "json", XGBOOST)[1])["kind"] == "GenericJob"
    whole = json.loads(convert("-o", "json", convert.file(SETTINGS, job(XGBOOST)))[1])

    assert (whole["kind"], [one["kind"] for one in whole["items"]]) == ("List", ["ConfigMap", "GenericJob"])


def test_standard_input(convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(TIMED).read_bytes())))

    code, _, err = convert("-")
    assert code == 1
    assert err.startswith("stdin:")


def test_a_file_is_replaced_only_with_force(convert: Convert) -> None:
    target = convert.folder / "new.yaml"
    assert convert(XGBOOST, "--write", str(target))[:2] == (0, "")
    first = target.read_text()
    assert yaml.safe_load(first)["kind"] == "GenericJob"
    target.write_text("mine")

    code, _, err = convert(XGBOOST, "--write", str(target))
    assert code == 2
    assert err.endswith(f"trainwright: {target} already exists; to replace it, give --force\n")
    assert target.read_text() == "mine"
    assert convert(XGBOOST, "--write", str(target), "--force")[0] == 0
    assert target.read_text() == first


def test_a_file_that_cannot_be_written(convert: Convert) -> None:
    code, _, err = convert(XGBOOST, "--write", str(convert.folder / "none" / "new.yaml"))

    assert code == 2
    assert "cannot be written: No such file or directory" in err


def test_an_old_version_becomes_the_stored_version_of_the_same_kind(convert: Convert) -> None:
    """The stored version names the version whose defaults apply, so nothing changes."""
    code, out, err = convert(str(EXAMPLES / "tfjob" / "alpha.yaml"), "--to", "tfjob")

    assert (code, err) == (0, "")
    found = yaml.safe_load(out)
    assert found["apiVersion"] == "kubeflow.org/v1"
    assert found["spec"]["trainwright"] == {"defaults": "v1alpha2"}
    assert found["spec"]["tfReplicaSpecs"]["ps"]["restartPolicy"] == "Always"


def test_what_a_cluster_added_is_left_out(convert: Convert) -> None:
    stored = job(XGBOOST)
    stored["metadata"] |= {
        "uid": "1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-15T12:00:00Z",
        "labels": {"team": "a"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "b"},
        "managedFields": [],
    }
    stored["status"] = {"conditions": [{"type": "Running", "status": "True"}]}
    found = yaml.safe_load(convert(convert.file(stored))[1])

    expected = {"name": "xgboost-simple", "labels": {"team": "a"}, "annotations": {"note": "b"}}
    assert found["metadata"] == expected
    assert "status" not in found


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([XGBOOST, "--to", "generic"], "there is no kind `generic`; did you mean `GenericJob`?"),
        (["no-such-file.yaml"], "no-such-file.yaml: no such file"),
        ([], "Missing argument 'FILE'"),
    ],
)
def test_wrong_usage(words: list[str], text: str, convert: Convert) -> None:
    code, out, err = convert(*words)

    assert (code, out) == (2, "")
    assert text in err


def test_an_invalid_job_is_reported_like_by_validate(convert: Convert) -> None:
    broken = job(XGBOOST)
    broken["spec"]["xgbReplicaSpecs"]["Master"]["replicas"] = 3
    code, out, err = convert(convert.file(broken))

    assert (code, out) == (2, "")
    assert "error: spec.xgbReplicaSpecs.Master.replicas: must be 1, found 3" in err


def test_a_file_without_a_job(convert: Convert) -> None:
    code, out, err = convert(convert.file(SETTINGS))

    assert (code, out) == (2, "")
    assert "the file contains no job; expected at least one" in err


@pytest.mark.parametrize("kind", ["xgboostjob", "jaxjob"])
def test_the_result_runs_like_the_original(kind: str, tmp_path: Path) -> None:
    """Real processes find each other by the variables of the GenericJob."""
    runner = CommandRunner(tmp_path)
    converted = runner.call("convert", str(EXAMPLES / kind / "simple.yaml"))
    assert converted.returncode == 0, converted.stderr

    done = runner.run(yaml.safe_load(converted.stdout))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {
        "xgboostjob": ["the tracker has seen the ranks [0, 1, 2]", "rank 1 of 3", "rank 2 of 3"],
        "jaxjob": [f"process {rank} of 3: the sum of all ranks is 3" for rank in range(3)],
    }
    assert [text for text in expected[kind] if text not in done.stdout] == []
