# SPDX-License-Identifier: Apache-2.0
"""The status of an AITrainingJob: odd keys, counts, conditions and their bound, what is said of troubles; events."""

import msgspec
import pytest
from aitrainingjob_driver import Driver, container, last, manifest, replicas, told

from trainwright.kinds.aitrainingjob.conditions import put
from trainwright.model.child import ObjectCondition
from trainwright.model.job import Body
from trainwright.model.meta import ADOPT
from trainwright.testing import factories

NODES = ("trainer-0", "trainer-1", "trainer-2", "spare")


def test_the_keys_are_the_originals_to_the_byte() -> None:
    world = Driver(manifest(trainer=replicas(2, restartPolicy="OnFailure"))).running()
    world.end("trainer-0", code=1)
    world.again()
    status = world.end("trainer-0", "trainer-1")

    assert set(status) == {
        "phase",
        "conditions",
        "replicaStatuses",
        "RestartCount",
        "RestartReplicaName",
        "startTime",
        "startRunningTime",
        "endTime",
        "restarts",
        "trainwright",
    }
    assert set(status["conditions"][0]) == {
        "type",
        "status",
        "reason",
        "message",
        "lastProbeTime",
        "lastTransitionTime",
    }
    assert (status["phase"], status["RestartReplicaName"], status["RestartCount"]) == ("Succeed", "", {"trainer": 1})


def test_what_is_omitted_and_what_never_is() -> None:
    status = Driver(manifest(trainer=1)).go()

    assert status["RestartReplicaName"] == ""
    assert status["restarts"] == 0
    assert not {"RestartCount", "startRunningTime", "endTime", "lastReconcileTime"} & set(status)


def test_counts_by_replica_type_under_the_name_in_the_spec() -> None:
    world = Driver(manifest(PServer=replicas(6, completePolicy="None", failPolicy="None"), trainer=1))
    world.go()
    world.bind("demo-pserver-1")
    for place in (2, 3, 4, 5):
        world.start(f"demo-pserver-{place}")
    world.exit("demo-pserver-3", 0)
    world.exit("demo-pserver-4", 1)
    world.change("demo-pserver-5", phase="Unknown")

    assert world.go()["replicaStatuses"] == {
        "PServer": {"pending": 1, "scheduled": 1, "active": 1, "succeeded": 1, "failed": 2},
        "trainer": {"pending": 1},
    }


def test_a_pending_pod_of_a_restarted_type_counts_as_restarting() -> None:
    world = Driver(manifest(trainer=replicas(2, restartPolicy="OnFailure", restartScope="Pod"))).running()
    world.end("trainer-1", code=1)

    assert world.status["replicaStatuses"] == {"trainer": {"active": 1, "failed": 1}}
    assert world.pass_by(60)["replicaStatuses"] == {"trainer": {"active": 1, "restarting": 1}}
    assert world.place()["replicaStatuses"] == {"trainer": {"active": 1, "restarting": 1}}


def test_a_finished_pod_that_was_collected_is_still_counted() -> None:
    world = Driver(manifest(trainer=2)).running()
    world.end("trainer-0")
    world.vanish("demo-trainer-0")

    assert world.go()["replicaStatuses"] == {"trainer": {"active": 1, "succeeded": 1}}


# -- conditions ----------------------------------------------------------------------------------------------------


def test_the_last_condition_is_true_the_others_are_history() -> None:
    world = Driver(manifest(trainer=1))
    world.go()
    world.wait(5)
    status = world.start_all()

    assert [(one["type"], one["status"], one["lastTransitionTime"]) for one in status["conditions"]] == [
        ("Pending", "False", "2026-11-15T12:00:00Z"),
        ("Running", "True", "2026-11-15T12:00:05Z"),
    ]


def test_the_same_step_again_only_changes_its_message() -> None:
    first = put((), "Pending", "a", factories.NOW)
    second = put(first, "Pending", "b", factories.later(9))

    assert len(second) == 1
    assert (second[0].message, second[0].last_transition_time, second[0].last_probe_time) == (
        "b",
        "2026-11-15T12:00:00Z",
        "2026-11-15T12:00:09Z",
    )
    assert put(second, "Pending", "b", factories.later(99)) is second


