# SPDX-License-Identifier: Apache-2.0

"""Why a job ended: the rule, the replica, the cause, its last words and a hint, from the ledger and the logs."""

from typing import Any

import pytest
from run_objects import STARTED, job, role, status

from trainwright.cli.run.ending import EndingInput, RunEnd, find_ending
from trainwright.cli.run.model import RunModel
from trainwright.cli.show.news import JobEnding, ReplicaNews
from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Body
from trainwright.model.meta import Key

DEMO = Key("default", "demo")
AT = "2026-11-15T20:00:07Z"
KILLED: Body = {"why": "Exit", "code": 137, "signal": 9, "reason": "Error", "container": "main"}


def failure(**cause: Any) -> Body:
    return {"role": "worker", "index": 1, "pod": "demo-worker-1", "attempt": 2, "at": AT, "cause": cause or KILLED}


def outcome(result: str, reason: str = "Rule", **more: Any) -> Body:
    return {"result": result, "reason": reason, "at": AT, **more}


def ending(
    *,
    end: RunEnd = RunEnd.DONE,
    replicas: list[ReplicaNews] | None = None,
    words: tuple[str, ...] = (),
    runtime: str = "sandbox",
    spec: Body | None = None,
    **ledger: Any,
) -> JobEnding:
    """The ending of a job with that ledger."""
    roles = [role("ps", 1), role("worker", 2, restartPolicy={"policy": "OnFailure", "limit": 2})]
    phase = ledger["outcome"]["result"] if ledger.get("outcome") else "Running"
    times = {"accepted": STARTED}
    body = job(roles=roles, spec=spec or {}, status=status(phase, times=times, **ledger))
    model = RunModel([(GENERICJOB, body)])
    model.update_job(body)
    asked: list[tuple[str, int, str]] = []

    def last(pod: str, attempt: int, container: str) -> tuple[str, ...]:
        asked.append((pod, attempt, container))
        return words

    found = find_ending(model.row(DEMO), EndingInput(end, runtime, 7.5, replicas or [], last))
    assert asked in ([], [("demo-worker-1", 2, "main")], [("demo-worker-1", 2, "")])
    return found


def test_success() -> None:
    found = ending(outcome=outcome("Succeeded"))
    assert (found.outcome, found.exit_code, found.duration, found.because) == ("Succeeded", 0, 7.5, "")

    found = ending(outcome=outcome("Succeeded", rule='{"ps":[0]}'))
    assert found.because == 'rule {"ps":[0]} is fulfilled'


def test_failure_by_the_default_rule() -> None:
    found = ending(
        outcome=outcome("Failed", failure=failure()),
        roles=[{"name": "worker", "retries": "1:2", "restarts": {"Exit": 2}, "charged": "0,2"}],
        words=("step 1", "step 2"),
    )

    assert found == JobEnding(
        "default",
        "demo",
        "Failed",
        1,
        7.5,
        2,
        "worker-1 failed",
        rule="any ps fails, or any worker fails",
        replica="worker-1",
        pod="demo-worker-1",
        container="main",
        code=137,
        signal=9,
        cause="container main was killed by SIGKILL (exit code 137); 2 of 2 restarts were used",
        last_lines=("step 1", "step 2"),
        hint="a user or another process sent SIGKILL, or the kernel did because memory ran out"
        " (see `dmesg` on the node)",
    )


def test_failure_by_a_rule_of_the_user() -> None:
    rule = '{"worker":[1]}'
    found = ending(outcome=outcome("Failed", rule=rule, failure=failure()), spec={"failureRules": [{"worker": [1]}]})

    assert (found.rule, found.because) == (rule, f"worker-1 failed, which rule {rule} names")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Unreachable", "no success rule can be fulfilled any more, since worker 1 failed"),
        ("BackoffLimit", "the restart limit (backoffLimit) of 3 is reached: 3 restarts count against it"),
        ("Deadline", "it was active longer than its deadline"),
        ("Invalid", "spec.replicaSpecs: every type has 0 replicas"),
    ],
)
def test_failure_for_other_reasons(reason: str, message: str) -> None:
    found = ending(outcome=outcome("Failed", reason, message=message))

    assert (found.outcome, found.rule, found.because, found.replica) == ("Failed", "", message, "")


PODS = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "x", "command": ["true"]}]}}}
FAILED: Body = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}


@pytest.mark.parametrize(("seconds", "told"), [(2, "2 s"), (90, "90 s"), (7200, "7200 s (2h00m)")])
def test_a_deadline_is_told_with_its_length(seconds: int, told: str) -> None:
    message = "it was active longer than its deadline"
    spec = {"runPolicy": {"activeDeadlineSeconds": seconds}, "tfReplicaSpecs": {"Worker": PODS}}
    stored = {"trainwright": {"outcome": outcome("Failed", "Deadline", message=message)}}
    body = FAILED | {"spec": spec, "status": stored}
    body["metadata"] = {"name": "demo", "namespace": "default", "uid": "u"}
    model = RunModel([(TFJOB, body)])
    model.update_job(body)

    found = find_ending(model.row(DEMO), EndingInput(RunEnd.DONE, "sandbox", 7.5, [], lambda *_: ()))

    assert found.because == f"{message} of {told}"


