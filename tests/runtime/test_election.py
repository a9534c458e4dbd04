# SPDX-License-Identifier: Apache-2.0
"""One leader at a time, whatever happens to the one before; time is virtual, the store is real."""

import asyncio
import logging
from math import inf
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, LoopClock, RecordingCluster, nothing

from trainwright.errors import ApiError, ForbiddenError, NotFoundError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.election import Elector, LeaseConfig
from trainwright.runtime.ports import LEASES, NAMESPACES
from trainwright.runtime.telemetry import LogMessage

pytestmark = VIRTUAL
KEY = Key("trainwright", "operator")


class Candidate:
    """An elector with its own recorded requests, and the times in which it led."""

    def __init__(self, store: Store, clock: LoopClock, name: str) -> None:
        self.wire = RecordingCluster(LocalCluster(store))
        self.elector = Elector(self.wire, clock, LeaseConfig(key=KEY, identity=name))
        self.leads: list[tuple[float, float]] = []
        self.task = asyncio.create_task(self.elector.lead(self.work))

    async def work(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.Event().wait()
        finally:
            self.leads.append((began, asyncio.get_running_loop().time()))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def store_and_clock() -> tuple[Store, LoopClock]:
    clock = LoopClock()
    return Store(clock), clock


def holder(store: Store) -> Any:
    return store.get(LEASES.whole(), KEY)["spec"]


async def test_others_are_told_of_no_less_time_than_a_leader_counts_on() -> None:
    store, clock = store_and_clock()
    elector = Elector(LocalCluster(store), clock, LeaseConfig(key=KEY, identity="two", duration=15.9))
    assert await elector._attempt(first=True)
    assert holder(store)["leaseDurationSeconds"] >= 15.9


async def test_the_first_leads_and_renews_while_the_second_waits() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)
    two = Candidate(store, clock, "two")
    await asyncio.sleep(60)

    assert (holder(store)["holderIdentity"], holder(store)["leaseTransitions"]) == ("one", 0)
    assert one.elector.left > 12
    assert two.elector.left == 0
    assert len(one.wire.made()) == pytest.approx(31, abs=2)  # one write every two seconds
    assert two.wire.made() == []
    await one.end()
    await two.end()


async def test_a_leader_that_ends_hands_over_at_once() -> None:
    store, clock = store_and_clock()
    one, two = Candidate(store, clock, "one"), Candidate(store, clock, "two")
    await asyncio.sleep(10)
    first, second = (one, two) if one.elector.left else (two, one)
    await first.end()
    await asyncio.sleep(4)

    assert first.elector.left == 0
    assert second.elector.left > 0
    await second.end()


async def test_a_leader_that_is_cut_off_stops_before_another_begins() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)
    two = Candidate(store, clock, "two")
    await asyncio.sleep(5)
    cut = asyncio.get_running_loop().time()

    async def nothing_passes(call: Call) -> None:
        raise UnavailableError(f"cut off: {call}")

    one.wire.before = nothing_passes
    await asyncio.sleep(40)

    (_, ended), begun = one.leads[0], asyncio.get_running_loop().time() - two.elector.left
    assert ended <= cut + 12  # a renewal may have been two seconds old
    assert two.elector.left > 0
    assert holder(store)["holderIdentity"] == "two"
    assert holder(store)["leaseTransitions"] == 1
    assert begun > ended
    await one.end()
    await two.end()


async def test_answers_that_never_come_count_as_no_renewal() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(5)

    async def silence(_: Call) -> None:
        await asyncio.Event().wait()

    one.wire.before = silence
    left: list[float] = []
    for _ in range(30):
        await asyncio.sleep(1)
        left.append(one.elector.left)

    assert one.leads
    assert one.leads[0][1] <= 5 + 15
    assert left[-1] == 0
    await one.end()


async def test_a_leader_that_was_stopped_finds_nothing_left() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)
    before = one.elector.left
    one.elector._held_until -= 20  # as if 20 seconds had passed while the process stood still

    assert (before > 10, one.elector.left) == (True, 0)
    await one.end()


async def test_two_who_find_no_lease_do_not_both_lead() -> None:
    store, clock = store_and_clock()
    all_of_them = [Candidate(store, clock, f"candidate {number}") for number in range(5)]
    for _ in range(100):
        await asyncio.sleep(0.5)
        assert sum(one.elector.left > 0 for one in all_of_them) <= 1
    assert sum(one.elector.left > 0 for one in all_of_them) == 1
    for one in all_of_them:
        await one.end()


async def test_work_that_fails_gives_the_lease_back_and_is_heard_of() -> None:
    store, clock = store_and_clock()

    async def fails() -> None:
        raise ValueError("broken")

    elector = Elector(LocalCluster(store), clock, LeaseConfig(key=KEY, identity="one"))

    with pytest.raises(ValueError, match="broken"):
        await elector.lead(fails)
    assert holder(store)["holderIdentity"] == ""