def test_a_job_that_restarts_a_hundred_times_keeps_twenty_conditions() -> None:
    world = Driver(manifest(trainer=replicas(1, restartPolicy="Always"))).running()
    for _ in range(100):
        world.end("trainer-0", code=1)
        world.again()

    kinds = [kind for kind, _ in told(world.status)]
    assert len(kinds) == 20
    assert kinds[-3:] == ["Terminating", "Restarting", "Running"]
    assert (world.status["RestartCount"], world.status["restarts"]) == ({"trainer": 100}, 100)
    assert len(msgspec.json.encode(world.status)) < 16_000


@pytest.mark.parametrize(("scope", "expected"), [("All", 1), ("Replica", 1), ("Pod", 1)])
def test_one_restart_is_one_restart_whatever_it_takes_along(scope: str, expected: int) -> None:
    one = replicas(2, restartPolicy="OnFailure", restartScope=scope)
    world = Driver(manifest(a=one, b=one)).running()
    world.end("a-0", code=1)
    status = world.again()

    assert status["restarts"] == expected
    assert status["RestartCount"] == ({"a": 1, "b": 1} if scope == "All" else {"a": 1})


def test_a_restart_is_counted_when_it_is_decided_and_shown_when_its_pod_exists() -> None:
    """`RestartCount` is the original's, which raises it before it deletes the pods."""
    world = Driver(manifest(trainer=replicas(2, restartPolicy="OnFailure"))).running()
    status = world.end("trainer-0", code=1)
    assert (status["RestartCount"], status["restarts"]) == ({"trainer": 1}, 0)

    status = world.again()
    assert (status["RestartCount"], status["restarts"]) == ({"trainer": 1}, 1)


@pytest.mark.parametrize("scope", ["All", "Replica", "Pod"])
def test_a_pending_restart_is_shown_also_if_an_older_version_forgets_that_it_is_pending(scope: str) -> None:
    """The older one drops the parts of the ledger that it does not know; the counts are left."""
    one = replicas(2, restartPolicy="OnFailure", restartScope=scope)
    world = Driver(manifest(a=one, b=one)).running()
    for restart in range(1, 4):
        world.end("a-0", code=1)
        for entry in world.document["status"]["trainwright"]["roles"]:
            for unknown in ("pending", "hidden", "charged", "inside"):
                entry.pop(unknown, None)
        status = world.again()

        assert status["restarts"] == restart
        assert status["RestartCount"] == ({"a": restart, "b": restart} if scope == "All" else {"a": restart})


# -- what is wrong -------------------------------------------------------------------------------------------------


def test_why_a_container_cannot_be_created_is_said() -> None:
    world = Driver(manifest(trainer=2))
    world.go()
    assert last(world.stick("trainer-1")) == (
        "Pending",
        "all pods are waiting for scheduling; pod demo-trainer-1 on node node-1 create container "
        "failed[aitj-main: ImagePullBackOff: no such image]",
    )
    world.place()
    assert last(world.status) == (
        "Creating",
        "pod demo-trainer-1 on node node-1 create container failed[aitj-main: ImagePullBackOff: no such image]",
    )


def test_why_a_pod_cannot_be_placed_is_said_and_no_more_than_a_few_times() -> None:
    world = Driver(manifest(trainer=5))
    world.go()
    for place in range(5):
        world.unschedulable(f"trainer-{place}")

    assert last(world.status) == (
        "Pending",
        "all pods are waiting for scheduling; pod demo-trainer-0: 0/3 nodes are available; pod demo-trainer-1: 0/3 "
        "nodes are available; pod demo-trainer-2: 0/3 nodes are available; 2 more pods wait",
    )


def test_what_keeps_a_restarted_pod_from_running_is_said_and_forgotten_again() -> None:
    world = Driver(manifest(trainer=replicas(1, restartPolicy="OnFailure"))).running()
    world.end("trainer-0", code=1)
    world.pass_by(60)

    stuck = world.unschedulable("trainer-0")
    assert last(stuck) == (
        "Restarting",
        "All pods are restarting now; pod demo-trainer-0: 0/3 nodes are available",
    )
    world.change("demo-trainer-0", conditions=())
    assert last(world.go()) == ("Restarting", "All pods are restarting now")


