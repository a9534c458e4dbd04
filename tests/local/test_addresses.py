# SPDX-License-Identifier: Apache-2.0
"""Addresses and ports: one per name, the same for all callers, released with the job."""

import asyncio
import json
import socket
from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.core.reconcile import reconcile
from trainwright.errors import EngineError, NotFoundError
from trainwright.kinds.base import load
from trainwright.kinds.tfjob import TFJOB
from trainwright.local.addresses import Addresses
from trainwright.local.storage.store import Store
from trainwright.model.child import Observed
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.site import Endpoints, Site
from trainwright.node.network.pools import AddressPool, PortPool, SingleAddress, SubnetPool, bindable, loopback, ranges
from trainwright.runtime.ports import ADDRESSES, JOBS, PODS, Propagation, WallClock
from trainwright.testing import factories

JOB = JOBS["genericjob"]
KEY = Key("default", "job")


def new(
    store: Store | None = None, pool: AddressPool | None = None, ports: PortPool | None = None
) -> tuple[Store, Addresses]:
    store = store or Store(WallClock())
    addresses = Addresses(store, pool or SubnetPool("10.129.0.0/16"), ports or PortPool())
    addresses.install()
    return store, addresses


def job(store: Store, name: str = "job") -> list[dict[str, Any]]:
    made = store.create(JOB, {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
    owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": name, "uid": made["metadata"]["uid"]}
    return [owner | {"controller": True}]


def reserved(store: Store, addresses: Addresses, *names: str, job: str = "job") -> tuple[list[str], list[int]]:
    """The hosts of these replicas, and the reserved ports that replace their port 2222."""
    key = Key("default", job)
    asker = replace(factories.job(), key=key, uid=store.get(JOB, key)["metadata"]["uid"], kind="genericjob")
    hosts, ports = addresses.reserve(asker, endpoints(*names))
    return [hosts[key, name] for name in names], [ports[key, name, 2222] for name in names]


def test_an_address_that_only_a_pod_tells_of_stays_its_own() -> None:
    """The engine before was killed after it created the pod and before it stored the reservation."""
    store = Store(WallClock())
    mine = pod(store, "mine", annotations={ADDRESS: "10.129.0.2"})
    _, addresses = new(store)
    other = pod(store, "other")
    assert (mine, other) == ("10.129.0.2", "10.129.0.3")
    addresses.flush()
    store.delete(PODS, Key("default", "mine"), grace=0)
    (left,) = store.list(ADDRESSES)[0]
    assert left["spec"]["hosts"] == {"other": "10.129.0.3"}


def test_an_address_of_a_subnet_that_is_gone_is_replaced() -> None:
    store, addresses = new(pool=SubnetPool("127.5.0.0/16"))
    old = pod(store, "worker-0", job(store))
    addresses.flush()
    _, later = new(store, SubnetPool("127.6.0.0/16"))
    (host,), _ = reserved(store, later, "worker-0")
    assert (old, host) == ("127.5.0.2", "127.6.0.2")
    waiting = store.get(PODS, Key("default", "worker-0"))  # it has not started
    assert waiting["metadata"]["annotations"][ADDRESS] == host


def test_reservations_of_a_job_that_was_deleted_without_its_pods_are_no_problem() -> None:
    store, addresses = new()
    host = pod(store, "job-w-0", job(store))
    addresses.flush()
    store.delete(JOB, KEY, propagation=Propagation.ORPHAN)
    assert "ownerReferences" not in store.list(ADDRESSES)[0][0]["metadata"]
    _, later = new(store)
    later.flush()
    (stored,) = store.list(ADDRESSES)[0]
    assert stored["metadata"]["ownerReferences"][0]["kind"] == "Pod"
    assert (stored["spec"]["hosts"], pod(store, "other")) == ({"job-w-0": host}, "10.129.0.3")


def test_an_address_that_is_no_address_is_replaced() -> None:
    store = Store(WallClock())
    pod(store, "mine", annotations={ADDRESS: "garbage"})
    new(store)
    assert store.get(PODS, Key("default", "mine"))["metadata"]["annotations"][ADDRESS] == "10.129.0.2"


def endpoints(*names: str) -> tuple[Endpoints, ...]:
    split = [name.rpartition("-") for name in names]
    assert [int(index) for _, _, index in split] == list(range(len(names)))
    return (Endpoints(f"{split[0][0]}-", len(names), (2222,)),)


def pod(store: Store, name: str, owners: Any = None, annotations: Any = None, **spec: Any) -> str:
    meta = {"name": name, "namespace": "default", "ownerReferences": owners, "annotations": annotations}
    made = store.create(PODS, {"metadata": meta, "spec": spec})
    return str(made["metadata"]["annotations"][ADDRESS])


def test_every_new_pod_is_told_an_address_of_its_own() -> None:
    store, _ = new()
    owners = job(store)
    assert [pod(store, name, owners) for name in ("job-w-0", "job-w-1")] == ["10.129.0.2", "10.129.0.3"]


def test_a_pod_keeps_its_address_over_restarts() -> None:
    store, addresses = new()
    owners = job(store)
    first = pod(store, "job-w-0", owners)
    pod(store, "job-w-1", owners)
    store.delete(PODS, Key("default", "job-w-0"), grace=0)
    assert pod(store, "job-w-0", owners) == first
    addresses.flush()


def test_a_peer_is_told_the_address_before_the_pod_exists() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"))
    owners = job(store)
    told = reserved(store, addresses, "job-w-0", "job-w-1")
    assert reserved(store, addresses, "job-w-0", "job-w-1") == told
    assert [pod(store, name, owners) for name in ("job-w-1", "job-w-0")] == told[0][::-1]


def test_what_is_reserved_cannot_be_changed_and_does_not_change() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"))
    job(store)
    asker = replace(factories.job(), uid=store.get(JOB, KEY)["metadata"]["uid"], kind="genericjob")
    hosts, ports = addresses.reserve(asker, endpoints("job-w-0"))
    again = addresses.reserve(asker, endpoints("job-w-0"))
    assert again[0] is hosts, "a pass over a job at rest costs nothing"
    more, _ = addresses.reserve(asker, endpoints("job-w-0", "job-w-1"))
    assert (len(hosts), len(ports), len(more)) == (1, 1, 2)
    assert more[KEY, "job-w-0"] == hosts[KEY, "job-w-0"]
    for table in (hosts, ports):
        with pytest.raises(TypeError):
            table[KEY, "job-w-9"] = "127.0.0.1"  # type: ignore[index]


def test_a_decision_finds_everything_reserved() -> None:
    """The audit hook of `conftest` fails the test if `reconcile` binds a socket or reads the store."""
    store, addresses = new(pool=loopback("127.88.0.0/16"))
    container = {"name": "tensorflow", "image": "x"}
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": {"containers": [container]}}}}}
    body = store.create(JOBS["tfjob"], {"metadata": {"name": "job", "namespace": "default"}, "spec": spec})
    tfjob = load(TFJOB, body).job

    site = addresses.with_reservations(Site(names_resolve=False), tfjob)
    version = store.version
    plan = reconcile(tfjob, Observed(), site, factories.NOW)

    pods = [create.body["spec"]["containers"][0] for create in plan.creates if create.body["kind"] == "Pod"]
    ports = [site.port(KEY, f"job-worker-{index}", 2222) for index in range(2)]
    workers = [f"127.88.0.{index + 2}:{port}" for index, port in enumerate(ports)]
    assert [json.loads(pod["env"][0]["value"])["cluster"]["worker"] for pod in pods] == [workers] * 2
    assert store.version == version


@pytest.mark.parametrize("there", [False, True], ids=["it is gone", "another has its name"])
def test_nothing_is_reserved_for_a_job_that_does_not_exist(there: bool) -> None:
    pool = SubnetPool("10.129.0.0/16")
    store, addresses = new(pool=pool)
    if there:
        job(store)
    with pytest.raises(NotFoundError):
        addresses.reserve(replace(factories.job(), kind="genericjob"), endpoints("job-w-0"))
    assert pool.take() == "10.129.0.2"


def test_a_pod_that_brings_an_address_keeps_it() -> None:
    store, _ = new()
    assert pod(store, "p", annotations={ADDRESS: "10.9.9.9", "other": "x"}) == "10.9.9.9"


def test_pods_on_the_hosts_network_have_an_address_of_the_host_each() -> None:
    store = Store(WallClock())
    Addresses(store, SubnetPool("10.129.0.0/16"), PortPool(), SubnetPool("127.9.0.0/16")).install()
    owners = job(store)
    assert pod(store, "p", owners, hostNetwork=True) == "127.9.0.2"
    assert pod(store, "q", owners, hostNetwork=True) == "127.9.0.3"
    store.delete(PODS, Key("default", "p"), grace=0)
    assert pod(store, "p", owners) == "10.129.0.2", "it has a network of its own now"
    store.delete(PODS, Key("default", "p"), grace=0)
    assert pod(store, "p", owners, hostNetwork=True) == "127.9.0.2", "its own again"


def test_addresses_on_the_hosts_network_are_kept_and_given_back() -> None:
    store = Store(WallClock())
    first = Addresses(store, SubnetPool("10.129.0.0/16"), PortPool(), SubnetPool("127.9.0.0/16"))
    first.install()
    assert pod(store, "p", job(store), hostNetwork=True) == "127.9.0.2"
    first.flush()

    small = SubnetPool("127.9.0.0/30")
    later = Addresses(store, SubnetPool("10.129.0.0/16"), PortPool(), small)
    with pytest.raises(EngineError, match=r"every address of 127\.9\.0\.0/30"):
        small.take()
    store.delete(JOB, KEY)
    later.admit(None, {"metadata": {"name": "x", "namespace": "default", "uid": "x"}, "spec": {}})
    assert small.take() == "127.9.0.2"


def test_other_annotations_stay() -> None:
    store, _ = new()
    pod(store, "p", annotations={"a": "b"})
    assert store.get(PODS, Key("default", "p"))["metadata"]["annotations"] == {"a": "b", ADDRESS: "10.129.0.2"}
    store.patch(PODS, Key("default", "p"), {"metadata": {"annotations": {ADDRESS: None}}})
    assert store.get(PODS, Key("default", "p"))["metadata"]["annotations"] == {"a": "b"}


async def test_reservations_are_written_once_a_burst_and_go_with_the_job() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"), ports=PortPool([range(20000, 20100)]))
    owners = job(store)
    hosts = {name: pod(store, name, owners) for name in ("job-w-0", "job-w-1")}
    _, [port] = reserved(store, addresses, "job-w-0")
    before = int(store.version)
    await asyncio.sleep(0)
    assert int(store.version) == before + 1
    [written] = store.list(ADDRESSES)[0]
    assert written["spec"] == {"hosts": hosts, "ports": {"job-w-0": {"2222": port}}}
    assert written["metadata"]["ownerReferences"] == owners
    more = pod(store, "job-w-2", owners)
    await asyncio.sleep(0)
    [written] = store.list(ADDRESSES)[0]
    assert written["spec"]["hosts"] == hosts | {"job-w-2": more}
    store.delete(JOB, KEY)
    assert store.list(ADDRESSES)[0] == ()
    job(store)
    again = reserved(store, addresses, "job-w-0")
    assert (again[0] != [hosts["job-w-0"]], again[1] != [port]) == (True, True)


async def test_a_job_that_goes_before_anything_is_written_leaves_nothing() -> None:
    store, _ = new(pool=SubnetPool("10.1.2.0/30"))
    pod(store, "job-w-0", job(store))
    store.delete(JOB, KEY)
    await asyncio.sleep(0)
    assert store.list(ADDRESSES)[0] == ()
    assert pod(store, "job-w-0", job(store)) == "10.1.2.2", "the only one is free again"


async def test_a_job_of_the_same_name_is_another_job() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"))
    first = pod(store, "job-w-0", job(store))
    await asyncio.sleep(0)
    store.delete(JOB, KEY)
    owners = job(store)
    [told], _ = reserved(store, addresses, "job-w-0")
    assert told != first
    assert pod(store, "job-w-0", owners) == told
    await asyncio.sleep(0)
    [written] = store.list(ADDRESSES)[0]
    assert written["metadata"]["ownerReferences"][0]["uid"] == owners[0]["uid"]


async def test_a_pod_of_its_own_gives_its_address_back_when_it_goes() -> None:
    store, _ = new(pool=SubnetPool("10.1.2.0/29"))
    for _ in range(20):
        pod(store, "p")
        await asyncio.sleep(0)
        store.delete(PODS, Key("default", "p"), grace=0)
    assert store.list(ADDRESSES)[0] == ()


async def test_a_name_that_passes_to_another_owner_takes_its_address_along() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"))
    first, second = job(store), job(store, "other")
    host = pod(store, "job-w-0", first)
    await asyncio.sleep(0)
    store.delete(PODS, Key("default", "job-w-0"), grace=0)
    assert pod(store, "job-w-0", second) == host
    await asyncio.sleep(0)
    store.delete(JOB, KEY)
    assert reserved(store, addresses, "job-w-0", job="other")[0] == [host]


async def test_an_engine_that_comes_back_knows_what_was_reserved() -> None:
    store, addresses = new(pool=loopback("127.88.0.0/16"), ports=PortPool([range(20000, 20100)]))
    owners = job(store)
    host = pod(store, "job-w-0", owners)
    _, [port] = reserved(store, addresses, "job-w-0")
    await asyncio.sleep(0)
    later = Addresses(store, loopback("127.88.0.0/16"), PortPool([range(20000, 20100)]))
    hosts, ports = reserved(store, later, "job-w-0", "job-w-1")
    assert (hosts[0], ports[0]) == (host, port)
    assert hosts[1] != host
    assert ports[1] != port


async def test_more_deletions_than_are_remembered_are_noticed_too() -> None:
    store, _ = new(Store(WallClock(), history=4), pool=SubnetPool("10.1.2.0/27"))
    jobs = [job(store, f"job-{index}") for index in range(20)]
    for index, owners in enumerate(jobs):
        pod(store, f"job-{index}-w-0", owners)
    await asyncio.sleep(0)
    for index in range(19):
        store.delete(JOB, Key("default", f"job-{index}"))
    fresh = {pod(store, f"other-{index}") for index in range(28)}
    assert len(fresh) == 28, "of 29, one is still the last job's"


# -- pools -------------------------------------------------------------------------------------------------------------


def test_a_subnet_leaves_out_what_is_special_and_ends() -> None:
    pool = SubnetPool("10.1.0.0/23")
    pool.claim("10.1.0.9")
    taken = [pool.take() for _ in range(2 * 256 - 5 - 1)]
    assert (taken[0], taken[-1], len(set(taken))) == ("10.1.0.2", "10.1.1.254", len(taken))
    assert not {"10.1.0.0", "10.1.0.1", "10.1.0.9", "10.1.0.255", "10.1.1.0", "10.1.1.255"} & set(taken)
    with pytest.raises(EngineError, match=r"10\.1\.0\.0/23"):
        pool.take()
    pool.put("10.1.0.77")
    assert pool.take() == "10.1.0.77"


def test_what_is_given_back_is_given_out_last() -> None:
    pool = SubnetPool("10.1.2.0/29")
    first = pool.take()
    pool.put(first)
    assert [pool.take() for _ in range(5)][-1] == first


def test_a_subnet_needs_room() -> None:
    with pytest.raises(EngineError, match=r"10\.1\.2\.0/31"):
        SubnetPool("10.1.2.0/31")


def test_where_there_is_one_address_all_have_it() -> None:
    pool = SingleAddress()
    assert {pool.take(), pool.take()} == {"127.0.0.1"}
    pool.put("127.0.0.1")
    pool.claim("127.0.0.1")


def test_a_range_that_cannot_be_bound_is_not_used() -> None:
    assert loopback("203.0.113.0/24").take() == "127.0.0.1"
    assert loopback("127.88.0.0/16").take() == "127.88.0.2"


def test_a_port_that_somebody_listens_at_is_passed_over() -> None:
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.1", 0))
        elsewhere.listen()
        busy = elsewhere.getsockname()[1]
        assert not bindable("", busy)
        assert bindable("127.88.0.9", busy)
        with pytest.raises(EngineError, match=f"from {busy} to {busy}"):
            PortPool([range(busy, busy + 1)]).take("127.88.0.9")


def test_ports_are_given_out_once_and_from_where_the_engine_begins() -> None:
    ports = PortPool([range(21000, 21200)], start=350)
    ports.claim(21151)
    taken = [ports.take("127.0.0.1") for _ in range(20)]
    assert taken == sorted(set(taken))
    assert 21151 not in taken
    assert taken[0] >= 21150
    ports.put(taken[0])
    assert ports.take("127.0.0.1") > taken[-1]


@pytest.mark.parametrize(
    ("wanted", "ephemeral", "expected"),
    [
        (range(20000, 30000), range(32768, 61000), (range(20000, 30000),)),
        (range(20000, 30000), range(25000, 61000), (range(20000, 25000),)),
        (range(20000, 30000), range(10000, 25000), (range(25000, 30000),)),
        (range(20000, 30000), range(24000, 26000), (range(20000, 24000), range(26000, 30000))),
        (range(20000, 30000), range(15000, 65536), (range(1024, 15000),)),
        (range(20000, 30000), range(1024, 65536), (range(20000, 30000),)),
        (range(20000, 20010), range(32768, 61000), (range(20000, 20010),)),
    ],
)
def test_the_engines_ports_are_not_the_kernels(wanted: range, ephemeral: range, expected: tuple[range, ...]) -> None:
    assert ranges(wanted, ephemeral) == expected


def test_the_kernel_is_asked_for_its_ports() -> None:
    assert sum(map(len, ranges())) >= 1000
