# SPDX-License-Identifier: Apache-2.0
"""What stands before a request: a rate that is kept, and a lease that must last."""

import asyncio

import pytest

from trainwright.errors import UnavailableError, UsageError
from trainwright.kube.health import split_address
from trainwright.kube.http import RateLimit, WriteFence
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.election import Elector, LeaseConfig
from trainwright.runtime.ports import WallClock


@pytest.mark.looptime
async def test_a_burst_goes_at_once_and_then_as_many_as_were_asked_for() -> None:
    limit, loop = RateLimit(rate=10, burst=3), asyncio.get_running_loop()
    await asyncio.sleep(5)
    began = loop.time()
    times = []
    for _ in range(8):
        await limit.wait()
        times.append(round(loop.time() - began, 3))

    assert times == [0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.looptime
async def test_waiting_requests_share_the_rate() -> None:
    limit, loop = RateLimit(rate=10, burst=1), asyncio.get_running_loop()
    await asyncio.gather(*(limit.wait() for _ in range(11)))

    assert loop.time() == pytest.approx(1.0)


@pytest.mark.looptime
async def test_without_a_lease_that_lasts_only_reads_pass() -> None:
    terms = LeaseConfig(key=Key("a", "b"), identity="one")
    elector = Elector(LocalCluster(Store(WallClock())), WallClock(), terms)
    fence = WriteFence(elector, timeout=5)
    with pytest.raises(UnavailableError, match="nothing is written"):
        await fence.wait(is_write=True)
    await fence.wait(is_write=False)

    leading = asyncio.create_task(elector.lead(asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    await fence.wait(is_write=True)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    with pytest.raises(UnavailableError):
        await fence.wait(is_write=True)


def test_addresses() -> None:
    assert split_address(":8080") == ("0.0.0.0", 8080)  # noqa: S104 - what it says
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(UsageError, match="expected an address such as"):
        split_address("nowhere")


async def test_a_fence_that_is_closed_lets_reads_pass() -> None:
    fence = WriteFence(None, timeout=5)
    await fence.wait(is_write=True)
    fence.close()
    await fence.wait(is_write=False)
    with pytest.raises(UnavailableError, match="about to end"):
        await fence.wait(is_write=True)
