# SPDX-License-Identifier: Apache-2.0
"""The end of a controller: no pass begins, those under way end; and what becomes known when a part of it dies."""

import asyncio

from runtime_rig import VIRTUAL, Call, ControllerRig, Run

pytestmark = VIRTUAL


async def test_passes_under_way_end_and_no_other_begins() -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))

    async def slow(call: Call) -> None:
        if call.verb == "create":
            await asyncio.sleep(2)

    rig.wire.after = slow
    async with rig.running():
        await rig.until(lambda: rig.controller.synced)
        rig.submit("one", replicas=2)
        await asyncio.sleep(1)
        assert rig.wire.under_way
        rig.submit("two")
        rig.submit("three")
        writes = len(rig.wire.made())
        began = asyncio.get_running_loop().time()

        assert await rig.controller.drain(5)
        assert 0.5 < asyncio.get_running_loop().time() - began < 4
        assert not rig.wire.under_way
        rig.submit("four")
        done = len(rig.wire.made())
        await asyncio.sleep(100)
        assert len(rig.wire.made()) == done > writes
        assert not rig.controller.broken
    assert rig.phase("four") == ""


async def test_nobody_waits_for_ever() -> None:
    rig = ControllerRig()

    async def never(call: Call) -> None:
        if call.verb == "create":
            await asyncio.Event().wait()

    rig.wire.before = never
    async with rig.running():
        rig.submit()
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()

        assert not await rig.controller.drain(3)
        assert 3 <= asyncio.get_running_loop().time() - began < 3.1


async def test_a_part_that_dies_is_noticed() -> None:
    rig = ControllerRig()
    async with rig.running():
        await rig.until(lambda: rig.controller.synced)
        assert not rig.controller.broken
        rig.controller._tasks[-1].cancel()
        await asyncio.sleep(1)
        assert rig.controller.broken
