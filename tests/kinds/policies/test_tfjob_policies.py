# SPDX-License-Identifier: Apache-2.0
"""TFJob in the internal model: what each policy compiles to, and the verdict when it is driven through the world."""

import pytest
from msgspec.structs import replace
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    becomes,
    both,
    collected,
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
    waits,
)
from tfjob_policy import FAILED_POD, TFJob, clean_up, compiled, failure, restart, success

from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, Lifecycle, Restart, Role
from trainwright.model.rule import NEVER, AnyOf, Atom, Result, Rule, Which
from trainwright.testing import factories

WORKERS = {"Worker": (3, "Never")}
PS = {"PS": (1, "Never"), "Worker": (2, "Never")}
CHIEF = {"Chief": (1, "Never"), "Worker": (2, "Never")}
EVALUATOR = {"Worker": (2, "Never"), "Evaluator": (1, "Never")}


def workers(policy: str) -> TFJob:
    return TFJob({"Worker": (2, policy)})


# -- what it compiles to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(TFJob(CHIEF), Atom("Chief", Which.EVERY, Result.SUCCEEDED), id="chief"),
        pytest.param(TFJob(CHIEF, "AllWorkers"), Atom("Chief", Which.EVERY, Result.SUCCEEDED), id="chief wins"),
        pytest.param(
            TFJob({"Worker": (1, "Never"), "Master": (1, "Never")}),
            Atom("Master", Which.EVERY, Result.SUCCEEDED),
            id="master",
        ),
        pytest.param(TFJob(PS), Atom("Worker", (0,), Result.SUCCEEDED), id="worker 0"),
        pytest.param(TFJob(PS, "nonsense"), Atom("Worker", (0,), Result.SUCCEEDED), id="unknown word"),
        pytest.param(TFJob(PS, "AllWorkers"), Atom("Worker", Which.EVERY, Result.SUCCEEDED), id="all workers"),
        pytest.param(TFJob({"PS": (1, "Never"), "Evaluator": (1, "Never")}), NEVER, id="nobody to succeed"),
    ],
)
def test_success_compiles(job: TFJob, expected: Rule) -> None:
    assert success(job) == expected


def test_failure_is_any_replica_of_any_type() -> None:
    assert failure(TFJob(PS)) == AnyOf(
        (Atom("PS", Which.SOME, Result.FAILED), Atom("Worker", Which.SOME, Result.FAILED))
    )


def test_dynamic_workers_do_not_count_as_failures() -> None:
    assert failure(TFJob(PS, dynamic_worker=True)) == AnyOf((Atom("PS", Which.SOME, Result.FAILED),))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Never", Restart()),
        ("OnFailure", Restart(causes=FAILED_POD)),
        ("Always", Restart(causes=FAILED_POD | {CauseKind.COMPLETED})),
        ("ExitCode", Restart(causes=FAILED_POD, codes=((128, 2**31 - 1),))),
    ],
)
def test_restart_policy_compiles(policy: str, expected: Restart) -> None:
    assert restart(policy) == expected


@pytest.mark.parametrize(
    ("policy", "level"),
    [
        ("None", CleanPods.NONE),
        ("Running", CleanPods.UNFINISHED),
        ("All", CleanPods.ALL),
        ("", CleanPods.ALL),
    ],
)
def test_clean_pod_policy_compiles(policy: str, level: CleanPods) -> None:
    assert clean_up(policy) == CleanUp(level, level, level)


def test_run_policy_compiles() -> None:
    job = TFJob(WORKERS, backoff_limit=3, clean_pod_policy="Running", active_deadline=60, ttl=5, suspend=True)

    assert compiled(job).lifecycle == Lifecycle(
        suspended=True,
        clean=CleanUp(CleanPods.UNFINISHED, CleanPods.UNFINISHED, CleanPods.UNFINISHED),
        backoff_limit=3,
        fails_at_limit=True,
        counts_in_place=True,
        deadline=Deadline(60),
        ttl=5,
    )


