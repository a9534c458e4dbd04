# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs under the operator on a real control plane: how they start, what that costs, what restarts them.

Fake nodes give pods addresses and let none run before its ConfigMap is there, as kubelets do.
"""

from itertools import pairwise
from typing import Any

import pytest
from cluster_client import RefusedError, until
from cluster_jobs import Jobs
from cluster_paddlejobs import PaddleJobs, paddlejob, role
from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
Body = dict[str, Any]
FOREVER: dict[str, Any] = {"runs": "forever"}


@pytest.fixture
def paddle(jobs: Jobs) -> PaddleJobs:
    return PaddleJobs(jobs.plane, jobs.namespace)


def addresses(paddle: PaddleJobs, name: str, kind: str) -> list[str]:
    pods = paddle.children(name)
    return [f"{pods[one]['status']['podIP']}:36000" for one in sorted(pods) if one.startswith(kind)]


def test_a_job_is_seen_with_kubectl_and_succeeds(jobs: Jobs, paddle: PaddleJobs) -> None:
    jobs.apply(paddlejob("demo", ps=role(1, runs="0.5"), worker=role(2, runs="0.5"), cleanPodPolicy="Never"))
    jobs.kubectl("wait", "--for=condition=Completed", "pdj/demo", "--timeout=100s")

    head, row = jobs.kubectl("get", "pdj").splitlines()
    assert (head.split(), row.split()[:3]) == (["NAME", "STATUS", "MODE", "AGE", "REASON"], ["demo", "Completed", "PS"])
    status = paddle.status("demo")
    assert [len(status[name]["refs"]) for name in ("ps", "worker")] == [1, 2]
    assert "resourceVersion" not in status["ps"]["refs"][0]
    assert (status["worker"]["succeeded"], status["observedGeneration"]) == (2, 1)
    assert paddle.events("demo") == ["Running", "Completed"]
    assert paddle.data("demo")["PADDLE_TRAINER_ENDPOINTS"].split(",") == addresses(paddle, "demo", "worker")
    assert paddle.data("demo")["PADDLE_PSERVERS_IP_PORT_LIST"].split(",") == addresses(paddle, "demo", "ps")


@pytest.mark.parametrize(("intranet", "services"), [("PodIP", 0), ("Service", 100)])
def test_a_hundred_pods_start_in_one_pass_within_the_budget_of_writes(
    plane: ControlPlane, paddle: PaddleJobs, intranet: str, services: int
) -> None:
    """One write for each pod and service, one ConfigMap, three statuses, two events.

    The acceptance is stored at once: pods wait for a ConfigMap of their attempt.
    """
    mark = plane.mark()
    parts = {"ps": role(20, runs="2"), "worker": role(80, runs="2")}
    paddle.make(paddlejob("big", **parts, intranet=intranet, cleanPodPolicy="Never"))
    paddle.until("big", "Completed", 90)
    until(lambda: paddle.events("big") == ["Running", "Completed"], "both are told")

    calls = plane.audit(mark).where(user="operator", namespace=paddle.namespace)
    spent = calls.writes.tally("verb", "resource")
    assert spent == {
        ("create", "pods"): 100,
        **({("create", "services"): services} if services else {}),
        ("create", "configmaps"): 1,
        ("update", "paddlejobs.batch.paddlepaddle.org/status"): 3,
        ("create", "events"): 2,
    }
    assert (calls.refused, calls.reads) == ((), ())


def test_a_pod_that_is_replaced_starts_all_anew_with_fresh_addresses(paddle: PaddleJobs) -> None:
    paddle.make(paddlejob("demo", ps=role(1, **FOREVER), worker=role(2, **FOREVER)))
    paddle.until("demo", "Running")
    before = paddle.data("demo")
    paddle.plane.call("DELETE", f"{paddle.core}/pods/demo-worker-1", {"gracePeriodSeconds": 0})
    until(lambda: paddle.data("demo") not in ({}, before), "there is another ConfigMap")
    paddle.until("demo", "Running")

    pods = paddle.children("demo").values()
    assert {one["metadata"]["labels"]["trainwright.dev/attempt"] for one in pods} == {"1"}
    assert paddle.data("demo")["PADDLE_TRAINER_ENDPOINTS"].split(",") == addresses(paddle, "demo", "worker")


def test_by_name_a_pod_is_replaced_alone_and_a_new_size_starts_all_anew(paddle: PaddleJobs) -> None:
    paddle.make(paddlejob("demo", intranet="Service", worker=role(2, **FOREVER)))
    paddle.until("demo", "Running")
    uid = paddle.children("demo")["worker-0"]["metadata"]["uid"]
    listed = [f"demo-worker-{place}.{paddle.namespace}:36000" for place in range(3)]
    assert paddle.data("demo")["PADDLE_TRAINER_ENDPOINTS"].split(",") == listed[:2]
    paddle.plane.call("DELETE", f"{paddle.core}/pods/demo-worker-1", {"gracePeriodSeconds": 0})
    until(lambda: "worker-1" in paddle.children("demo"), "it is made again")
    paddle.until("demo", "Running")
    assert paddle.children("demo")["worker-0"]["metadata"]["uid"] == uid
    paddle.edit("demo", worker={"replicas": 3})
    until(lambda: paddle.data("demo").get("PADDLE_TRAINERS_NUM") == "3", "the ConfigMap follows")
    until(lambda: len(paddle.children("demo")) == 3, "all are there")
    paddle.until("demo", "Running")

    assert paddle.data("demo")["PADDLE_TRAINER_ENDPOINTS"].split(",") == listed
    assert paddle.children("demo")["worker-0"]["metadata"]["uid"] != uid
    assert "Scaled" in paddle.events("demo")
    service = paddle.children("demo", "services")["worker-2"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert [one["port"] for one in service["ports"]] == [*range(36000, 36020)]


def test_on_the_hosts_network_two_jobs_have_ports_of_their_own(paddle: PaddleJobs) -> None:
    for name in ("one", "two"):
        paddle.make(paddlejob(name, intranet="Host", ps=role(2, **FOREVER), worker=role(2, **FOREVER)))
    for name in ("one", "two"):
        paddle.until(name, "Running")

    held = [paddle.status(name)["trainwright"]["ports"] for name in ("one", "two")]
    bases = sorted(base for ports in held for base in ports.values())
    assert len(bases) == 8
    assert all(after - before >= 20 for before, after in pairwise(bases))
    pod = paddle.children("one")["ps-1"]["spec"]
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert env["PADDLE_PORT"] == str(held[0]["one-ps-1"])
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_suspended_resumed_and_deleted_with_the_old_finalizer(paddle: PaddleJobs) -> None:
    body = paddlejob("demo", worker=role(2, **FOREVER))
    body["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org"]
    paddle.make(body)
    paddle.until("demo", "Running")
    paddle.edit("demo", runPolicy={"suspend": True})
    paddle.until("demo", "Suspended")
    until(lambda: not paddle.children("demo") and not paddle.data("demo"), "nothing is left")
    paddle.edit("demo", runPolicy={"suspend": False})
    paddle.until("demo", "Running")
    paddle.plane.call("DELETE", f"{paddle.path}/demo")

    until(lambda: not paddle.find("demo"), "it is gone")
    until(lambda: not paddle.children("demo") and not paddle.data("demo"), "and so are its children")


def test_an_unfinished_job_is_deleted_and_made_again_under_its_name(paddle: PaddleJobs) -> None:
    """Nothing of the first one reaches the second, however slow its children are to go."""
    for _ in range(2):
        paddle.make(paddlejob("demo", worker=role(2, **FOREVER)))
        paddle.until("demo", "Running")
        assert paddle.data("demo")["PADDLE_TRAINER_ENDPOINTS"].split(",") == addresses(paddle, "demo", "worker")
        paddle.plane.call("DELETE", f"{paddle.path}/demo")
        until(lambda: not paddle.find("demo"), "it is gone")


def test_the_exit_codes_of_paddle_restart_and_others_fail(paddle: PaddleJobs) -> None:
    paddle.make(paddlejob("again", worker=role(1, exit="101,0", runs="0.3")))
    paddle.make(paddlejob("never", worker=role(1, exit="1", runs="0.3")))
    paddle.until("again", "Completed")
    failed = paddle.until("never", "Failed")

    assert "Restarting" in paddle.events("again")
    said = {one["type"]: (one["reason"], one["message"]) for one in failed["conditions"]}
    assert said["Failed"] == (
        "PodFailed",
        "PaddleJob never has failed: never-worker-0: container paddle exited with code 1",
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "spec.worker must have at least one replica"),
        ({"worker": role(0)}, "spec.worker must have at least one replica"),
        ({"worker": {"replicas": 1}}, "spec.worker.template is missing"),
        ({"worker": {**role(1), "requests": 3, "limits": 2}}, "may not be more than"),
        ({"worker": role(1), "withGloo": 3}, "withGloo"),
    ],
)
def test_what_can_never_run_is_refused_by_the_server(paddle: PaddleJobs, spec: Body, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        paddle.make(paddlejob("demo", **spec))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"intranet": "Service"}, "spec.intranet is immutable"),
        ({"ps": None}, "roles cannot be added or removed"),
        ({"heter": role(1)}, "roles cannot be added or removed"),
        ({"withGloo": 2}, "spec.withGloo is immutable"),
        ({"elastic": 1}, "spec.elastic cannot be added"),
    ],
)
def test_what_pods_were_told_of_cannot_be_edited(paddle: PaddleJobs, change: Body, said: str) -> None:
    suspended = {"suspend": True}
    paddle.make(paddlejob("demo", ps=role(1), worker=role(1), runPolicy=suspended))

    with pytest.raises(RefusedError, match=said):
        paddle.edit("demo", **change)


def test_misspellings_of_the_originals_examples_still_run(paddle: PaddleJobs) -> None:
    paddle.make(paddlejob("demo", worker=role(1, runs="0.2"), cleanPodPolicy="Nerver", intranet="HostNetwork"))
    paddle.until("demo", "Completed")

    assert list(paddle.children("demo")) == ["worker-0"]
    assert paddle.children("demo")["worker-0"]["spec"]["hostNetwork"] is True


def test_somebody_elses_configmap_of_its_name_is_told_of_and_nobody_reads_it(paddle: PaddleJobs) -> None:
    theirs = {"metadata": {"name": "demo"}, "data": {"PADDLE_TRAINER_ENDPOINTS": "10.9.9.9:1"}}
    paddle.plane.call("POST", f"{paddle.core}/configmaps", theirs)
    paddle.make(paddlejob("demo", worker=role(1, **FOREVER)))
    until(lambda: "Create" in paddle.events("demo"), f"it is told: {paddle.status('demo')}")

    def trouble() -> str:
        said = paddle.status("demo").get("conditions") or ()
        return "".join(one["message"] for one in said if one["type"] == "ReplicaFailure")

    until(lambda: "demo could not be created: AlreadyExists" in trouble(), trouble())
    keys = paddle.children("demo")["worker-0"]["spec"]["containers"][0]["env"][-1]["valueFrom"]["configMapKeyRef"]
    assert keys["key"] not in paddle.data("demo"), "a kubelet would not start it"
    paddle.plane.call("DELETE", f"{paddle.core}/configmaps/demo")
    until(lambda: keys["key"] in paddle.data("demo"), "its own is made as soon as the name is free")
    paddle.until("demo", "Running")
