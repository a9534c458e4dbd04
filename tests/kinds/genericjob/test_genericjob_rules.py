# SPDX-License-Identifier: Apache-2.0
"""When a GenericJob succeeds or fails: the documented rules, and every corner case of the reference's table."""

from typing import Any

import msgspec
import pytest
from genericjob_driver import Driver, condition, manifest, phases, replicas

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB, wire
from trainwright.model.child import Observed
from trainwright.model.job import Body
from trainwright.model.ledger import Outcome, Reason
from trainwright.model.rule import Result
from trainwright.testing.world import World

THREE = [{"master": [0]}, {"worker": [0, 1, 2]}, {"master": [2], "worker": [0, 1]}]
BOTH = (replicas("master", 3), replicas("worker", 3))


def driver(*specs: Any, **spec: Any) -> Driver:
    return Driver(manifest(*specs, **spec)).running()


def ends(job: Driver, good: str = "", bad: str = "") -> str:
    """The phase after these replicas ended, all in one observation."""
    for names, code in ((good, 0), (bad, 1)):
        for name in names.split():
            job.exit(f"demo-{name}", code)
    phase: str = job.go()["phase"]
    return phase


@pytest.mark.parametrize(
    ("good", "phase"),
    [
        ("master-0", "Succeeded"),
        ("worker-0 worker-1 worker-2", "Succeeded"),
        ("master-2 worker-0 worker-1", "Succeeded"),
        ("worker-0 worker-1", "Running"),
        ("master-2", "Running"),
        ("master-1 master-2 worker-2", "Running"),
        ("master-2 worker-0", "Running"),
    ],
)
def test_any_rule_and_all_of_it(good: str, phase: str) -> None:
    """The manual's three success rules."""
    assert ends(driver(*BOTH, successRules=THREE, failureRules=[{"master": [0]}]), good) == phase


@pytest.mark.parametrize(
    ("rules", "bad", "phase"),
    [
        pytest.param([{"worker": [0]}, {"worker": [1]}], "worker-0", "Failed", id="either: the first"),
        pytest.param([{"worker": [0]}, {"worker": [1]}], "worker-1", "Failed", id="either: the second"),
        pytest.param([{"worker": [0]}, {"worker": [1]}], "worker-2", "Running", id="either: neither"),
        pytest.param([{"worker": [0, 1]}], "worker-0", "Running", id="both: only one"),
        pytest.param([{"worker": [0, 1]}], "worker-0 worker-1", "Failed", id="both: both"),
        pytest.param([{"worker": [0], "master": [1]}], "worker-0", "Running", id="two types: only one"),
        pytest.param([{"worker": [0], "master": [1]}], "worker-0 master-1", "Failed", id="two types: both"),
    ],
)
def test_failure_rules(rules: Any, bad: str, phase: str) -> None:
    assert ends(driver(*BOTH, successRules=[{"master": [0]}], failureRules=rules), bad=bad) == phase


def test_a_rule_is_fulfilled_over_time_too() -> None:
    job = driver(successRules=[{"worker": [0, 1]}])

    assert [ends(job, good="worker-1"), ends(job, good="worker-0")] == ["Running", "Succeeded"]


