# SPDX-License-Identifier: Apache-2.0
"""A server that does as it is told, and a cluster that talks to it."""

from collections.abc import AsyncIterator

import pytest
from kube_server import BRISK, Server, access

from trainwright.kube.cluster import KubeCluster, connected


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = await Server().start()
    yield one
    await one.stop()


@pytest.fixture
async def cluster(server: Server) -> AsyncIterator[KubeCluster]:
    """A cluster at the server, in a hurry."""
    async with connected(access(server.url), BRISK) as one:
        yield one
