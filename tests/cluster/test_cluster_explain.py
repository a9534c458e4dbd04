# SPDX-License-Identifier: Apache-2.0
"""`explain`, `describe`, `events` and `history` of jobs on a real control plane, with real pods of a node agent."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_agents import agent, agent_plane
from cluster_client import until
from cluster_install import trainwright
from cluster_jobs import Body, Jobs, job, role
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import Process
from cluster_tfjobs import TFJobs, replicas, tfjob

from patience import PATIENCE
from trainwright.kinds.registry import KINDS

pytest_plugins = ("cluster_fixtures",)
COMMANDS = ("explain", "describe", "events", "history")
KUEUE = "kueue.x-k8s.io/v1beta1"
NO_MODULE = "ModuleNotFoundError: No module named 'torch'"


def install_kueue(plane: ControlPlane) -> None:
    """As much of Kueue as its Workloads need."""
    group, version = KUEUE.split("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"plural": "workloads", "singular": "workload", "kind": "Workload", "listKind": "WorkloadList"}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    body = {**head, "metadata": {"name": f"workloads.{group}"}, "spec": spec}
    plane.kubectl("apply", "-f", "-", given=json.dumps(body))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=100s", f"crd/workloads.{group}")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One whose API server reads logs from nodes, with the API of Kueue."""
    with agent_plane(tmp_path_factory.mktemp("explain")) as plane:
        install_kueue(plane)
        yield plane
        assert plane.audit().where(user="operator", denied=True) == ()
        assert plane.audit().where(user="operator", resource="pods/log") == ()


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Process]:
    with agent(plane, "east", "--cpus", "4") as process:
        yield process


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    log = plane.layout.logs / "operator.log"
    with started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process


@pytest.fixture
def jobs(plane: ControlPlane, namespace: str, node: Process, operator: Process) -> Jobs:
    return Jobs(plane, namespace)


def shell(script: str, number: int = 1, **container: Any) -> Body:
    """A role whose pods run a line of shell."""
    one = role("worker", number)
    one["template"]["spec"]["containers"][0] |= {"command": ["sh", "-c", script], **container}
    return one


def ask(jobs: Jobs, command: str, *words: str, user: str = "admin") -> subprocess.CompletedProcess[str]:
    """What the command says about a job of the namespace."""
    config = str(jobs.plane.kubeconfig(user))
    return trainwright(command, *words, "-n", jobs.namespace, "--kubeconfig", config, check=False)


def answer(jobs: Jobs, command: str, *words: str, user: str = "admin") -> Any:
    """The same as JSON."""
    done = ask(jobs, command, *words, "-o", "json", user=user)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def lines(jobs: Jobs, command: str, *words: str, user: str = "admin") -> list[str]:
    """The same as text."""
    done = ask(jobs, command, *words, user=user)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


# -- a failed job ----------------------------------------------------------------------------------------------------


def test_the_log_of_a_failure_is_quoted_with_the_rights_of_the_caller(jobs: Jobs) -> None:
    jobs.make(job("bad", shell("echo reading; echo 'ValueError: no data' >&2; exit 3", 2)))
    jobs.until("bad", "Failed")
    said = lines(jobs, "explain", "bad")

    assert said[0] in [f"bad failed: worker-{n} exited with code 3 on node east: ValueError: no data" for n in (0, 1)]
    assert answer(jobs, "explain", "bad")["quote"]["line"] == "ValueError: no data"
    told = lines(jobs, "describe", "bad")
    assert any(line.split() == ["Where:", "cluster", "test"] for line in told)
    assert [line.split()[:3] for line in told if line.startswith("  worker-")] == [
        ["worker-0", "Failed", "east"],
        ["worker-1", "Failed", "east"],
    ]
    assert any("GenericJob/bad" in line and "Failed" in line for line in lines(jobs, "events", "bad"))
    assert any("ProgramError" in line and "east" in line for line in lines(jobs, "history", "bad"))


@pytest.mark.parametrize(
    ("container", "stored"),
    [({}, "ProgramError"), ({"terminationMessagePolicy": "FallbackToLogsOnError"}, "ImportError")],
    ids=["log", "termination message"],
)
def test_only_a_termination_message_tells_the_operator_what_the_log_says(
    jobs: Jobs, container: Body, stored: str
) -> None:
    """The operator may not read logs; `explain` may, so its answer can be more precise than the stored verdict."""
    jobs.make(job("bad", shell(f'echo "{NO_MODULE}" >&2; exit 1', **container)))
    jobs.until("bad", "Failed")
    found = answer(jobs, "explain", "bad")

    assert jobs.status("bad")["trainwright"]["verdict"]["class"] == stored
    assert (found["class"], found["quote"]["line"]) == ("ImportError", NO_MODULE)


