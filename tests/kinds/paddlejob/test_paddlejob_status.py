# SPDX-License-Identifier: Apache-2.0
"""The status of a PaddleJob: phases, modes, counts with their pods, times; and what an edit or another leaves of it."""

from typing import Any

import pytest
from paddlejob_driver import Driver, container, manifest, role

from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.paddlejob.wire import MAX_REFS
from trainwright.model.event import EventReason
from trainwright.model.ledger import Phase
from trainwright.model.meta import ADOPT
from trainwright.model.problem import Problem
from trainwright.testing.factories import later


@pytest.mark.parametrize(
    ("sizes", "mode"),
    [
        ({"ps": 1, "worker": 1}, "PS"),
        ({"ps": 0, "worker": 1}, "PS"),
        ({"worker": 2}, "Collective"),
        ({"worker": 1}, "Single"),
        ({"worker": 1, "heter": 2}, "Single"),
    ],
)
def test_the_mode_follows_from_the_roles(sizes: dict[str, int], mode: str) -> None:
    spec: dict[str, Any] = {name: role(count) for name, count in sizes.items()}
    assert Driver(manifest(**spec)).go()["mode"] == mode


def test_phases_and_counts_of_a_life() -> None:
    world = Driver(manifest(ps=1, worker=2, cleanPodPolicy="Never"))
    world.go()
    assert (world.phase, world.status["worker"]["pending"]) == ("Pending", 2)
    assert "startTime" not in world.status
    for name in world.pods():
        world.start(name)
    world.go()
    assert (world.phase, world.status["worker"]["starting"]) == ("Pending", 2), "they wait for the ConfigMap"
    world.start("demo-ps-0")
    world.go()
    assert (world.phase, world.status["ps"]["running"]) == ("Starting", 1)
    world.run()
    assert (world.phase, world.status["worker"]["running"]) == ("Running", 2)
    began = world.status["startTime"]
    world.evict("demo-worker-1")
    world.go()
    assert world.phase == "Restarting"
    assert world.conditions["Running"] == ("False", "Restarting")
    world.wait_out()
    world.run()
    assert (world.phase, world.status["startTime"]) == ("Running", began)
    world.end("ps-0", "worker-0")
    assert (world.phase, world.status["worker"]) == (
        "Running",
        {"running": 1, "succeeded": 1, "refs": world.status["worker"]["refs"]},
    )
    world.end("worker-1")
    assert (world.phase, world.status["worker"]["succeeded"]) == ("Completed", 2)
    assert world.status["completionTime"] > began
    assert world.conditions == {"Running": ("False", "Completed"), "Completed": ("True", "Completed")}


def test_refs_name_pods_without_what_changes_all_the_time() -> None:
    world = Driver(manifest(worker=1))
    world.run()
    (ref,) = world.status["worker"]["refs"]
    pod = world.pods()["demo-worker-0"]

    assert ref == {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": "lab",
        "name": "demo-worker-0",
        "uid": pod.metadata.uid,
    }


def test_a_huge_job_lists_some_of_its_pods_and_counts_all() -> None:
    world = Driver(manifest(worker=600))
    world.run()

    assert (world.status["worker"]["running"], len(world.status["worker"]["refs"])) == (600, MAX_REFS)


def test_counts_outlive_the_pods_that_are_cleaned_up() -> None:
    world = Driver(manifest(worker=2, cleanPodPolicy="Always"))
    world.run()
    world.end("worker-0", "worker-1")

    assert (world.names(), world.status["worker"]) == ([], {"succeeded": 2})


def test_a_replica_on_a_lost_node_is_made_anew_and_the_phase_says_so() -> None:
    world = Driver(manifest(worker=2, intranet="Service", cleanPodPolicy="Never"), nodes=("worker-0", "worker-1", "x"))
    world.run()
    world.lose_node("worker-1")
    world.wait(61)
    plan = world.look()

    assert world.rendered["phase"] == "Restarting"
    assert plan.status.ledger.roles[0].restarts == {"NodeLost": 1}


def test_a_job_that_ended_under_the_original_stays_ended() -> None:
    document = manifest(worker=1)
    document["status"] = {"phase": "Completed", "completionTime": "2023-01-01T00:00:00Z", "mode": "Single"}
    world = Driver(document)
    status = world.go()

    assert (world.phase, world.names()) == ("Completed", [])
    assert status["completionTime"] == "2023-01-01T00:00:00Z"