def test_a_pod_that_the_server_refuses_is_said() -> None:
    world = Driver(manifest(trainer=1))
    other = factories.pod(name="demo-trainer-0", uid="somebody-else")
    metadata = msgspec.structs.replace(other.metadata, labels={}, owner_references=None)
    world.put(("Pod", "demo-trainer-0"), msgspec.structs.replace(other, metadata=metadata))

    assert last(world.go()) == (
        "Pending",
        "all pods are waiting for scheduling; pod demo-trainer-0 could not be created: AlreadyExists: pods "
        '"demo-trainer-0" already exists, and is not this job\'s: no controller owns it; remove it, or give the job '
        "another name",
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted, low on memory on node node-1"),
        (
            {"conditions": (ObjectCondition("DisruptionTarget", "True", "PreemptionByScheduler", "for another"),)},
            "PreemptionByScheduler, for another on node node-1",
        ),
    ],
)
def test_a_pod_that_failed_without_an_exit_code_says_why(status: Body, expected: str) -> None:
    world = Driver(manifest(trainer=1)).running()
    world.change("demo-trainer-0", phase="Failed", container_statuses=None, **status)

    assert told(world.go())[-1] == ("Failed", f"pod demo-trainer-0 is failed, {expected}; deleted pods")


@pytest.mark.parametrize(
    ("policy", "ends", "expected"),
    [
        ("Rank0", ["trainer-0"], "rank0 pod demo-trainer-0 is failed, {0}"),
        ("All", ["trainer-0", "trainer-1"], "All trainer pods are failed, {0}"),
        ("Any", ["trainer-1"], "pod demo-trainer-1 is failed, {0}"),
        (
            "None",
            ["trainer-1"],
            "pod demo-trainer-1 is failed, {0}; no success rule can be fulfilled any more, since trainer 1 failed",
        ),
    ],
)
def test_the_end_is_told_as_the_fail_policy_looks_at_it(policy: str, ends: list[str], expected: str) -> None:
    complete = "Any" if policy == "All" else "All"
    world = Driver(manifest(trainer=replicas(2, failPolicy=policy, completePolicy=complete))).running()
    why = "container aitj-main on node node-1 exited with reason Error exitcode 3"

    assert last(world.end(*ends, code=3)) == ("Failed", expected.format(why) + "; deleted pods")


# -- other lives ---------------------------------------------------------------------------------------------------


def test_suspended_and_resumed() -> None:
    world = Driver(manifest(trainer=2)).running()
    world.end("trainer-0")

    assert last(world.edited(suspend=True)) == ("Suspended", "job demo is suspended")
    assert (world.names(), world.names("Service")) == ([], [])
    assert world.edited(suspend=False)["phase"] == "Pending"
    assert world.start_all()["phase"] == "Running"
    assert world.phases == ["Pending", "Running", "Suspended", "Pending", "Running"]
    assert [reason for reason, _ in world.said()][1:3] == ["TrainingJobSuspended", "TrainingJobResumed"]


def test_a_suspension_puts_an_end_to_a_restart_in_flight() -> None:
    world = Driver(manifest(trainer=replicas(2, restartPolicy="Always"))).running()
    world.exit("demo-trainer-0", 1)
    world.go(reaps=False)
    assert world.status["RestartReplicaName"] == "trainer"

    assert world.edited(suspend=True)["RestartReplicaName"] == ""


def test_a_new_job_that_cannot_be_run_fails_and_says_why() -> None:
    status = Driver(manifest(trainer=replicas(1, restartPolicy="Sometimes"))).go()

    assert status["phase"] == "Failed"
    assert "restartPolicy: expected one of" in last(status)[1]
    assert status["endTime"] == "2026-11-15T12:00:00Z"


def test_an_edit_that_cannot_be_applied_leaves_the_job_as_it_is() -> None:
    world = Driver(manifest(trainer=2)).running()
    before = told(world.status)
    status = world.edited(restartingExitCode="x")

    assert told(status)[0][0] == "Invalid"
    assert "expected exit codes" in told(status)[0][1]
    assert (told(status)[1:], status["phase"], world.names()) == (before, "Running", ["trainer-0", "trainer-1"])
    mended = world.edited(restartingExitCode="1")
    assert told(mended) == before


