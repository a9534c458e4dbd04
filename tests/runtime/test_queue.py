# SPDX-License-Identifier: Apache-2.0
"""The work queue under virtual time: coalescing, order, never the same key twice at once, no wake-up lost."""

import asyncio
from collections import Counter

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_rig import VIRTUAL

from trainwright.runtime.queue import Queue
from trainwright.runtime.telemetry import Telemetry

pytestmark = VIRTUAL


def queue() -> Queue[str]:
    return Queue(Telemetry())


async def drained(work: Queue[str], until: float) -> list[tuple[float, str]]:
    """What one worker gets until then, and when; it is done with each at once."""
    loop, got = asyncio.get_running_loop(), []
    try:
        async with asyncio.timeout_at(until):
            while True:
                key = await work.get()
                got.append((loop.time(), key))
                work.done(key)
    except TimeoutError:
        return got


async def test_a_key_that_is_added_again_before_it_is_taken_comes_once() -> None:
    work = queue()
    for key in ("a", "b", "a", "a", "b"):
        work.add(key)
    assert await drained(work, 1) == [(0, "a"), (0, "b")]


async def test_the_earliest_time_wins() -> None:
    work = queue()
    work.add("a", 10)
    work.add("a", 3)
    work.add("a", 20)
    work.add("a", 7)
    assert await drained(work, 60) == [(3, "a")]


async def test_now_overtakes_a_timer() -> None:
    work = queue()
    work.add("a", 10)
    work.add("a")
    assert await drained(work, 60) == [(0, "a")]


async def test_timers_come_in_their_order_and_those_of_one_moment_in_the_order_they_were_set() -> None:
    work = queue()
    for key, delay in (("late", 5), ("soon", 1), ("mid", 3), ("mid too", 3), ("sooner", 0.5)):
        work.add(key, delay)
    assert await drained(work, 9) == [(0.5, "sooner"), (1, "soon"), (3, "mid"), (3, "mid too"), (5, "late")]


async def test_a_burst_within_the_delay_comes_once_and_not_before_the_first_said() -> None:
    work = queue()
    task = asyncio.create_task(drained(work, 1))
    for _ in range(10):
        work.add("a", 0.02)
        await asyncio.sleep(0.001)
    assert await task == [(0.02, "a")]


async def test_a_key_in_work_is_handed_out_again_only_when_it_is_done() -> None:
    work = queue()
    work.add("a")
    assert await work.get() == "a"
    work.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work.get(), 100)
    work.done("a")
    assert await work.get() == "a"


@pytest.mark.parametrize(("delay", "takes", "comes"), [(0, 2, 2), (1, 2, 2), (5, 2, 5), (2, 2, 2)])
async def test_what_is_added_during_the_work_comes_after_it_at_its_time(
    delay: float, takes: float, comes: float
) -> None:
    work = queue()
    work.add("a")
    key = await work.get()
    work.add("a", delay)
    await asyncio.sleep(takes)
    work.done(key)
    assert await drained(work, 60) == [(comes, "a")]


async def test_nothing_comes_again_by_itself() -> None:
    work = queue()
    work.add("a", 2)
    work.add("a")
    assert await drained(work, 1) == [(0, "a")]
    assert await drained(work, 60) == []


async def test_two_timers_that_meet_in_one_moment_are_one() -> None:
    work = queue()
    work.add("a", 1.0)
    work.add("a", 0.5)
    assert await work.get() == "a"
    work.done("a")
    work.add("a", 0.5)  # the same moment as the first timer, which was overtaken
    assert await drained(work, 9) == [(1.0, "a")]


async def test_a_key_that_waits_for_a_worker_is_not_made_ready_again_by_its_timer() -> None:
    work = queue()
    work.add("a")
    assert await work.get() == "a"
    work.add("other")
    work.add("a")
    work.done("a")  # in the same turn of the loop, before the timer has rung
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    assert await drained(work, 9) == [(0.001, "other"), (0.001, "a")]