def test_the_last_failure_explains_an_end_that_names_none() -> None:
    found = ending(outcome=outcome("Failed", "Deadline", message="too long"), failures=[failure()])

    assert (found.because, found.replica, found.code) == ("too long", "worker-1", 137)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ({"why": "Exit", "code": 3, "container": "main"}, "container main exited with code 3"),
        (
            {"why": "Exit", "code": 143, "signal": 15, "container": "main"},
            "container main was killed by SIGTERM (exit code 143)",
        ),
        ({"why": "Exit", "code": 143, "signal": 0, "container": "main"}, "container main exited with code 143"),
        (
            {"why": "Exit", "code": 137, "container": "main"},
            "container main ended with SIGKILL, or exit code 137 from the program",
        ),
        (
            {"why": "Exit", "code": 137, "signal": 9, "reason": "OOMKilled", "container": "main"},
            "container main was killed by SIGKILL (exit code 137, OOMKilled)",
        ),
        (
            {
                "why": "Exit",
                "code": 127,
                "reason": "ContainerCannotRun",
                "message": "no python4",
                "container": "main",
            },
            "container main could not be started (exit code 127, ContainerCannotRun): no python4",
        ),
        ({"why": "Exit", "code": 255, "container": "main"}, "container main exited with code 255"),
        ({"why": "NodeLost", "node": "node-1"}, "node node-1 is lost"),
        (
            {
                "why": "CreateError",
                "container": "main",
                "reason": "CreateContainerConfigError",
                "message": "no secret x",
            },
            "container main cannot be created (CreateContainerConfigError: no secret x)",
        ),
    ],
)
def test_causes_in_words(cause: Body, text: str) -> None:
    found = ending(outcome=outcome("Failed", failure=failure(**cause)))

    assert found.cause == f"{text}; 0 of 2 restarts were used"


def test_a_message_stands_in_for_a_log() -> None:
    cause = {"why": "Exit", "code": 127, "container": "main", "message": "no such file"}
    found = ending(outcome=outcome("Failed", failure=failure(**cause)))

    assert found.last_lines == ("no such file",)


def test_what_the_node_says_of_an_end_goes_before_a_guess() -> None:
    cause = {"why": "Exit", "code": 143, "signal": 15, "container": "main", "message": "the liveness probe failed\nx"}
    found = ending(outcome=outcome("Failed", failure=failure(**cause)), words=("step 1",))

    text = "container main was killed by SIGTERM (exit code 143): the liveness probe failed"
    assert (found.cause.split(";")[0], found.last_lines, found.hint) == (text, ("step 1",), "")


@pytest.mark.parametrize(("result", "word"), [("Failed", "Preempted"), ("Succeeded", "Succeed")])
def test_the_annotation_that_ended_a_job_is_named(result: str, word: str) -> None:
    template = {"spec": {"containers": [{"name": "aitj-main", "image": "x"}]}}
    body: Body = {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "demo", "namespace": "default", "uid": "u", "annotations": {word.lower(): "we need it"}},
        "spec": {"replicaSpecs": {"trainer": {"template": template}}},
        "status": {"trainwright": {"phase": result, "outcome": outcome(result, "External", message="we need it")}},
    }
    model = RunModel([(AITRAININGJOB, body)])
    model.update_job(body)

    found = find_ending(model.row(DEMO), EndingInput(RunEnd.DONE, "sandbox", 1.0, [], lambda *_: ()))

    assert found.because == f"annotation {word.lower()} asked for this end: we need it"


@pytest.mark.parametrize(
    ("end", "word", "code", "why"),
    [
        (RunEnd.DONE, "Deleted", 1, "the job was deleted before it ended"),
        (RunEnd.INTERRUPTED, "Interrupted", 130, ""),
        (RunEnd.TERMINATED, "Interrupted", 143, "the run received SIGTERM"),
        (RunEnd.HUNG_UP, "Interrupted", 129, "the terminal was closed"),
        (RunEnd.READER_GONE, "Interrupted", 141, "the reader of the output has closed the pipe"),
        (RunEnd.TIMED_OUT, "TimedOut", 124, "--timeout passed"),
        (RunEnd.BROKEN, "Broken", 3, ""),
    ],
)
def test_ends_without_an_outcome(end: RunEnd, word: str, code: int, why: str) -> None:
    found = ending(end=end)

    assert (found.outcome, found.exit_code, found.because) == (word, code, why)


def test_what_held_a_job_up_is_named() -> None:
    waiting = [
        ReplicaNews(DEMO, "worker", index, f"worker-{index}", "Pending", reason=f"Unschedulable: {index}")
        for index in range(7)
    ]
    well = [
        ReplicaNews(DEMO, "ps", 0, "ps-0", "Running"),
        ReplicaNews(DEMO, "ps", 1, "ps-1", "Stopped", reason="killed by SIGTERM"),
    ]
    found = ending(end=RunEnd.TIMED_OUT, replicas=well + waiting)

    assert found.unsettled == (
        *(f"worker-{index} Pending: Unschedulable: {index}" for index in range(5)),
        "… and 2 more",
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("loss is nan",), ""),
        (("ValueError: bad",), ""),
        (("OSError: [Errno 98] Address already in use",), "replicas share the ports of this machine"),
    ],
)
def test_a_hint_says_more_than_the_last_lines(words: tuple[str, ...], expected: str) -> None:
    cause = {"why": "Exit", "code": 1, "signal": 0, "reason": "Error", "container": "main"}
    found = ending(outcome=outcome("Failed", failure=failure(**cause)), words=words, runtime="process")

    assert expected in found.hint
    assert bool(expected) == bool(found.hint)


def test_a_failed_probe_has_its_own_hint() -> None:
    cause = {"why": "Exit", "code": 143, "signal": 15, "container": "main", "message": "its liveness probe failed: x"}
    found = ending(outcome=outcome("Failed", failure=failure(**cause)), words=("step 1",))

    assert "does not answer its probe" in found.hint