def test_success_comes_before_failure() -> None:
    job = driver(successRules=[{"worker": [0]}], failureRules=[{"worker": [1]}])

    assert ends(job, good="worker-0", bad="worker-1") == "Succeeded"
    assert condition(job.status, "Failed") == ("False", "Succeeded", "The job has finished successfully.")
    assert condition(job.status, "ReplicaFailure") == (
        "True",
        "ErrorInPod",
        "Pod[demo-worker-1] exited with error code 1",
    )


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        pytest.param(
            {"workers": [0]},
            "spec.{0}[0]: there is no replica type 'workers'; the job has worker; did you mean `worker`?",
            id="unknown type",
        ),
        pytest.param(
            {"worker": [4]},
            "spec.{0}[0].worker: there is no rank 4: worker has 4 replicas, counted from 0",
            id="rank too high",
        ),
        pytest.param(
            {"worker": ["4"]},
            "spec.{0}[0].worker: there is no rank 4: worker has 4 replicas, counted from 0",
            id="rank too high, as text",
        ),
    ],
)
@pytest.mark.parametrize("field", ["successRules", "failureRules"])
def test_a_rule_that_cannot_be_meant_is_refused(field: str, rule: Any, problem: str) -> None:
    spec: Body = {field: [rule]}
    loaded = load(GENERICJOB, manifest(**spec))

    assert [str(one) for one in loaded.errors] == [problem.format(field)]


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        pytest.param({}, "spec.{0}[0]", id="no type"),
        pytest.param({"worker": []}, "spec.{0}[0].worker", id="no rank"),
        pytest.param({"worker": [-1]}, "spec.{0}[0].worker[0]", id="negative"),
        pytest.param({"worker": ["-1"]}, "spec.{0}[0].worker[0]", id="negative, as text"),
        pytest.param({"worker": [0, "one"]}, "spec.{0}[0].worker[1]", id="no number"),
        pytest.param({"worker": [0.5]}, "spec.{0}[0].worker[0]", id="half a rank"),
        pytest.param({"worker": 0}, "spec.{0}[0].worker", id="no list"),
    ],
)
@pytest.mark.parametrize("field", ["successRules", "failureRules"])
def test_a_rule_of_the_wrong_shape_is_refused(field: str, rule: Any, path: str) -> None:
    spec: Body = {field: [rule]}
    loaded = load(GENERICJOB, manifest(**spec))

    assert [one.path for one in loaded.errors] == [path.format(field)]


@pytest.mark.parametrize(
    ("success", "failure", "good", "bad", "outcome"),
    [
        pytest.param(
            [{"ghost": [0]}, {"worker": [0]}], [], "worker-0", "", Result.SUCCEEDED, id="the other rule counts"
        ),
        pytest.param([{"worker": [9]}, {"worker": [0]}], [], "worker-0", "", Result.SUCCEEDED, id="nor does a rank"),
        pytest.param([{"worker": [0]}], [{"ghost": [0]}], "", "worker-1", None, id="an unknown failure never comes"),
        pytest.param([{"worker": [0]}], [{"worker": [9]}], "", "worker-1", None, id="nor that of an unknown rank"),
        pytest.param([{"worker": [0]}], [{"worker": [0], "ghost": [0]}], "", "worker-1", None, id="nor in part"),
        pytest.param([{"worker": [0]}], [{}], "", "worker-1", None, id="an AND over nothing is not fulfilled"),
        pytest.param([{}, {"worker": [0]}], [{"worker": [9]}], "worker-1", "", None, id="nor does it succeed"),
    ],
)
def test_a_rule_that_got_past_admission_never_decides(
    success: Any, failure: Any, good: str, bad: str, outcome: Result | None
) -> None:
    """Straight from the wire type, past every check."""
    document = manifest(successRules=success, failureRules=failure)
    unchecked = msgspec.convert(
        document | {"spec": {"replicaSpecs": document["spec"]["replicaSpecs"]}}, wire.GenericJob
    )
    spec = msgspec.structs.replace(unchecked.spec, success_rules=tuple(success), failure_rules=tuple(failure))
    world = World(GENERICJOB.translate(msgspec.structs.replace(unchecked, spec=spec)))
    world.step()
    for name in list(world.pods()):
        world.start(name)
    for names, code in ((good, 0), (bad, 1)):
        for name in names.split():
            world.exit(f"demo-{name}", code)
    world.settle()

    ended = world.job.ledger.outcome
    assert (ended.result if ended else None) == outcome


@pytest.mark.parametrize("rules", [{}, {"successRules": []}, {"successRules": None}], ids=["missing", "empty", "null"])
def test_without_success_rules_every_replica_must_succeed(rules: Any) -> None:
    job = driver(replicas("master", 1), replicas("worker", 2), **rules)

    assert ends(job, good="master-0 worker-0") == "Running"
    assert ends(job, good="worker-1") == "Succeeded"


