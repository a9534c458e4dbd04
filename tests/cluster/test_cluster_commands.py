# SPDX-License-Identifier: Apache-2.0
"""The commands for jobs on a real control plane, with `--context`: each command is a process, with pods of a real node.

`explain`, `describe`, `events` and `history` have a file of their own (`test_cluster_explain.py`).
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_agents import agent, agent_plane
from cluster_client import until
from cluster_install import trainwright
from cluster_jobs import Body, Jobs, job, role
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import Process
from cluster_tfjobs import TFJobs, replicas, tfjob

from patience import PATIENCE

pytest_plugins = ("cluster_fixtures",)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One whose API server reads logs from nodes."""
    with agent_plane(tmp_path_factory.mktemp("commands")) as plane:
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Process]:
    with agent(plane, "east", "--cpus", "8") as process:
        yield process


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    log = plane.layout.logs / "operator.log"
    with started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process


class Shell:
    """A user with a kubeconfig whose context `lab` has the namespace of the test."""

    def __init__(self, jobs: Jobs, folder: Path, user: str = "admin") -> None:
        self.jobs, self.folder = jobs, folder
        config = yaml.safe_load(jobs.plane.kubeconfig(user).read_text())
        config["contexts"][0]["name"] = config["current-context"] = "lab"
        config["contexts"][0]["context"]["namespace"] = jobs.namespace
        self.config = folder / f"config-{user}"
        self.config.write_text(json.dumps(config))

    def words(self, *words: str) -> list[str]:
        return [words[0], "--context", "lab", "--kubeconfig", str(self.config), *words[1:]]

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return trainwright(*self.words(*words), given=given, check=False)

    def ok(self, *words: str, given: str = "") -> str:
        done = self.run(*words, given=given)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "trainwright", *self.words(*words)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def fails(self, *words: str, code: int = 2) -> str:
        """The one line that the command says."""
        done = self.run(*words)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        (line,) = done.stderr.splitlines()
        return line.removeprefix("trainwright: ")


@pytest.fixture
def shell(plane: ControlPlane, namespace: str, node: Process, operator: Process, tmp_path: Path) -> Shell:
    return Shell(Jobs(plane, namespace), tmp_path)


def shell_role(script: str, number: int = 1, name: str = "worker", **more: Any) -> Body:
    """A role whose pods run a line of shell."""
    one = role(name, number, **more)
    one["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    return one


def runs(shell: Shell, name: str) -> None:
    assert shell.ok("wait", "--for", "running", "--timeout", f"{PATIENCE}s", name).endswith(f"/{name} runs\n")


# -- a job from its submission to its end --------------------------------------------------------------------------


def test_a_job_is_submitted_shown_changed_and_deleted(shell: Shell) -> None:
    namespace = shell.jobs.namespace
    (shell.folder / "job.yaml").write_text(yaml.safe_dump(job("demo", shell_role("echo up; exec sleep 600", 2))))
    said = shell.ok("submit", str(shell.folder / "job.yaml"))
    assert said.startswith(
        f"{namespace}/demo submitted to cluster lab; follow it with `trainwright logs -f --context lab"
    )
    runs(shell, "demo")
    waiting = shell.start("wait", "demo")

    listed = [line.split() for line in shell.ok("get").splitlines()]
    assert [line[:6] for line in listed[1:]] == [[namespace, "demo", "GenericJob", "Running", "2/2", "0"]]
    shown = shell.ok("get", "-o", "wide", "gj/demo").splitlines()
    assert "FOLDER" not in shown[0]
    assert [line.split()[:3] for line in shown[4:]] == [[f"worker-{n}", "Running", "east"] for n in (0, 1)]
    stored = json.loads(shell.ok("get", "-o", "json", "demo"))
    assert stored["metadata"]["name"] == "demo"
    assert "managedFields" not in stored["metadata"]
    assert shell.ok("get", "-o", "name", "-A").splitlines() == ["genericjob.batch.tensorstack.dev/demo"]

    assert shell.ok("annotate", "demo", "owner=lena") == f"{namespace}/demo annotated\n"
    assert "already has owner=lena" in shell.fails("annotate", "demo", "owner=tom")
    assert shell.ok("scale", "--wait", "60s", "demo", "worker=3") == f"{namespace}/demo worker: 3 replicas\n"
    assert "worker" in shell.fails("scale", "demo", "wrker=3")
    assert shell.ok("suspend", "demo") == f"{namespace}/demo is suspended\n"
    assert shell.jobs.kubectl("get", "pods", "-o", "name") == ""
    assert shell.ok("resume", "demo") == f"{namespace}/demo is resumed\n"
    assert shell.ok("delete", "demo") == f"{namespace}/demo deleted\n"
    out, err = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, err) == (1, "")
    assert re.fullmatch(r"demo was deleted after \S+: the job was deleted before it ended\n", out)
    done = shell.run("get")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no job is running there; `trainwright get -a` lists the jobs that have ended\n"


