# SPDX-License-Identifier: Apache-2.0
"""Sizes within their bounds, and what a change of size takes along."""

from typing import Any

import pytest
from passes import emitted, lived, look, names

from trainwright.core.autosize import within_bounds
from trainwright.model.event import EventReason
from trainwright.model.job import Elastic, Lifecycle, RestartScope
from trainwright.model.ledger import Phase, RoleLedger, SizeCap
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, pod, role


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [
        pytest.param(1, 2, id="below the least"),
        pytest.param(2, 2, id="the least"),
        pytest.param(3, 3, id="between"),
        pytest.param(4, 4, id="the most"),
        pytest.param(9, 4, id="above the most"),
    ],
)
def test_a_size_outside_its_bounds_counts_as_the_nearer_one(wanted: int, counts: int) -> None:
    given = job(role("worker", wanted, elastic=Elastic(2, 4)), role("ps", wanted))

    assert [(one.name, one.replicas) for one in within_bounds(given).roles] == [("worker", counts), ("ps", wanted)]


@pytest.mark.parametrize(
    ("auto", "most", "counts"),
    [
        pytest.param(True, 2, 2, id="what it is held to"),
        pytest.param(True, -1, 4, id="it is free"),
        pytest.param(True, 9, 4, id="more than is asked for"),
        pytest.param(True, 0, 1, id="not below its least"),
        pytest.param(False, 2, 4, id="it does not resize itself any more"),
    ],
)
def test_a_ceiling_holds_for_roles_that_resize_themselves(auto: bool, most: int, counts: int) -> None:
    ledger = lived(RoleLedger("worker", ceiling=SizeCap(NOW, most)))
    (found,) = within_bounds(job(role(replicas=4, elastic=Elastic(1, 8, auto)), ledger=ledger)).roles

    assert (found.replicas, found.wanted) == (counts, 4)
    assert within_bounds(job(found, ledger=ledger)).roles == (found,)


def test_a_job_without_bounds_is_left_alone() -> None:
    given = job(role(replicas=3))

    assert within_bounds(given) is given


def test_the_bounds_are_kept_when_a_job_is_resized() -> None:
    given = job(role(replicas=9, elastic=Elastic(1, 2)), ledger=lived(RoleLedger("worker", reached=3)))

    plan = look(given, pod(0), pod(2))

    assert names(plan) == {"creates": ["Pod job-worker-1"], "deletes": ["Pod job-worker-2"]}


# -- what a change of size takes along ---------------------------------------------------------------------------------


def told(size: int, epoch: int = 0) -> RoleLedger:
    """The ledger entry of workers whose pods know this size."""
    return RoleLedger("worker", epoch, reached=size, size=size)


def epochs(plan: Plan) -> dict[str, tuple[int, int]]:
    """By role: epoch, and the size that its pods are made for."""
    return {entry.name: (entry.epoch, entry.size) for entry in plan.status.ledger.roles}


def test_a_new_job_remembers_the_size_that_its_pods_are_told_of() -> None:
    plan = look(job(role("worker", 2, resize=RestartScope.ROLE), role("ps", 1)))

    assert epochs(plan) == {"worker": (0, 2), "ps": (0, -1)}
    assert plan.events == ()


@pytest.mark.parametrize(("replicas", "epoch"), [pytest.param(3, 1, id="more"), pytest.param(1, 2, id="fewer")])
def test_a_change_of_size_starts_the_role_anew(replicas: int, epoch: int) -> None:
    ledger = lived(told(2), RoleLedger("ps", reached=1))
    given = job(role("worker", replicas, resize=RestartScope.ROLE), role("ps", 1), ledger=ledger)

    plan = look(given, pod(0), pod(1), pod(0, role="ps"))

    assert epochs(plan) == {"worker": (epoch, replicas), "ps": (0, -1)}
    assert sorted(names(plan)["deletes"]) == ["Pod job-worker-0", "Pod job-worker-1"]
    assert names(plan)["creates"] == []  # the old ones may still answer
    assert (plan.status.ledger.phase, plan.write) == (Phase.RESTARTING, Write.NOW)
    assert [(one.event_reason, one.message) for one in emitted(plan)] == [
        (EventReason.RESIZED, f"worker is scaled from 2 to {replicas} replica{'s' * (replicas != 1)}")
    ]


