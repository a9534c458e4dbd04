# SPDX-License-Identifier: Apache-2.0
"""Defects that users of the original reported, each as a story in which it does not happen here."""

from typing import Any

import pytest
from tfjob_driver import Driver, condition, conditions, counts, gangs, manifest, policy, replicas

from trainwright.kinds.gangs import VOLCANO_API
from trainwright.model.child import ContainerState, ContainerStatus, Running, Terminated, Waiting
from trainwright.model.plan import Write
from trainwright.testing.factories import later


def two(restart: str = "OnFailure", **more: Any) -> Driver:
    return Driver(manifest(Worker=replicas(2, restartPolicy=restart), **more)).running()


def test_3358_the_deadline_fires_though_nothing_else_happens() -> None:
    driver = Driver(manifest(spec=policy(activeDeadlineSeconds=100), Worker=1)).running()

    assert driver.look().wake == later(100)


def test_1533_the_time_to_live_wakes_the_operator_too() -> None:
    driver = Driver(manifest(spec=policy(ttlSecondsAfterFinished=100), Worker=1)).running()
    driver.end("worker-0")

    assert driver.look().wake == later(100)


@pytest.mark.parametrize("restart", ["OnFailure", "ExitCode"])
def test_2045_pods_that_are_made_anew_use_up_the_backoff_limit(restart: str) -> None:
    driver = two(restart, spec=policy(backoffLimit=3))
    for _ in range(2):
        driver.end("worker-1", code=137)
        driver.pass_by(60)
        driver.restart_operator()  # what has been counted outlives the operator
        driver.start_all()

    assert conditions(driver.end("worker-1", code=137))[-1] == "Failed"
    assert "backoff limit" in condition(driver.status, "Failed")[2]


def test_the_limit_is_told_as_the_user_wrote_it_with_the_end_that_the_kubelet_answered() -> None:
    driver = Driver(manifest(spec=policy(backoffLimit=2), Worker=replicas(2, restartPolicy="OnFailure"))).running()
    last = ContainerState(terminated=Terminated(9))
    one = ContainerStatus("tensorflow", restart_count=2, state=ContainerState(running=Running()), last_state=last)
    driver.change("demo-worker-0", container_statuses=(one,))
    outcome = driver.go()["trainwright"]["outcome"]

    assert outcome["message"] == "the restart limit (backoffLimit) of 2 is reached: 2 restarts count against it"
    assert (outcome["failure"]["pod"], outcome["failure"]["cause"]["code"]) == ("demo-worker-0", 9)


def test_a_limit_of_1_allows_no_restart_and_says_so() -> None:
    driver = Driver(manifest(spec=policy(backoffLimit=1), Worker=replicas(2, restartPolicy="ExitCode"))).running()
    outcome = driver.end("worker-1", code=137)["trainwright"]["outcome"]

    assert outcome["message"] == (
        "the restart limit (backoffLimit) of 1 is reached: the first restart would reach it, so none was made"
    )


def test_3419_clean_pod_policy_none_holds_when_the_backoff_limit_is_hit() -> None:
    driver = two(spec=policy(backoffLimit=1, cleanPodPolicy="None"))
    driver.restarted_in_place("worker-0", 1)

    assert driver.names() == driver.names("Service") == ["worker-0", "worker-1"]


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "Always", "ExitCode"])
def test_2124_a_pod_that_is_deleted_does_not_fail_its_job(restart: str) -> None:
    driver = two(restart)
    driver.delete(("Pod", "demo-worker-1"))
    driver.catch_up()
    driver.step()
    assert conditions(driver.status) == ["Created", "Running"]

    driver.go()
    assert driver.names() == ["worker-0", "worker-1"]
    assert conditions(driver.start_all()) == ["Created", "Running"]


