# SPDX-License-Identifier: Apache-2.0
"""PaddleJob in the one model: what each policy compiles to, and the verdict when it is driven through the world."""

import pytest
from paddlejob_policy import REPLACED, PaddleJob, clean_up, compiled, failure, restart, success
from scenario import (
    OPEN,
    RESTARTING,
    SUCCEEDED,
    Step,
    Verdict,
    again,
    collected,
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

from trainwright.model.job import Body, Clean, CleanUp, Restart, Scope
from trainwright.model.rule import All, Any, Atom, Result, Rule, Which
from trainwright.testing.factories import PlainDialect
from trainwright.testing.world import World

PS = {"ps": 1, "worker": 2}
COLLECTIVE = {"worker": 2}
NODES = ("ps-0", "worker-0", "worker-1", "spare")


# -- what it compiles to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(
            PaddleJob(PS),
            All((Atom("ps", Which.EVERY, Result.SUCCEEDED), Atom("worker", Which.EVERY, Result.SUCCEEDED))),
            id="all pods of all roles",
        ),
        pytest.param(
            PaddleJob(PS, success_by_workers=True),
            All((Atom("worker", Which.EVERY, Result.SUCCEEDED),)),
            id="by workers alone",
        ),
        pytest.param(
            PaddleJob({"worker": 2, "heter": 0}),
            All((Atom("worker", Which.EVERY, Result.SUCCEEDED),)),
            id="a role of nobody is not waited for",
        ),
    ],
)
def test_success_compiles(job: PaddleJob, expected: Rule) -> None:
    assert success(job) == expected


def test_failure_is_any_pod_of_any_role() -> None:
    expected = Any((Atom("ps", Which.SOME, Result.FAILED), Atom("worker", Which.SOME, Result.FAILED)))

    assert failure(PaddleJob(PS)) == expected


@pytest.mark.parametrize(("intranet", "scope"), [("PodIP", Scope.JOB), ("Host", Scope.JOB), ("Service", Scope.POD)])
def test_restart_compiles(intranet: str, scope: Scope) -> None:
    assert restart(intranet) == Restart(causes=REPLACED, codes=((101, 102),), scope=scope)


@pytest.mark.parametrize(
    ("policy", "completed", "failed_"),
    [
        ("", Clean.ALL, Clean.UNFINISHED),
        ("OnCompletion", Clean.ALL, Clean.UNFINISHED),
        ("Always", Clean.ALL, Clean.ALL),
        ("OnFailure", Clean.NONE, Clean.ALL),
        ("Never", Clean.NONE, Clean.NONE),
        ("Nerver", Clean.NONE, Clean.NONE),
    ],
)
def test_clean_pod_policy_compiles(policy: str, completed: Clean, failed_: Clean) -> None:
    assert clean_up(policy) == CleanUp(completed, failed_)


# -- success and failure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "steps", "expected"),
    [
        pytest.param(PaddleJob(PS), [exits("worker-0", "worker-1")], OPEN, id="servers run on"),
        pytest.param(PaddleJob(PS), [exits("worker-0", "worker-1"), exits("ps-0")], SUCCEEDED, id="all complete"),
        pytest.param(PaddleJob(PS), [fails("ps-0")], failed("ps 0 Exit"), id="a server fails"),
        pytest.param(PaddleJob(PS), [fails("worker-1")], failed("worker 1 Exit"), id="a worker fails"),
        pytest.param(PaddleJob(PS), [evicted("worker-1")], failed("worker 1 Evicted"), id="a worker is evicted"),
        pytest.param(
            PaddleJob(PS, success_by_workers=True), [exits("worker-0", "worker-1")], SUCCEEDED, id="workers are enough"
        ),
        pytest.param(PaddleJob(PS, success_by_workers=True), [exits("worker-0")], OPEN, id="one worker is not"),
        pytest.param(
            PaddleJob(PS, success_by_workers=True), [fails("ps-0")], failed("ps 0 Exit"), id="by workers, server fails"
        ),
        pytest.param(PaddleJob({"worker": 1}), [exits("worker-0")], SUCCEEDED, id="single"),
        pytest.param(PaddleJob({"worker": 1, "heter": 0}), [exits("worker-0")], SUCCEEDED, id="a role of nobody"),
        # The kubelet restarts inside the pod where the template says so; the pod has not failed then.
        pytest.param(PaddleJob(COLLECTIVE), [in_place("worker-0", 99)], OPEN, id="restarted in place"),
    ],
)
def test_verdict(job: PaddleJob, steps: list[Step], expected: Verdict) -> None:
    assert verdict(tell(compiled(job), run, *steps, run)) == expected


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
    assert verdict(tell(compiled(PaddleJob(COLLECTIVE)), run, fails("worker-1", code=code))) == expected


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
    """Twice `again`: by name a server runs before the workers are made."""
    start = [run, run] if intranet == "Service" else [run]
    world = tell(compiled(PaddleJob(PS, intranet)), *start, step, again, run, nodes=NODES)

    assert verdict(world) == OPEN
    assert pods(world) == left
    assert services(world) == ["ps-0", "worker-0", "worker-1"]