# -- success and failure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "steps", "expected"),
    [
        pytest.param(TFJob(WORKERS), [], OPEN, id="workers run"),
        pytest.param(TFJob(WORKERS), [exits("worker-0")], SUCCEEDED, id="worker 0 decides"),
        pytest.param(TFJob(WORKERS), [exits("worker-1", "worker-2")], OPEN, id="others do not"),
        pytest.param(TFJob(WORKERS), [fails("worker-2")], failed("Worker 2 Exit"), id="any worker fails"),
        pytest.param(
            TFJob(WORKERS), [both(exits("worker-0"), fails("worker-2"))], SUCCEEDED, id="done is done, whoever failed"
        ),
        pytest.param(TFJob(WORKERS, "AllWorkers"), [exits("worker-0", "worker-1")], OPEN, id="not all workers"),
        pytest.param(
            TFJob(WORKERS, "AllWorkers"),
            [exits("worker-0", "worker-1"), exits("worker-2")],
            SUCCEEDED,
            id="all workers",
        ),
        pytest.param(
            TFJob(WORKERS, "AllWorkers"), [exits("worker-0"), fails("worker-1")], failed("Worker 1 Exit"), id="not all"
        ),
        pytest.param(TFJob(CHIEF), [exits("worker-0", "worker-1")], OPEN, id="workers end, chief goes on"),
        pytest.param(TFJob(CHIEF), [exits("chief-0")], SUCCEEDED, id="chief ends, workers go on"),
        pytest.param(TFJob(CHIEF), [fails("worker-1")], failed("Worker 1 Exit"), id="worker fails beside the chief"),
        pytest.param(TFJob(CHIEF), [both(exits("chief-0"), fails("worker-1"))], SUCCEEDED, id="chief and failure"),
        pytest.param(TFJob(PS), [exits("ps-0")], OPEN, id="a server's success means nothing"),
        pytest.param(TFJob(PS), [fails("ps-0")], failed("PS 0 Exit"), id="a server fails"),
        pytest.param(TFJob(EVALUATOR), [fails("evaluator-0")], failed("Evaluator 0 Exit"), id="evaluator fails"),
        pytest.param(TFJob(EVALUATOR), [exits("evaluator-0")], OPEN, id="evaluator ends"),
        pytest.param(TFJob(PS, dynamic_worker=True), [fails("worker-1")], OPEN, id="dynamic worker fails"),
        pytest.param(
            TFJob(PS, dynamic_worker=True),
            [fails("worker-1"), exits("worker-0")],
            SUCCEEDED,
            id="dynamic, worker 0 ends",
        ),
        pytest.param(TFJob(PS, dynamic_worker=True), [fails("ps-0")], failed("PS 0 Exit"), id="dynamic, server fails"),
        # Upstream waits for ever here: worker 0 can no longer succeed, and its failure is not to count.
        pytest.param(
            TFJob(PS, dynamic_worker=True),
            [fails("worker-0")],
            failed("Worker 0 Exit", "Unreachable"),
            id="dynamic, worker 0 fails",
        ),
        pytest.param(
            TFJob({"PS": (1, "Never"), "Evaluator": (1, "Never")}),
            [exits("ps-0", "evaluator-0")],
            OPEN,
            id="nobody to succeed",
        ),
    ],
)
def test_outcomes(job: TFJob, steps: list[Step], expected: Verdict) -> None:
    world = tell(compiled(job), run, *steps)

    assert verdict(world) == expected