def test_the_log_before_a_restart_in_place_is_the_previous_one(jobs: Jobs) -> None:
    script = "test -e /tmp/again && exec sleep 600; touch /tmp/again; echo 'ValueError: first try'; exit 1"
    worker = replicas(1, "OnFailure")
    worker["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    TFJobs(jobs.plane, jobs.namespace).make(tfjob("again", Worker=worker))
    pod = f"/api/v1/namespaces/{jobs.namespace}/pods/again-worker-0"

    def is_back() -> bool:
        found = ((jobs.plane.find(pod) or {}).get("status") or {}).get("containerStatuses") or [{}]
        return bool(found[0].get("restartCount")) and "running" in found[0]["state"]

    until(is_back, "the container runs again")

    assert answer(jobs, "explain", "tfjob/again")["quote"]["line"] == "ValueError: first try"


# -- a job that waits ------------------------------------------------------------------------------------------------


def test_a_job_without_room_says_how_much_is_missing_and_where(jobs: Jobs) -> None:
    jobs.make(job("big", shell("true", 2, resources={"requests": {"cpu": "100"}})))
    until(lambda: any("FailedScheduling" in line for line in lines(jobs, "events", "big")), "the scheduler has tried")
    found = answer(jobs, "explain", "big")

    assert (found["situation"], found["class"]) == ("Waiting", "Unschedulable")
    assert found["headline"] == (
        "big waits: worker-0 and worker-1 (2 of 2 replicas) have no place: "
        "0/1 nodes are available: 1 Insufficient cpu; east: cpu: needs 100, this node has 4"
    )


def test_a_job_without_free_room_says_how_much_is_free(jobs: Jobs) -> None:
    jobs.make(job("first", shell("exec sleep 600", resources={"requests": {"cpu": "3"}})))
    jobs.until("first", "Running")
    jobs.make(job("second", shell("true", resources={"requests": {"cpu": "2"}})))
    until(lambda: answer(jobs, "explain", "second")["class"] == "Unschedulable", "the scheduler has tried")

    assert answer(jobs, "explain", "second")["headline"].endswith("; east: cpu: needs 2, 1 of 4 is free")


def test_a_job_that_a_quota_refuses_quotes_the_quota(jobs: Jobs) -> None:
    jobs.kubectl("create", "quota", "few", "--hard=pods=1")
    until(lambda: "pods: 0/1" in jobs.kubectl("get", "quota", "few"), "the quota is in force")
    jobs.make(job("poor", shell("exec sleep 600", 2)))
    jobs.until_told("poor", "exceeded quota: few")
    found = answer(jobs, "explain", "poor")

    assert (found["situation"], found["class"]) == ("Waiting", "Quota")
    assert "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1" in found["headline"]


def test_a_job_that_kueue_holds_back_quotes_kueue(jobs: Jobs) -> None:
    tfjobs = TFJobs(jobs.plane, jobs.namespace)
    made = tfjobs.make(tfjob("queued", spec={"runPolicy": {"suspend": True}}, Worker=replicas(1)))
    tfjobs.until("queued", "Created", "Suspended")
    path = f"/apis/{KUEUE}/namespaces/{jobs.namespace}/workloads"
    reason = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": reason}
    for name, uid in (("theirs", "other"), ("ours", made["metadata"]["uid"])):
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "queued", "uid": uid, "controller": True}
        meta = {"name": name, "ownerReferences": [owner]}
        jobs.plane.call("POST", path, {"apiVersion": KUEUE, "kind": "Workload", "metadata": meta})
        jobs.plane.call("PATCH", f"{path}/{name}/status", {"status": {"conditions": [waits]}})
    found = answer(jobs, "explain", "queued")

    assert found["headline"] == f"queued waits: Kueue has not admitted it (Workload ours): {reason}"
    assert (found["situation"], found["class"], len(found["admission"])) == ("Waiting", "Quota", 1)


# -- callers, and what they ask for ----------------------------------------------------------------------------------


def grant(jobs: Jobs, *resources: str) -> None:
    """Let the user `stranger` read these in the namespace."""
    words = [f"--resource={','.join(resources)}", "--verb=get,list"]
    jobs.kubectl("create", "role", "some", *words)
    jobs.kubectl("create", "rolebinding", "some", "--role=some", "--user=stranger")
    allowed = ("auth", "can-i", "list", "genericjobs.batch.tensorstack.dev", "-n", jobs.namespace)
    until(lambda: "yes" in jobs.plane.kubectl(*allowed, user="stranger", check=False).stdout, "the role is in force")