async def test_a_renewal_that_was_cut_short_does_not_keep_the_lease_from_being_given_back() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)

    async def loses_the_answer(call: Call) -> None:
        if call.verb == "patch":
            await asyncio.Event().wait()

    one.wire.after = loses_the_answer
    await asyncio.sleep(3)
    one.wire.after = nothing
    await one.end()

    assert holder(store)["holderIdentity"] == ""


async def test_a_server_that_is_away_does_not_hold_up_the_end() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)

    async def silence(_: Call) -> None:
        await asyncio.Event().wait()

    one.wire.before = silence
    began = asyncio.get_running_loop().time()
    await one.end()

    assert asyncio.get_running_loop().time() - began < 4


@pytest.mark.parametrize(
    "error", [NotFoundError('namespaces "trainwright" not found'), ForbiddenError("you may not")], ids=str
)
async def test_what_keeps_us_from_ever_leading_is_raised(error: ApiError) -> None:
    store, clock = store_and_clock()
    wire = RecordingCluster(LocalCluster(store))

    async def refuses(call: Call) -> None:
        if call.verb == "create":
            raise error

    wire.before = refuses
    elector = Elector(wire, clock, LeaseConfig(key=KEY, identity="one"))

    with pytest.raises(type(error), match=f"cannot get the lease trainwright/operator: {error}"):
        async with asyncio.timeout(60):
            await elector.lead(asyncio.Event().wait)  # type: ignore[arg-type]


async def test_a_namespace_that_is_missing_is_created_and_the_lease_in_it() -> None:
    store, clock = store_and_clock()
    wire, made = RecordingCluster(LocalCluster(store)), list[str]()

    async def namespaces(call: Call) -> None:
        if call.verb == "create" and "leases" in call.resource and not made:
            raise NotFoundError('namespaces "trainwright" not found')
        if call.verb == "create" and call.resource == "namespaces":
            made.append("trainwright")

    wire.before = namespaces
    elector, leads = Elector(wire, clock, LeaseConfig(key=KEY, identity="one")), asyncio.Event()

    async def work() -> None:
        leads.set()

    async with asyncio.timeout(60):
        await elector.lead(work)
    assert (leads.is_set(), made) == (True, ["trainwright"])
    assert store.get(NAMESPACES, Key("", "trainwright"))["metadata"]["name"] == "trainwright"


async def test_who_may_not_create_the_namespace_is_told_the_command() -> None:
    store, clock = store_and_clock()
    wire = RecordingCluster(LocalCluster(store))

    async def refuses(call: Call) -> None:
        if call.verb == "create":
            lease = "leases" in call.resource
            raise NotFoundError('namespaces "trainwright" not found') if lease else ForbiddenError("you may not")

    wire.before = refuses
    elector = Elector(wire, clock, LeaseConfig(key=KEY, identity="one"))

    told = r'namespaces "trainwright" not found, .* \(you may not\); .* run: kubectl create namespace trainwright$'
    with pytest.raises(ForbiddenError, match=told):
        async with asyncio.timeout(60):
            await elector.lead(asyncio.Event().wait)  # type: ignore[arg-type]


async def test_a_leader_that_loses_its_rights_gives_up_in_time_and_not_at_once() -> None:
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(5)

    async def refuses(_: Call) -> None:
        raise ForbiddenError("not any more")

    one.wire.before = refuses
    await asyncio.sleep(4)
    assert not one.task.done()
    await asyncio.sleep(20)
    assert one.task.done()


async def test_how_long_ago_the_lease_was_seen_is_known() -> None:
    store, clock = store_and_clock()
    one, two = Candidate(store, clock, "one"), Candidate(store, clock, "two")
    assert one.elector.unseen == inf
    await asyncio.sleep(30)
    assert one.elector.unseen < 3
    assert two.elector.unseen < 3

    async def nothing_passes(call: Call) -> None:
        raise UnavailableError(f"cut off: {call}")

    two.wire.before = nothing_passes
    await asyncio.sleep(20)
    assert 17 < two.elector.unseen < 23
    await one.end()
    await two.end()


async def test_who_leads_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    store, clock = store_and_clock()
    one = Candidate(store, clock, "one")
    await asyncio.sleep(1)
    two = Candidate(store, clock, "two")
    await asyncio.sleep(60)
    await one.end()
    await asyncio.sleep(10)
    await two.end()

    lines = [record.msg for record in caplog.records if isinstance(record.msg, LogMessage)]
    told = [(line.about["identity"], line.text) for line in lines]
    assert told == [
        ("one", "this operator leads"),
        ("two", "another operator leads"),
        ("one", "the lease is released"),
        ("two", "this operator leads"),
        ("two", "the lease is released"),
    ]