def test_a_job_that_ended_under_the_original_stays_ended_in_its_phase() -> None:
    document = manifest(trainer=1)
    document["status"] = {
        "phase": "Timeout",
        "conditions": [{"type": "Timeout", "status": "True", "reason": "TrainingJobTimeout", "message": "late"}],
        "replicaStatuses": {"trainer": {"failed": 1}},
        "RestartCount": {"trainer": 2},
        "RestartReplicaName": "",
        "startTime": "2020-09-04T00:00:00Z",
        "endTime": "2020-09-05T00:00:00Z",
    }
    world = Driver(document)
    status = world.go()

    assert {key: status[key] for key in document["status"]} == document["status"]
    assert status["trainwright"]["phase"] == "Failed"
    assert world.names() == []


@pytest.mark.parametrize("phase", ["Running", "Terminating"])
def test_a_job_that_runs_under_the_original_is_taken_for_new_once_it_is_handed_over(phase: str) -> None:
    document = manifest(trainer=1)
    document["status"] = {"phase": phase, "conditions": None, "replicaStatuses": None, "RestartReplicaName": "trainer"}
    world = Driver(document)

    assert (world.go(), world.names()) == (document["status"], [])
    world.document["metadata"]["annotations"] = {ADOPT: "true"}
    world.phases.clear()
    assert world.go()["phase"] == "Pending"
    assert world.phases == ["Pending"]


def test_a_memory_that_cannot_be_read_is_told_and_not_written_over() -> None:
    world = Driver(manifest(trainer=1)).running()
    world.document["status"]["trainwright"] = {"phase": "Dancing"}
    world.look()

    assert "trainwright" not in world.rendered
    assert world.rendered["phase"] == "Running"
    assert "status.trainwright: cannot be read" in world.rendered["conditions"][0]["message"]


def test_a_job_whose_pods_have_all_finished_without_a_decision_stays_where_it_was() -> None:
    world = Driver(manifest(trainer=replicas(2, completePolicy="None"))).running()

    assert last(world.end("trainer-0", "trainer-1")) == ("Running", "all pods are running")
    late = Driver(manifest(trainer=replicas(2, completePolicy="None")))
    late.go()
    late.start_all("trainer-0")
    late.end("trainer-0")
    late.place()
    late.start("demo-trainer-1")
    assert last(late.end("trainer-1")) == ("Creating", "creating containers")


# -- events --------------------------------------------------------------------------------------------------------


def test_one_event_for_each_step_with_the_reason_of_its_condition() -> None:
    world = Driver(manifest(trainer=replicas(2, restartPolicy="OnFailure"))).running()
    world.end("trainer-1", code=1)
    world.again()
    world.end("trainer-0", "trainer-1")

    assert world.said() == [
        ("TrainingJobRunning", "all pods are running"),
        (
            "TrainingJobRestarting",
            "restart times is 1, pod demo-trainer-1: container aitj-main on node node-1 exited with reason Error "
            "exitcode 1",
        ),
        ("TrainingJobSucceed", "job demo completed"),
    ]
    assert {emit.source for emit in world.told} == {"TrainingJobOperator"}
    assert [emit.warning for emit in world.told] == [False, True, False]


@pytest.mark.parametrize("word", ["Preempted", "NodeFail", "Timeout", "Failed"])
def test_the_event_of_an_end_bears_the_name_of_its_phase(word: str) -> None:
    world = Driver(manifest(trainer=1)).running()
    asked: Body = {word: "because"}
    world.annotate(**asked)

    assert world.said()[-1] == (f"TrainingJob{word}", f"annotation {word} asked for this end: because")
    assert world.told[-1].warning


def test_a_lost_node_is_named_in_conditions_and_events() -> None:
    world = Driver(manifest(trainer=replicas(3, restartPolicy="OnNodeFail", restartScope="Pod")), nodes=NODES).running()
    world.lose_node("trainer-1")
    world.wait(61)
    world.go()

    expected = "restart times is 1, pod demo-trainer-1: Node trainer-1 is failed and offline"
    assert ("Terminating", expected) in told(world.status)
    assert ("TrainingJobRestarting", expected) in world.said()


def test_a_sidecar_does_not_decide() -> None:
    pod = {"containers": [container("proxy"), container()]}
    world = Driver(manifest(trainer=replicas(1, pod=pod))).running()
    ends = (factories.container("proxy"), factories.container("aitj-main", exit_code=0))
    world.change("demo-trainer-0", container_statuses=ends)

    assert world.go()["phase"] == "Succeed"