def test_the_outcome_of_a_job_is_the_exit_code_of_wait(shell: Shell) -> None:
    shell.jobs.make(job("good", shell_role("true")))
    shell.jobs.make(job("bad", shell_role("echo 'ValueError: no data'; exit 3")))
    shell.jobs.make(job("long", shell_role("exec sleep 600")))

    assert re.fullmatch(r"good succeeded after \S+\n", shell.ok("wait", "good"))
    done = shell.run("wait", "good", "bad")
    assert (done.returncode, done.stderr) == (1, "")
    assert "bad failed after" in done.stdout
    done = shell.run("wait", "--timeout", "1s", "long")
    assert (done.returncode, done.stdout) == (124, "")
    assert done.stderr == f"{shell.jobs.namespace}/long has not ended within the time\n"
    ended = [line.split()[1:4] for line in shell.ok("get", "-a").splitlines()[1:]]
    assert ended == [
        ["bad", "GenericJob", "Failed"],
        ["good", "GenericJob", "Succeeded"],
        ["long", "GenericJob", "Running"],
    ]
    shown = shell.ok("get", "bad")
    assert "bad failed after" in shown
    assert "replica: worker-0 (pod bad-worker-0)" in shown
    assert "has ended: Failed" in shell.fails("scale", "bad", "worker=2")
    assert "has ended: Failed" in shell.fails("suspend", "bad")
    shell.ok("delete", "--wait", "0", "long")


def test_objects_beside_a_job_are_created_and_never_replaced(shell: Shell) -> None:
    config: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "set"}, "data": {"a": "1"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"b": "2"}}
    worker = shell_role("echo $A$B")
    worker["template"]["spec"]["containers"][0]["env"] = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "set", "key": "a"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key", "key": "b"}}},
    ]
    text = yaml.safe_dump_all([config, secret, job("demo", worker)])

    assert shell.ok("submit", "-o", "name", "-", given=text) == "demo\n"
    shell.ok("wait", "demo")
    assert shell.ok("logs", "demo", "worker-0") == "12\n"
    assert shell.run("submit", "-", given=text).stderr == (
        f"trainwright: cluster lab already has GenericJob {shell.jobs.namespace}/demo; delete it first, or give another"
        " name\n"
    )
    shell.ok("delete", "demo")
    assert json.loads(shell.ok("submit", "-o", "json", "-", given=text))["metadata"]["uid"]
    other = yaml.safe_dump_all([config | {"data": {"a": "2"}}, job("other")])
    done = shell.run("submit", "-", given=other)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"ConfigMap {shell.jobs.namespace}/set with other content" in done.stderr
    invalid = shell.run("submit", "-", given=yaml.safe_dump(job("bad", shell_role("true", -1))))
    assert (invalid.returncode, invalid.stdout) == (2, "")
    assert invalid.stderr.endswith("trainwright: nothing was submitted: the input has 1 error\n")
    assert "--env" in shell.fails("submit", "--env", "A=1", "job.yaml")


# -- logs ----------------------------------------------------------------------------------------------------------


def test_logs_of_all_replicas_are_merged_by_time(shell: Shell) -> None:
    script = "n=$(hostname | tail -c 2); sleep $n; echo first $n; sleep 2; echo 'second loss' $n; exec sleep 600"
    shell.jobs.make(job("demo", shell_role(script.replace("$(", "$$("), 2)))
    runs(shell, "demo")
    expected = ["worker-0 | first 0", "worker-1 | first 1", "worker-0 | second loss 0", "worker-1 | second loss 1"]
    until(lambda: len(shell.ok("logs", "demo").splitlines()) == 4, "all lines are written")

    assert shell.ok("logs", "demo").splitlines() == expected
    assert shell.ok("logs", "--tail", "1", "--grep", "loss", "demo").splitlines() == expected[2:]
    assert shell.ok("logs", "--tail", "1", "demo", "worker-1") == "second loss 1\n"
    stamped = shell.ok("logs", "--timestamps", "demo", "demo-worker-0").splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ", "", line) for line in stamped] == ["first 0", "second loss 0"]
    assert "did you mean" in shell.fails("logs", "demo", "workr-0") or "it has" in shell.fails(
        "logs", "demo", "workr-0"
    )
    assert "has no container 'x'" in shell.fails("logs", "-c", "x", "demo")
    assert "no previous attempt" in shell.fails("logs", "-p", "demo")
    assert "--run" in shell.fails("logs", "--run", "1", "demo")
    shell.ok("delete", "--wait", "0", "demo")


