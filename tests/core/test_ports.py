# SPDX-License-Identifier: Apache-2.0
"""Blocks of ports for replicas that share a machine: stored first, nobody else's, kept, given back."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from passes import emitted

from trainwright.core import ports
from trainwright.core.reconcile import reconcile
from trainwright.model.child import Observed
from trainwright.model.job import Elastic, Job
from trainwright.model.ledger import Ledger
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, role


def hosted(replicas: int = 3, uid: str = "", **more: Any) -> Job:
    found = job(role(replicas=replicas, ports=20, uses_host_ports=True, **more))
    return replace(found, uid=uid) if uid else found


def look(one: Job, held: frozenset[int] = frozenset(), site: Site | None = None) -> Plan:
    return reconcile(one, Observed(ports=held), site or Site(), NOW)


def given(plan: Plan) -> list[int]:
    return sorted(plan.status.ledger.ports.values())


def test_each_replica_has_a_block_of_its_own_and_it_is_stored_before_the_pods() -> None:
    plan = look(hosted())

    assert set(plan.status.ledger.ports) == {"job-worker-0", "job-worker-1", "job-worker-2"}
    assert all(after - before >= 20 for before, after in pairwise(given(plan)))
    assert plan.write is Write.NOW
    assert len(plan.creates) == 3


@pytest.mark.parametrize(
    ("one", "site", "expected"),
    [
        pytest.param(hosted(), Site(), 3, id="on the host's network"),
        pytest.param(job(role(replicas=3, ports=20)), Site(), 0, id="with a network of its own"),
        pytest.param(job(role(replicas=3, ports=20)), Site(names_resolve=False), 3, id="where pods have none"),
        pytest.param(job(role(replicas=3)), Site(names_resolve=False), 0, id="no ports are asked for"),
    ],
)
def test_only_who_shares_a_machine_needs_any(one: Job, site: Site, expected: int) -> None:
    assert len(look(one, site=site).status.ledger.ports) == expected
    assert ports.needs_ports(one, site) is bool(expected)


@pytest.mark.parametrize(
    ("bounds", "lacking"),
    [
        pytest.param(Elastic(1, 3), False, id="it has what it needs"),
        pytest.param(Elastic(5, 9), True, id="it runs with more than it asks for"),
        pytest.param(Elastic(1, 2), False, id="it runs with fewer"),
    ],
)
def test_how_many_need_some_is_bounded_as_the_role_is(bounds: Elastic, lacking: bool) -> None:
    held = look(hosted(replicas=min(3, bounds.most))).status.ledger
    assert ports.needs_ports(replace(hosted(elastic=bounds), ledger=held), Site()) is lacking


def test_the_first_choice_is_the_jobs_own_and_always_the_same() -> None:
    first, again, other = look(hosted()), look(hosted()), look(hosted(uid="another"))

    assert given(first) == given(again)
    assert given(first) != given(other)


def test_what_others_hold_is_skipped_whatever_their_blocks_began_at() -> None:
    wanted = given(look(hosted()))
    plan = look(hosted(), frozenset({wanted[0] + 7, wanted[1]}))

    assert not set(wanted[:2]) & set(given(plan))
    assert all(abs(base - held) >= 20 for base in given(plan) for held in (wanted[0] + 7, wanted[1]))


def test_what_is_known_stays_what_is_new_is_added_and_what_is_gone_is_given_back() -> None:
    before = look(hosted()).status.ledger
    grown = look(replace(hosted(4), ledger=before)).status.ledger.ports
    shrunk = look(replace(hosted(1), ledger=before)).status.ledger.ports

    assert {name: grown[name] for name in before.ports} == before.ports
    assert grown["job-worker-3"] not in before.ports.values()
    assert shrunk == {"job-worker-0": before.ports["job-worker-0"]}
    assert not ports.needs_ports(replace(hosted(), ledger=before), Site())


def test_when_none_is_left_some_are_shared_and_it_is_said() -> None:
    site = Site(host_ports=(40000, 40059))
    plan = look(hosted(), frozenset({40020}), site)

    assert given(plan) == [40000, 40020, 40040]
    assert [(emit.reason, emit.warning) for emit in emitted(plan)] == [("PortsExhausted", True)]
    assert next(name for name, base in plan.status.ledger.ports.items() if base == 40020) in emitted(plan)[0].message
    crowded = look(hosted(5), site=site)
    assert len(crowded.status.ledger.ports) == 5, "there are only three blocks, and everybody has one"


def test_a_narrow_range_is_not_left() -> None:
    plan = look(hosted(3, uid="x"), site=Site(host_ports=(50000, 50099)))

    assert all(50000 <= base <= 50080 and not base % 20 for base in given(plan))


def test_an_empty_ledger_is_left_empty() -> None:
    assert look(job(role())).status.ledger.ports == Ledger().ports
