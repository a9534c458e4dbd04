# SPDX-License-Identifier: Apache-2.0
"""The first line of an explanation names the cause, in every situation of a job."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from passes import lived, look, on, view, waiting

from trainwright.core.explain import explain, failure_to_quote
from trainwright.core.explanation import Explanation, JobFacts, Situation
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import (
    ContainerState,
    ContainerStatus,
    ObjectCondition,
    Pod,
    Refusal,
    Running,
    Terminated,
    Waiting,
)
from trainwright.model.job import Deadline, Job, Lifecycle, RequestedEnd, RestartRate, Role
from trainwright.model.ledger import KEPT_FAILURES, Failure, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.plan import Status
from trainwright.model.rule import Atom, Result, Which
from trainwright.model.verdict import Decision, FailureClass, History, Verdict
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

NO_ROOM = ObjectCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available: node-0: needs 3 cpu")
ONE_RETRY = on(CauseKind.EXIT, CauseKind.NODE_LOST, limit=1)


def explained(one: Job, *pods: Pod, now: Any = NOW, nodes: Any = None, **more: Any) -> Explanation:
    """What is explained after a pass over these pods."""
    status = look(one, *pods, now=now, nodes=nodes).status
    failure = failure_to_quote(status.ledger, pods)
    facts = JobFacts(job=replace(one, ledger=status.ledger), status=status, now=now, failure=failure, **more)
    return explain(facts)


def limited(amount: str) -> Role:
    """Two workers whose container has a memory limit."""
    containers = [{"name": "main", "resources": {"limits": {"memory": amount}}}]
    return Role("worker", 2, {"spec": {"containers": containers}})


def seen_status(one: Job, *pods: Pod) -> Status:
    """The state of a job with these pods, before any decision."""
    found = view(one, *pods)
    return Status(one.ledger, found.roles)


def ended(code: int, **more: Any) -> tuple[ContainerStatus, ...]:
    return (container(exit_code=code, **{"reason": "Error", **more}),)


# -- ends ------------------------------------------------------------------------------------------------------------

FAILURES = {
    "a program that ended itself": (
        ended(3),
        "job failed: worker-0 exited with code 3 on node node-1",
        FailureClass.PROGRAM_ERROR,
    ),
    "its termination message": (
        ended(1, message="Traceback\nValueError: bad batch size"),
        "job failed: worker-0 exited with code 1 on node node-1: ValueError: bad batch size",
        FailureClass.PROGRAM_ERROR,
    ),
    "out of memory": (
        ended(137, reason="OOMKilled"),
        "job failed: worker-0 ran out of memory (limit 64Mi) on node node-1",
        FailureClass.OUT_OF_MEMORY,
    ),
    "a signal from outside": (
        ended(137, signal=9),
        "job failed: worker-0 was killed by SIGKILL (exit code 137) on node node-1",
        FailureClass.KILLED,
    ),
    "a crash": (
        ended(139, signal=11),
        "job failed: worker-0 was killed by SIGSEGV (exit code 139) on node node-1",
        FailureClass.CRASHED,
    ),
    "a command that does not exist": (
        ended(127, reason="ContainerCannotRun", message="exec: trian: not found"),
        "job failed: worker-0 could not start its command on node node-1: exec: trian: not found",
        FailureClass.COMMAND_NOT_FOUND,
    ),
    "a command that its shell does not find": (
        ended(127, message="sh: 1: trian: not found"),
        "job failed: worker-0 did not find a command or file on node node-1: sh: 1: trian: not found",
        FailureClass.COMMAND_NOT_FOUND,
    ),
    "a port": (
        ended(1, message="OSError: [Errno 98] Address already in use"),
        "job failed: worker-0 found its port already in use on node node-1: OSError: [Errno 98] Address already in use",
        FailureClass.PORT_IN_USE,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_headline_names_how_the_first_replica_failed(name: str) -> None:
    containers, headline, failure_class = FAILURES[name]

    found = explained(job(limited("64Mi")), pod(0, "Failed", containers=containers), pod(1))

    assert (found.headline, found.failure_class, found.situation) == (headline, failure_class, Situation.FAILED)
    assert found.action
    assert found.verdict is not None


def test_the_log_refines_the_class_the_headline_and_the_action() -> None:
    lines = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'torch'", "")

    found = explained(job(), pod(0, "Failed", code=1), lines=lines)

    line = "ModuleNotFoundError: No module named 'torch'"
    assert found.headline == f"job failed: worker-0 could not import a Python module on node node-1: {line}"
    assert found.failure_class is FailureClass.IMPORT_ERROR
    assert "install the Python module" in found.action
    assert found.verdict is not None
    assert found.verdict.failure_class is FailureClass.PROGRAM_ERROR  # the stored verdict knows no logs
    assert found.quote is not None
    assert (found.quote.replica, found.quote.container, found.quote.line) == ("worker-0", "main", line)
    assert not any(line in text for text in found.sentences)  # the headline has it already


def test_without_a_sign_the_last_line_of_the_log_is_quoted() -> None:
    found = explained(job(), pod(0, "Failed", code=3), lines=("step 1", "step 2", "  "))

    assert found.headline.endswith("exited with code 3 on node node-1: the last line of its log is: step 2")
    assert found.quote is not None
    assert found.quote.line == "step 2"


def test_a_log_that_cannot_be_read_is_told() -> None:
    found = explained(job(), pod(0, "Failed", code=3), log_problem="you may not read logs")

    assert "The log of worker-0 could not be read: you may not read logs." in found.sentences
    assert found.quote is None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (job(role(restart=on())), "the restart policy of worker does not restart it after this"),
        (
            job(role(restart=on(CauseKind.EXIT, codes=((1, 2),)))),
            "the restart policy of worker does not restart it after this code",
        ),
        (job(role(restart=on(CauseKind.EXIT, limit=0))), "worker may not be restarted (limit 0)"),
        (
            job(role(restart=ONE_RETRY), ledger=lived(RoleLedger("worker", retries="0:1", restarts={"Exit": 1}))),
            "the only allowed restart of worker was used",
        ),
        (
            job(
                role(restart=on(CauseKind.EXIT, limit=2)),
                ledger=lived(RoleLedger("worker", retries="0:2", restarts={"Exit": 2})),
            ),
            "all 2 allowed restarts of worker were used",
        ),
    ],
)
def test_it_says_why_no_restart_followed(one: Job, expected: str) -> None:
    attempt = 0 if not one.ledger.roles else int(one.ledger.roles[0].retries[-1])
    found = explained(one, pod(0, "Failed", code=3, attempt=attempt))

    assert found.sentences[0] == f"What decided: worker 0 failed for good; {expected}."
    again = f", attempt {attempt}" if attempt else ""
    assert found.sentences[1] == f"worker-0 (pod job-worker-0{again}): container main exited with code 3."


def test_a_rule_is_named_and_so_are_the_restarts_before() -> None:
    rule = Atom("worker", Which.SOME, Result.FAILED)
    entry = RoleLedger("worker", retries="0:2", restarts={"Exit": 1, "NodeLost": 1}, inside=1)
    one = job(role(restart=on(CauseKind.NODE_LOST)), failure=rule, ledger=lived(entry))

    found = explained(one, pod(0, "Failed", code=3, attempt=2))

    assert found.restarts == 3
    expected = (
        "It was restarted 3 times (1 after a failure, 1 after the loss of a node, 1 inside its pod, by its node)."
    )
    assert expected in found.sentences


def test_the_restart_limit_of_the_job_decided() -> None:
    one = job(role(restart=on(CauseKind.EXIT)), lifecycle=Lifecycle(backoff_limit=0))

    found = explained(one, pod(0, "Failed", code=3))

    assert found.headline == "job failed: worker-0 exited with code 3 on node node-1"
    assert found.sentences[0] == "What decided: the restart limit (backoffLimit) is 0: no restart is made."


def test_a_budget_that_refills_decided() -> None:
    one = job(role(restart=on(CauseKind.EXIT)), restart_rates={"program": RestartRate(0, 600.0)})

    found = explained(one, pod(0, "Failed", code=3))

    assert found.headline == "job failed: worker-0 exited with code 3 on node node-1"
    assert (
        "the restart budget for causes of the program, trainwright.dev/restart-budget: 0/10m, is used up"
        in found.sentences[0]
    )


def test_a_rule_of_the_user_decided() -> None:
    ledger = lived(
        phase=Phase.FAILED,
        outcome=Outcome(Result.FAILED, Reason.RULE, NOW, rule='{"worker":[0]}', message="rule fulfilled"),
        failures=(failed_at(0),),
        verdict=verdict(0),
    )

    found = explained(job(ledger=ledger))

    assert found.sentences[0].startswith('Rule {"worker":[0]} ended the job; the restart policy of worker')


def test_other_failures_follow_the_first() -> None:
    pods = [pod(index, "Failed", code=3) for index in range(4)]

    found = explained(job(role(replicas=4)), *pods)

    assert "After it, these failed too: worker 1-3." in found.sentences


def test_a_lost_node_decided() -> None:
    gone = {"node-1": node("node-1", ready=False)}
    one = job(role(restart=on()), ledger=lived())

    found = explained(one, pod(0), now=later(1000), nodes=gone)

    assert found.headline == "job failed: worker-0 lost its node node-1"
    assert found.failure_class is FailureClass.NODE_LOST


def failed_at(index: int, code: int = 3) -> Failure:
    cause = Cause(CauseKind.EXIT, code, container="main", node="node-1")
    return Failure("worker", index, f"job-worker-{index}", 0, NOW, cause)


def verdict(index: int, **more: Any) -> Verdict:
    message = f"worker-{index}: container main exited with code 3"
    given: dict[str, Any] = {
        "decision": Decision.FAILED,
        "at": NOW,
        "reason": Reason.RULE,
        "failure_class": FailureClass.PROGRAM_ERROR,
        "replica": f"worker-{index}",
        "pod": f"job-worker-{index}",
        "container": "main",
        "node": "node-1",
        "code": 3,
        "message": message,
        "action": "read the log of the replica",
    }
    return Verdict(**{**given, **more})


def test_if_many_replicas_failed_the_verdict_still_names_the_first() -> None:
    outcome = Outcome(Result.FAILED, Reason.RULE, NOW, message="worker 90 failed for good", failure=failed_at(90))
    many = tuple(failed_at(index) for index in range(90, 90 + KEPT_FAILURES))
    ledger = lived(phase=Phase.FAILED, outcome=outcome, failures=many, verdict=verdict(7))

    quoted = failure_to_quote(ledger)

    assert quoted is not None
    assert (quoted.pod, quoted.cause.container, quoted.cause.code) == ("job-worker-7", "main", 3)
    assert explained(job(ledger=ledger)).headline.startswith("job failed: worker-7 exited with code 3")


def test_an_old_verdict_without_a_code_gives_its_message() -> None:
    lost = verdict(0, code=msgspec.UNSET, message="worker-0: node a is lost", failure_class=FailureClass.NODE_LOST)
    outcome = Outcome(Result.FAILED, Reason.RULE, NOW, message="worker 0 failed for good")
    ledger = lived(phase=Phase.FAILED, outcome=outcome, verdict=lost)

    found = explained(job(ledger=ledger))

    assert failure_to_quote(ledger) is None
    assert found.headline == "job failed: worker-0: node a is lost"
    assert found.sentences[0] == "What decided: worker 0 failed for good."


def test_a_ledger_without_a_verdict_is_explained_by_its_outcome() -> None:
    outcome = Outcome(Result.FAILED, Reason.RULE, NOW, message="worker 0 failed for good", failure=failed_at(0))

    found = explained(job(ledger=lived(phase=Phase.FAILED, outcome=outcome)))

    assert found.headline == "job failed: worker-0 exited with code 3 on node node-1"


def test_a_deadline_is_named_with_the_last_failure_before() -> None:
    entry = RoleLedger("worker", reached=1)
    one = job(
        lifecycle=Lifecycle(deadline=Deadline(5.0)),
        ledger=lived(entry, failures=(failed_at(0),)),
    )

    found = explained(one, pod(0), now=later(6), unsettled=("worker-0 Running: not ready",))

    assert found.headline == "job failed: it was active longer than its deadline (5s)"
    assert found.sentences[:2] == (
        "When it ended: worker-0 Running: not ready.",
        "The last failure before: worker-0 exited with code 3 on node node-1.",
    )
    assert found.failure_class is FailureClass.DEADLINE


def test_a_start_deadline_names_what_was_missing() -> None:
    one = job(lifecycle=Lifecycle(start_deadline=5.0), ledger=waiting())

    found = explained(one, now=later(6), unsettled=("worker-0 Pending: no node has room",))

    assert found.headline == (
        "job failed: not every replica had started in time (5s): worker-0 Pending: no node has room"
    )


def test_a_requested_end_names_who_asked() -> None:
    ending = RequestedEnd("Preempted", "for another job", by="annotation Preempted")

    found = explained(job(lifecycle=Lifecycle(ending=ending)), pod(0))

    assert found.headline == "job failed: annotation Preempted asked for this end: for another job"
    assert found.failure_class is FailureClass.REQUESTED


def test_an_invalid_manifest_is_the_cause() -> None:
    found = explained(job(invalid="spec.x: unknown field"))

    assert found.headline == "job failed: its manifest cannot be run: spec.x: unknown field"
    assert found.failure_class is FailureClass.INVALID


def test_success_names_the_rule_and_quotes_nothing() -> None:
    found = explained(job(), pod(0, "Succeeded", code=0))

    assert found.headline == "job succeeded: every replica that counts has succeeded"
    assert (found.situation, found.failure_class, found.action) == (Situation.SUCCEEDED, FailureClass.NONE, "")

    named = Outcome(Result.SUCCEEDED, Reason.RULE, NOW, rule='{"worker":[0]}')
    ledger = lived(phase=Phase.SUCCEEDED, outcome=named, failures=(failed_at(0),), verdict=verdict(0))
    assert explained(job(ledger=ledger)).headline == 'job succeeded: rule {"worker":[0]} is fulfilled'
    assert failure_to_quote(ledger) is None


# -- nothing works on it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "more", "headline", "situation"),
    [
        (job(unmanaged=True), {}, "is managed by another controller, as its manifest says", Situation.LEFT_ALONE),
        (job(foreign="kubeflow"), {}, "is left alone: kubeflow wrote its status", Situation.LEFT_ALONE),
        (job(unreadable=True, invalid="status: bad"), {}, "is left alone: status: bad", Situation.LEFT_ALONE),
        (job(deleting=True, ledger=lived()), {}, "is being deleted", Situation.DELETED),
        (job(ledger=lived()), {"was_deleted": True}, "was deleted before it ended", Situation.DELETED),
        (job(ledger=lived()), {"stopped": "--timeout passed"}, "did not end: --timeout passed", Situation.STOPPED),
    ],
)
def test_a_job_on_which_nothing_works(one: Job, more: dict[str, Any], headline: str, situation: Situation) -> None:
    facts = JobFacts(job=one, status=seen_status(one), now=NOW, **more)

    found = explain(facts)

    assert found.headline.startswith(f"job {headline}")
    assert found.situation is situation
    assert found.obstacles == ()


def test_a_run_that_ended_tells_the_restarts_that_it_counted_and_quotes_a_line_once() -> None:
    one = job()
    facts = JobFacts(
        job=one,
        status=seen_status(one),
        now=NOW,
        stopped="its run was interrupted",
        failure=failed_at(0),
        lines=("bye",),
        restarts=2,
    )

    found = explain(facts)

    assert found.restarts == 2
    assert found.sentences == (
        "The last failure before: worker-0 exited with code 3 on node node-1: the last line of its log is: bye.",
        "It was restarted 2 times (2 inside its pod, by its node).",
    )


def test_a_killed_run_tells_its_last_event() -> None:
    one = job()
    facts = JobFacts(
        job=one,
        status=seen_status(one),
        now=NOW,
        stopped="its run was killed",
        last_event="12:00 Running: job is running.",
        unsettled=("worker-0 Starting: init 0 of 1 done",),
        failure=failed_at(0),
    )

    assert explain(facts).sentences == (
        "When it stopped: worker-0 Starting: init 0 of 1 done.",
        "The last failure before: worker-0 exited with code 3 on node node-1.",
        "The last event about it: 12:00 Running: job is running.",
    )


# -- live jobs -------------------------------------------------------------------------------------------------------


def unplaced(index: int) -> Pod:
    return pod(index, "Pending", node="", conditions=(NO_ROOM,))


def test_a_job_without_room_names_the_missing_amount_and_the_place() -> None:
    found = explained(job(role(replicas=4), ledger=waiting()), pod(0), pod(1), unplaced(2), unplaced(3), now=later(60))

    assert found.headline == (
        "job waits: worker-2 and worker-3 (2 of 4 replicas) have no place: 0/1 nodes are available: node-0: needs 3 cpu"
    )
    assert found.sentences[0] == "It has waited since 2026-11-15T12:00:00Z (1m00s)."
    assert (found.failure_class, found.situation) == (FailureClass.UNSCHEDULABLE, Situation.WAITING)
    (obstacle,) = found.obstacles
    assert (obstacle.count, obstacle.replicas) == (2, ("worker-2", "worker-3"))


def test_the_message_of_kube_scheduler_is_completed_with_amount_and_place() -> None:
    said = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available."
    one = pod(0, "Pending", node="", conditions=(replace(NO_ROOM, message=said),))
    missing = "nearest is east: cpu: needs 9, this node has 4"
    more = {"shortages": {one.metadata.name: missing}, "gaps": ("no events",)}
    found = explained(job(role(replicas=1), ledger=waiting()), one, **more)

    assert found.headline == f"job waits: worker-0 has no place: 0/2 nodes are available: 2 Insufficient cpu; {missing}"
    assert found.gaps == ("no events",)


def test_a_reason_that_somebody_must_remove_comes_before_a_larger_number_of_others() -> None:
    starting = [pod(index, "Pending") for index in range(3)]

    found = explained(job(role(replicas=4), ledger=waiting()), *starting, unplaced(3))

    assert found.headline.startswith("job waits: worker-3 has no place:")
    assert "Worker 0-2 (3 of 4 replicas): its containers start, on node node-1." in found.sentences


def test_an_image_that_cannot_be_pulled() -> None:
    broken = pod(0, "Pending", containers=(container(waiting="ErrImagePull", message="no such image: x"),))

    found = explained(job(ledger=waiting()), broken)

    text = "container main cannot be created (ErrImagePull: no such image: x), on node node-1"
    assert found.headline == f"job waits: worker-0: {text}"
    assert found.failure_class is FailureClass.IMAGE


def test_a_refused_pod_quotes_the_quota() -> None:
    message = "exceeded quota: small, requested: cpu=4, used: cpu=8, limited: cpu=10"
    refusal = Refusal("job-worker-0", "Forbidden", message, quota=True)

    found = explained(job(ledger=waiting()), refusals=(refusal,))

    assert found.headline == f"job waits: worker-0: the API server refuses its pod: {message}"
    assert found.failure_class is FailureClass.QUOTA


def test_a_quota_system_is_quoted() -> None:
    said = ("Kueue has not admitted it (Workload a): insufficient quota for cpu", "and another one")

    found = explained(job(ledger=waiting()), admission=said)

    assert found.headline == f"job waits: {said[0]}"
    assert found.sentences[0] == "And another one."
    assert (found.failure_class, found.admission) == (FailureClass.QUOTA, said)


def test_an_image_error_is_told_although_a_gang_scheduler_says_something() -> None:
    broken = pod(0, "Pending", containers=(container(waiting="ErrImagePull", message="no such image: x"),))

    assert "ErrImagePull" in explained(job(ledger=waiting()), broken, admission=("queue is closed",)).headline


@pytest.mark.parametrize(
    ("reason", "expected"), [("FailedMount", FailureClass.MISSING_OBJECT), ("NetworkNotReady", FailureClass.NONE)]
)
def test_only_an_event_says_that_a_volume_is_missing(reason: str, expected: FailureClass) -> None:
    warnings = {"job-worker-0": (reason, 'secret "x" not found')}

    found = explained(job(ledger=waiting()), pod(0, "Pending"), warnings=warnings)

    assert (
        found.headline == f'job waits: worker-0: its containers start, on node node-1 ({reason}: secret "x" not found)'
    )
    assert found.failure_class is expected


def test_no_operator_has_accepted_it() -> None:
    facts = JobFacts(job=job(), status=seen_status(job()), now=NOW)

    assert explain(facts).headline == "job waits: no operator has accepted it yet"


def test_an_edit_cannot_be_applied() -> None:
    one = job(invalid="spec.x: unknown field", ledger=waiting())
    waits = explain(JobFacts(job=one, status=seen_status(one), now=NOW))
    assert waits.headline == "job waits: its manifest cannot be run: spec.x: unknown field"

    one = job(invalid="spec.x: unknown field", ledger=lived())
    runs = explain(JobFacts(job=one, status=seen_status(one), now=NOW))
    assert runs.sentences[0] == "Its last edit cannot be applied: spec.x: unknown field."


def test_a_job_that_is_about_to_start() -> None:
    one = job(ledger=waiting())
    status = replace(look(one, pod(0)).status, ledger=one.ledger)

    assert explain(JobFacts(job=one, status=status, now=NOW)).headline == (
        "job is about to start: every replica runs now"
    )


def test_a_job_that_runs_well() -> None:
    ledger = lived(
        RoleLedger("worker", reached=2), failures=(failed_at(0),), verdict=verdict(0, decision=Decision.RESTART)
    )

    found = explained(job(role(replicas=2), ledger=ledger), pod(0), pod(1, "Succeeded", code=0), now=later(90))

    assert found.headline == "job has run for 1m30s: 1 of 2 replicas run, 1 succeeded"
    assert found.sentences[0] == "The last failure before: worker-0 exited with code 3 on node node-1."
    assert (found.situation, found.failure_class, found.action) == (Situation.RUNNING, FailureClass.NONE, "")


def crashing(index: int = 0, **more: Any) -> Pod:
    """A pod whose node restarts its container in place."""
    last = ContainerState(terminated=Terminated(3, reason="Error", finished_at=more.get("at", later(5))))
    state = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 10s"))
    if more.get("runs"):
        state = ContainerState(running=Running())
    one = ContainerStatus("main", restart_count=2, state=state, last_state=last)
    return pod(index, policy="OnFailure", containers=(one,))


def test_a_replica_that_its_node_restarts_again_and_again_is_in_the_headline() -> None:
    found = explained(job(ledger=lived()), crashing(), now=later(60), lines=("RuntimeError: boom",))

    assert found.headline == (
        "job runs, but worker-0 exited with code 3 on node node-1: RuntimeError: boom; its node restarts it in place"
    )
    assert found.sentences[0] == "The job has counted as running for 1m00s."
    assert found.restarts == 2
    assert found.quote is not None


def test_an_in_place_failure_counts_if_it_is_later_than_the_last_restart() -> None:
    ledger = lived(failures=(failed_at(0, code=9),), verdict=verdict(0, decision=Decision.RESTART, code=9))

    recent = failure_to_quote(ledger, [crashing(at=later(5))])
    old = failure_to_quote(ledger, [crashing(at=later(-5))])

    assert recent is not None
    assert old is not None
    assert (recent.cause.code, old.cause.code) == (3, 9)


def test_a_restart_in_place_that_is_over_is_only_mentioned() -> None:
    found = explained(job(ledger=lived()), crashing(runs=True), now=later(60))

    assert found.headline == "job has run for 1m00s: 1 of 1 replica runs"
    assert "It was restarted 2 times (2 inside its pod, by its node)." in found.sentences


def test_a_pod_without_our_labels_or_times_is_not_quoted() -> None:
    bare = crashing()
    assert failure_to_quote(lived(), [replace(bare, metadata=replace(bare.metadata, labels=None))]) is None
    labels = {**(bare.metadata.labels or {}), "trainwright.dev/attempt": "spare"}
    assert failure_to_quote(lived(), [replace(bare, metadata=replace(bare.metadata, labels=labels))]) is None


def test_a_restart_names_the_failure_and_until_when_it_waits() -> None:
    one = job(role(restart=on(CauseKind.EXIT)), ledger=lived())

    found = explained(one, pod(0, "Failed", code=3))

    assert found.headline == "job restarts after a failure: worker-0 exited with code 3 on node node-1"
    assert found.sentences[0] == "What restarts: pod worker-0."
    assert (found.situation, found.failure_class) == (Situation.RESTARTING, FailureClass.PROGRAM_ERROR)


def restarting(**more: Any) -> Job:
    """A job whose worker-1 was restarted after a failure."""
    entry = RoleLedger("worker", retries="1:1", reached=2, restarts={"Exit": 1})
    given = {"verdict": verdict(1, decision=Decision.RESTART, reason="Role"), "failures": (failed_at(1),), **more}
    return job(role(replicas=2, restart=on(CauseKind.EXIT)), ledger=lived(entry, phase=Phase.RESTARTING, **given))


def test_a_restart_that_finds_no_room_names_both() -> None:
    found = explained(restarting(), pod(0), replace_attempt(unplaced(1), 1))

    assert found.headline == (
        "job restarts after a failure: worker-1 exited with code 3 on node node-1; "
        "now worker-1 has no place: 0/1 nodes are available: node-0: needs 3 cpu"
    )
    assert found.sentences[0] == "What restarts: the whole role."
    assert found.failure_class is FailureClass.UNSCHEDULABLE


def test_a_restart_without_a_recorded_failure_gives_the_message_of_the_verdict() -> None:
    lost = verdict(1, decision=Decision.RESTART, reason="", code=msgspec.UNSET, message="worker-1: node a is lost")

    found = explained(restarting(verdict=lost, failures=()), pod(0))

    assert found.headline == "job restarts after a failure: worker-1: node a is lost"


def test_a_deleted_pod_restarts_although_an_older_verdict_exists() -> None:
    deleted = restarting(history=History(begun=NOW, until=NOW, now_lost_to=FailureClass.DELETED))

    found = explained(deleted, pod(0))

    assert found.headline == "job waits: worker-1: its pod is not created yet"


def replace_attempt(one: Pod, attempt: int) -> Pod:
    labels = {**(one.metadata.labels or {}), "trainwright.dev/attempt": str(attempt)}
    return replace(one, metadata=replace(one.metadata, labels=labels))


def test_a_suspended_job_names_who_suspended_it() -> None:
    one = job(lifecycle=Lifecycle(suspended=True), ledger=lived())

    found = explained(one, pod(0), suspended_by="kubectl at 12:00", resume_command="do it")

    assert found.headline == "job is suspended by kubectl at 12:00: it has no pods until it is resumed"
    assert found.sentences[0] == "1 of its pods still ends."
    assert found.action == "resume it when it should run: `do it`, or correct the field in its manifest"
    assert found.situation is Situation.SUSPENDED
    assert failure_to_quote(replace(one.ledger, phase=Phase.SUSPENDED, verdict=verdict(0))) is None


def test_a_job_that_a_quota_system_suspends_waits_for_it() -> None:
    one = job(lifecycle=Lifecycle(suspended=True), ledger=lived(phase=Phase.SUSPENDED))

    found = explained(one, admission=("Kueue has not admitted it (Workload a): quota is used up",))

    assert found.headline == "job waits: Kueue has not admitted it (Workload a): quota is used up"
    assert found.failure_class is FailureClass.QUOTA


def test_a_resumed_job_is_about_to_start() -> None:
    one = job(ledger=lived(phase=Phase.SUSPENDED))

    facts = JobFacts(job=one, status=seen_status(one), now=NOW)

    assert explain(facts).headline == "job was resumed and is about to start again"


# -- time ------------------------------------------------------------------------------------------------------------


def test_time_is_split_by_cause() -> None:
    history = History(
        begun=NOW,
        until=later(100),
        productive=60_000,
        lost={"Start": 20_000, "Suspended": 15_000, "NodeLost": 4_990, "Killed": 10},
        total=2,
    )
    outcome = Outcome(Result.SUCCEEDED, Reason.RULE, later(100))
    found = explained(job(ledger=lived(phase=Phase.SUCCEEDED, outcome=outcome, history=history)), now=later(500))

    assert found.sentences == (
        "It was productive for 1m00s of 1m40s (60%); lost: 20.0s until all replicas ran, 15.0s while it was suspended,"
        " 5.0s after NodeLost.",
    )
    assert found.time is not None
    assert found.time.goodput == 0.6


def test_the_json_has_camel_case_and_leaves_out_what_is_empty() -> None:
    ledger = lived(times=Times(NOW, NOW, NOW))

    whole = msgspec.to_builtins(explained(job(ledger=ledger), pod(0, "Failed", code=3)))

    assert {"namespace", "name", "kind", "situation", "headline", "sentences", "action", "class", "verdict"} <= set(
        whole
    )
    assert "obstacles" not in whole
    assert whole["verdict"]["class"] == "ProgramError"


def test_a_job_with_pods_was_accepted_although_its_status_is_empty() -> None:
    facts = JobFacts(job=job(), status=seen_status(job(), pod(0, "Pending")), now=NOW)

    assert explain(facts).headline == "job waits: worker-0: its containers start, on node node-1"