def test_logs_are_followed_over_restarts_to_the_end_of_the_job(shell: Shell) -> None:
    """A restart in place, a restart with a new pod, and a role that starts later: every line once."""
    inside = replicas(1, "OnFailure")
    script = "sleep 1; seq 1 500; test -e /tmp/again && exit 0; touch /tmp/again; echo fails; exit 1"
    inside["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    TFJobs(shell.jobs.plane, shell.jobs.namespace).make(tfjob("inside", Worker=inside))
    again = shell_role("echo here; sleep 2; exit 1", limit=1)
    shell.jobs.make(job("again", again))
    followers = {name: shell.start("logs", "-f", name) for name in ("inside", "again")}
    said = {name: one.communicate(timeout=PATIENCE) for name, one in followers.items()}

    assert {name: (one.returncode, said[name][1]) for name, one in followers.items()} == {
        "inside": (0, ""),
        "again": (0, ""),
    }
    lines = [str(number) for number in range(1, 501)]
    first = [f"Worker-0 | {line}" for line in (*lines, "fails")]
    assert said["inside"][0].splitlines() == first + [f"Worker-0#1 | {line}" for line in lines]
    assert shell.ok("logs", "inside").splitlines() == [*lines, "fails", *lines]
    assert shell.ok("logs", "--previous", "inside", "worker-0").splitlines() == [*lines, "fails"]
    assert said["again"][0].splitlines() == ["worker-0 | here", "worker-0#1 | here"]


# -- errors --------------------------------------------------------------------------------------------------------


def test_errors_are_one_line_and_say_what_to_do(shell: Shell, tmp_path: Path) -> None:
    shell.jobs.make(job("demo", shell_role("exec sleep 600")))
    TFJobs(shell.jobs.plane, shell.jobs.namespace).make(tfjob("demo", Worker=replicas(1)))
    namespace = shell.jobs.namespace

    assert shell.fails("get", "--context", "lib").endswith("--context: there is no context 'lib'; did you mean 'lab'?")
    assert (
        shell.fails("logs", "dmo")
        == f"there is no job 'dmo' in namespace {namespace!r} of cluster lab; did you mean `demo`?"
    )
    both = f"'demo' can mean genericjob/demo or tfjob/demo in namespace {namespace!r} of cluster lab; give KIND/NAME"
    for words in (("get",), ("wait",), ("delete",), ("logs",), ("suspend",)):
        assert shell.fails(*words, "demo") == both
    assert shell.ok("delete", "--wait", "0", "tfjob/demo")
    assert "has no replica 'worker-7'; it has worker-0" in shell.fails("exec", "gj/demo", "worker-7", "--", "true")
    gone = json.loads(shell.config.read_text())
    gone["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "gone").write_text(json.dumps(gone))
    done = trainwright("get", "--kubeconfig", str(tmp_path / "gone"), check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("trainwright: no answer from https://127.0.0.1:1: Connection refused; ")
    assert done.stderr.count("\n") == 1


def test_a_user_without_a_right_is_told_which_one(shell: Shell, tmp_path: Path) -> None:
    shell.jobs.make(job("demo", shell_role("exec sleep 600")))
    until(lambda: "demo-worker-0" in shell.jobs.kubectl("get", "pods"), "it has a pod")
    shell.jobs.kubectl("create", "serviceaccount", "guest")
    shell.jobs.kubectl(
        "create", "role", "guest", "--verb=get,list", "--resource=genericjobs,tfjobs,paddlejobs,aitrainingjobs"
    )
    shell.jobs.kubectl(
        "create", "rolebinding", "guest", "--role=guest", f"--serviceaccount={shell.jobs.namespace}:guest"
    )
    config = shell.jobs.plane.service_account(shell.jobs.namespace, "guest")
    options = ("-n", shell.jobs.namespace, "--kubeconfig", str(config))

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return trainwright(words[0], *options, *words[1:], check=False)

    done = ask("get", "demo")
    assert done.returncode == 0
    assert [line.split()[1:5] for line in done.stdout.splitlines()[1:2]] == [["demo", "GenericJob", "Running", "?/1"]]
    assert done.stderr.startswith(f"notice: you may not list pods in namespace '{shell.jobs.namespace}' of cluster ")
    for words, right in (
        (("annotate", "demo", "a=b"), "patch genericjobs.batch.tensorstack.dev"),
        (("delete", "demo"), "delete genericjobs.batch.tensorstack.dev"),
        (("logs", "demo"), "list pods"),
    ):
        done = ask(*words)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(f"trainwright: you may not {right} in namespace '{shell.jobs.namespace}' of ")
        assert done.stderr.count("\n") == 1


def test_a_cluster_without_our_definitions(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane", controllers=False, scheduler=False) as plane:
        config = str(plane.kubeconfig())
        for words in (("get",), ("get", "demo"), ("wait", "demo"), ("submit", "-")):
            done = trainwright(*words, "--kubeconfig", config, given=yaml.safe_dump(job("demo")), check=False)
            assert (done.returncode, done.stdout) == (2, "")
            assert re.fullmatch(r"trainwright: cluster \S+ has no CRD of .* prints what to install\n", done.stderr)