def test_2124_nor_is_it_told_as_a_failure_where_its_restarts_must_be_remembered() -> None:
    driver = two(spec=policy(backoffLimit=5))
    driver.restarted_in_place("worker-1", 2)
    driver.delete(("Pod", "demo-worker-1"))
    driver.catch_up()
    driver.step()

    assert conditions(driver.go()) == ["Created", "Running"]
    assert conditions(driver.start_all()) == ["Created", "Running"]
    assert conditions(driver.restarted_in_place("worker-1", 3))[-1] == "Failed"


def test_1560_exit_code_137_under_exit_code_restarts() -> None:
    assert conditions(two("ExitCode").end("worker-1", code=137)) == ["Created", "Restarting"]


@pytest.mark.parametrize("reason", ["NodeShutdown", "Terminated", "Evicted", "Preempting"])
def test_999_a_node_that_shuts_down_gracefully_does_not_fail_a_job(reason: str) -> None:
    driver = two()
    driver.change("demo-worker-1", phase="Failed", reason=reason, container_statuses=None)

    assert conditions(driver.go()) == ["Created", "Restarting"]


def test_2072_a_dead_node_does_not_hang_the_job() -> None:
    driver = Driver(manifest(Worker=replicas(2, restartPolicy="OnFailure")), nodes=("node-1", "node-2"))
    driver.go()
    driver.start("demo-worker-0", "node-1")
    driver.start("demo-worker-1", "node-2")
    driver.go()
    driver.delete(("Pod", "demo-worker-1"))  # by the cluster's own eviction: it lingers, for nobody answers there
    driver.lose_node("node-2")
    driver.pass_by(61)
    driver.pass_by(60)
    driver.start("demo-worker-1", "node-1")

    assert conditions(driver.go()) == ["Created", "Running"]
    assert counts(driver.status) == {"Worker": "2/0/0"}


def test_2072_a_replica_that_went_with_its_node_is_told_to_restart_until_it_does() -> None:
    workers = replicas(2, restartPolicy="OnFailure")
    driver = Driver(manifest(Chief=1, Worker=workers), nodes=("node-1", "node-2"))
    driver.go()
    for name, node in (("chief-0", "node-1"), ("worker-0", "node-1"), ("worker-1", "node-2")):
        driver.start(f"demo-{name}", node)
    driver.go()
    driver.lose_node("node-2")

    assert conditions(driver.pass_by(61)) == ["Created", "Restarting"]
    assert conditions(driver.pass_by(1)) == ["Created", "Running"]
    assert driver.names() == ["chief-0", "worker-0", "worker-1"]


def test_1186_finished_pods_that_are_collected_do_not_run_again() -> None:
    driver = Driver(manifest(spec={"successPolicy": "AllWorkers"}, Worker=3)).running()
    driver.end("worker-1")
    driver.vanish("demo-worker-1")
    driver.go()
    driver.restart_operator()
    driver.pass_by(600)

    assert driver.names() == ["worker-0", "worker-2"]
    assert counts(driver.status) == {"Worker": "2/1/0"}
    assert conditions(driver.end("worker-0", "worker-2"))[-1] == "Succeeded"


def test_1709_replicas_0_is_nothing() -> None:
    driver = Driver(manifest(Worker=1, PS=0)).running()

    assert driver.names() == driver.names("Service") == ["worker-0"]
    assert driver.look().empty


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
def test_965_finished_jobs_cost_nothing(code: int) -> None:
    driver = two("Never")
    driver.end("worker-0", code=code)
    plan = driver.step()

    assert plan.empty
    assert plan.wake is None
    assert plan.events == ()
    assert driver.document["status"] == driver.rendered


def test_2239_suspension_and_time_to_live_go_together() -> None:
    driver = two(spec=policy(ttlSecondsAfterFinished=10))

    assert conditions(driver.suspend())[-1] == "Suspended"
    assert conditions(driver.pass_by(100))[-1] == "Suspended"
    assert driver.names() == []


