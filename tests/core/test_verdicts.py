# SPDX-License-Identifier: Apache-2.0
"""The verdict of every kind of end and restart: what decided it, who failed first, what happened, what to do."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from passes import lived, look, on, waiting

from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import ContainerState, ContainerStatus, ObjectCondition, Pod, Running, Terminated
from trainwright.model.job import Deadline, Job, Lifecycle, RequestedEnd, RestartRate, RestartScope
from trainwright.model.ledger import Failure, Ledger, Phase, Reason, RoleLedger, SpentBudget
from trainwright.model.plan import Write
from trainwright.model.rule import NEVER, AllOf, Atom, Result, Which
from trainwright.model.verdict import Decision, FailureClass, Verdict
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

EXITS = on(CauseKind.EXIT)
TWO = RoleLedger("worker", reached=2)
CLEAR = "nothing in the program caused this"


def ended(index: int, code: int, seconds: float = 5, **more: Any) -> Pod:
    """A pod that has ended with this code."""
    end = container(exit_code=code, reason="Error" if code else "Completed", finished_at=later(seconds), **more)
    return pod(index, "Failed" if code else "Succeeded", containers=(end,), node="a")


def pair(**more: Any) -> Job:
    """A job of two replicas that has run."""
    restart, ledger = more.pop("restart", on()), more.pop("ledger", lived(TWO))
    return job(role(replicas=2, restart=restart), ledger=ledger, **more)


def unschedulable(index: int) -> Pod:
    told = ObjectCondition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available", NOW)
    return pod(index, "Pending", node="", conditions=(told,))


def in_place(restarts: int, last: ContainerState | None) -> Pod:
    running = ContainerState(running=Running(NOW))
    one = ContainerStatus("main", restart_count=restarts, state=running, last_state=last)
    return pod(0, containers=(one,), policy="Always", node="a")


LAST_END = ContainerState(terminated=Terminated(9, reason="Error", message="MemoryError"))
EARLIER = Failure("worker", 1, "job-worker-1", 4, NOW, Cause(CauseKind.EXIT, 9, container="main", node="b"))
LATE = Lifecycle(deadline=Deadline(60))
WAITS = waiting(RoleLedger("worker"))
PREEMPTED = Lifecycle(ending=RequestedEnd("Preempted", "make room", by="annotation Preempted"))
DONE = Lifecycle(ending=RequestedEnd("Succeed", "", True, by="annotation Succeed"))


class Row(msgspec.Struct):
    """A job that ends or restarts in this pass, and its verdict: decision, reason, class, replica, message, action."""

    given: Job
    pods: tuple[Pod, ...]
    expected: tuple[Decision, str, FailureClass, str, str]
    #: A part of the suggested action.
    action: str = ""
    seconds: float = 60
    more: dict[str, Any] = {}


def failed(reason: Reason, kind: FailureClass, who: str, message: str) -> tuple[Decision, str, FailureClass, str, str]:
    return Decision.FAILED, reason, kind, who, message


def restart(scope: RestartScope, kind: FailureClass, who: str, message: str) -> tuple[Any, ...]:
    return Decision.RESTART, scope, kind, who, message


NAMED = AllOf((Atom("worker", (0,), Result.SUCCEEDED),), "chief is done")
LOST = {"a": node("a", ready=False, since=later(-999)), "node-1": node()}
IN_PLACE_LIMITS: dict[str, dict[str, Any]] = {
    "counted by the job": {"lifecycle": Lifecycle(backoff_limit=2, counts_in_place=True)},
    "counted by a budget that refills": {"restart_rates": {"program": RestartRate(2, 60)}},
}
IN_PLACE_ENDS = {
    "counted by the job": "the restart limit (backoffLimit) of 2 is reached: 3 restarts count against it",
    "counted by a budget that refills": "the restart budget for causes of the program, trainwright.dev/restart-budget:"
    " 2/1m, is used up",
}
IN_PLACE_FIELDS = {
    "counted by the job": "backoffLimit: 2",
    "counted by a budget that refills": "trainwright.dev/restart-budget: 2/1m",
}
ROWS = {
    "Succeeded, Rule": Row(
        pair(),
        (ended(0, 0), ended(1, 0)),
        (Decision.SUCCEEDED, Reason.RULE, FailureClass.NONE, "", "every replica that counts has succeeded"),
    ),
    "Succeeded, Rule with a name": Row(
        pair(success=NAMED),
        (ended(0, 0), pod(1)),
        (Decision.SUCCEEDED, Reason.RULE, FailureClass.NONE, "", "rule chief is done fulfilled by worker 0"),
    ),
    "Succeeded, External": Row(
        pair(lifecycle=DONE),
        (pod(0), pod(1)),
        (Decision.SUCCEEDED, Reason.EXTERNAL, FailureClass.NONE, "", "annotation Succeed asked for this end"),
    ),
    "Failed, Rule": Row(
        pair(),
        (pod(0), ended(1, 3)),
        failed(Reason.RULE, FailureClass.PROGRAM_ERROR, "worker-1", "worker-1: container main exited with code 3"),
        "read the log",
    ),
    "Failed, Rule, with the line that shows the error": Row(
        pair(),
        (
            pod(0),
            ended(1, 1, message="Traceback (most recent call last):\n\nModuleNotFoundError: No module named 'a'\n"),
        ),
        failed(
            Reason.RULE,
            FailureClass.IMPORT_ERROR,
            "worker-1",
            "worker-1: container main exited with code 1: ModuleNotFoundError: No module named 'a'",
        ),
        "install the Python module",
    ),
    "Failed, Rule, the first of several": Row(
        pair(),
        (ended(0, 143, 9), ended(1, 1, 5)),
        failed(Reason.RULE, FailureClass.PROGRAM_ERROR, "worker-1", "worker-1: container main exited with code 1"),
        "read the log",
    ),
    "Failed, Rule, the node first": Row(
        pair(),
        (ended(1, 1, -5), pod(0, node="a")),
        failed(Reason.RULE, FailureClass.NODE_LOST, "worker-0", "worker-0: node a is lost"),
        CLEAR,
        more={"nodes": LOST},
    ),
    "Failed, Rule without a failure": Row(
        pair(failure=AllOf((Atom("worker", (1,), Result.SUCCEEDED),), "too early"), success=NEVER),
        (pod(0), ended(1, 0)),
        failed(Reason.RULE, FailureClass.RULE, "", "rule too early fulfilled by worker 1"),
        "compare the rules",
    ),
    "Failed, Unreachable": Row(
        pair(failure=NEVER),
        (pod(0), ended(1, 137)),
        failed(
            Reason.UNREACHABLE,
            FailureClass.KILLED,
            "worker-1",
            "worker-1: container main ended with SIGKILL, or exit code 137 from the program",
        ),
        "who sent the signal",
    ),
    "Failed, Unreachable without a failure": Row(
        pair(failure=NEVER, success=Atom("nobody", Which.EVERY, Result.SUCCEEDED)),
        (pod(0), ended(1, 0)),
        failed(Reason.UNREACHABLE, FailureClass.RULE, "", "no success rule can be fulfilled any more"),
        "compare the rules",
    ),
    "Failed, BackoffLimit": Row(
        pair(restart=EXITS, lifecycle=Lifecycle(backoff_limit=0)),
        (pod(0), ended(1, 3)),
        failed(
            Reason.BACKOFF_LIMIT,
            FailureClass.PROGRAM_ERROR,
            "worker-1",
            "worker-1: container main exited with code 3; the restart limit (backoffLimit) is 0: no restart is made",
        ),
        "raise backoffLimit: 0",
    ),
    "Failed, BackoffLimit of a budget that refills": Row(
        pair(restart=EXITS, restart_rates={"program": RestartRate(0, 60, "0/60s")}),
        (pod(0), ended(1, 3)),
        failed(
            Reason.BACKOFF_LIMIT,
            FailureClass.PROGRAM_ERROR,
            "worker-1",
            "worker-1: container main exited with code 3; the restart budget for causes of the program,"
            " trainwright.dev/restart-budget: 0/60s, is used up",
        ),
        "raise trainwright.dev/restart-budget: 0/60s",
    ),
    **{
        f"Failed, BackoffLimit after restarts in place, {name}": Row(
            job(ledger=lived(budgets={"program": SpentBudget()}), **limit),
            (in_place(3, LAST_END),),
            failed(
                Reason.BACKOFF_LIMIT,
                FailureClass.OUT_OF_MEMORY,
                "worker-0",
                f"worker-0: container main exited with code 9: MemoryError; {IN_PLACE_ENDS[name]}",
            ),
            "memory",
        )
        for name, limit in IN_PLACE_LIMITS.items()
    },
    "Failed, BackoffLimit, whose last end nobody knows": Row(
        job(ledger=lived(failures=(EARLIER,)), lifecycle=Lifecycle(backoff_limit=2, counts_in_place=True)),
        (in_place(3, None),),
        failed(
            Reason.BACKOFF_LIMIT,
            FailureClass.PROGRAM_ERROR,
            "worker-1",
            f"worker-1: container main exited with code 9; {IN_PLACE_ENDS['counted by the job']}",
        ),
        "read the log",
    ),
    **{
        f"Failed, BackoffLimit without a known failure, {name}": Row(
            job(ledger=lived(budgets={"program": SpentBudget()}), **limit),
            (in_place(3, None),),
            failed(Reason.BACKOFF_LIMIT, FailureClass.RULE, "", IN_PLACE_ENDS[name]),
            f"to allow more restarts, raise {IN_PLACE_FIELDS[name]}",
        )
        for name, limit in IN_PLACE_LIMITS.items()
    },
    "Failed, Deadline": Row(
        pair(lifecycle=LATE),
        (pod(0), pod(1)),
        failed(Reason.DEADLINE, FailureClass.DEADLINE, "", "the job was active longer than its deadline of 1m"),
        "raise the deadline",
    ),
    "Failed, Deadline of a job that never ran": Row(
        pair(lifecycle=LATE, ledger=WAITS),
        (pod(0), unschedulable(1)),
        failed(
            Reason.DEADLINE,
            FailureClass.DEADLINE,
            "",
            "the job was active longer than its deadline of 1m; worker-1: 0/3 nodes are available",
        ),
        "raise the deadline",
    ),
    "Failed, StartDeadline": Row(
        pair(lifecycle=Lifecycle(start_deadline=30), ledger=WAITS),
        (pod(0), unschedulable(1)),
        failed(
            Reason.START_DEADLINE,
            FailureClass.DEADLINE,
            "",
            "not every replica had started within 30s; worker-1: 0/3 nodes are available",
        ),
        "raise the deadline",
    ),
    "Failed, External": Row(
        pair(lifecycle=PREEMPTED),
        (pod(0), pod(1)),
        failed(Reason.EXTERNAL, FailureClass.REQUESTED, "", "annotation Preempted asked for this end: make room"),
        CLEAR,
    ),
    "Failed, External, although a replica fails too": Row(
        pair(lifecycle=PREEMPTED),
        (pod(0), ended(1, 3)),
        failed(Reason.EXTERNAL, FailureClass.REQUESTED, "", "annotation Preempted asked for this end: make room"),
        CLEAR,
    ),
    "Failed, Invalid": Row(
        job(invalid="spec.replicas: -1 is not a number of replicas"),
        (),
        failed(Reason.INVALID, FailureClass.INVALID, "", "spec.replicas: -1 is not a number of replicas"),
        "trainwright validate",
    ),
    **{
        f"Restart of {scope}": Row(
            pair(restart=on(CauseKind.EXIT, scope=scope)),
            (pod(0), ended(1, 3)),
            restart(scope, FailureClass.PROGRAM_ERROR, "worker-1", "worker-1: container main exited with code 3"),
            "read the log",
        )
        for scope in RestartScope
    },
    "Restart after success": Row(
        pair(restart=on(CauseKind.COMPLETED)),
        (pod(0), ended(1, 0)),
        restart(
            RestartScope.POD, FailureClass.COMPLETED, "worker-1", "worker-1: completed, and its policy restarts it"
        ),
    ),
    "Restart after a deleted pod": Row(
        pair(restart=on(CauseKind.DELETED, scope=RestartScope.ROLE)),
        (pod(0),),
        restart(RestartScope.ROLE, FailureClass.DELETED, "worker-1", "worker-1: deleted by somebody else"),
        CLEAR,
    ),
    "Restart after an eviction": Row(
        pair(restart=on(CauseKind.DISRUPTED)),
        (
            pod(0),
            pod(
                1,
                "Failed",
                reason="Evicted",
                node="a",
                conditions=(ObjectCondition("DisruptionTarget", "True", "TerminationByKubelet", "low on memory"),),
            ),
        ),
        restart(RestartScope.POD, FailureClass.EVICTED, "worker-1", "worker-1: disrupted (Evicted: low on memory)"),
        "request the memory",
    ),
    "Restart after a lost node": Row(
        pair(restart=on(CauseKind.NODE_LOST)),
        (pod(0), pod(1, node="a")),
        restart(RestartScope.POD, FailureClass.NODE_LOST, "worker-1", "worker-1: node a is lost"),
        CLEAR,
        more={"nodes": LOST},
    ),
}


def verdict_of(row: Row) -> Verdict:
    plan = look(row.given, *row.pods, now=later(row.seconds), **row.more)
    verdict = plan.status.ledger.verdict
    assert verdict is not None
    assert (verdict.at, plan.write) == (later(row.seconds), Write.NOW)
    outcome = plan.status.ledger.outcome
    assert verdict.decision == (outcome.result if outcome is not None else Decision.RESTART)
    return verdict


@pytest.mark.parametrize("row", ROWS)
def test_the_verdict_says_what_decided_who_failed_and_what_to_do(row: str) -> None:
    verdict = verdict_of(ROWS[row])

    found = (verdict.decision, verdict.reason, verdict.failure_class, verdict.replica, verdict.message)
    assert found == ROWS[row].expected
    assert ROWS[row].action in verdict.action
    assert bool(verdict.action) == (verdict.failure_class not in (FailureClass.NONE, FailureClass.COMPLETED))
    assert bool(verdict.replica) == bool(verdict.pod)


def test_the_table_has_every_reason_and_both_results() -> None:
    ends = {(row.expected[0], row.expected[1]) for row in ROWS.values()}

    assert {reason for decision, reason in ends if decision is Decision.FAILED} == set(Reason)
    assert {reason for decision, reason in ends if decision is Decision.SUCCEEDED} == {Reason.RULE, Reason.EXTERNAL}
    assert {reason for decision, reason in ends if decision is Decision.RESTART} == set(RestartScope)


def test_the_verdict_names_the_pod_the_attempt_the_node_and_the_end() -> None:
    given = pair(ledger=lived(replace(TWO, retries="1:2")))
    end = replace(ended(1, 137), metadata=pod(1, attempt=2).metadata)
    state = ContainerState(terminated=Terminated(137, signal=9, reason="OOMKilled", finished_at=NOW))
    end = replace(end, status=replace(end.status, container_statuses=(ContainerStatus("main", state=state),)))

    verdict = look(given, pod(0), end).status.ledger.verdict

    assert verdict is not None
    assert (verdict.pod, verdict.attempt, verdict.container, verdict.node) == ("job-worker-1", 2, "main", "a")
    assert (verdict.code, verdict.signal, verdict.failure_class) == (137, 9, FailureClass.OUT_OF_MEMORY)


def test_an_end_without_an_exit_has_no_code() -> None:
    verdict = verdict_of(ROWS["Restart after a lost node"])

    assert (verdict.code, verdict.signal, verdict.node) == (UNSET, UNSET, "a")


@pytest.mark.parametrize("row", ROWS)
def test_a_verdict_stays_until_the_next_restart_or_end(row: str) -> None:
    """A later pass changes neither verdict nor history, whatever happens to the pods of an ended job."""
    one = ROWS[row]
    before = look(one.given, *one.pods, now=later(one.seconds), **one.more).status.ledger
    if before.outcome is None:
        before = replace(before, phase=Phase.RESTARTING)

    after = look(replace(one.given, ledger=before), now=later(one.seconds + 1)).status.ledger

    assert after.verdict is before.verdict
    assert after.history is before.history


def test_all_texts_fit_their_schema() -> None:
    """A ledger that breaks a limit could not be read again."""
    long = "n" * 300
    end = container("c" * 600, exit_code=1, reason="Error", message="MemoryError: " + "x" * 5000)
    one = pod(1, "Failed", role=long, name="p" * 700, node="h" * 700, containers=(end,))
    given = job(role(long, 2), invalid="", ledger=lived(RoleLedger(long, reached=2)))
    for each in (
        look(given, one),
        look(job(invalid="i" * 9000)),
        look(pair(lifecycle=Lifecycle(ending=RequestedEnd("w", "m" * 9000))), pod(0)),
        look(pair(success=AllOf((Atom("worker", (0,), Result.SUCCEEDED),), "r" * 9000)), ended(0, 0)),
    ):
        ledger = each.status.ledger
        assert ledger.verdict is not None
        assert msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger) == ledger


def test_a_message_is_one_line() -> None:
    told = ObjectCondition("DisruptionTarget", "True", "EvictionByEvictionAPI", "one\ntwo\n")

    verdict = look(pair(), pod(0), pod(1, "Failed", conditions=(told,))).status.ledger.verdict

    assert verdict is not None
    assert verdict.message == "worker-1: disrupted (EvictionByEvictionAPI: one two )"
