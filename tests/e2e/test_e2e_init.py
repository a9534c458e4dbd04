# SPDX-License-Identifier: Apache-2.0
"""`trainwright init`: what it writes is valid, runs as it is, and never replaces a file unasked."""

import pytest
from e2e_workspace import Workspace

from trainwright.kinds.registry import KINDS

pytest_plugins = ["e2e_fixtures"]


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_what_is_written_is_valid_and_runs(workspace: Workspace, kind: str) -> None:
    wrote = workspace.run("init", kind.lower())
    file = workspace.work / "job.yaml"

    assert (wrote.code, wrote.out) == (0, "wrote job.yaml; run it with: trainwright run job.yaml\n")
    assert f"kind: {kind}\n" in file.read_text()
    assert "trainwright run job.yaml " in file.read_text()
    checked = workspace.run("validate", "--strict", "job.yaml")
    assert checked.code == 0, checked.said
    done = workspace.run("run", "--timeout", "100s", "job.yaml")
    assert (done.code, done.err) == (0, ""), done.said
    assert "train succeeded" in done.out
    file.unlink()


def test_a_file_is_replaced_only_if_asked(process: Workspace) -> None:
    file = process.work / "job.yaml"
    file.write_text("mine")
    refused = process.run("init")

    assert (refused.code, refused.out) == (2, "")
    assert "job.yaml already exists; to replace it, give --force; to write another file, give -o FILE" in refused.err
    assert file.read_text() == "mine"
    assert process.run("init", "--force").code == 0
    assert "kind: GenericJob" in file.read_text()
    assert process.run("init", "-o", "other.yaml", "tfjobs").code == 0
    assert "kind: TFJob" in (process.work / "other.yaml").read_text()
    for path in process.work.iterdir():
        path.unlink()


def test_standard_output_and_what_cannot_be_meant(process: Workspace) -> None:
    assert "kind: GenericJob" in process.run("init", "-o", "-", "gj").out
    assert process.run("init", "tfjbo").err == "trainwright: there is no kind `tfjbo`; did you mean `TFJob`?\n"
    nowhere = process.run("init", "-o", "nowhere/job.yaml")
    assert (nowhere.code, nowhere.err) == (
        2,
        "trainwright: nowhere/job.yaml cannot be written: No such file or directory\n",
    )
    assert list(process.work.iterdir()) == []
