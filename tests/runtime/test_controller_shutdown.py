# SPDX-License-Identifier: Apache-2.0
"""The end of a controller: no pass begins, those under way end; and what becomes known when a part of it dies."""

import asyncio

from runtime_rig import VIRTUAL, Call, Run, Stage

pytestmark = VIRTUAL


async def test_passes_under_way_end_and_no_other_begins() -> None:
    stage = Stage(lambda _: Run(lasts=None))

    async def slow(call: Call) -> None:
        if call.verb == "create":
            await asyncio.sleep(2)

    stage.wire.after = slow
    async with stage.running():
        await stage.until(lambda: stage.controller.synced)
        stage.submit("one", replicas=2)
        await asyncio.sleep(1)
        assert stage.wire.under_way
        stage.submit("two")
        stage.submit("three")
        writes = len(stage.wire.made())
        began = asyncio.get_running_loop().time()

        assert await stage.controller.drain(5)
        assert 0.5 < asyncio.get_running_loop().time() - began < 4
        assert not stage.wire.under_way
        stage.submit("four")
        done = len(stage.wire.made())
        await asyncio.sleep(100)
        assert len(stage.wire.made()) == done > writes
        assert not stage.controller.broken
    assert stage.phase("four") == ""


async def test_nobody_waits_for_ever() -> None:
    stage = Stage()

    async def never(call: Call) -> None:
        if call.verb == "create":
            await asyncio.Event().wait()

    stage.wire.before = never
    async with stage.running():
        stage.submit()
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()

        assert not await stage.controller.drain(3)
        assert 3 <= asyncio.get_running_loop().time() - began < 3.1


async def test_a_part_that_dies_is_noticed() -> None:
    stage = Stage()
    async with stage.running():
        await stage.until(lambda: stage.controller.synced)
        assert not stage.controller.broken
        stage.controller._tasks[-1].cancel()
        await asyncio.sleep(1)
        assert stage.controller.broken
