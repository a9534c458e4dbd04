# SPDX-License-Identifier: Apache-2.0
"""GenericJob by its real translation: what each policy compiles to, and the verdict of each documented corner case."""

from typing import Any

import pytest
from msgspec.structs import replace
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    both,
    collected,
    edits,
    evicted,
    exits,
    failed,
    fails,
    loses,
    pods,
    preempted,
    rejected,
    run,
    services,
    tell,
    terminating,
    verdict,
)

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model import rule
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Job, Restart
from trainwright.model.rule import Atom, Result, Which

TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "busybox", "command": ["train"]}]}}
DISRUPTIONS = frozenset({CauseKind.DISRUPTED, CauseKind.NODE_LOST})
NODES = ("worker-0", "worker-1", "spare")


def generic(types: dict[str, int], policy: str = "OnFailure", limit: int = 0, **spec: Any) -> Job:
    """A job of these types, loaded like any manifest."""
    replicas = [
        {"type": name, "replicas": count, "template": TEMPLATE, "restartPolicy": {"policy": policy, "limit": limit}}
        for name, count in types.items()
    ]
    document = {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": "job", "uid": "1234"},
        "spec": {"replicaSpecs": replicas, **spec},
    }
    loaded = load(GENERICJOB, document)
    assert loaded.problems == ()
    return loaded.job


# -- what it compiles to -------------------------------------------------------------------------------------------


def test_rules_compile_to_any_of_all_and_keep_their_text() -> None:
    job = generic(
        {"master": 3, "worker": 3},
        successRules=[{"master": [0]}, {"master": [2], "worker": ["1", 0, 1]}],
        failureRules=[{"worker": [0]}],
    )

    assert job.success == rule.AnyOf(
        (
            rule.AllOf((Atom("master", (0,), Result.SUCCEEDED),), '{"master":[0]}'),
            rule.AllOf(
                (Atom("master", (2,), Result.SUCCEEDED), Atom("worker", (0, 1), Result.SUCCEEDED)),
                '{"master":[2],"worker":["1",0,1]}',
            ),
        )
    )
    assert job.failure == rule.AnyOf((rule.AllOf((Atom("worker", (0,), Result.FAILED),), '{"worker":[0]}'),))


def test_without_rules_all_must_succeed_and_none_may_fail() -> None:
    job = generic({"ps": 1, "worker": 2, "extra": 0})

    assert job.success == rule.AllOf(
        (Atom("ps", Which.EVERY, Result.SUCCEEDED), Atom("worker", Which.EVERY, Result.SUCCEEDED))
    )
    assert job.failure == rule.AnyOf((Atom("ps", Which.SOME, Result.FAILED), Atom("worker", Which.SOME, Result.FAILED)))


@pytest.mark.parametrize(
    ("policy", "causes"),
    [
        ("Never", DISRUPTIONS),
        ("OnFailure", DISRUPTIONS | {CauseKind.EXIT, CauseKind.EVICTED, CauseKind.REJECTED}),
        ("Always", DISRUPTIONS | {CauseKind.EXIT, CauseKind.EVICTED, CauseKind.REJECTED, CauseKind.COMPLETED}),
    ],
)
def test_restart_policy_compiles(policy: str, causes: frozenset[CauseKind]) -> None:
    assert generic({"worker": 1}, policy, 5).roles[0].restart == Restart(
        causes, free=DISRUPTIONS, limit=5, per_replica=True
    )


@pytest.mark.parametrize("level", list(CleanPods))
def test_clean_up_policy_compiles(level: CleanPods) -> None:
    assert generic({"worker": 1}, cleanUpPolicy=level.value).lifecycle.clean == CleanUp(level, level, level)


# -- success and failure -------------------------------------------------------------------------------------------