def test_1011_nothing_is_repeated_after_the_end() -> None:
    driver = Driver(manifest(spec=policy(schedulingPolicy={}), Worker=2), site=gangs(VOLCANO_API))
    driver.go()
    driver.group("Running")
    driver.start_all()
    driver.end("worker-0")
    writes, told = len(driver.writes), len(driver.told)
    for _ in range(5):
        driver.pass_by(60)

    assert (len(driver.writes), len(driver.told)) == (writes, told)


def test_1574_pods_follow_as_soon_as_the_group_is_admitted() -> None:
    driver = Driver(manifest(spec=policy(schedulingPolicy={}), Worker=2), site=gangs(VOLCANO_API))
    driver.go()
    writes = len(driver.writes)
    driver.pass_by(300)
    assert len(driver.writes) == writes  # the original wrote its status every second while it waited

    driver.group("Inqueue")
    assert driver.names() == ["worker-0", "worker-1"]


def test_751_the_job_ends_with_worker_0_although_others_go_on() -> None:
    driver = two("Never", PS=1)

    assert conditions(driver.end("worker-0"))[-1] == "Succeeded"


@pytest.mark.parametrize(("code", "last"), [(0, "Succeeded"), (1, "Failed")])
def test_1183_a_sidecar_that_runs_on_does_not_keep_the_job(code: int, last: str) -> None:
    driver = Driver(manifest(Worker=1)).running()
    ended = ContainerStatus("tensorflow", state=ContainerState(terminated=Terminated(code)))
    proxy = ContainerStatus("istio-proxy", ready=True, state=ContainerState(running=Running()))
    driver.change("demo-worker-0", container_statuses=(ended, proxy))

    assert conditions(driver.go())[-1] == last


def test_1183_nor_does_what_the_sidecar_says_in_the_end() -> None:
    driver = Driver(manifest(Worker=1)).running()
    ended = ContainerStatus("tensorflow", state=ContainerState(terminated=Terminated(0)))
    proxy = ContainerStatus("istio-proxy", state=ContainerState(terminated=Terminated(1)))
    driver.change("demo-worker-0", phase="Failed", container_statuses=(ended, proxy))

    assert conditions(driver.go())[-1] == "Succeeded"


