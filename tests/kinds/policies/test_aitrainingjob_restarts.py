# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob's restarts in the internal model: six policies, exit codes, scopes, limits, and what it does better."""

import pytest
from aitrainingjob_policy import AITrainingJob, Replicas, compiled
from msgspec.structs import replace
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    becomes,
    collected,
    evicted,
    exits,
    failed,
    fails,
    loses,
    pods,
    preempted,
    run,
    services,
    tell,
    terminating,
    verdict,
    waits,
)

from trainwright.model.cause import CauseKind
from trainwright.model.job import Restart
from trainwright.testing import factories

NODES = ("trainer-0", "trainer-1", "trainer-2", "spare")


def trainers(**more: object) -> AITrainingJob:
    """Three trainers, with these policies."""
    return AITrainingJob({"trainer": replace(Replicas(3), **more)})


EXIT = failed("trainer 1 Exit")
LOST = failed("trainer 1 NodeLost")


@pytest.mark.parametrize(
    ("policy", "on_exit", "on_listed_exit", "on_node"),
    [
        ("Never", EXIT, EXIT, LOST),
        ("OnFailure", RESTARTING, RESTARTING, LOST),
        ("ExitCode", EXIT, RESTARTING, LOST),
        ("OnNodeFail", EXIT, EXIT, RESTARTING),
        ("OnNodeFailWithExitCode", EXIT, RESTARTING, RESTARTING),
        ("Always", RESTARTING, RESTARTING, RESTARTING),
    ],
)
def test_policy_matrix(policy: str, on_exit: Verdict, on_listed_exit: Verdict, on_node: Verdict) -> None:
    job = compiled(replace(trainers(restart=policy), exit_codes="137,128"))
    steps = (fails("trainer-1"), fails("trainer-1", code=137), loses("trainer-1"))

    assert [verdict(tell(job, run, step, nodes=NODES)) for step in steps] == [on_exit, on_listed_exit, on_node]


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "ExitCode", "OnNodeFail", "OnNodeFailWithExitCode", "Always"])
def test_no_policy_restarts_success(policy: str) -> None:
    world = tell(compiled(trainers(restart=policy)), run, exits("trainer-0", "trainer-1", "trainer-2"))

    assert verdict(world) == SUCCEEDED


@pytest.mark.parametrize("policy", ["ExitCode", "OnNodeFailWithExitCode"])
@pytest.mark.parametrize(
    "step", [evicted("trainer-1"), fails("trainer-1", code=137)], ids=["evicted", "no codes listed"]
)
def test_exit_code_policies_retry_only_listed_codes(policy: str, step: Step) -> None:
    assert verdict(tell(compiled(trainers(restart=policy)), run, step)).phase == "Failed"


def test_a_container_that_ended_well_does_not_poison_the_exit_codes() -> None:
    """Defect 5: all codes had to be listed, the 0 of a helper included."""
    ends = (factories.container("aitj-helper", exit_code=0), factories.container("aitj-main", exit_code=137))
    job = compiled(replace(trainers(restart="ExitCode", helpers=("aitj-helper",)), exit_codes="137"))
    world = tell(job, run, becomes("trainer-1", phase="Failed", container_statuses=ends))

    assert verdict(world) == RESTARTING


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        ("All", ["a-0#1", "a-1#1", "b-0#1", "b-1#1"]),
        ("Replica", ["a-0#1", "a-1#1", "b-0", "b-1"]),
        ("Pod", ["a-0", "a-1#1", "b-0", "b-1"]),
    ],
)
def test_restart_scope(scope: str, left: list[str]) -> None:
    roles = {"a": Replicas(2, restart="OnFailure", scope=scope), "b": Replicas(2)}
    world = tell(compiled(AITrainingJob(roles)), run, exits("a-0"), fails("a-1"), again)

    assert verdict(world) == OPEN
    assert pods(world) == left
    assert services(world) == ["a-0", "a-1", "b-0", "b-1"]


def test_a_restart_on_a_lost_node_removes_by_force() -> None:
    job = compiled(trainers(restart="OnNodeFail", scope="Pod"))
    world = tell(job, run, loses("trainer-1"), nodes=NODES)
    deletes = [(one.name, one.force) for plan in world.plans for one in plan.deletes]

    assert deletes == [("job-trainer-1", True)]


