# SPDX-License-Identifier: Apache-2.0
"""What `run` makes of manifests before anything starts: judged like `validate`, changed by `--set`, refused whole."""

from pathlib import Path

import pytest
from run_objects import job, role

from trainwright.cli.output import as_yaml
from trainwright.cli.run.changes import parse
from trainwright.cli.run.intake import InputRefused, RunInput, take
from trainwright.errors import UsageError
from trainwright.manifest import MalformedError
from trainwright.model.job import Body

SECRET: Body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"a": "b"}}
SERVICE: Body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}}


def plain(name: str = "demo") -> Body:
    """A job as a user writes it."""
    body = job(name)
    return body | {"metadata": {"name": name}}


def taken(tmp_path: Path, *bodies: Body, namespace: str = "", changes: tuple[str, ...] = ()) -> RunInput:
    (tmp_path / "job.yaml").write_text(as_yaml(bodies), encoding="utf-8")
    return take([str(tmp_path / "job.yaml")], namespace, [parse(text) for text in changes])


def test_jobs_and_what_stands_beside_them(tmp_path: Path) -> None:
    found = taken(tmp_path, SERVICE, plain(), SECRET, plain("other"))

    assert [str(task.key) for task in found.tasks] == ["default/demo", "default/other"]
    assert [(body["kind"], body["metadata"]["namespace"]) for body in found.beside] == [("Secret", "default")]
    assert found.skipped == ("v1 Service default/front",)


def test_everything_goes_where_it_was_asked_for(tmp_path: Path) -> None:
    found = taken(tmp_path, plain(), SECRET, namespace="lab")

    assert [str(task.key) for task in found.tasks] == ["lab/demo"]
    assert found.tasks[0].body["metadata"]["namespace"] == found.beside[0]["metadata"]["namespace"] == "lab"


def test_several_files(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(as_yaml([plain(name)]), encoding="utf-8")
        paths.append(str(tmp_path / name))

    assert [task.key.name for task in take(paths, "", ()).tasks] == ["a", "b"]


def test_changes_are_made_before_it_is_judged(tmp_path: Path) -> None:
    bad = plain() | {"spec": {"replicaSpecs": [role("worker", -1)]}}

    found = taken(tmp_path, bad, SECRET, changes=("spec.replicaSpecs[worker].replicas=3",))
    assert found.tasks[0].loaded.job.roles[0].replicas == 3
    assert found.tasks[0].body["spec"]["replicaSpecs"][0]["replicas"] == 3


def test_a_job_that_is_left_to_another_controller_would_wait_for_ever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "busybox"}]}}
    tfjob: Body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "demo"},
        "spec": {
            "runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"},
            "tfReplicaSpecs": {"Worker": {"template": template}},
        },
    }

    with pytest.raises(InputRefused, match="nothing was started: the input has 1 error"):
        taken(tmp_path, tfjob)
    assert "the manifest names another controller for the job, and a local run has no other" in capsys.readouterr().err
    assert taken(tmp_path, tfjob, changes=("spec.runPolicy.managedBy=kubeflow.org/training-operator",)).tasks


def test_all_mistakes_are_told_at_once_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = plain() | {"spec": {"replicaSpecs": [role("worker", -1)], "cleanUpPolicy": "Most"}}

    with pytest.raises(InputRefused, match="nothing was started: the input has 3 errors"):
        taken(tmp_path, bad, SECRET | {"metadata": {}})
    told = capsys.readouterr()
    assert told.out == ""
    assert ": error: document 1 (GenericJob default/demo): spec.replicaSpecs[0].replicas: expected a whole" in told.err
    assert "spec.cleanUpPolicy: expected one of All, None, Unfinished, found the text 'Most'" in told.err
    assert "document 2 (v1 Secret default/(no name)): metadata.name: missing; expected a name" in told.err


def test_warnings_are_told_and_the_job_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken(tmp_path, plain() | {"spec": {"replicaSpecs": [role("worker", 1)], "cleanUpPolcy": "All"}})

    assert "warning: document 1 (GenericJob default/demo): spec.cleanUpPolcy: unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", ["spec.cleanUpPolcy=All", "spec.runMod.pause.enabled=true", "spec.replicaSpecs[worker].replica=2"]
)
def test_a_misspelt_change_is_refused(tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputRefused):
        taken(tmp_path, plain(), changes=(change,))
    assert "error: document 1 (GenericJob default/demo): spec." in (told := capsys.readouterr().err)
    assert "unknown field; did you mean `" in told


def test_what_was_doubtful_before_stays_a_warning(tmp_path: Path) -> None:
    odd = plain() | {"spec": {"replicaSpecs": [role("worker", 1)], "run": 1}}

    taken(tmp_path, odd, changes=("spec.runMode.pause.enabled=true",))


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        pytest.param((SECRET,), "the files contain no job; expected at least one", id="no job"),
        pytest.param((plain(), plain()), "job default/demo occurs twice in the input", id="job twice"),
        pytest.param((plain(), SECRET, SECRET), "Secret default/token occurs twice in the input", id="secret twice"),
        pytest.param(
            (plain() | {"metadata": {"name": "a", "namespace": "x"}},), "is for namespace 'x'", id="namespace"
        ),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, bodies: tuple[Body, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        taken(tmp_path, *bodies, namespace="default")


def test_a_namespace_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputRefused):
        taken(tmp_path, plain(), namespace="volumes")
    assert "metadata.namespace: 'volumes' cannot be a namespace of a local run" in capsys.readouterr().err


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(MalformedError, match=r"nowhere\.yaml: no such file"):
        take(["nowhere.yaml"], "", ())


def test_a_kind_that_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputRefused):
        taken(tmp_path, plain() | {"kind": "GenericJobs"})
    assert "did you mean `GenericJob`?" in capsys.readouterr().err
