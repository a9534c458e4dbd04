# SPDX-License-Identifier: Apache-2.0
"""A real API server as an engine of the contract: TRAINWRIGHT_KUBECONFIG names it. What is in it may be lost.

Each process has a namespace of its own, emptied before every test. Our CRDs are installed if they are missing, and the
garbage collector is given the time to hear of them once.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from contract_objects import GENERICJOBS, HERE, SPACE, job, key, owner, secret

from trainwright.crd.schema import crds
from trainwright.errors import AlreadyExistsError, NotFoundError
from trainwright.kinds.registry import KINDS
from trainwright.kube.cluster import KubeCluster, connected
from trainwright.kube.config import ConnectionOptions, load
from trainwright.model.meta import Key
from trainwright.runtime.ports import PODS, SECRETS, Resource

KUBECONFIG = os.environ.get("TRAINWRIGHT_KUBECONFIG", "")
#: Before there was a definition of jobs, and so before anything that a server remembers of them.
FORGOTTEN = "1"
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_READY: set[str] = set()


@asynccontextmanager
async def kube() -> AsyncIterator[KubeCluster]:
    """The cluster, with nothing of ours in it."""
    async with connected(load(ConnectionOptions(kubeconfig=KUBECONFIG))) as cluster:
        if SPACE not in _READY:
            await _prepare(cluster)
            _READY.add(SPACE)
        await _empty(cluster)
        yield cluster


async def _prepare(cluster: KubeCluster) -> None:
    head = {"apiVersion": "v1", "kind": "Namespace"}
    await _ensure(cluster, _NAMESPACES, {**head, "metadata": {"name": SPACE}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": SPACE}}
    await _ensure(cluster, _ACCOUNTS, account)
    for body in crds(KINDS):
        await _ensure(cluster, _CRDS, body)
    async with asyncio.timeout(120):
        await _served(cluster)
        await _empty(cluster)
        await _collected(cluster)


async def _ensure(cluster: KubeCluster, resource: Resource, body: dict[str, Any]) -> None:
    with suppress(AlreadyExistsError):
        await cluster.create(resource, body)


async def _served(cluster: KubeCluster) -> None:
    while True:
        with suppress(NotFoundError):
            await cluster.list(GENERICJOBS, HERE)
            return
        await asyncio.sleep(0.1)


async def _collected(cluster: KubeCluster) -> None:
    """A collector that has just started knows nothing of our kinds yet."""
    made = await cluster.create(GENERICJOBS, job("warm-up"))
    await cluster.create(SECRETS, secret("warm-up", ownerReferences=[owner(made)]))
    await cluster.delete(GENERICJOBS, key("warm-up"))
    while (await cluster.list(SECRETS, HERE)).items:
        await asyncio.sleep(0.1)


async def _empty(cluster: KubeCluster) -> None:
    async with asyncio.timeout(30):
        for resource in (GENERICJOBS, PODS.whole(), SECRETS):
            while left := (await cluster.list(resource, HERE)).items:
                for body in left:
                    await _remove(cluster, resource, body)


async def _remove(cluster: KubeCluster, resource: Resource, body: dict[str, Any]) -> None:
    where = Key(SPACE, body["metadata"]["name"])
    with suppress(NotFoundError):
        if body["metadata"].get("finalizers"):
            await cluster.patch(resource, where, {"metadata": {"finalizers": None}})
        await cluster.delete(resource, where, grace=0)