@pytest.mark.parametrize("rules", [{}, {"failureRules": []}, {"failureRules": None}], ids=["missing", "empty", "null"])
def test_without_failure_rules_any_replica_may_not_fail(rules: Any) -> None:
    job = driver(replicas("master", 1), replicas("worker", 2), **rules)

    assert ends(job, bad="worker-1") == "Failed"
    assert condition(job.status, "Failed") == ("True", "Failed", 'The job is failed with rule: {"worker":[1]}')


def test_without_failure_rules_a_replica_that_no_success_rule_names_fails_the_job() -> None:
    assert ends(driver(successRules=[{"worker": [0]}]), bad="worker-3") == "Failed"


def test_a_type_without_replicas_is_asked_for_nothing() -> None:
    job = driver(replicas("master", 1), replicas("worker", 0))

    assert ends(job, good="master-0") == "Succeeded"


def test_a_replica_that_may_still_restart_has_not_failed() -> None:
    spec = replicas(restartPolicy={"policy": "OnFailure", "limit": 1})
    job = driver(spec, failureRules=[{"worker": [0]}])

    assert ends(job, bad="worker-0") == "Running"
    assert condition(job.status, "ReplicaFailure") == (
        "True",
        "ErrorInPod",
        "Pod[demo-worker-0] exited with error code 1",
    )
    assert "Failed" not in [one["type"] for one in job.status["conditions"]]


def test_always_restarts_success_until_the_limit_then_the_last_outcome_counts() -> None:
    spec = replicas(count=1, restartPolicy={"policy": "Always", "limit": 2})
    job = driver(spec, successRules=[{"worker": [0]}])
    seen = []
    for _ in range(3):
        job.fail_and_restart("worker-0", code=0)
        seen.append(job.status["phase"])

    assert seen == ["Running", "Running", "Succeeded"]


def test_a_replica_that_no_rule_names_may_fail() -> None:
    job = driver(successRules=[{"worker": [0]}], failureRules=[{"worker": [1]}])

    assert ends(job, bad="worker-2") == "Running"
    assert condition(job.status, "Running") == ("True", "-", "All pods are running normally.")
    assert condition(job.status, "ReplicaFailure") == (
        "True",
        "ErrorInPod",
        "Pod[demo-worker-2] exited with error code 1",
    )
    assert job.names() == [f"demo-worker-{rank}" for rank in range(4)]
    assert ends(job, good="worker-0") == "Succeeded"


def test_all_finished_without_any_rule_fulfilled_is_failure() -> None:
    rules = [{"worker": [0, 1]}]
    job = driver(replicas(count=2), successRules=rules, failureRules=rules)

    assert ends(job, good="worker-0", bad="worker-1") == "Failed"
    message = "The job is failed: no success rule can be fulfilled any more, since worker 1 failed"
    assert condition(job.status, "Failed") == ("True", "Failed", message)


def test_success_out_of_reach_is_failure_although_others_still_run() -> None:
    job = driver(successRules=[{"worker": [0]}, {"worker": [1, 2]}], failureRules=[{"worker": [3]}])

    assert ends(job, bad="worker-0") == "Running"
    assert ends(job, bad="worker-2") == "Failed"
    message = "The job is failed: no success rule can be fulfilled any more, since worker 0 failed"
    assert condition(job.status, "Completed") == ("True", "Failed", message)


@pytest.mark.parametrize("rule", [{"worker": [1, 1, 0, 0]}, {"worker": ["0", 0, 1]}], ids=["numbers", "both"])
def test_ranks_are_a_set(rule: Any) -> None:
    job = driver(successRules=[rule])

    assert [ends(job, good="worker-0"), ends(job, good="worker-1")] == ["Running", "Succeeded"]


def test_in_debug_mode_the_same_rules_apply() -> None:
    job = driver(successRules=[{"worker": [0]}], runMode={"debug": {"enabled": True}})

    assert ends(job, good="worker-0") == "Succeeded"


