# SPDX-License-Identifier: Apache-2.0
"""PaddleJob in the one model: what each policy compiles to, and the verdict when it is driven through the world."""

from typing import Any

import pytest
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    collected,
    crashes,
    evicted,
    exits,
    failed,
    fails,
    in_place,
    loses,
    pods,
    preempted,
    rest,
    run,
    services,
    tell,
    terminating,
    verdict,
)

from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.paddlejob.policies import FREE, REPLACED
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Job, Restart, RestartScope
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.testing.factories import UID
from trainwright.testing.world import World

PS = {"ps": 1, "worker": 2}
COLLECTIVE = {"worker": 2}
BY_WORKERS: dict[str, Any] = {"runPolicy": {"successPolicy": "Workers"}}
NODES = ("ps-0", "worker-0", "worker-1", "spare")
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "paddle"}]}}
AGAIN = {"spec": {**TEMPLATE["spec"], "restartPolicy": "OnFailure"}}


def paddlejob(sizes: dict[str, int], intranet: str = "PodIP", template: Any = None, **spec: Any) -> Job:
    """The job in the one model, through its kind."""
    roles = {name: {"replicas": count, "template": template or TEMPLATE} for name, count in sizes.items()}
    loaded = load(
        PADDLEJOB,
        {
            "apiVersion": "batch.paddlepaddle.org/v1",
            "kind": "PaddleJob",
            "metadata": {"name": "job", "namespace": "default", "uid": UID},
            "spec": {**roles, "intranet": intranet, **spec},
        },
    )
    assert loaded.errors == ()
    return loaded.job


# -- what it compiles to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(
            paddlejob(PS),
            AllOf((Atom("ps", Which.EVERY, Result.SUCCEEDED), Atom("worker", Which.EVERY, Result.SUCCEEDED))),
            id="all pods of all roles",
        ),
        pytest.param(
            paddlejob(PS, **BY_WORKERS), AllOf((Atom("worker", Which.EVERY, Result.SUCCEEDED),)), id="by workers alone"
        ),
        pytest.param(
            paddlejob({"worker": 2, "heter": 0}),
            AllOf((Atom("worker", Which.EVERY, Result.SUCCEEDED),)),
            id="a role of nobody is not waited for",
        ),
    ],
)
def test_success_compiles(job: Job, expected: Rule) -> None:
    assert job.success == expected


def test_failure_is_any_pod_of_any_role() -> None:
    expected = AnyOf((Atom("ps", Which.SOME, Result.FAILED), Atom("worker", Which.SOME, Result.FAILED)))

    assert paddlejob(PS).failure == expected


@pytest.mark.parametrize(
    ("intranet", "elastic", "scope", "resize"),
    [
        ("PodIP", False, RestartScope.JOB, RestartScope.JOB),
        ("Host", False, RestartScope.JOB, RestartScope.JOB),
        ("Service", False, RestartScope.POD, RestartScope.JOB),
        ("PodIP", True, RestartScope.POD, None),
        ("Service", True, RestartScope.POD, None),
    ],
)
def test_restart_and_resize_compile(
    intranet: str, elastic: bool, scope: RestartScope, resize: RestartScope | None
) -> None:
    (worker,) = paddlejob(COLLECTIVE, intranet, **({"elastic": 1} if elastic else {})).roles

    assert worker.restart == Restart(causes=REPLACED, codes=((101, 102),), free=FREE, scope=scope)
    assert worker.resize is resize
    assert worker.service is (intranet == "Service")
    assert worker.uses_host_ports is (intranet == "Host")
    assert worker.gate == ("" if elastic else "job")


@pytest.mark.parametrize(
    ("policy", "completed", "failed_"),
    [
        ("", CleanPods.ALL, CleanPods.UNFINISHED),
        ("OnCompletion", CleanPods.ALL, CleanPods.UNFINISHED),
        ("Always", CleanPods.ALL, CleanPods.ALL),
        ("OnFailure", CleanPods.UNFINISHED, CleanPods.ALL),
        ("Never", CleanPods.UNFINISHED, CleanPods.UNFINISHED),
        ("Nerver", CleanPods.UNFINISHED, CleanPods.UNFINISHED),
        ("OnFailed", CleanPods.UNFINISHED, CleanPods.UNFINISHED),
    ],
)
def test_clean_pod_policy_compiles(policy: str, completed: CleanPods, failed_: CleanPods) -> None:
    job = paddlejob(COLLECTIVE, cleanPodPolicy=policy)

    assert job.lifecycle.clean == CleanUp(completed, failed_, failed_)