def test_a_restart_of_the_job_counts_once_on_the_role_that_caused_it() -> None:
    world = tell(compiled(PaddleJob(PS)), run, collected("worker-0", "worker-1"), again)

    assert [(book.name, book.restarts) for book in world.job.ledger.roles] == [("ps", {}), ("worker", {"Deleted": 1})]


def test_a_pod_that_vanishes_before_all_exist_restarts_nobody() -> None:
    """No peer has read an address yet."""
    world = World(compiled(PaddleJob(COLLECTIVE)))
    world.step(dies_after=4)  # the status, two services, one pod
    before = pods(world)
    world.vanish("job-worker-0")
    rest(world)

    assert before == ["worker-0"]
    assert pods(world) == ["worker-0", "worker-1"]


def test_a_terminating_pod_is_not_a_failure() -> None:
    assert verdict(tell(compiled(PaddleJob(COLLECTIVE)), run, terminating("worker-1"))) == RESTARTING


def test_a_finished_pod_that_was_collected_is_not_run_again() -> None:
    world = tell(
        compiled(PaddleJob(COLLECTIVE)), run, exits("worker-0"), collected("worker-0"), again, exits("worker-1")
    )

    assert verdict(world) == SUCCEEDED


def test_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    job = compiled(PaddleJob(COLLECTIVE))
    world = tell(job, run, exits("worker-0"), loses("worker-0"), exits("worker-1"), nodes=NODES)

    assert verdict(world) == SUCCEEDED


def test_a_pod_that_is_kept_after_the_end_and_deleted_by_hand_is_not_made_again() -> None:
    """Defect 17: it trained again."""
    job = compiled(PaddleJob({"worker": 1}, clean_pod_policy="Never"))
    world = tell(job, run, exits("worker-0"), collected("worker-0"), again)

    assert (verdict(world), pods(world)) == (SUCCEEDED, [])


# -- start order ---------------------------------------------------------------------------------------------------


def created(world: World) -> list[str]:
    return [write.removeprefix("create Pod job-") for write in world.writes if write.startswith("create Pod")]


def test_servers_are_made_before_workers() -> None:
    world = tell(compiled(PaddleJob({"worker": 1, "heter": 1, "ps": 2})))

    assert created(world) == ["ps-0", "ps-1", "worker-0", "heter-0"]


@pytest.mark.parametrize(
    ("times", "expected"),
    [(0, ["ps-0", "ps-1"]), (1, ["ps-0", "ps-1", "worker-0"]), (2, ["ps-0", "ps-1", "worker-0", "heter-0"])],
)
def test_by_name_workers_wait_until_servers_run_and_heter_until_both_do(times: int, expected: list[str]) -> None:
    job = compiled(PaddleJob({"worker": 1, "heter": 1, "ps": 2}, "Service"))

    assert created(tell(job, *[run] * times)) == expected


# -- clean-up ------------------------------------------------------------------------------------------------------

ALL = ["ps-0", "worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("policy", "completed", "after_failure"),
    [
        ("", [], ["worker-1"]),
        ("OnCompletion", [], ["worker-1"]),
        ("Always", [], []),
        ("OnFailure", ALL, []),
        ("Never", ALL, ALL),
    ],
)
def test_clean_pod_policy_after_each_end(policy: str, completed: list[str], after_failure: list[str]) -> None:
    """After a failure what still runs goes, unless the user wrote Never: it would hold GPUs (defect 18)."""
    job = compiled(PaddleJob(PS, clean_pod_policy=policy))
    done = tell(job, run, exits("worker-0", "worker-1", "ps-0"))
    broken = tell(job, run, fails("worker-1"))

    assert (verdict(done), pods(done), services(done)) == (SUCCEEDED, completed, completed)
    assert (verdict(broken), pods(broken)) == (failed("worker 1 Exit"), after_failure)


def test_servers_go_when_the_workers_have_ended() -> None:
    world = tell(compiled(PaddleJob(PS, success_by_workers=True)), run, exits("worker-0", "worker-1"))

    assert (verdict(world), pods(world)) == (SUCCEEDED, [])


class Addresses(PlainDialect, frozen=True):
    """With the job's config map, in which pods find each other."""

    def extras(self, *_: object) -> tuple[Body, ...]:
        return ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job"}, "data": {}},)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_the_config_map_stays_with_pods_that_are_kept(policy: str) -> None:
    job = compiled(PaddleJob({"worker": 1}, clean_pod_policy=policy), dialect=Addresses())
    world = tell(job, run, exits("worker-0"))

    assert (verdict(world), pods(world)) == (SUCCEEDED, ["worker-0"])
    assert ("ConfigMap", "job") in world.truth
