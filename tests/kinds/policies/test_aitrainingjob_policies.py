# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob in the one model: what each policy compiles to, and the verdict when it is driven through the world."""

import pytest
from aitrainingjob_policy import (
    FAILED_POD,
    NODE,
    AITrainingJob,
    Replicas,
    clean_up,
    compiled,
    ending,
    failure,
    restart,
    success,
)
from msgspec.structs import replace
from scenario import (
    OPEN,
    SUCCEEDED,
    Step,
    Verdict,
    both,
    edits,
    exits,
    failed,
    fails,
    loses,
    pods,
    run,
    services,
    tell,
    verdict,
    waits,
)

from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, RequestedEnd, Restart, RestartScope, Since
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.testing.world import World

A, B = (Atom(name, Which.EVERY, Result.SUCCEEDED) for name in "ab")
NODES = ("trainer-0", "trainer-1", "trainer-2", "spare")
LISTED = Restart(codes=((137, 137), (128, 128)), retries_other_containers=False, scope=RestartScope.JOB, shared=True)


def trainers(**more: object) -> AITrainingJob:
    """Three trainers, with these policies."""
    return AITrainingJob({"trainer": replace(Replicas(3), **more)})


def pair(complete: str = "All", fail: str = "Any") -> AITrainingJob:
    """Two replica types of two, with these policies of the job."""
    return AITrainingJob({"a": Replicas(2), "b": Replicas(2)}, complete, fail)


# -- what it compiles to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Any", Atom("trainer", Which.SOME, Result.FAILED)),
        ("Rank0", Atom("trainer", (0,), Result.FAILED)),
        ("All", Atom("trainer", Which.EVERY, Result.FAILED)),
        ("None", NEVER),
    ],
)
def test_end_policy_of_a_replica_type_compiles(policy: str, expected: Rule) -> None:
    assert failure(trainers(fail=policy)) == AnyOf((expected,))


@pytest.mark.parametrize(
    ("policy", "expected"), [("Any", AnyOf((A, B))), ("All", AllOf((A, B))), ("Rank0", NEVER), ("None", NEVER)]
)
def test_end_policy_of_the_job_compiles(policy: str, expected: Rule) -> None:
    assert success(pair(complete=policy)) == expected


def test_the_defaults_compile_to_all_complete_and_any_fails() -> None:
    job = pair()

    assert (success(job), failure(job)) == (
        AllOf((A, B)),
        AnyOf((Atom("a", Which.SOME, Result.FAILED), Atom("b", Which.SOME, Result.FAILED))),
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Never", Restart(scope=RestartScope.JOB, shared=True)),
        ("OnFailure", Restart(FAILED_POD, scope=RestartScope.JOB, shared=True)),
        ("ExitCode", replace(LISTED, causes=frozenset({CauseKind.EXIT}))),
        ("OnNodeFail", Restart(NODE, scope=RestartScope.JOB, shared=True)),
        (
            "OnNodeFailWithExitCode",
            replace(LISTED, causes=NODE | {CauseKind.EXIT}),
        ),
        ("Always", Restart(FAILED_POD | NODE, scope=RestartScope.JOB, shared=True)),
    ],
)
def test_restart_policy_compiles(policy: str, expected: Restart) -> None:
    assert restart(Replicas(restart=policy), "137, 128") == expected