@pytest.mark.parametrize(
    "spec",
    [
        {"tfReplicaSpecs": {"Worker": None}},
        {"tfReplicaSpecs": None},
        {"tfReplicaSpecs": []},
        {"tfReplicaSpecs": {"Worker": {"template": None}}},
        {"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [None, 1]}}}}},
        {"tfReplicaSpecs": {"Worker": replicas(2)}, "runPolicy": []},
        {"tfReplicaSpecs": {"Worker": replicas(2, restartPolicy="Sometimes")}},
        [],
        None,
    ],
    ids=str,
)
def test_706_a_malformed_job_hurts_nobody(spec: Any) -> None:
    document = manifest(Worker=1)
    document["spec"] = spec
    driver = Driver(document)

    assert conditions(driver.go()) == ["Created", "Failed"]
    assert condition(driver.status, "Failed")[1] == "TFJobFailedValidation"


def test_1745_a_name_that_no_service_can_have_is_refused_not_tried() -> None:
    driver = Driver(manifest("x" * 60, Worker=12))

    assert "has 70 characters; at most 63 are allowed" in condition(driver.go(), "Failed")[2]
    assert driver.truth == {}


def test_1306_deleted_and_created_again_under_the_same_name_starts_at_once() -> None:
    first = Driver(manifest(Worker=1)).running()
    second = Driver(manifest(Worker=1))
    second.truth.update(first.truth)
    second.document["metadata"]["uid"] = "another"
    second.restart_operator()
    second.step()
    second.vanish("demo-worker-0")
    second.delete(("Service", "demo-worker-0"))
    second.wait(31)
    second.go()

    assert second.names() == ["worker-0"]


@pytest.mark.parametrize(("restart", "code"), [("ExitCode", 130), ("OnFailure", 1)])
def test_4063_failed_pods_do_not_flap_after_the_end(restart: str, code: int) -> None:
    driver = Driver(
        manifest(spec=policy(cleanPodPolicy="Running"), Chief=1, Worker=replicas(1, restartPolicy=restart))
    ).running()
    driver.exit("demo-worker-0", code)
    driver.end("chief-0")
    writes = len(driver.writes)
    driver.pass_by(600)

    assert conditions(driver.status)[-1] == "Succeeded"
    assert len(driver.writes) == writes


def test_803_a_job_that_was_resumed_shows_that_it_runs() -> None:
    driver = two()
    driver.suspend()
    driver.suspend(False)

    assert conditions(driver.start_all())[-1] == "Running"


def test_1282_an_image_that_cannot_be_pulled_costs_no_writes() -> None:
    driver = Driver(manifest(Worker=1))
    driver.go()
    for attempt in range(5):
        waiting = Waiting("ImagePullBackOff", f"attempt {attempt}")
        driver.change(
            "demo-worker-0", container_statuses=(ContainerStatus("tensorflow", state=ContainerState(waiting=waiting)),)
        )
        driver.catch_up()
        assert driver.step().write is Write.NOT


def test_a_failure_elsewhere_is_not_covered_by_a_restart_that_is_under_way() -> None:
    """In the original a Restarting condition kept the failure of another type from failing the job."""
    driver = Driver(manifest(Worker=replicas(2, restartPolicy="ExitCode"), PS=1)).running()
    assert conditions(driver.end("worker-1", code=137))[-1] == "Restarting"

    assert conditions(driver.end("ps-0", code=1)) == ["Created", "Restarting", "Failed"]
    assert condition(driver.status, "Failed")[2] == "TFJob lab/demo has failed because 1 PS replica(s) failed."


def test_a_dynamic_worker_that_fails_for_good_leaves_a_job_that_can_end() -> None:
    """In the original such a job had no completion time, and its time to live was an error."""
    spec = {"enableDynamicWorker": True} | policy(ttlSecondsAfterFinished=10)
    driver = Driver(manifest(spec=spec, Worker=replicas(2, restartPolicy="ExitCode"), PS=1)).running()

    assert conditions(driver.end("worker-1", code=1))[-1] == "Running"
    assert counts(driver.status) == {"PS": "1/0/0", "Worker": "1/0/1"}
    assert conditions(driver.end("worker-0"))[-1] == "Succeeded"
    driver.pass_by(10)
    assert driver.gone


def test_1709_no_chief_as_a_number_is_no_chief() -> None:
    """In the original such a job has succeeded before it begins."""
    driver = Driver(manifest(Chief=0, Worker=2)).running()

    assert driver.names() == ["worker-0", "worker-1"]
    assert '"chief"' not in (driver.config("worker-0") or '"chief"')
    assert driver.body("Pod", "worker-0")["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
    assert conditions(driver.status) == ["Created", "Running"]
    assert conditions(driver.end("worker-0"))[-1] == "Succeeded"


def test_1709_a_job_whose_workers_are_scaled_to_none_waits_for_them() -> None:
    driver = Driver(manifest(Worker=2, PS=1, Evaluator=1)).running()
    driver.end("evaluator-0")

    assert conditions(driver.scale("Worker", 0))[-1] == "Running"
    driver.scale("Worker", 1)
    driver.start_all()
    assert conditions(driver.end("worker-0"))[-1] == "Succeeded"


def test_a_suspension_is_not_told_as_a_restart_where_the_kubelet_has_restarted() -> None:
    driver = two()
    driver.restarted_in_place("worker-0", 2)
    driver.suspend()

    assert [reason for reason, _ in driver.said()] == ["TFJobRunning", "TFJobSuspended"]


def test_a_failed_job_is_not_looked_at_again_by_its_restartable_pods() -> None:
    driver = two("ExitCode")
    driver.exit("demo-worker-0", 137)
    status = driver.end("worker-1", code=1)

    assert conditions(status)[-1] == "Failed"
    assert driver.pass_by(100) == status
