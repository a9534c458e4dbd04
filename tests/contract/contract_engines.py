# SPDX-License-Identifier: Apache-2.0
"""The engines that the contract holds for; another one is one more parameter of `cluster`.

A plugin of the tests beside it. They assert nothing that a real API server does not do: `contract_kube` says how to run
them against one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from contract_kube import FORGOTTEN, KUBECONFIG, kube
from contract_objects import GENERICJOBS, HERE, job, key

from trainwright.kube.cluster import KubeCluster
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.server import serve
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import Cluster, WallClock

_HISTORY = 64


_ENGINES = ["local", "socket", *(["kube"] if KUBECONFIG else [])]


@pytest.fixture(params=_ENGINES)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """One engine after the other, empty."""
    if request.param == "kube":
        async with kube() as real:
            yield real
        return
    local = LocalCluster(Store(WallClock(), history=_HISTORY))
    if request.param == "local":
        yield local
        return
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve(tmp_path / "engine.sock", local))
        yield await stack.enter_async_context(RemoteCluster(tmp_path / "engine.sock"))


@pytest.fixture
def forget(cluster: Cluster) -> Callable[[], Awaitable[str]]:
    """Makes an engine forget what happened to jobs so far, and gives a version from before."""

    async def write_much() -> str:
        before = FORGOTTEN if isinstance(cluster, KubeCluster) else (await cluster.list(GENERICJOBS, HERE)).version
        await cluster.create(GENERICJOBS, job("filler"))
        for number in range(2 * _HISTORY):
            await cluster.patch(GENERICJOBS, key("filler"), {"metadata": {"annotations": {"number": str(number)}}})
        return before

    return write_much