# -- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "step", "expected"),
    [
        pytest.param("Never", fails("worker-1", code=137), failed("Worker 1 Exit"), id="Never, exit"),
        pytest.param("Never", evicted("worker-1"), failed("Worker 1 Evicted"), id="Never, evicted"),
        pytest.param("Never", preempted("worker-1"), failed("Worker 1 Disrupted"), id="Never, preempted"),
        pytest.param("OnFailure", fails("worker-1", code=1), RESTARTING, id="OnFailure, exit"),
        pytest.param("OnFailure", evicted("worker-1"), RESTARTING, id="OnFailure, evicted"),
        pytest.param("OnFailure", preempted("worker-1"), RESTARTING, id="OnFailure, preempted"),
        pytest.param("OnFailure", exits("worker-1"), OPEN, id="OnFailure, success is success"),
        pytest.param("Always", evicted("worker-1"), RESTARTING, id="Always, evicted"),
        pytest.param("Always", exits("worker-0"), RESTARTING, id="Always, even success"),
        pytest.param("ExitCode", fails("worker-1", code=1), failed("Worker 1 Exit"), id="ExitCode 1"),
        pytest.param("ExitCode", fails("worker-1", code=127), failed("Worker 1 Exit"), id="ExitCode 127"),
        pytest.param("ExitCode", fails("worker-1", code=128), RESTARTING, id="ExitCode 128"),
        pytest.param("ExitCode", fails("worker-1", code=48879), RESTARTING, id="ExitCode of more than a byte"),
        pytest.param("ExitCode", fails("worker-1", code=130), RESTARTING, id="ExitCode 130"),
        pytest.param("ExitCode", fails("worker-1", code=139), RESTARTING, id="ExitCode 139"),
        pytest.param("ExitCode", fails("worker-1", code=255), RESTARTING, id="ExitCode 255"),
        pytest.param("ExitCode", exits("worker-1"), OPEN, id="ExitCode 0"),
        pytest.param("ExitCode", evicted("worker-1"), RESTARTING, id="ExitCode, evicted without a container's word"),
        pytest.param("ExitCode", rejected("worker-1"), RESTARTING, id="ExitCode, rejected without a container's word"),
        pytest.param("ExitCode", preempted("worker-1"), RESTARTING, id="ExitCode, preempted"),
    ],
)
def test_restart(policy: str, step: Step, expected: Verdict) -> None:
    world = tell(compiled(workers(policy)), run, step)

    assert verdict(world) == expected


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode"])
def test_a_failed_pod_is_made_again_alone_and_the_job_runs_on(policy: str) -> None:
    world = tell(compiled(workers(policy)), run, fails("worker-1", code=137), again)

    assert verdict(world) == OPEN
    assert pods(world) == ["worker-0", "worker-1#1"]
    assert services(world) == ["worker-0", "worker-1"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", "ExitCode"])
def test_a_terminating_pod_is_not_a_failure_under_any_policy(policy: str) -> None:
    """trainer#2124: one deleted pod failed the whole job."""
    world = tell(compiled(workers(policy)), run, terminating("worker-1"), run)

    assert verdict(world) == OPEN
    assert pods(world) == ["worker-0", "worker-1"]


def test_a_lost_node_does_not_hang_the_job() -> None:
    """trainer#2072: the pod stayed Terminating and the job waited for ever."""
    world = tell(compiled(workers("ExitCode")), run, loses("worker-1"), again, nodes=("worker-0", "worker-1", "spare"))

    assert verdict(world) == OPEN
    assert pods(world) == ["worker-0", "worker-1#1"]


def test_a_lost_node_under_never_fails_the_job() -> None:
    world = tell(compiled(workers("Never")), run, loses("worker-1"), nodes=("worker-0", "worker-1"))

    assert verdict(world) == failed("Worker 1 NodeLost")


def test_a_finished_pod_that_was_collected_is_not_run_again() -> None:
    """trainer#1186, #1997, #2453."""
    job = TFJob(WORKERS, "AllWorkers")
    world = tell(
        compiled(job), run, exits("worker-1"), collected("worker-1"), waits(600), exits("worker-0", "worker-2")
    )

    assert verdict(world) == SUCCEEDED
    assert pods(world) == ["worker-0", "worker-2"]


def test_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    job = compiled(TFJob({"Worker": (2, "Never")}, "AllWorkers"))
    world = tell(job, run, exits("worker-1"), loses("worker-1"), exits("worker-0"), nodes=("worker-0", "worker-1"))

    assert verdict(world) == SUCCEEDED


def test_replicas_0_is_nothing() -> None:
    """trainer#1709: pod 0 was made and removed for ever."""
    world = tell(compiled(TFJob({"PS": (0, "Never"), "Worker": (1, "Never")})), run, exits("worker-0"))

    assert verdict(world) == SUCCEEDED
    assert pods(world) == ["worker-0"]


# -- the main container --------------------------------------------------------------------------------------------


def with_sidecar(policy: str) -> Role:
    """The kubelet restarts in place what the policy says; under ExitCode the controller alone does."""
    role = factories.role("Worker", 1, restart=restart(policy), main_containers=frozenset({"tensorflow"}))
    return replace(role, template={"spec": {"restartPolicy": "Never" if policy == "ExitCode" else policy}})


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        pytest.param("Never", 0, SUCCEEDED, id="Never 0"),
        pytest.param("Never", 1, failed("Worker 0 Exit"), id="Never 1"),
        pytest.param("ExitCode", 137, RESTARTING, id="ExitCode 137"),
        pytest.param("OnFailure", 0, SUCCEEDED, id="OnFailure 0"),
    ],
)
def test_the_main_container_decides_although_a_sidecar_runs_on(policy: str, code: int, expected: Verdict) -> None:
    """trainer#1183."""
    ended = factories.container("tensorflow", exit_code=code)
    job = factories.job(with_sidecar(policy), success=Atom("Worker", (0,), Result.SUCCEEDED))
    world = tell(job, run, becomes("worker-0", container_statuses=(ended, factories.container("istio-proxy"))))

    assert verdict(world) == expected


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_a_main_container_that_the_kubelet_restarts_in_place_has_not_ended(policy: str) -> None:
    ended = factories.container("tensorflow", exit_code=1)
    world = tell(factories.job(with_sidecar(policy)), run, becomes("worker-0", container_statuses=(ended,)))

    assert verdict(world) == OPEN
    assert pods(world) == ["worker-0"]