BASIC = generic({"worker": 4}, successRules=[{"worker": [0]}], failureRules=[{"worker": [0]}, {"worker": [1]}])
AND = generic({"worker": 3}, successRules=[{"worker": [0, 1]}], failureRules=[{"worker": [0, 1]}])
MIXED = generic(
    {"master": 3, "worker": 3},
    successRules=[{"master": [0]}, {"worker": [0, 1, 2]}, {"master": [2], "worker": [0, 1]}],
    failureRules=[{"master": [1], "worker": [1]}],
)
PLAIN = generic({"ps": 1, "worker": 2})
ALWAYS = generic({"worker": 2}, "Always", 1, successRules=[{"worker": [0]}])


@pytest.mark.parametrize(
    ("job", "steps", "expected"),
    [
        pytest.param(BASIC, [], OPEN, id="runs"),
        pytest.param(BASIC, [exits("worker-1", "worker-2", "worker-3")], OPEN, id="others end"),
        pytest.param(BASIC, [exits("worker-0")], SUCCEEDED, id="worker 0 ends"),
        pytest.param(BASIC, [fails("worker-1", code=127)], failed("worker 1 Exit"), id="worker 1 fails"),
        pytest.param(BASIC, [fails("worker-2")], OPEN, id="worker 2 is in no rule"),
        pytest.param(BASIC, [fails("worker-2"), exits("worker-0")], SUCCEEDED, id="worker 2 failed, worker 0 ends"),
        pytest.param(BASIC, [both(exits("worker-0"), fails("worker-1"))], SUCCEEDED, id="both rules in one look"),
        pytest.param(AND, [exits("worker-0")], OPEN, id="AND, half"),
        pytest.param(AND, [exits("worker-0"), exits("worker-1")], SUCCEEDED, id="AND, whole"),
        pytest.param(
            AND, [fails("worker-1")], failed("worker 1 Exit", "Unreachable"), id="AND, success is out of reach"
        ),
        pytest.param(MIXED, [exits("master-2"), exits("worker-0", "worker-1")], SUCCEEDED, id="over two types"),
        pytest.param(MIXED, [exits("worker-0", "worker-1")], OPEN, id="over two types, half"),
        pytest.param(
            MIXED, [fails("master-0"), exits("worker-0", "worker-1", "worker-2")], SUCCEEDED, id="another way"
        ),
        pytest.param(MIXED, [fails("master-1")], OPEN, id="half a failure rule"),
        pytest.param(MIXED, [fails("master-1"), fails("worker-1")], failed("master 1 Exit"), id="a failure rule"),
        pytest.param(
            MIXED,
            [fails("master-0", "master-2", "worker-2")],
            failed("master 0 Exit", "Unreachable"),
            id="no way is left",
        ),
        pytest.param(PLAIN, [exits("worker-0", "worker-1")], OPEN, id="no rules, not all"),
        pytest.param(PLAIN, [exits("ps-0", "worker-0", "worker-1")], SUCCEEDED, id="no rules, all"),
        pytest.param(PLAIN, [fails("ps-0")], failed("ps 0 Exit"), id="no rules, one fails"),
        pytest.param(ALWAYS, [exits("worker-0")], RESTARTING, id="Always restarts success"),
        pytest.param(ALWAYS, [exits("worker-0"), again, exits("worker-0")], SUCCEEDED, id="Always, limit used up"),
    ],
)
def test_outcomes(job: Job, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(job, run, *steps)) == expected


@pytest.mark.parametrize(
    ("job", "step", "expected"),
    [
        pytest.param(BASIC, exits("worker-0"), '{"worker":[0]}', id="success"),
        pytest.param(BASIC, fails("worker-1"), '{"worker":[1]}', id="failure"),
        pytest.param(MIXED, exits("worker-0", "worker-1", "worker-2"), '{"worker":[0,1,2]}', id="second rule"),
        pytest.param(PLAIN, fails("ps-0"), "", id="no rule"),
    ],
)
def test_the_rule_that_decided_is_kept(job: Job, step: Step, expected: str) -> None:
    outcome = tell(job, run, step).job.ledger.outcome

    assert outcome is not None
    assert outcome.rule == expected


