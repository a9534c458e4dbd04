# SPDX-License-Identifier: Apache-2.0
"""The engines that the contract holds for; another one is one more parameter of `cluster`.

A plugin of the tests beside it. They assert nothing that a real API server does not do: `contract_kube` says how to run
them against one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from contract_kube import FORGOTTEN, KUBECONFIG, kube
from contract_objects import GENERICJOBS, HERE, job, key

from trainwright.api.credentials import ApiCredentials
from trainwright.api.handlers import ResourceHandlers
from trainwright.api.server import ApiAddress, ApiHttpServer
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import ConnectionOptions, load
from trainwright.local.cluster import LocalCluster
from trainwright.local.sockets.client import RemoteCluster
from trainwright.local.sockets.server import serve
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import Cluster, WallClock

_HISTORY = 64


_ENGINES = ["local", "socket", "journal", "journal-socket", "api", *(["kube"] if KUBECONFIG else [])]


@pytest.fixture(params=_ENGINES)
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """One engine after the other, empty."""
    if request.param == "kube":
        async with kube() as real:
            yield real
        return
    async with AsyncExitStack() as stack:
        store = Store(WallClock(), history=_HISTORY)
        if request.param.startswith("journal"):
            store = Store.open(WallClock(), tmp_path / "state.db", history=_HISTORY)
            stack.callback(store.close)
        local = LocalCluster(store)
        if request.param == "api":
            folder = tmp_path_factory.getbasetemp() / "contract-api"
            yield await stack.enter_async_context(api(local, folder))
            return
        if not request.param.endswith("socket"):
            yield local
            return
        await stack.enter_async_context(serve(tmp_path / "engine.sock", local))
        yield await stack.enter_async_context(RemoteCluster(tmp_path / "engine.sock"))


@asynccontextmanager
async def api(local: LocalCluster, folder: Path) -> AsyncIterator[KubeCluster]:
    """The Kubernetes API of a store, behind the client that the operator uses. Tests share the certificates."""
    folder.mkdir(exist_ok=True)
    credentials = ApiCredentials(folder, WallClock())
    handlers = ResourceHandlers(local, WallClock(), folder)
    server = ApiHttpServer(handlers, credentials.identify)
    url = await server.start(ApiAddress(tls=credentials.prepare()))
    try:
        path = credentials.write_kubeconfig(url)
        async with connected(load(ConnectionOptions(kubeconfig=str(path)))) as cluster:
            yield cluster
    finally:
        await server.stop()


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