@pytest.mark.parametrize(
    ("scope", "expected"), [("All", RestartScope.JOB), ("Replica", RestartScope.ROLE), ("Pod", RestartScope.POD)]
)
def test_restart_scope_and_limit_compile(scope: str, expected: RestartScope) -> None:
    assert restart(Replicas(scope=scope, limit=2), "") == Restart(limit=2, scope=expected, shared=True)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({"team": "vision"}, None),
        ({"Preempted": "by team b"}, RequestedEnd("Preempted", "by team b", by="annotation Preempted")),
        ({"Failed": "no", "Preempted": "yes"}, RequestedEnd("Preempted", "yes", by="annotation Preempted")),
        ({"NodeFail": "rack 4"}, RequestedEnd("NodeFail", "rack 4", by="annotation NodeFail")),
        ({"Succeed": "good enough"}, RequestedEnd("Succeed", "good enough", succeeded=True, by="annotation Succeed")),
        ({"preempted": "by team b"}, RequestedEnd("Preempted", "by team b", by="annotation preempted")),
        ({"FAILED": ""}, RequestedEnd("Failed", "", by="annotation FAILED")),
        ({"nodefailed": "rack 4"}, RequestedEnd("NodeFail", "rack 4", by="annotation nodefailed")),
        ({"NodeFailed": "rack 4", "timeout": "x"}, RequestedEnd("NodeFail", "rack 4", by="annotation NodeFailed")),
        ({"Timeout": "x", "Succeed": "y"}, RequestedEnd("Timeout", "x", by="annotation Timeout")),
        ({"failed/reason": "x", "not-failed": "y"}, None),
    ],
)
def test_annotations_compile(annotations: dict[str, str], expected: RequestedEnd | None) -> None:
    assert ending(annotations) == expected


@pytest.mark.parametrize(
    ("policy", "level"),
    [("All", CleanPods.ALL), ("", CleanPods.ALL), ("None", CleanPods.NONE), ("CleanPodPolicyNone", CleanPods.NONE)],
)
def test_clean_pod_policy_compiles(policy: str, level: CleanPods) -> None:
    assert clean_up(policy) == CleanUp(level, level, CleanPods.ALL, lost=CleanPods.ALL)


def test_the_time_limit_counts_from_running() -> None:
    assert compiled(replace(trainers(), time_limit=60)).lifecycle.deadline == Deadline(60, Since.RUNNING)


# -- end policies of a replica type --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        pytest.param("All", [exits("trainer-0", "trainer-1")], OPEN, id="All, not yet"),
        pytest.param("All", [exits("trainer-0", "trainer-1", "trainer-2")], SUCCEEDED, id="All"),
        pytest.param("Any", [exits("trainer-2")], SUCCEEDED, id="Any"),
        pytest.param("Rank0", [exits("trainer-1", "trainer-2")], OPEN, id="Rank0, others"),
        pytest.param("Rank0", [exits("trainer-0")], SUCCEEDED, id="Rank0"),
        pytest.param("None", [exits("trainer-0", "trainer-1", "trainer-2")], OPEN, id="None"),
    ],
)
def test_complete_policy(policy: str, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(compiled(trainers(complete=policy)), run, *steps)) == expected


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        pytest.param("Any", [fails("trainer-2")], failed("trainer 2 Exit"), id="Any"),
        pytest.param("Rank0", [fails("trainer-1", "trainer-2")], OPEN, id="Rank0, others"),
        pytest.param("Rank0", [fails("trainer-0")], failed("trainer 0 Exit"), id="Rank0"),
        pytest.param("All", [fails("trainer-0"), fails("trainer-1")], OPEN, id="All, not yet"),
        pytest.param("All", [fails("trainer-0", "trainer-1", "trainer-2")], failed("trainer 0 Exit"), id="All"),
        pytest.param("None", [fails("trainer-0", "trainer-1")], OPEN, id="None"),
        # Upstream waits for ever here: nobody is left who could complete.
        pytest.param(
            "None",
            [fails("trainer-0", "trainer-1", "trainer-2")],
            failed("trainer 0 Exit", "Unreachable"),
            id="None, and nobody left",
        ),
    ],
)
def test_fail_policy_where_any_may_complete(policy: str, steps: list[Step], expected: Verdict) -> None:
    job = compiled(trainers(fail=policy, complete="Any"))

    assert verdict(tell(job, run, *steps)) == expected