def test_a_pause_forgets_half_fulfilled_rules() -> None:
    job = driver(replicas(count=2), successRules=[{"worker": [0, 1]}])
    ends(job, good="worker-0")
    job.pause()
    job.go()
    job.reap()
    job.pause(enabled=False)
    job.go()
    job.start_all()

    assert phases(job.status) == {"worker-0": "Running", "worker-1": "Running"}
    assert ends(job, good="worker-1") == "Running"
    assert ends(job, good="worker-0") == "Succeeded"


def test_a_collected_pod_that_succeeded_is_remembered() -> None:
    job = driver(replicas(count=2), successRules=[{"worker": [0, 1]}])
    ends(job, good="worker-0")
    job.vanish("demo-worker-0")
    job.go()

    assert job.names() == ["demo-worker-1"]
    assert ends(job, good="worker-1") == "Succeeded"


@pytest.mark.parametrize(("good", "bad"), [("worker-0", ""), ("", "worker-0")], ids=["succeeded", "failed"])
def test_the_end_is_final(good: str, bad: str) -> None:
    """Nothing that happens afterwards changes it, and nothing is made again."""
    job = driver(successRules=[{"worker": [0]}], failureRules=[{"worker": [0]}])
    ends(job, good, bad)
    before = job.status
    job.edit(successRules=[{"worker": [1]}], failureRules=[{"worker": [1]}])
    job.vanish("demo-worker-2")
    ends(job, good="worker-1", bad="worker-3")
    job.pause()
    job.wait(3600)
    job.settle()

    assert [one for one in job.status["conditions"] if one["type"] != "ReplicaFailure"] == [
        one for one in before["conditions"] if one["type"] != "ReplicaFailure"
    ]
    assert (job.status["phase"], job.names()) == (before["phase"], ["demo-worker-0", "demo-worker-1", "demo-worker-3"])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        pytest.param({"worker": [0]}, '{"worker":[0]}', id="a number stays a number"),
        pytest.param({"worker": ["0"]}, '{"worker":["0"]}', id="a text stays a text"),
        pytest.param({"worker": ["0", 1]}, '{"worker":["0",1]}', id="both"),
        pytest.param({"worker": [1, 0, 1]}, '{"worker":[1,0,1]}', id="neither sorted nor made unique"),
        pytest.param({"worker": [0], "master": [1]}, '{"worker":[0],"master":[1]}', id="types in the user's order"),
        pytest.param({"worker": ["00"]}, '{"worker":["00"]}', id="digits as written"),
    ],
)
def test_the_rule_that_decided_is_shown_as_written(rule: Any, text: str) -> None:
    job = driver(replicas("master", 2), replicas("worker", 2), failureRules=[rule])
    ends(job, bad="worker-0 worker-1 master-1")

    assert condition(job.status, "Failed") == ("True", "Failed", f"The job is failed with rule: {text}")
    assert job.status["trainwright"]["outcome"]["rule"] == text


def test_the_first_rule_that_is_fulfilled_is_shown() -> None:
    job = driver(failureRules=[{"worker": [3]}, {"worker": [1]}, {"worker": [0]}])
    ends(job, bad="worker-0 worker-1")

    assert condition(job.status, "Failed")[2] == 'The job is failed with rule: {"worker":[1]}'


def test_the_deciding_rule_is_kept() -> None:
    loaded = load(GENERICJOB, driver(successRules=THREE[1:2]).document)
    job = driver(successRules=THREE[1:2])
    ends(job, good="worker-0 worker-1 worker-2")
    outcome = job.load().job.ledger.outcome

    assert loaded.job.ledger.outcome is None
    assert outcome == Outcome(
        Result.SUCCEEDED,
        Reason.RULE,
        job.clock,
        '{"worker":[0,1,2]}',
        'rule {"worker":[0,1,2]} fulfilled by worker 0',
    )


def test_nothing_is_decided_before_anything_has_ended() -> None:
    loaded = load(GENERICJOB, manifest(successRules=THREE[1:2]))
    plan = reconcile(loaded.job, Observed(), Driver(manifest()).site, Driver(manifest()).clock)

    assert plan.status.ledger.outcome is None
