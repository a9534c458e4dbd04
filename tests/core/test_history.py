# SPDX-License-Identifier: Apache-2.0
"""Where the time of a job went, and what its attempts came to."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from passes import on

from trainwright.core.history import time_shares
from trainwright.model.cause import CauseKind
from trainwright.model.job import Lifecycle, Restart, RestartScope, Role
from trainwright.model.ledger import Phase
from trainwright.model.verdict import KEPT_ATTEMPTS, Decision, FailureClass, History
from trainwright.testing.factories import job, role
from trainwright.testing.world import World

RETRIES = on(CauseKind.EXIT, CauseKind.NODE_LOST, scope=RestartScope.ROLE)


def world(*roles: Role, restart: Restart = RETRIES, nodes: Iterable[str] = ("a", "b")) -> World:
    return World(job(*(roles or (role(replicas=2, restart=restart),))), nodes=tuple(nodes))


def settle(one: World) -> None:
    for _ in range(12):
        one.reap()
        one.catch_up()
        if one.step().empty and not one.notes:
            return
    raise AssertionError("no rest")


def start(one: World) -> None:
    settle(one)
    for name in one.pods():
        one.start(name, node="a")
    settle(one)


def shares(one: World) -> tuple[float, float, dict[str, float]]:
    found = time_shares(one.job.ledger, one.clock)
    assert found.wall == pytest.approx(found.productive + sum(found.lost.values()))
    return found.wall, found.productive, found.lost


def test_time_is_productive_while_all_replicas_run() -> None:
    one = world()
    settle(one)
    one.wait(5)
    start(one)
    one.wait(60)

    assert shares(one) == (65, 60, {"Start": 5})
    assert time_shares(one.job.ledger, one.clock).goodput == round(60 / 65, 4)


def test_a_restart_loses_the_time_until_all_run_again() -> None:
    one = world()
    start(one)
    one.wait(60)
    one.exit("job-worker-1", 1)
    settle(one)
    one.wait(10)
    start(one)
    one.wait(30)

    assert shares(one) == (100, 90, {"ProgramError": 10})
    first, second = one.job.ledger.history.attempts
    assert (first.number, first.cause, first.scope, first.replica) == (1, "ProgramError", "Role", "worker-1")
    assert first.nodes == ("a",)
    assert (second.number, second.end, second.lost) == (2, None, 10_000)


def test_a_second_failure_of_another_class_splits_the_lost_time() -> None:
    one = world()
    start(one)
    one.exit("job-worker-1", 1)
    settle(one)
    one.wait(10)
    settle(one)
    name = next(iter(one.pods()))
    one.start(name, node="a")
    one.exit(name, 137)
    settle(one)
    one.wait(7)
    start(one)

    assert shares(one) == (17, 0, {"ProgramError": 10, "Killed": 7})


def test_the_time_of_an_ended_job_stands_still() -> None:
    one = world()
    start(one)
    one.wait(40)
    for name in one.pods():
        one.exit(name, 0)
    settle(one)
    assert one.job.ledger.phase is Phase.SUCCEEDED
    one.wait(1000)

    assert shares(one) == (40, 40, {})
    assert one.job.ledger.verdict is not None
    assert one.job.ledger.verdict.decision is Decision.SUCCEEDED


def test_a_suspension_and_a_deleted_pod_are_lost_time_of_their_own() -> None:
    one = world(role(replicas=1, restart=on(CauseKind.EXIT)))
    start(one)
    one.wait(10)
    one.vanish("job-worker-0")
    settle(one)
    one.wait(4)
    start(one)
    one.edit(lifecycle=Lifecycle(suspended=True))
    settle(one)
    one.wait(100)
    one.edit(lifecycle=Lifecycle())
    settle(one)
    one.wait(2)
    start(one)

    assert shares(one) == (116, 10, {"Deleted": 4, "Suspended": 100, "Start": 2})


def test_a_restart_after_success_is_not_a_deleted_pod() -> None:
    always = on(CauseKind.EXIT, CauseKind.COMPLETED)
    one = world(role(replicas=2, restart=always))
    start(one)
    one.wait(10)
    one.exit("job-worker-1", 0)
    settle(one)
    one.wait(3)
    start(one)

    assert shares(one) == (13, 10, {"Completed": 3})
    verdict = one.job.ledger.verdict
    assert verdict is not None
    assert (verdict.decision, verdict.reason, verdict.replica) == (Decision.RESTART, "Pod", "worker-1")
    assert verdict.message == "worker-1: completed, and its policy restarts it"
    first, second = one.job.ledger.history.attempts
    assert (first.cause, first.replica, second.cause) == (FailureClass.COMPLETED, "worker-1", FailureClass.NONE)


def test_a_deleted_pod_and_a_resize_end_an_attempt_too() -> None:
    one = world(role(replicas=2, restart=on(CauseKind.EXIT), resize=RestartScope.ROLE))
    start(one)
    one.wait(10)
    one.vanish("job-worker-0")
    settle(one)
    one.wait(1)
    start(one)
    one.edit(roles=(replace(one.job.roles[0], replicas=3),))
    settle(one)
    one.wait(2)
    start(one)

    assert shares(one) == (13, 10, {"Deleted": 1, "Resized": 2})
    history = one.job.ledger.history
    assert [attempt.cause for attempt in history.attempts] == ["Deleted", "Resized", ""]
    assert (history.total, one.job.ledger.verdict) == (3, None)


def test_the_time_before_an_upgrade_is_not_guessed() -> None:
    """An older version stored no history, so nobody knows how much of that time was lost."""
    one = world()
    start(one)
    one.job = replace(one.job, ledger=replace(one.job.ledger, history=History()))
    one.wait(1000)
    one.exit("job-worker-1", 1)
    settle(one)
    one.wait(5)
    start(one)

    assert shares(one) == (5, 0, {"ProgramError": 5})


def test_only_the_last_attempts_are_kept_and_all_are_counted() -> None:
    one = world()
    for _ in range(KEPT_ATTEMPTS + 5):
        start(one)
        one.wait(61)
        one.exit("job-worker-0", 3)
        settle(one)
        one.wait(61)

    history = one.job.ledger.history
    assert (history.total, len(history.attempts)) == (KEPT_ATTEMPTS + 6, KEPT_ATTEMPTS)
    assert history.attempts[-1].number == history.total
    assert sum(history.lost.values()) + history.productive == (KEPT_ATTEMPTS + 5) * 122_000 - 61_000


def test_history_and_verdict_change_only_with_what_is_stored_at_once() -> None:
    """So they cost no write of their own."""
    one = world()
    start(one)
    writes = one.writes.count("status")
    one.wait(600)
    settle(one)

    assert one.writes.count("status") == writes


def test_the_first_failure_is_the_verdict() -> None:
    one = world(role(replicas=3, restart=on(CauseKind.NODE_LOST)))
    start(one)
    one.exit("job-worker-2", 1)
    one.wait(3)
    one.exit("job-worker-0", 143)
    settle(one)

    verdict = one.job.ledger.verdict
    assert verdict is not None
    assert (verdict.replica, verdict.failure_class, verdict.code) == ("worker-2", FailureClass.PROGRAM_ERROR, 1)


def test_without_any_time_there_is_no_goodput() -> None:
    """A job of an older version, whose end is the first thing that is recorded."""
    one = world(role(replicas=1))
    start(one)
    one.job = replace(one.job, ledger=replace(one.job.ledger, history=History()))
    one.version += 1
    one.wait(60)
    one.exit("job-worker-0", 0)
    settle(one)

    found = time_shares(one.job.ledger, one.clock)
    assert one.job.ledger.phase is Phase.SUCCEEDED
    assert (found.wall, found.goodput) == (0, None)


def test_only_the_pods_of_a_running_job_are_gone_for_the_reason_that_the_history_knows() -> None:
    """The new pod of a preempted one is deleted before it runs: nobody knows why."""
    one = world(role(restart=on(CauseKind.DISRUPTED, CauseKind.DELETED, scope=RestartScope.ROLE)))
    start(one)
    one.evict("job-worker-0")
    settle(one)
    one.wait(2)
    settle(one)
    one.vanish("job-worker-0")
    settle(one)

    verdict = one.job.ledger.verdict
    assert verdict is not None
    assert (verdict.failure_class, verdict.attempt) == (FailureClass.DELETED, 1)


def test_counting_goes_on_after_the_clock_was_wrong() -> None:
    one = world()
    settle(one)
    right, wrong = one.clock, 10 * 365 * 86400
    one.wait(wrong)
    start(one)
    one.clock = right
    one.wait(60)
    one.exit("job-worker-1", 1)
    settle(one)
    one.wait(10)
    start(one)
    one.wait(30)

    assert shares(one) == (wrong + 40, 30, {"Start": wrong, "ProgramError": 10})
    first, second = one.job.ledger.history.attempts
    assert first.end == second.start
    assert first.start <= second.start <= one.clock


def test_a_clock_that_was_wrong_by_thousands_of_years_stops_no_pass() -> None:
    one = world()
    settle(one)
    right = one.clock
    one.wait(7000 * 365 * 86400)
    start(one)
    one.clock = right
    one.exit("job-worker-1", 1)
    settle(one)

    assert one.job.ledger.phase is Phase.RESTARTING
    assert shares(one)[1] == 0