@pytest.mark.parametrize("policy", ["Rank0", "All", "None"])
def test_a_job_that_can_no_longer_complete_fails_at_once_whatever_its_fail_policy(policy: str) -> None:
    """All must complete and one has failed: upstream would wait for ever, holding GPUs."""
    world = tell(compiled(trainers(fail=policy, complete="All")), run, fails("trainer-1"))

    assert verdict(world) == failed("trainer 1 Exit", "Unreachable")


def test_a_kind_that_means_never_literally_adds_the_rule_that_never_decides() -> None:
    """The other reading of `failPolicy: None` needs no field either: a success that is never out of reach."""
    job = compiled(trainers(fail="None"))
    world = tell(replace(job, success=AnyOf((job.success, NEVER))), run, fails("trainer-1"), exits("trainer-0"))

    assert verdict(world) == OPEN


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([both(exits("trainer-0"), fails("trainer-1"))], SUCCEEDED, id="in one look"),
        pytest.param([fails("trainer-1"), exits("trainer-0")], failed("trainer 1 Exit"), id="one after the other"),
    ],
)
def test_completion_is_judged_before_failure(steps: list[Step], expected: Verdict) -> None:
    job = compiled(replace(trainers(complete="Rank0"), clean_pod_policy="None"))

    assert verdict(tell(job, run, *steps)) == expected


# -- end policies of the job ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        pytest.param("All", [exits("a-0", "a-1")], OPEN, id="All, one type"),
        pytest.param("All", [exits("a-0", "a-1"), exits("b-0", "b-1")], SUCCEEDED, id="All"),
        pytest.param("Any", [exits("a-0")], OPEN, id="Any, half a type"),
        pytest.param("Any", [exits("b-0", "b-1")], SUCCEEDED, id="Any"),
        pytest.param("Rank0", [exits("a-0", "a-1", "b-0", "b-1")], OPEN, id="Rank0 never decides here"),
        pytest.param("None", [exits("a-0", "a-1", "b-0", "b-1")], OPEN, id="None"),
    ],
)
def test_complete_policy_of_the_job(policy: str, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(compiled(pair(complete=policy)), run, *steps)) == expected


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        pytest.param("Any", [fails("b-1")], failed("b 1 Exit"), id="Any"),
        pytest.param("All", [fails("a-0")], OPEN, id="All, one type"),
        pytest.param("All", [fails("a-0"), exits("b-0", "b-1")], SUCCEEDED, id="All, the other type completes"),
        pytest.param("All", [fails("a-0"), fails("b-1")], failed("a 0 Exit"), id="All"),
        pytest.param("Rank0", [fails("a-0")], OPEN, id="Rank0 never decides here"),
        pytest.param("None", [fails("a-0")], OPEN, id="None"),
    ],
)
def test_fail_policy_of_the_job(policy: str, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(compiled(pair(fail=policy, complete="Any")), run, *steps)) == expected


LOST = failed("trainer 1 NodeLost")


# -- time limit, clean-up, annotations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([waits(10**6)], Verdict("Pending"), id="it never ran"),
        pytest.param([waits(1000), run, waits(99)], OPEN, id="not yet"),
        pytest.param([waits(1000), run, waits(100)], Verdict("Failed", "Deadline"), id="from running"),
        pytest.param(
            [run, waits(50), fails("trainer-1"), waits(50)],
            Verdict("Failed", "Deadline"),
            id="a restart does not reset",
        ),
        # Defect 10: the clock never started if one pod ended before the last one ran.
        pytest.param(
            [exits("trainer-0"), run, waits(100)],
            Verdict("Failed", "Deadline"),
            id="fast and slow pods",
        ),
    ],
)
def test_time_limit(steps: list[Step], expected: Verdict) -> None:
    world = tell(compiled(replace(trainers(restart="OnFailure"), time_limit=100)), *steps)

    assert verdict(world) == expected


ALL = ["trainer-0", "trainer-1", "trainer-2"]
DONE: list[Step] = [exits("trainer-0", "trainer-1", "trainer-2")]


def asked(word: str) -> Step:
    """A third party annotates the job."""
    return edits(ending=ending({word: "because"}))


