# SPDX-License-Identifier: Apache-2.0
"""The hosts files of pods: what is in them, and that they are there in time."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from node_agent import NODE, settings, settle

from trainwright.errors import ForbiddenError
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.node.hosts import HostsFiles, PodHost, ServiceSelection, render_hosts, rewrite
from trainwright.node.settings import AgentDelays
from trainwright.runtime.ports import EVERYTHING, PODS, SERVICES, ListPage, Resource, Selection, WallClock, WatchEvent

SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
HEAD = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
FORMS = "{0} {0}.a {0}.a.svc {0}.a.svc.cluster.local"


def body(text: str) -> list[str]:
    assert text.startswith(HEAD)
    return text.removeprefix(HEAD).splitlines()


TEXTS: dict[str, tuple[list[PodHost], list[ServiceSelection], list[str]]] = {
    "nothing": ([], [], []),
    "a pod": ([PodHost("a", "p", "10.0.0.1")], [], ["10.0.0.1\t" + FORMS.format("p")]),
    "of another namespace, without its bare name": (
        [PodHost("b", "p", "10.0.0.1")],
        [],
        ["10.0.0.1\tp.b p.b.svc p.b.svc.cluster.local"],
    ),
    "a subdomain": (
        [PodHost("a", "p", "10.0.0.1", subdomain="s")],
        [],
        [f"10.0.0.1\t{FORMS.format('p')} {FORMS.format('p.s')}"],
    ),
    "a hostname and a subdomain": (
        [PodHost("a", "p", "10.0.0.1", hostname="h", subdomain="s")],
        [],
        [f"10.0.0.1\t{FORMS.format('p')} {FORMS.format('h.s')} h"],
    ),
    "a service": (
        [PodHost("a", "p", "10.0.0.1", (("x", "1"), ("y", "2"))), PodHost("a", "q", "10.0.0.2", (("x", "1"),))],
        [ServiceSelection("a", "s", (("x", "1"), ("y", "2"))), ServiceSelection("a", "t", (("x", "1"),))],
        [
            "10.0.0.1\t" + FORMS.format("p"),
            "10.0.0.2\t" + FORMS.format("q"),
            "10.0.0.1\t" + FORMS.format("s"),
            "10.0.0.1\t" + FORMS.format("t"),
            "10.0.0.2\t" + FORMS.format("t"),
        ],
    ),
    "a service with the name of its pod": (
        [PodHost("a", "p", "10.0.0.1", (("x", "1"),))],
        [ServiceSelection("a", "p", (("x", "1"),))],
        ["10.0.0.1\t" + FORMS.format("p")],
    ),
    "a service selects in its own namespace": (
        [PodHost("b", "p", "10.0.0.1", (("x", "1"),))],
        [ServiceSelection("a", "s", (("x", "1"),))],
        ["10.0.0.1\tp.b p.b.svc p.b.svc.cluster.local"],
    ),
    "a service without a selector": (
        [PodHost("a", "p", "10.0.0.1", (("x", "1"),))],
        [ServiceSelection("a", "s"), ServiceSelection("a", "t", (("x", "2"),))],
        ["10.0.0.1\t" + FORMS.format("p")],
    ),
}


@pytest.mark.parametrize(("pods", "services", "expected"), TEXTS.values(), ids=TEXTS.keys())
def test_the_names(pods: list[PodHost], services: list[ServiceSelection], expected: list[str]) -> None:
    assert body(render_hosts("a", pods, services)) == expected


def test_a_file_is_rewritten_in_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    rewrite(path, "a long text\n")
    with path.open() as reader:  # as a pod holds it, by a bind mount
        rewrite(path, "short\n")
        assert reader.read() == "short\n"
        rewrite(path, "a text that is longer again\n")
        reader.seek(0)
        assert reader.read() == "a text that is longer again\n"


def pod(name: str, address: str, namespace: str = "a", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "annotations": {"trainwright.dev/address": address}}
    meta["labels"] = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [], **spec}}


def service(name: str, selects: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "a"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": {"name": selects}}}


async def test_the_file_holds_all_that_was_there_before_the_pod_and_follows_what_comes(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(LocalCluster(store), tmp_path / "hosts", settings(tmp_path, delays=AgentDelays()))
    await hosts.start()
    try:
        store.create(PODS.whole(), pod("early", "10.0.0.1"))
        store.create(SERVICES.whole(), service("front", "early"))
        mine = store.create(PODS.whole(), pod("mine", "10.0.0.2"))

        path = Path(await hosts.file_for(mine))
        lines = body(path.read_text())
        assert sorted(lines) == [
            "10.0.0.1\t" + FORMS.format("early"),
            "10.0.0.1\t" + FORMS.format("front"),
            "10.0.0.2\t" + FORMS.format("mine"),
        ]

        inode = path.stat().st_ino
        store.create(PODS.whole(), pod("late", "10.0.0.3", hostNetwork=False))
        store.create(SERVICES.whole(), service("back", "late"))
        store.delete(PODS.whole(), Key("a", "early"), grace=0)
        store.delete(SERVICES.whole(), Key("a", "front"))
        expected = {f"10.0.0.3\t{FORMS.format('late')}", f"10.0.0.3\t{FORMS.format('back')}"}
        await settle(lambda: set(body(path.read_text())) == expected | {"10.0.0.2\t" + FORMS.format("mine")})
        assert path.stat().st_ino == inode
    finally:
        await hosts.close()


class Slow(LocalCluster):
    """Watches that are behind: the services' for ever, the pods' for a moment."""

    async def watch(
        self, resource: Resource, scope: Selection = EVERYTHING, *, since: str
    ) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        if resource.id == SERVICES.id:
            await asyncio.Event().wait()
        async for batch in super().watch(resource, scope, since=since):
            await asyncio.sleep(0.1)
            yield batch


async def test_all_names_are_there_in_time_even_if_the_watches_are_behind(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(Slow(store), tmp_path, settings(tmp_path, delays=AgentDelays()))
    await hosts.start()
    try:
        await asyncio.sleep(0.05)
        store.create(PODS.whole(), pod("early", "10.0.0.1"))
        store.create(SERVICES.whole(), service("front", "mine"))
        path = await hosts.file_for(store.create(PODS.whole(), pod("mine", "10.0.0.2")))
        assert f"10.0.0.1\t{FORMS.format('early')}" in Path(path).read_text()
        assert f"10.0.0.2\t{FORMS.format('front')}" in Path(path).read_text()
    finally:
        await hosts.close()


async def test_each_namespace_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(LocalCluster(store), tmp_path, settings(tmp_path, delays=AgentDelays()))
    await hosts.start()
    try:
        one = store.create(PODS.whole(), pod("one", "10.0.0.1"))
        two = store.create(PODS.whole(), pod("two", "10.0.0.2", "b"))
        first, second = await asyncio.gather(hosts.file_for(one), hosts.file_for(two))
        assert (first, second) == (str(tmp_path / "a"), str(tmp_path / "b"))
        await settle(lambda: "10.0.0.2\ttwo.b two.b.svc" in Path(first).read_text())
        assert "10.0.0.2\ttwo two.b two.b.svc" in Path(second).read_text()
        assert "10.0.0.1\tone.a one.a.svc" in Path(second).read_text()
    finally:
        await hosts.close()


async def test_changes_that_matter_to_no_name_are_no_write(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(LocalCluster(store), tmp_path, settings(tmp_path, delays=AgentDelays()))
    await hosts.start()
    try:
        path = Path(await hosts.file_for(store.create(PODS.whole(), pod("one", "10.0.0.1"))))
        before = path.stat().st_mtime_ns
        store.patch(PODS.whole(), Key("a", "one"), {"status": {"phase": "Running"}}, status=True)
        await asyncio.sleep(0.08)
        assert path.stat().st_mtime_ns == before
        assert hosts._write_task is not None
        assert hosts._write_task.done()
    finally:
        await hosts.close()


def given(name: str, address: str, *, ready: bool = True, phase: str = "Running") -> dict[str, Any]:
    """A pod of this node on a cluster: its address is in its status."""
    body = pod(name, "")
    del body["metadata"]["annotations"]
    body["spec"] = {"containers": [], "nodeName": NODE}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {**body, "status": {"phase": phase, "podIP": address, "conditions": [condition]}}


def put(store: Store, body: dict[str, Any]) -> dict[str, Any]:
    store.create(PODS.whole(), {key: value for key, value in body.items() if key != "status"})
    key = Key("a", body["metadata"]["name"])
    return store.patch(PODS.whole(), key, {"status": body["status"]}, status=True)


def endpoint(name: str, address: str, *, ready: bool = True, hostname: str = "") -> dict[str, Any]:
    """A pod as an EndpointSlice tells of it."""
    target = {"kind": "Pod", "namespace": "a", "name": name}
    named = {"hostname": hostname} if hostname else {}
    return {"addresses": [address], "conditions": {"ready": ready}, "targetRef": target, **named}


def slice_of(service: str, *endpoints: dict[str, Any], name: str = "") -> dict[str, Any]:
    meta = {"name": name or f"{service}-x", "namespace": "a", "labels": {"kubernetes.io/service-name": service}}
    head = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    return {**head, "metadata": meta, "endpoints": list(endpoints)}


async def test_on_a_cluster_names_lead_to_where_pods_are_and_services_to_ready_ones(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(LocalCluster(store), tmp_path / "hosts", settings(tmp_path, delays=AgentDelays(), kubelet=True))
    await hosts.start()
    try:
        put(store, given("ready", "10.0.0.1"))
        put(store, given("busy", "10.0.0.2", ready=False))
        put(store, given("over", "10.0.0.3", phase="Succeeded"))
        for name in ("ready", "busy"):
            store.create(SERVICES.whole(), service(f"to-{name}", name))
        early = service("early", "busy")
        early["spec"]["publishNotReadyAddresses"] = True
        store.create(SERVICES.whole(), early)
        mine = put(store, given("mine", "", phase="Pending"))
        path = Path(await hosts.file_for(mine, "10.0.0.9"))
        assert set(body(path.read_text())) == {
            "10.0.0.1\t" + FORMS.format("ready"),
            "10.0.0.1\t" + FORMS.format("to-ready"),
            "10.0.0.2\t" + FORMS.format("busy"),
            "10.0.0.2\t" + FORMS.format("early"),
            "10.0.0.9\t" + FORMS.format("mine"),
        }
        status = {"phase": "Failed"}
        store.patch(PODS.whole(), Key("a", "ready"), {"status": status}, status=True)
        await settle(lambda: "10.0.0.1" not in path.read_text())
    finally:
        await hosts.close()


async def test_pods_of_other_nodes_are_known_by_the_services_that_lead_to_them(tmp_path: Path) -> None:
    store = Store(WallClock())
    hosts = HostsFiles(LocalCluster(store), tmp_path / "hosts", settings(tmp_path, delays=AgentDelays(), kubelet=True))
    await hosts.start()
    try:
        far = endpoint("far", "10.1.0.1", hostname="first")
        starting, own = endpoint("starting", "10.1.0.2", ready=False), endpoint("mine", "10.1.0.3")
        api = {"addresses": ["192.0.2.1"], "conditions": {"ready": True}}
        store.create(SLICES, slice_of("inside", far, starting, own, api))
        store.create(SLICES, slice_of("front", endpoint("far", "10.1.0.1")))
        store.create(SLICES, slice_of("starting", starting))
        path = Path(await hosts.file_for(put(store, given("mine", "")), "10.0.0.9"))
        await settle(lambda: "front" in path.read_text() and "starting" in path.read_text())
        host = FORMS.format("far") + " " + FORMS.format("first.inside") + " first"
        assert sorted(body(path.read_text())) == [
            "10.0.0.9\t" + FORMS.format("mine"),
            "10.1.0.1\t" + host,
            "10.1.0.1\t" + FORMS.format("front"),
            "10.1.0.1\t" + FORMS.format("inside"),
            "10.1.0.2\t" + FORMS.format("starting"),
        ]
        store.delete(SLICES, Key("a", "starting-x"))
        store.patch(SLICES, Key("a", "inside-x"), {"endpoints": [far]})
        await settle(lambda: "starting" not in path.read_text())
    finally:
        await hosts.close()


class OwnPodsOnly(LocalCluster):
    """A cluster on which nobody granted the rights of `manifests --nodes`."""

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, *, not_older_than: str = "") -> ListPage:
        if resource.id == SLICES.id or (resource.id == PODS.id and not scope.fields):
            raise ForbiddenError(f"{resource.plural} is forbidden")
        return await super().list(resource, scope, not_older_than=not_older_than)


async def test_a_node_that_may_see_nothing_else_knows_its_own_pods_and_says_what_is_missing(tmp_path: Path) -> None:
    store, told = Store(WallClock()), list[str]()
    quick = AgentDelays(api_retry=0.01)
    hosts = HostsFiles(
        OwnPodsOnly(store), tmp_path / "hosts", settings(tmp_path, delays=quick, kubelet=True), told.append
    )
    await hosts.start()
    try:
        path = Path(await hosts.file_for(put(store, given("mine", "")), "10.0.0.9"))
        await settle(lambda: told)
        assert body(path.read_text()) == ["10.0.0.9\t" + FORMS.format("mine")]
        assert (
            "pods of this node cannot resolve the names of pods on other nodes: endpointslices is forbidden" in told[0]
        )
        assert "`trainwright manifests --nodes`" in told[0]
    finally:
        await hosts.close()