@pytest.mark.parametrize("scope", ["All", "Replica", "Pod"])
@pytest.mark.parametrize(
    ("limit", "failures", "expected"),
    [
        (0, 1, failed("trainer 1 Exit")),
        (2, 2, RESTARTING),
        (2, 3, failed("trainer 1 Exit")),
        (None, 9, RESTARTING),
    ],
    ids=["none", "two of two", "three of two", "unlimited"],
)
def test_restart_limit_of_a_replica_type(scope: str, limit: int | None, failures: int, expected: Verdict) -> None:
    steps = [step for _ in range(failures) for step in (again, fails("trainer-1"))]
    world = tell(compiled(trainers(restart="OnFailure", scope=scope, limit=limit)), *steps)

    assert verdict(world) == expected


def test_the_limit_is_of_the_type_not_of_the_pod() -> None:
    job = compiled(trainers(restart="OnFailure", scope="Pod", limit=1))
    world = tell(job, run, fails("trainer-0"), again, fails("trainer-1"))

    assert verdict(world) == failed("trainer 1 Exit")


def test_several_failures_in_one_look_are_one_restart_of_their_scope() -> None:
    job = compiled(trainers(restart="OnFailure", scope="Replica", limit=1))
    world = tell(job, run, fails("trainer-0", "trainer-1", "trainer-2"), again)

    assert verdict(world) == OPEN
    assert world.job.ledger.roles[0].restarts == {"Exit": 1}


def test_a_restart_of_the_whole_job_counts_on_every_type() -> None:
    roles = {name: Replicas(1, restart="OnFailure", limit=1) for name in "ab"}
    world = tell(compiled(AITrainingJob(roles)), run, fails("a-0"), again)
    counts = [(entry.name, sum(entry.restarts.values())) for entry in world.job.ledger.roles]

    assert counts == [("a", 1), ("b", 1)]


def test_a_pod_whose_image_cannot_be_pulled_is_restarted_after_a_while() -> None:
    role = factories.role("trainer", restart=Restart(frozenset({CauseKind.CREATE_ERROR}), limit=1), patience=15 * 60)
    stuck = factories.container(waiting="ImagePullBackOff")
    world = tell(
        factories.job(role),
        becomes("trainer-0", start_time=factories.NOW, container_statuses=(stuck,)),
        waits(15 * 60 + 1),
        waits(60),
    )

    assert pods(world) == ["trainer-0#1"]


# -- fixes of the original -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["All", "Replica", "Pod"])
def test_a_terminating_pod_is_not_a_failure_and_not_a_restart(scope: str) -> None:
    world = tell(compiled(trainers(restart="OnFailure", scope=scope, limit=0)), run, terminating("trainer-1"), run)

    assert verdict(world) == OPEN
    assert pods(world) == ["trainer-0", "trainer-1", "trainer-2"]


def test_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    """Defect 2: it was judged NodeFail."""
    job = compiled(trainers(restart="Always"))
    world = tell(job, run, exits("trainer-1"), loses("trainer-1"), exits("trainer-0", "trainer-2"), nodes=NODES)

    assert verdict(world) == SUCCEEDED


def test_a_finished_pod_that_was_collected_is_not_run_again() -> None:
    job = compiled(trainers())
    world = tell(job, run, exits("trainer-1"), collected("trainer-1"), waits(600), exits("trainer-0", "trainer-2"))

    assert verdict(world) == SUCCEEDED


def test_without_a_list_of_nodes_no_node_has_failed() -> None:
    """Defect 1: a failed LIST made every pod NodeFail."""
    assert verdict(tell(compiled(trainers(restart="OnNodeFail")), run, loses("trainer-1"))) == OPEN


def preempted_pod_of(policy: str) -> Verdict:
    return verdict(tell(compiled(trainers(restart=policy)), run, preempted("trainer-1")))


def test_a_preempted_pod_is_a_failed_pod() -> None:
    assert [preempted_pod_of("Never"), preempted_pod_of("OnFailure")] == [failed("trainer 1 Disrupted"), RESTARTING]