@pytest.mark.parametrize(
    ("policy", "steps", "phase", "left"),
    [
        pytest.param("All", DONE, "Succeeded", [], id="All, Succeed"),
        pytest.param("All", [fails("trainer-1")], "Failed", [], id="All, Failed"),
        pytest.param("All", [waits(100)], "Failed", [], id="All, Timeout"),
        pytest.param("None", DONE, "Succeeded", ALL, id="None, Succeed"),
        pytest.param("None", [fails("trainer-1")], "Failed", ALL, id="None, Failed"),
        pytest.param("None", [waits(100)], "Failed", [], id="None, Timeout"),
        pytest.param("None", [asked("Preempted")], "Failed", [], id="None, Preempted"),
        pytest.param("None", [asked("NodeFail")], "Failed", [], id="None, NodeFail asked for"),
        pytest.param("None", [asked("Failed")], "Failed", [], id="None, Failed asked for"),
        pytest.param("None", [asked("Succeed")], "Succeeded", [], id="None, Succeed asked for"),
        pytest.param("All", [asked("Failed")], "Failed", [], id="All, Failed asked for"),
    ],
)
def test_clean_pod_policy_after_each_end(policy: str, steps: list[Step], phase: str, left: list[str]) -> None:
    job = replace(trainers(), clean_pod_policy=policy, time_limit=100)
    world = tell(compiled(job), run, *steps)

    assert (verdict(world).phase, pods(world), services(world)) == (phase, left, left)


def test_a_job_that_fails_by_a_lost_node_is_always_cleaned() -> None:
    world = tell(compiled(replace(trainers(), clean_pod_policy="None")), run, loses("trainer-1"), nodes=NODES)

    assert (verdict(world), pods(world)) == (LOST, [])


def outcome(world: World) -> tuple[str, str, str]:
    found = world.job.ledger.outcome
    assert found is not None
    return found.reason.value, found.word, found.message


@pytest.mark.parametrize("word", ["Preempted", "Failed", "NodeFail", "Timeout", "Succeed"])
@pytest.mark.parametrize("fail", ["Any", "All", "Rank0", "None"])
def test_an_annotation_ends_the_job_with_its_word_whatever_the_fail_policy(word: str, fail: str) -> None:
    """Defects 6 and 7: only two of them ended a job, and not under every policy."""
    job = replace(trainers(), fail=fail)
    world = tell(compiled(job), run, asked(word))

    assert ("External", word, "because") == outcome(world)
    assert pods(world) == []


def test_an_annotation_is_heard_while_a_restart_is_in_flight() -> None:
    world = tell(compiled(trainers(restart="OnFailure")), run, fails("trainer-1"), asked("Preempted"))

    assert outcome(world) == ("External", "Preempted", "because")


def test_an_annotation_at_birth_ends_the_job_before_anything_is_made() -> None:
    world = tell(compiled(replace(trainers(), annotations={"Preempted": "quota"})))

    assert outcome(world) == ("External", "Preempted", "quota")
    assert [write for write in world.writes if write != "status"] == []


def test_work_that_is_done_is_done_even_if_it_is_preempted_in_the_same_moment() -> None:
    world = tell(compiled(trainers()), run, both(*DONE, asked("Preempted")))

    assert verdict(world) == SUCCEEDED


def test_the_phase_in_the_words_of_the_kind_can_be_told_from_the_outcome() -> None:
    """Timeout, NodeFail and Preempted are all Failed for the core; the outcome keeps what the kind needs."""
    limited = compiled(replace(trainers(), time_limit=100))
    late = tell(limited, run, waits(100)).job.ledger.outcome
    lost = tell(limited, run, loses("trainer-1"), nodes=NODES).job.ledger.outcome

    assert late is not None
    assert late.reason == "Deadline"
    assert lost is not None
    assert lost.failure is not None
    assert (lost.failure.cause.why, lost.failure.cause.node) == (CauseKind.NODE_LOST, "trainer-1")