async def test_each_key_wakes_one_idle_worker() -> None:
    work = queue()
    workers = [asyncio.create_task(work.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        work.add(key)
    assert set(await asyncio.gather(*workers)) == {"a", "b", "c"}


async def test_a_worker_that_stopped_waiting_does_not_swallow_a_key() -> None:
    work = queue()
    gone, stays = asyncio.create_task(work.get()), asyncio.create_task(work.get())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    work.add("a")
    assert await asyncio.wait_for(stays, 1) == "a"


async def test_whoever_waits_longest_comes_first_however_often_another_is_added() -> None:
    work = queue()
    for key in ("busy", "b", "c"):
        work.add(key)
    order = []
    for _ in range(6):
        key = await work.get()
        order.append(key)
        work.add("busy")
        if key != "busy":
            work.add(key)
        work.done(key)
    assert order == ["busy", "b", "c", "busy", "b", "c"]


async def test_the_depth_is_what_waits_now() -> None:
    telemetry = Telemetry()
    work: Queue[str] = Queue(telemetry)
    work.add("a")
    work.add("b")
    work.add("later", 5)
    assert telemetry.queue_depth == 2
    await work.get()
    assert telemetry.queue_depth == 1


async def test_a_busy_key_leaves_no_pile_of_timers() -> None:
    work = queue()
    for _ in range(10_000):
        work.add("a", 300)
        work.add("a")
        work.done(await work.get())
    assert len(work._heap) < 1000


adds = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 2)), max_size=15)


@settings(max_examples=150, deadline=None)
@given(adds=adds, takes=st.integers(0, 3), workers=st.integers(1, 3))
def test_every_wish_is_served_after_it_was_made_none_before_its_time_and_never_two_at_once(
    adds: list[tuple[int, str, int]], takes: int, workers: int
) -> None:
    async def play() -> None:
        work, loop = queue(), asyncio.get_running_loop()
        running: Counter[str] = Counter()
        looks: list[tuple[str, float]] = []
        wishes: list[tuple[str, float, float]] = []

        async def worker() -> None:
            while True:
                key = await work.get()
                running[key] += 1
                assert running[key] == 1, f"{key} twice at once"
                looks.append((key, loop.time()))
                await asyncio.sleep(takes)
                running[key] -= 1
                work.done(key)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(worker()) for _ in range(workers)]
            for pause, key, delay in adds:
                await asyncio.sleep(pause)
                wishes.append((key, loop.time(), loop.time() + delay))
                work.add(key, delay)
            await asyncio.sleep(200)
            for task in tasks:
                task.cancel()
        for key, made, _ in wishes:
            assert any(one == key and at >= made for one, at in looks)
        for place, (key, at) in enumerate(looks):
            before = sum(one == key for one, _ in looks[:place])
            assert before < sum(one == key and due <= at for one, _, due in wishes)

    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=0)) as runner:
        runner.run(play())


async def test_how_long_keys_waited_for_a_worker_is_counted_from_when_they_were_due() -> None:
    telemetry = Telemetry()
    work: Queue[str] = Queue(telemetry)
    work.add("at once")
    work.add("later", 3)
    await asyncio.sleep(5)
    assert [await work.get(), await work.get()] == ["at once", "later"]
    assert (telemetry.queue_seconds.sum, sum(telemetry.queue_seconds.counts)) == (7.0, 2)
    work.add("later")
    await asyncio.sleep(1)
    work.done("later")
    assert (await work.get(), telemetry.queue_seconds.sum, work.working) == ("later", 8.0, 2)


async def test_keys_that_can_wait_let_others_pass() -> None:
    work: Queue[str] = Queue(Telemetry(), is_low_priority=lambda key: key.startswith("new"))
    for key in ("new", "new too", "a", "b"):
        work.add(key)
    assert [key for _, key in await drained(work, 1)] == ["a", "b", "new", "new too"]


async def test_keys_that_can_wait_come_in_time_however_many_others_there_are() -> None:
    work: Queue[str] = Queue(Telemetry(), is_low_priority=lambda key: key.startswith("new"))
    for number in range(40):
        work.add(f"{number}")
    await work.get()  # nobody is passed by what came before
    work.add("new")
    work.add("new too")
    order = [key for _, key in await drained(work, 1)]
    assert [order.index("new"), order.index("new too")] == [8, 17]


async def test_whether_a_key_can_wait_is_asked_when_it_is_due() -> None:
    new = {"a"}
    work: Queue[str] = Queue(Telemetry(), is_low_priority=new.__contains__)
    work.add("a", 1)
    work.add("b", 1)
    new.clear()
    assert [key for _, key in await drained(work, 5)] == ["a", "b"]