# -- success and failure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "steps", "expected"),
    [
        pytest.param(paddlejob(PS), [exits("worker-0", "worker-1")], OPEN, id="servers run on"),
        pytest.param(paddlejob(PS), [exits("worker-0", "worker-1"), exits("ps-0")], SUCCEEDED, id="all complete"),
        pytest.param(paddlejob(PS), [fails("ps-0")], failed("ps 0 Exit"), id="a server fails"),
        pytest.param(paddlejob(PS), [fails("worker-1")], failed("worker 1 Exit"), id="a worker fails"),
        pytest.param(paddlejob(PS), [evicted("worker-1")], failed("worker 1 Evicted"), id="a worker is evicted"),
        pytest.param(paddlejob(PS, **BY_WORKERS), [exits("worker-0", "worker-1")], SUCCEEDED, id="workers are enough"),
        pytest.param(paddlejob(PS, **BY_WORKERS), [exits("worker-0")], OPEN, id="one worker is not"),
        pytest.param(paddlejob(PS, **BY_WORKERS), [fails("ps-0")], failed("ps 0 Exit"), id="by workers, server fails"),
        pytest.param(paddlejob({"worker": 1}), [exits("worker-0")], SUCCEEDED, id="single"),
        pytest.param(paddlejob({"worker": 1, "heter": 0}), [exits("worker-0")], SUCCEEDED, id="a role of nobody"),
        # The kubelet restarts inside the pod where the template says so; the pod has not failed then.
        pytest.param(
            paddlejob(COLLECTIVE, template=AGAIN),
            [in_place("worker-0", 99)],
            OPEN,
            id="restarted in place as asked for",
        ),
        pytest.param(
            paddlejob(COLLECTIVE, elastic=1), [in_place("worker-0", 99)], OPEN, id="restarted in place while elastic"
        ),
        pytest.param(
            paddlejob(COLLECTIVE, "Service"), [in_place("worker-0", 6)], OPEN, id="restarted in place by default"
        ),
        pytest.param(
            paddlejob(COLLECTIVE, "Service"),
            [in_place("worker-0", 7)],
            Verdict("Failed", "BackoffLimit"),
            id="restarted in place by default, and too often",
        ),
        pytest.param(
            paddlejob(COLLECTIVE, runPolicy={"backoffLimit": 5}),
            [in_place("worker-0", 6)],
            Verdict("Failed", "BackoffLimit"),
            id="restarted in place beyond the limit",
        ),
    ],
)
def test_outcomes(job: Job, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(job, run, run, *steps, run)) == expected


# -- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, failed("worker 1 Exit")),
        (100, failed("worker 1 Exit")),
        (101, RESTARTING),
        (102, RESTARTING),
        (103, failed("worker 1 Exit")),
        (137, failed("worker 1 Exit")),
    ],
)
def test_only_paddles_own_exit_codes_restart(code: int, expected: Verdict) -> None:
    assert verdict(tell(paddlejob(COLLECTIVE), run, run, fails("worker-1", code=code))) == expected


@pytest.mark.parametrize(("limit", "restarts"), [(None, 6), (2, 2), (0, 0)])
def test_exit_codes_restart_only_so_often(limit: int | None, restarts: int) -> None:
    spec: dict[str, Any] = {} if limit is None else {"runPolicy": {"backoffLimit": limit}}
    steps: list[Step] = [run, run]
    for _ in range(restarts):
        steps += [fails("worker-1", code=101), again, run]
    world = tell(paddlejob({"worker": 2}, **spec), *steps)

    assert verdict(world) == OPEN
    world = tell(paddlejob({"worker": 2}, **spec), *steps, fails("worker-1", code=101))
    assert verdict(world) == Verdict("Failed", "BackoffLimit", "worker 1 Exit")


def test_disruptions_restart_without_limit() -> None:
    steps: list[Step] = [run, run]
    for _ in range(12):
        steps += [preempted("worker-1"), again, run]
    world = tell(paddlejob(COLLECTIVE), *steps)

    assert verdict(world) == OPEN
    assert world.job.ledger.roles[0].restarts == {CauseKind.DISRUPTED: 12}


EVERYTHING_ANEW = ["ps-0#1", "worker-0#1", "worker-1#1"]


@pytest.mark.parametrize(
    ("intranet", "step", "left"),
    [
        pytest.param("PodIP", terminating("worker-1"), EVERYTHING_ANEW, id="PodIP, deleted"),
        pytest.param("PodIP", collected("worker-1"), EVERYTHING_ANEW, id="PodIP, gone"),
        pytest.param("PodIP", preempted("worker-1"), EVERYTHING_ANEW, id="PodIP, preempted"),
        pytest.param("PodIP", loses("worker-1"), EVERYTHING_ANEW, id="PodIP, node lost"),
        pytest.param("PodIP", fails("worker-1", code=101), EVERYTHING_ANEW, id="PodIP, 101"),
        pytest.param("Host", collected("ps-0"), EVERYTHING_ANEW, id="Host, gone"),
        # By name a new pod is found where the old one was. It is no new attempt where nothing had ended.
        pytest.param("Service", terminating("worker-1"), ["ps-0", "worker-0", "worker-1"], id="Service, deleted"),
        pytest.param("Service", collected("worker-1"), ["ps-0", "worker-0", "worker-1"], id="Service, gone"),
        pytest.param("Service", preempted("worker-1"), ["ps-0", "worker-0", "worker-1#1"], id="Service, preempted"),
        pytest.param("Service", loses("worker-1"), ["ps-0", "worker-0", "worker-1#1"], id="Service, node lost"),
        pytest.param("Service", fails("worker-1", code=102), ["ps-0", "worker-0", "worker-1#1"], id="Service, 102"),
    ],
)
def test_a_replaced_pod_restarts_whoever_knows_its_address(intranet: str, step: Step, left: list[str]) -> None:
    world = tell(paddlejob(PS, intranet), run, run, step, again, run, nodes=NODES)

    assert verdict(world) == OPEN
    assert pods(world) == left
    assert services(world) == (["ps-0", "worker-0", "worker-1"] if intranet == "Service" else [])


