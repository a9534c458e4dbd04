# SPDX-License-Identifier: Apache-2.0
"""A node for a test, which leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kube_server import Server
from node_agent import AgentRig, agent_rig


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """An API server that gives the answers of the test."""
    one = await Server().start()
    yield one
    await one.stop()


@pytest.fixture(autouse=True)
def loop_of_a_plain_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """looptime asks for the current loop in every test, and where there is none that makes one nobody closes."""
    if asyncio.iscoroutinefunction(request.function):
        yield
        return
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