def test_a_job_that_the_original_was_running_is_accepted_anew_once_it_is_handed_over() -> None:
    document = manifest(worker=1)
    document["status"] = {"phase": "Running", "worker": {"running": 1, "refs": [{"name": "demo-worker-0"}]}}
    world = Driver(document)
    assert (world.go(), world.names()) == (document["status"], [])

    world.document["metadata"]["annotations"] = {ADOPT: "true"}
    world.go()
    assert world.names() == ["worker-0"]


def test_a_manifest_that_cannot_run_fails_and_an_edit_that_cannot_be_applied_is_told() -> None:
    broken = load(PADDLEJOB, manifest())
    assert broken.job.invalid
    world = Driver(manifest(worker=1))
    world.run()
    world.document["spec"]["worker"]["replicas"] = 0
    world.edited()

    assert (world.phase, world.names()) == ("Running", ["worker-0"])
    assert world.conditions["ReplicaFailure"] == ("True", "Invalid")
    world.scale("worker", 1)
    assert world.conditions["ReplicaFailure"] == ("False", "Resolved")


def test_a_container_called_paddle_decides_beside_others() -> None:
    world = Driver(manifest(worker=role(1, pod={"containers": [container("log"), container()]})))

    assert world.main == "paddle"
    (single,) = load(PADDLEJOB, manifest(worker=1)).job.roles
    assert single.main_containers == frozenset()


@pytest.mark.parametrize(
    ("spec", "node", "warned"),
    [
        pytest.param({"worker": 3, "intranet": "Host"}, "one", True, id="on one node"),
        pytest.param({"worker": 3, "intranet": "Host"}, "", False, id="a node for each"),
        pytest.param({"worker": 3}, "one", True, id="pods without a network of their own"),
        pytest.param({"worker": 3, "intranet": "Service"}, "one", False, id="by name"),
        pytest.param({"ps": 1, "worker": 2, "intranet": "Host"}, "one", False, id="servers need no launcher"),
        pytest.param({"worker": 1, "intranet": "Host"}, "one", False, id="alone anyway"),
        pytest.param({"worker": 3, "intranet": "Host", "elastic": 1}, "one", False, id="elastic workers meet at etcd"),
    ],
)
def test_workers_that_paddles_launcher_would_take_for_one_are_told_of(
    spec: dict[str, Any], node: str, warned: bool
) -> None:
    world = Driver(manifest(**spec))
    world.go()
    for name in world.pods():
        world.start(name)
        if node:
            world.change(name, pod_ip="10.0.0.7")
    world.run()

    assert world.phase == "Running"
    said = next(emit for emit in world.told if emit.event_reason is EventReason.RUNNING)
    assert said.warning is warned
    assert ("worker-0 and worker-1 share the address 10.0.0.7" in said.message) is warned
    assert said.message.startswith("demo is running.")


def test_a_change_of_size_is_told_and_is_no_restart() -> None:
    world = Driver(manifest(ps=1, worker=2))
    world.run()
    world.scale("worker", 3)
    world.run()

    assert [str(emit.event_reason) for emit in world.told] == ["Running", "Scaled"]
    assert [entry["restarts"] for entry in world.status["trainwright"]["roles"] if "restarts" in entry] == []


# -- edits by name ---------------------------------------------------------------------------------------------------


def test_suspend_and_scale_are_merge_patches() -> None:
    document = manifest(ps=1, worker=2)

    assert PADDLEJOB.suspend(document, True) == {"spec": {"runPolicy": {"suspend": True}}}
    assert PADDLEJOB.scale(document, "Worker", 4) == {"spec": {"worker": {"replicas": 4}}}
    assert PADDLEJOB.scale(document, "ps", 0) == {"spec": {"ps": {"replicas": 0}}}
    refused = [PADDLEJOB.scale(document, *asked) for asked in (("worker", 0), ("heter", 1), ("wroker", 1))]
    assert [isinstance(one, Problem) for one in refused] == [True] * 3
    assert "did you mean `worker`" in str(refused[2])


def test_deadlines_count_from_acceptance() -> None:
    world = Driver(manifest(worker=1, runPolicy={"activeDeadlineSeconds": 30}))
    world.go()

    assert world.plans[-1].wake == later(30)
    world.wait(30)
    world.go()
    assert (world.phase, world.job.ledger.phase) == ("Failed", Phase.FAILED)