def test_what_a_caller_may_not_read_is_a_sentence(jobs: Jobs) -> None:
    grant(jobs, "genericjobs.batch.tensorstack.dev", "pods")
    jobs.make(job("bad", shell("echo secret; exit 3")))
    jobs.make(job("big", shell("true", resources={"requests": {"cpu": "100"}})))
    jobs.until("bad", "Failed")
    until(lambda: answer(jobs, "explain", "big")["class"] == "Unschedulable", "the scheduler has tried")
    place = f"in namespace '{jobs.namespace}'"
    no_events = f"ou may not list events {place}: events are left out"
    no_log = f"The log of worker-0 could not be read: you may not read logs of pods {place}."
    no_quotas = f"you may not list workloads.kueue.x-k8s.io {place}: what Kueue says about the job is not known"
    no_nodes = "ou may not list nodes: the health and the resources of nodes are not known"
    failed = lines(jobs, "explain", "bad", user="stranger")
    waits = lines(jobs, "explain", "big", user="stranger")

    assert failed[0] == "bad failed: worker-0 exited with code 3 on node east"
    assert {f"  {no_log}", f"  Y{no_events}."} <= set(failed)
    assert "0/1 nodes are available: 1 Insufficient cpu" in waits[0]
    assert {f"  Y{no_events}.", f"  Y{no_nodes}."} <= set(waits)
    for command in ("describe", "explain"):
        gaps = answer(jobs, command, "big", user="stranger")["gaps"]
        assert gaps == [f"y{no_events}", f"y{no_nodes}", no_quotas]
    for command in COMMANDS:
        assert ask(jobs, command, "bad", user="stranger").returncode == 0


def test_a_caller_who_may_not_read_jobs_is_told_so(jobs: Jobs) -> None:
    done = ask(jobs, "explain", "any", user="stranger")

    assert (done.returncode, done.stdout) == (3, "")
    assert 'User "stranger" cannot get resource "genericjobs"' in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_written_and_little_is_asked(jobs: Jobs, command: str) -> None:
    jobs.make(job("runs", shell("exec sleep 600")))
    jobs.until("runs", "Running")
    mark = jobs.plane.mark()
    assert ask(jobs, command, "runs").returncode == 0
    calls = jobs.plane.audit(mark).where(user="admin")

    assert {call.verb for call in calls} <= {"get", "list"}
    assert len(calls) <= 5 + len(KINDS), "the name is looked for in every kind"


# -- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_job_is_answered_with_the_nearest(jobs: Jobs) -> None:
    jobs.make(job("demo", shell("true")))
    for word, hint in (
        ("dmo", "did you mean `demo`?"),
        ("tfjob/demo", "it has no jobs"),
        ("gj/zzzz", "jobs there: demo"),
    ):
        done = ask(jobs, "explain", word)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"in namespace '{jobs.namespace}' of cluster test; {hint}" in done.stderr


def test_a_name_in_two_kinds_or_in_another_namespace(jobs: Jobs) -> None:
    jobs.make(job("both", shell("true")))
    TFJobs(jobs.plane, jobs.namespace).make(tfjob("both", Worker=replicas(1)))
    config = str(jobs.plane.kubeconfig())
    unclear = ask(jobs, "explain", "both")
    elsewhere = trainwright("explain", "both", "--kubeconfig", config, check=False)

    assert (unclear.returncode, elsewhere.returncode) == (2, 2)
    assert "'both' can mean genericjob/both or tfjob/both" in unclear.stderr
    assert f"did you mean `{jobs.namespace}/both`?" in elsewhere.stderr
    assert answer(jobs, "describe", "tfjob/both")["kind"] == "TFJob"


def test_an_unknown_context_is_wrong_usage(jobs: Jobs) -> None:
    for command in COMMANDS:
        done = ask(jobs, command, "any", "--context", "tset")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--context: there is no context 'tset'; did you mean 'test'?" in done.stderr


# -- the same job, embedded ------------------------------------------------------------------------------------------


def test_json_has_the_same_keys_as_for_an_embedded_job(jobs: Jobs, tmp_path: Path) -> None:
    body = job("same", shell("sleep 3; echo 'ValueError: no data' >&2; exit 3"))
    (tmp_path / "job.yaml").write_text(json.dumps(body))
    env = {**os.environ, "TRAINWRIGHT_STATE": str(tmp_path / "state")}
    words = [sys.executable, "-m", "trainwright"]
    run = [*words, "run", str(tmp_path / "job.yaml")]
    jobs.make(body)
    assert subprocess.run(run, env=env, capture_output=True, timeout=PATIENCE, check=False).returncode == 1
    jobs.until("same", "Failed")
    for command in COMMANDS:
        here = subprocess.run(
            [*words, command, "same", "-o", "json"], env=env, capture_output=True, timeout=PATIENCE, check=True
        )
        assert keys(answer(jobs, command, "same")) == keys(json.loads(here.stdout)), command


def keys(value: Any) -> Any:
    """The keys of an object; of objects inside it, too, and those of the last item of a list."""
    if isinstance(value, dict):
        return {key: keys(part) for key, part in value.items() if key not in ("lost", "states", "gaps")}
    return keys(value[-1]) if isinstance(value, list) and value else None