def test_a_restart_of_the_job_counts_once_on_the_role_that_caused_it() -> None:
    world = tell(paddlejob(PS), run, run, collected("worker-0", "worker-1"), again)

    assert [(entry.name, entry.restarts) for entry in world.job.ledger.roles] == [
        ("ps", {}),
        ("worker", {"Deleted": 1}),
    ]


def test_a_pod_that_vanishes_before_all_exist_restarts_nobody() -> None:
    """No peer has read an address yet."""
    world = World(paddlejob(COLLECTIVE))
    world.step(dies_after=2)  # the status, one pod
    before = pods(world)
    world.vanish("job-worker-0")
    rest(world)

    assert before == ["worker-0"]
    assert pods(world) == ["worker-0", "worker-1"]


def test_a_terminating_pod_is_not_a_failure() -> None:
    assert verdict(tell(paddlejob(COLLECTIVE), run, run, terminating("worker-1"))) == RESTARTING


def test_a_finished_pod_that_was_collected_is_not_run_again() -> None:
    world = tell(paddlejob(COLLECTIVE), run, run, exits("worker-0"), collected("worker-0"), again, exits("worker-1"))

    assert verdict(world) == SUCCEEDED


def test_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    world = tell(paddlejob(COLLECTIVE), run, run, exits("worker-0"), loses("worker-0"), exits("worker-1"), nodes=NODES)

    assert verdict(world) == SUCCEEDED


# -- start order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_servers_are_made_before_workers_and_all_in_one_pass(intranet: str) -> None:
    world = World(paddlejob({"worker": 1, "heter": 1, "ps": 2}, intranet))
    plan = world.step()
    made = [create.name.removeprefix("job-") for create in plan.creates if create.body["kind"] == "Pod"]

    assert made == ["ps-0", "ps-1", "worker-0", "heter-0"]


# -- clean-up ------------------------------------------------------------------------------------------------------

ALL = ["ps-0", "worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("policy", "completed", "after_failure"),
    [
        ("", [], ["worker-1"]),
        ("OnCompletion", [], ["worker-1"]),
        ("Always", [], []),
        ("OnFailure", ALL, []),
        ("Never", ALL, ["worker-1"]),
    ],
)
@pytest.mark.parametrize("intranet", ["PodIP", "Service"])
def test_clean_pod_policy_after_each_end(
    intranet: str, policy: str, completed: list[str], after_failure: list[str]
) -> None:
    """After a failure what still runs goes, whatever is said: it would hold GPUs."""
    job = paddlejob(PS, intranet, cleanPodPolicy=policy)
    done = tell(job, run, run, exits("worker-0", "worker-1", "ps-0"))
    broken = tell(job, run, run, fails("worker-1"))

    named = intranet == "Service"
    assert (verdict(done), pods(done), services(done)) == (SUCCEEDED, completed, completed if named else [])
    assert (verdict(broken), pods(broken)) == (failed("worker 1 Exit"), after_failure)


@pytest.mark.parametrize("policy", ["", "Always", "OnFailure", "OnCompletion", "Never"])
def test_no_pod_is_restarted_in_place_after_the_end(policy: str) -> None:
    job = paddlejob(COLLECTIVE, template=AGAIN, cleanPodPolicy=policy, runPolicy={"backoffLimit": 3})
    world = tell(job, run, run, crashes("worker-0"), in_place("worker-1", 4))

    assert (verdict(world), pods(world)) == (Verdict("Failed", "BackoffLimit"), [])


@pytest.mark.parametrize(("policy", "left"), [("", []), ("Never", ["worker-0", "worker-1"])])
def test_servers_go_when_the_workers_have_ended(policy: str, left: list[str]) -> None:
    job = paddlejob(PS, cleanPodPolicy=policy, **BY_WORKERS)
    world = tell(job, run, run, exits("worker-0", "worker-1"))

    assert (verdict(world), pods(world)) == (SUCCEEDED, left)
