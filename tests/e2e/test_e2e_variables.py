# SPDX-License-Identifier: Apache-2.0
"""`--env` and `--env-file`: what replicas get, what is refused, and where secrets are not to be found."""

import json
import subprocess
from pathlib import Path

import pytest
from e2e_jobs import Body, beside, job, python, role, shell, worker
from e2e_workspace import Workspace

pytest_plugins = ["e2e_fixtures"]

SECRET = "sesame-open"  # noqa: S105 - nobody's
TELL = "import json, os; print(json.dumps(dict(os.environ)))"


def told(out: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(next(line for line in out.splitlines() if "| {" in line).partition("| ")[2])
    return found


def test_variables_come_from_options_and_files_and_replace_the_manifest_s(workspace: Workspace) -> None:
    file = workspace.folder / "variables"
    file.write_text(
        '\ufeff# a comment\n\nA=of the file\nB="quotes stay"\n  C=1 # so does this\nHERE\n', encoding="utf-8"
    )
    env: list[Body] = [
        {"name": "A", "value": "of the manifest"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "on-the-cluster-only", "key": "x"}}},
        {"name": "BOTH", "value": "$(A)/$(TOKEN)"},
    ]
    options = ["--env-file", str(file), "--env", "A=of the option", "--env", "TOKEN", "--env", "EMPTY="]
    done = workspace.run(
        "run", *options, job(role("worker", python(TELL, env=env))), env={"TOKEN": "t", "HERE": "h", "NOT": "n"}
    )

    assert done.code == 0, done.said
    found = told(done.out)
    wanted = {
        "A": "of the option",
        "B": '"quotes stay"',
        "C": "1 # so does this",
        "HERE": "h",
        "TOKEN": "t",
        "BOTH": "of the option/t",
        "EMPTY": "",
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "NOT" not in found


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_secret_that_is_passed_by_name_is_written_nowhere(process: Workspace, nodes: str) -> None:
    """Neither in the record nor on the command line of any process of ours."""
    body = worker('echo "has ${#WANDB_API_KEY}"; exec sleep 60')
    live = process.start(
        "run", "--nodes", nodes, "--env", "WANDB_API_KEY", body, env={**process.env, "WANDB_API_KEY": SECRET}
    )
    live.until(f"| has {len(SECRET)}")
    shown = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    yaml = process.run("get", "e2e", "-o", "yaml")
    inside = process.run("exec", "e2e", "worker-0", "--", "sh", "-c", "echo ${#WANDB_API_KEY}")
    process.run("delete", "e2e")
    live.end()

    assert SECRET not in shown
    assert (yaml.code, SECRET in yaml.out) == (0, False)
    assert inside.out.strip() == str(len(SECRET))
    kept = [path for path in process.state.rglob("*") if path.is_file()]
    assert len(kept) > 2
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_well_known_variables_that_do_not_pass_are_named_once(process: Workspace) -> None:
    mine = {"WANDB_API_KEY": SECRET, "HF_HOME": "/cache", "PYTHONPATH": "lib", "OMP_NUM_THREADS": "", "OTHER": "x"}
    body = job(role("worker", shell("true", env=[{"name": "PYTHONPATH", "value": "src"}]), replicas=3))
    done = process.run("run", body, env=mine)

    assert done.out.count("not passed to replicas: WANDB_API_KEY, HF_HOME; to pass a variable, give --env NAME") == 1
    assert SECRET not in done.said
    quiet = process.run("run", "--env", "WANDB_API_KEY", "--env", "HF_HOME=/other", body, env=mine)
    assert (quiet.code, "not passed" in quiet.out) == (0, False)
    bare = process.run("run", job(role("worker", shell("true"))), env={"PYTHONPATH": "lib"})
    assert bare.out.count("not passed to replicas: PYTHONPATH; to pass a variable, give --env NAME") == 1


TFJOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "e2e"},
    "spec": {
        "tfReplicaSpecs": {
            "Worker": {"replicas": 2, "template": {"spec": {"containers": [shell("true", name="tensorflow")]}}}
        }
    },
}


def test_what_a_kind_sets_cannot_be_replaced(process: Workspace) -> None:
    done = process.run("run", "--env", "A=1", "--env", "TF_CONFIG={}", TFJOB)

    assert (done.code, done.out) == (2, "")
    assert done.err == "trainwright: --env TF_CONFIG: TFJob default/e2e sets this variable for each replica\n"


BAD = {
    "unset": (("--env", "NOT_HERE"), "--env: NOT_HERE is not set in your environment; set it, or write NOT_HERE=VALUE"),
    "no name": (("--env", "=x"), "--env: '' is not a valid name of a variable; expected NAME=VALUE or NAME"),
    "no file": (("--env-file", "nowhere"), "--env-file nowhere: cannot be read: No such file or directory"),
    "a shell's file": (
        ("--env-file", "{}"),
        "file:2: 'export A' is not a valid name of a variable; expected NAME=VALUE or NAME;"
        " a name has letters, digits, `_`, `-` and `.`; remove `export`",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_a_variable_is_refused(process: Workspace, name: str) -> None:
    options, expected = BAD[name]
    file = process.folder / "file"
    file.write_text("B=1\nexport A=2\n")
    done = process.run("run", *(word.format(file) for word in options), worker("true"))

    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert not process.state.exists()


def test_a_file_of_the_wrong_kind_is_refused(process: Workspace, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"A=\xff\n")
    done = process.run("run", "--env-file", str(tmp_path / "binary"), worker("true"))

    assert done.code == 2
    assert "binary: expected UTF-8 text" in done.err


def test_beside_objects_are_not_needed_for_given_variables(process: Workspace) -> None:
    """A manifest whose Secret is only on the cluster runs here with the value that the caller has."""
    body = job(
        role(
            "worker",
            shell("echo $KEY", env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        )
    )

    assert "there is no Secret 's'" in process.run("run", body).err
    assert "| mine" in process.run("run", "--env", "KEY=mine", body).out
    there = process.run("run", process.write(beside("Secret", "s", stringData={"k": "theirs"}), body))
    assert "| theirs" in there.out