def test_it_takes_the_whole_job_along_where_all_are_told() -> None:
    ledger = lived(told(2), RoleLedger("ps", reached=1, size=1))
    given = job(role("worker", 3, resize=RestartScope.JOB), role("ps", 1, resize=RestartScope.JOB), ledger=ledger)

    plan = look(given, pod(0), pod(1), pod(0, role="ps"))

    assert epochs(plan) == {"worker": (1, 3), "ps": (1, 1)}
    assert names(plan)["deletes"] == ["Pod job-worker-0", "Pod job-worker-1", "Pod job-ps-0"]


def test_a_change_of_size_costs_no_restart_and_no_delay() -> None:
    plan = look(job(role("worker", 3, resize=RestartScope.ROLE), ledger=lived(told(2))))

    entry = plan.status.ledger.roles[0]
    assert (entry.restarts, entry.holds) == ({}, ())
    assert len(names(plan)["creates"]) == 3


def test_work_that_is_done_is_not_begun_again_in_another_size() -> None:
    given = job(role("worker", 1, resize=RestartScope.ROLE), ledger=lived(told(2)))

    plan = look(given, pod(0, phase="Succeeded"), pod(1))

    assert plan.status.ledger.phase is Phase.SUCCEEDED


def test_where_nobody_is_told_a_change_of_size_disturbs_nobody() -> None:
    plan = look(job(role("worker", 3), ledger=lived(RoleLedger("worker", reached=2))), pod(0), pod(1))

    assert names(plan) == {"creates": ["Pod job-worker-2"], "deletes": []}
    assert epochs(plan) == {"worker": (0, -1)}


def test_a_suspended_job_may_change_its_size_without_a_word() -> None:
    down = look(
        job(role("worker", 2, resize=RestartScope.ROLE), ledger=lived(told(2)), lifecycle=Lifecycle(suspended=True))
    )
    up = look(job(role("worker", 4, resize=RestartScope.ROLE), ledger=down.status.ledger))

    assert epochs(up) == {"worker": (1, 4)}
    assert [one.event_reason for one in up.events] == [EventReason.RESUMED]


# -- what replicas look up themselves ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "key", "found"),
    [
        pytest.param("etcd:2379", "/paddle/np", [("/paddle/np", "3")], id="a key, and a server for it"),
        pytest.param("", "/paddle/np", [], id="no server"),
        pytest.param("etcd:2379", "", [], id="no key"),
    ],
)
def test_the_size_in_force_is_announced_in_every_pass(server: str, key: str, found: list[tuple[str, str]]) -> None:
    given = job(role(replicas=9, elastic=Elastic(1, 3), size_key=key), ledger=lived(told(3)))

    plan = look(given, pod(0), pod(1), pod(2), site=Site(elastic_server=server))

    assert [(one.key, one.value) for one in plan.announces] == found
    assert names(plan) == {"creates": [], "deletes": []}


@pytest.mark.parametrize("more", [{"deleting": True}, {"lifecycle": Lifecycle(suspended=True)}], ids=["goes", "rests"])
def test_a_job_that_does_not_run_announces_nothing(more: dict[str, Any]) -> None:
    given = job(role(replicas=1, size_key="/paddle/np"), ledger=lived(told(1)), **more)

    assert look(given, pod(0), site=Site(elastic_server="etcd:2379")).announces == ()


def test_replicas_that_look_the_size_up_go_on_and_the_change_is_told() -> None:
    given = job(role(replicas=3, size_key="/paddle/np"), ledger=lived(told(2)))

    plan = look(given, pod(0), pod(1))

    assert epochs(plan) == {"worker": (0, 3)}
    assert names(plan) == {"creates": ["Pod job-worker-2"], "deletes": []}
    assert (plan.status.ledger.phase, plan.write) == (Phase.RUNNING, Write.NOW)
    assert [(one.event_reason, one.message) for one in emitted(plan)] == [
        (EventReason.RESIZED, "worker is scaled from 2 to 3 replicas")
    ]
