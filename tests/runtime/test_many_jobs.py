# SPDX-License-Identifier: Apache-2.0
"""What many jobs must not do to one another, in counts: nobody is kept waiting, and nobody pays for the others."""

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from runtime_rig import VIRTUAL, Call, ControllerRig, Run, key

from trainwright.model.site import Site
from trainwright.runtime.ports import PODS

pytestmark = VIRTUAL
#: Layers whose work is counted: not the store, nor what stands in for a network here.
OURS = ("/trainwright/runtime/", "/trainwright/core/", "/trainwright/kinds/", "/trainwright/model/")


def for_ever(pod: object) -> Run:
    return Run(starts=0.1, lasts=None)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Lines of ours that are run meanwhile, by function; each turn of a loop is one."""
    lines: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not any(part in code.co_filename for part in OURS):
            return None
        lines[code.co_qualname] += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield lines
    finally:
        sys.settrace(before)


async def _crowd(rig: ControllerRig, size: int) -> None:
    """So many jobs that run, and as many that have ended."""
    for number in range(size):
        rig.submit(f"runs-{number}", 1)
        rig.submit(f"ends-{number}", 1)
    await rig.until(lambda: set(rig.pods().values()) == {"Running"} and len(rig.pods()) == 2 * size)
    for number in range(size):
        rig.kubelet.exit(f"ends-{number}-worker-0")
    await rig.finished(*[f"ends-{number}" for number in range(size)])
    await asyncio.sleep(1)


async def _event(size: int) -> Counter[str]:
    """What one event of a pod takes, with so many other jobs around."""
    rig = ControllerRig(for_ever, resync=1e6, resync_most=1e6)
    async with rig.running():
        await _crowd(rig, size)
        before = rig.passes()
        with counted() as lines:
            rig.store.patch(PODS, key("runs-0-worker-0"), {"status": {"message": "something"}}, status=True)
            await asyncio.sleep(1)
        assert rig.passes() == before + 1
    return lines


async def _new_job(size: int) -> Counter[str]:
    """What a new job takes until it runs, with so many other jobs around."""
    rig = ControllerRig(for_ever, resync=1e6, resync_most=1e6)
    async with rig.running():
        await _crowd(rig, size)
        with counted() as lines:
            rig.submit("new", 4)
            await asyncio.sleep(5)
        assert rig.phase("new") == "Running"
    return lines


@pytest.mark.parametrize("work", [_event, _new_job])
async def test_what_happens_to_one_job_costs_the_same_however_many_there_are(
    work: Callable[[int], Awaitable[Counter[str]]],
) -> None:
    few, many = await work(3), await work(60)
    # A timer more or less makes no difference; a walk over all jobs would.
    assert many.total() < few.total() + 57, f"more often: {many - few}"


async def test_a_job_is_looked_at_a_few_times_in_its_life() -> None:
    """Once when it is new, and for each step that its pods take together."""
    rig = ControllerRig(lambda _: Run(starts=0.5, lasts=5))
    async with rig.running():
        rig.submit(replicas=4, service=True)
        await rig.finished()
        await asyncio.sleep(5)
    assert rig.passes() <= 3
    assert len(rig.wire.made()) <= 2 * 4 + 5


async def test_where_many_wait_what_happens_to_one_job_is_looked_at_together() -> None:
    """The pods of a job start and end within a second of each other: alone, it is looked at for nearly each of them."""
    alone, together = await _passes(1), await _passes(100)
    assert alone > 6
    assert together < 5


async def test_a_pass_that_waits_for_a_cpu_makes_no_later_one_wait() -> None:
    """Only the CPU time of a decision says how much there is to look at; a busy machine does not."""

    def interrupted() -> Site:
        time.sleep(0.05)  # something else has the CPU
        return Site()

    assert await _passes(1, interrupted) == await _passes(1)


async def _passes(jobs: int, site: Callable[[], Site] = Site) -> float:
    """How often a job is looked at if it is one of so many, each with four pods that start one after the other."""
    spread = itertools.cycle((0.0, 0.3, 0.6, 0.9))
    rig = ControllerRig(lambda _: Run(starts=0.5 + next(spread), lasts=3), workers=2)
    rig.controller._site = lambda _job: site()
    rig.wire.before = slow
    names = [f"job-{number}" for number in range(jobs)]
    async with rig.running():
        for name in names:
            rig.submit(name, 4)
        await rig.finished(*names)
    return rig.passes() / jobs


async def slow(call: Call) -> None:
    """A server that takes its time."""
    await asyncio.sleep(0.05)


async def test_of_many_new_jobs_those_that_have_begun_are_not_kept_waiting() -> None:
    """A hundred jobs at once on a slow server: each is seen to run, though the last begin when the first have ended."""
    rig = ControllerRig(lambda _: Run(starts=0.5, lasts=3), workers=2)
    rig.wire.before = slow
    names = [f"job-{number}" for number in range(100)]
    async with rig.running():
        for name in names:
            rig.submit(name, 2)
        await rig.finished(*names)
    said = [call for call in rig.wire.calls if call.verb == "status"]
    running = {call.name for call in said if call.body["status"].get("phase") == "Running"}
    ended = min(call.at for call in said if call.body["status"].get("phase") == "Succeeded")
    begun = max(call.at for call in rig.wire.calls if call.verb == "create" and call.resource == PODS.id)
    assert running == set(names)
    assert begun > ended