# -- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "step", "expected"),
    [
        ("Never", fails("worker-1"), failed("worker 1 Exit")),
        ("Never", preempted("worker-1"), RESTARTING),
        ("Never", loses("worker-1"), RESTARTING),
        ("OnFailure", fails("worker-1"), RESTARTING),
        ("OnFailure", evicted("worker-1"), RESTARTING),
        ("OnFailure", rejected("worker-1"), RESTARTING),
        ("OnFailure", exits("worker-1"), OPEN),
        ("Always", exits("worker-1"), RESTARTING),
    ],
)
def test_restart_policy(policy: str, step: Step, expected: Verdict) -> None:
    limit = 0 if policy == "Never" else 1
    world = tell(generic({"worker": 2}, policy, limit), run, step, nodes=NODES)

    assert verdict(world) == expected


@pytest.mark.parametrize(
    ("limit", "steps", "expected"),
    [
        pytest.param(0, [fails("worker-1")], failed("worker 1 Exit"), id="default: none"),
        pytest.param(2, [fails("worker-1"), again, fails("worker-1")], RESTARTING, id="two of two"),
        pytest.param(
            2,
            [fails("worker-1"), again, fails("worker-1"), again, fails("worker-1")],
            failed("worker 1 Exit"),
            id="three",
        ),
        pytest.param(
            2,
            [fails("worker-0"), again, fails("worker-1"), again, fails("worker-0")],
            RESTARTING,
            id="of each replica",
        ),
        pytest.param(0, [preempted("worker-1"), again, preempted("worker-1")], RESTARTING, id="disruptions are free"),
    ],
)
def test_restart_limit(limit: int, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(generic({"worker": 2}, limit=limit), run, *steps)) == expected


def test_a_terminating_pod_is_not_a_failure_and_costs_nothing() -> None:
    world = tell(PLAIN, run, terminating("worker-1"), run)

    assert verdict(world) == OPEN
    assert [entry.restarts for entry in world.job.ledger.roles] == [{}, {}]


def test_a_finished_pod_that_was_collected_is_not_run_again() -> None:
    world = tell(PLAIN, run, exits("ps-0", "worker-0"), collected("ps-0", "worker-0"), again, exits("worker-1"))

    assert (verdict(world), pods(world)) == (SUCCEEDED, ["worker-1"])


def test_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    job = generic({"worker": 2})
    world = tell(job, run, exits("worker-1"), loses("worker-1"), exits("worker-0"), nodes=NODES)

    assert verdict(world) == SUCCEEDED


# -- clean-up and pause --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "step", "left"),
    [
        ("None", exits("worker-0"), ["worker-0", "worker-1", "worker-2"]),
        ("None", fails("worker-0"), ["worker-0", "worker-1", "worker-2"]),
        ("Unfinished", exits("worker-0"), ["worker-0"]),
        ("Unfinished", fails("worker-0"), ["worker-0"]),
        ("All", exits("worker-0"), []),
        ("All", fails("worker-0"), []),
    ],
)
def test_clean_up_policy_after_each_end(policy: str, step: Step, left: list[str]) -> None:
    rules = [{"worker": [0]}]
    job = generic({"worker": 3}, cleanUpPolicy=policy, successRules=rules, service={"ports": [{"port": 80}]})
    world = tell(job, run, step)

    assert (pods(world), services(world)) == (left, left)


def test_pause_removes_every_pod_and_forgets_what_had_finished() -> None:
    job = generic({"worker": 2}, limit=3, runMode={"pause": {"enabled": False}})
    world = tell(job, run, exits("worker-1"), fails("worker-0"), again, edits(suspended=True))
    paused = (verdict(world), pods(world))
    restarts = [entry.restarts for entry in world.job.ledger.roles]
    world = tell(replace(job, ledger=world.job.ledger), run)

    assert paused == (Verdict("Suspended"), [])
    assert restarts == [{"Exit": 1}]
    assert (verdict(world), pods(world)) == (OPEN, ["worker-0#2", "worker-1#2"])
