# SPDX-License-Identifier: Apache-2.0
"""Placement: which pods get which node, which wait, and their reasons. Tables, then properties."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scheduler_objects import node, pod

from trainwright.local.scheduling.cache import GroupInfo, NodeUsage, PodInfo, node_info, pod_info
from trainwright.local.scheduling.placement import Placements, place
from trainwright.model.meta import Key
from trainwright.node.devices.inventory import LeasedDevices

GPU = "nvidia.com/gpu"
CALM = settings(deadline=None)


def decide(
    pods: Iterable[dict[str, Any]],
    nodes: Iterable[dict[str, Any]],
    bound: Iterable[tuple[dict[str, Any], str]] = (),
    **groups: int,
) -> Placements:
    return place([pod_info(one) for one in pods], [node_info(one) for one in nodes], usage(bound), gangs(groups))


def usage(bound: Iterable[tuple[dict[str, Any], str]]) -> NodeUsage:
    taken = NodeUsage()
    for body, where in bound:
        taken.take(pod_info(body), where)
        taken.join(pod_info(body))
    return taken


def gangs(min_members: dict[str, int]) -> dict[Key, GroupInfo]:
    return {Key("default", name): GroupInfo(count) for name, count in min_members.items()}


def placed(decisions: Placements) -> dict[str, str]:
    return {one.key.name: where for one, where in decisions.placed}


def waiting(decisions: Placements) -> dict[str, str]:
    return {one.key.name: why for one, why in decisions.waiting}


REASONS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "no node": (pod(), [], "0/0 nodes are available: no node has reported yet"),
    "not free now": (
        pod(cpu=2),
        [node()],
        "0/1 nodes are available: node-0: cpu: needs 2, 1 of 2 is free",
    ),
    "not free and not there": (
        pod(cpu=3, gpu=1),
        [node()],
        "can never fit: node-0: cpu: needs 3, this node has 2; nvidia.com/gpu: needs 1, this node has none",
    ),
    "memory": (
        pod(memory="4Gi"),
        [node()],
        "0/1 nodes are available: node-0: memory: needs 4Gi, 3Gi of 4Gi is free",
    ),
    "not ready": (pod(), [node(ready=False)], "0/1 nodes are available: node-0: not ready"),
    "many nodes": (
        pod(cpu=2),
        [node(), node("node-1", cpu=1), node("node-2", ready=False), node("node-3", cpu="1500m")],
        "0/4 nodes are available: 3 too little cpu, 1 not ready; nearest is node-3: cpu: needs 2, this node has 1.5",
    ),
    "many nodes, none open": (
        pod(spec={"nodeSelector": {"zone": "a"}}),
        [node(), node("node-1"), node("node-2", ready=False)],
        "0/3 nodes are available: 2 without the label zone=a, 1 not ready",
    ),
    "more than any node has": (
        pod(cpu=64),
        [node(), node("node-1", cpu=8)],
        "can never fit: nearest is node-1: cpu: needs 64, this node has 8",
    ),
    "each node lacks something else": (
        pod(cpu=4, gpu=1),
        [node("node-0", cpu=8), node("node-1", gpu=1)],
        "can never fit: nearest is node-1: cpu: needs 4, this node has 2",
    ),
    "a node that is away may come back": (
        pod(cpu=4),
        [node(), node("node-1", cpu=8, ready=False)],
        "0/2 nodes are available: 1 not ready, 1 too little cpu; nearest is node-0: cpu: needs 4, this node has 2",
    ),
    "gates": (
        pod(spec={"schedulingGates": [{"name": "quota"}, {"name": "data"}]}),
        [node()],
        "waits for its scheduling gates to be removed: quota, data",
    ),
    "unsupported": (
        pod(spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}),
        [node()],
        "required podAntiAffinity is not supported here",
    ),
    "group that is not there": (
        pod(group="g", spec={"schedulerName": "t9k-scheduler"}),
        [node()],
        "waits for its PodGroup 'g', which does not exist",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_waiting_pod_is_told_what_is_missing(name: str) -> None:
    body, nodes, expected = REASONS[name]
    other = pod("other", cpu=1, memory="1Gi")
    assert waiting(decide([body], nodes, [(other, "node-0")])) == {"p": expected}


def test_pods_spread_over_nodes_by_what_is_free() -> None:
    pods = [pod(f"p-{index}", cpu="100m") for index in range(9)]
    nodes = [node(f"node-{index}") for index in range(3)]
    assert Counter(placed(decide(pods, nodes)).values()) == {"node-0": 3, "node-1": 3, "node-2": 3}


def test_pods_that_ask_for_nothing_spread_too() -> None:
    pods = [pod(f"p-{index}") for index in range(8)]
    nodes = [node("node-0"), node("node-1")]
    assert Counter(placed(decide(pods, nodes)).values()) == {"node-0": 4, "node-1": 4}


def test_the_node_with_most_free_share_comes_first() -> None:
    nodes = [node("node-0", cpu=2), node("node-1", cpu=8)]
    taken = [(pod("a", cpu=1), "node-0"), (pod("b", cpu=2), "node-1")]
    assert placed(decide([pod("p", cpu=1)], nodes, taken)) == {"p": "node-1"}


def test_priority_then_age_then_name() -> None:
    pods = [pod("c", cpu=1), pod("b", cpu=1), pod("a", cpu=1), pod("d", cpu=1, spec={"priority": 5})]
    pods[0]["metadata"]["creationTimestamp"] = "2026-11-15T12:00:00Z"
    for late in (1, 2, 3):
        pods[late]["metadata"]["creationTimestamp"] = "2026-11-15T12:00:01Z"
    assert [*placed(decide(pods, [node(cpu=3)]))] == ["d", "c", "a"]


def test_what_does_not_fit_keeps_nobody_behind_it_waiting() -> None:
    decisions = decide([pod("a", cpu=9), pod("b", cpu=1)], [node()])
    assert placed(decisions) == {"b": "node-0"}
    assert [*waiting(decisions)] == ["a"]


def test_room_that_later_pods_took_is_told_as_taken() -> None:
    decisions = decide([pod("a", cpu=2), pod("b", cpu=1)], [node()], [(pod("x", cpu="500m"), "node-0")])
    assert waiting(decisions) == {"a": "0/1 nodes are available: node-0: cpu: needs 2, 0.5 of 2 is free"}


def test_disk_is_not_metered_where_the_node_does_not_say() -> None:
    body, small = pod(disk="100Gi"), node(disk="10Gi")
    assert placed(decide([body], [node()])) == {"p": "node-0"}
    assert not placed(decide([body], [small]))


def test_a_node_takes_only_so_many_pods() -> None:
    decisions = decide([pod(f"p-{index}") for index in range(3)], [node(pods=2)])
    assert len(decisions.placed) == 2
    assert waiting(decisions) == {"p-2": "0/1 nodes are available: node-0: pods: needs 1, 0 of 2 are free"}


def workers(count: int, **asks: Any) -> list[dict[str, Any]]:
    return [pod(f"w-{index}", group="g", **asks) for index in range(count)]


def test_a_gang_is_placed_when_all_fit() -> None:
    assert len(decide(workers(4, cpu=1), [node(), node("node-1")], g=4).placed) == 4


GANG_REASONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "not all there": (workers(2, cpu=1), [node()], "gang needs 4 pods at once: 2 of them exist"),
    "no node": (workers(4), [], "gang needs 4 pods at once: no node has reported yet"),
    "not all fit now": (
        workers(4, cpu=1),
        [node(cpu=4)],
        "gang needs 4 pods at once: cpu: needs 4 together, 3 of 4 are free",
    ),
    "more than all nodes have": (
        workers(4, cpu=1),
        [node(), node("node-1", cpu=1)],
        "can never fit: gang needs 4 pods at once: cpu: needs 4 together, all nodes have 3",
    ),
    "one is larger than any node": (
        [*workers(3, cpu=1), pod("w-9", group="g", cpu=3)],
        [node("node-0", cpu=2), *(node(f"node-{index}") for index in range(1, 9))],
        "can never fit: gang needs 4 pods at once: nearest is node-0: cpu: needs 3, this node has 2",
    ),
    "in pieces": (
        workers(4, cpu=2),
        [node("node-0", cpu=5), node("node-1", cpu=3), node("node-2", cpu=1)],
        "gang needs 4 pods at once: the free resources are enough in total, but not on single nodes",
    ),
    "not allowed": (
        workers(4, spec={"nodeSelector": {"zone": "a"}}),
        [node()],
        "gang needs 4 pods at once: 0/1 nodes are available: node-0: without the label zone=a",
    ),
}


@pytest.mark.parametrize("name", GANG_REASONS)
def test_a_gang_waits_as_one(name: str) -> None:
    pods, nodes, expected = GANG_REASONS[name]
    decisions = decide(pods, nodes, [(pod("other", cpu=1), "node-0")], g=4)
    assert not decisions.placed
    assert set(waiting(decisions).values()) == {expected}
    assert len(decisions.waiting) == len(pods)


def test_members_that_are_there_already_count() -> None:
    others = [(one, "node-0") for one in workers(3)]
    assert placed(decide([pod("w-3", group="g", cpu=1)], [node()], others, g=4)) == {"w-3": "node-0"}


def test_a_member_that_comes_again_counts_once() -> None:
    decisions = decide([pod("w-0", group="g")], [node()], [(pod("w-0", group="g"), "node-0")], g=2)
    assert waiting(decisions) == {"w-0": "gang needs 2 pods at once: 1 of them exists"}


def test_a_gang_that_cannot_go_leaves_its_room_to_others() -> None:
    decisions = decide([*workers(4, cpu=1), pod("z", cpu=2)], [node()], g=4)
    assert placed(decisions) == {"z": "node-0"}


def test_a_gang_is_packed_where_spreading_leaves_somebody_out() -> None:
    pods = [*workers(2, cpu=1), pod("w-9", group="g", cpu=2)]
    assert len(decide(pods, [node(), node("node-1")], g=3).placed) == 3


def test_members_beyond_the_least_go_as_they_fit() -> None:
    decisions = decide(workers(4, cpu=1), [node()], g=2)
    assert len(decisions.placed) == 2
    assert set(waiting(decisions).values()) == {"0/1 nodes are available: node-0: cpu: needs 1, 0 of 2 are free"}


def test_a_label_without_a_group_is_only_a_label() -> None:
    assert placed(decide([pod(group="g")], [node()])) == {"p": "node-0"}


def test_the_priority_of_a_gang_is_its_groups() -> None:
    pod_infos = [pod_info(one) for one in (pod("a", cpu=2), pod("z", group="g", cpu=2))]
    groups = {Key("default", "g"): GroupInfo(1, priority=7)}
    assert placed(place(pod_infos, [node_info(node())], NodeUsage(), groups)) == {"z": "node-0"}


def test_a_gated_member_waits_alone() -> None:
    gated = pod("w-9", group="g", spec={"schedulingGates": [{"name": "x"}]})
    decisions = decide([*workers(2), gated], [node()], g=2)
    assert [*placed(decisions)] == ["w-0", "w-1"]
    assert [*waiting(decisions)] == ["w-9"]


CPUS = st.sampled_from([0, 100, 500, 1000, 2000, 3000])
PODS = st.lists(st.tuples(CPUS, st.sampled_from(["", "", "g", "h"]), st.integers(0, 2)), max_size=14)
NODES = st.lists(st.tuples(CPUS, st.booleans(), st.integers(1, 6)), max_size=4)
LEAST = st.fixed_dictionaries({"g": st.integers(1, 6), "h": st.integers(1, 3)})


def world(pods: Any, nodes: Any) -> tuple[list[PodInfo], list[dict[str, Any]]]:
    pod_infos = [
        pod_info(pod(f"p-{index}", group=group, cpu=f"{cpu}m", spec={"priority": priority}))
        for index, (cpu, group, priority) in enumerate(pods)
    ]
    bodies = [
        node(f"node-{index}", cpu=f"{cpu}m", ready=ready, pods=most) for index, (cpu, ready, most) in enumerate(nodes)
    ]
    return pod_infos, bodies


@CALM
@given(PODS, NODES, LEAST, st.randoms(use_true_random=False))
def test_nothing_is_overcommitted_gangs_are_whole_and_the_order_does_not_matter(
    pods: Any, nodes: Any, min_members: dict[str, int], random: Any
) -> None:
    pod_infos, bodies = world(pods, nodes)
    node_infos = [node_info(one) for one in bodies]
    decisions = place(pod_infos, node_infos, NodeUsage(), gangs(min_members))

    assert sorted(one.key for one in pod_infos) == sorted(
        [one.key for one, _ in decisions.placed] + [one.key for one, _ in decisions.waiting]
    )
    used: dict[str, Counter[str]] = {}
    for one, where in decisions.placed:
        used.setdefault(where, Counter()).update(dict(one.requests))
    for one_node in node_infos:
        taken = used.pop(one_node.name, Counter())
        assert all(amount <= one_node.total.get(name, 0) for name, amount in taken.items())
        assert one_node.traits.ready or not taken
    assert not used
    for name, count in min_members.items():
        count_placed = sum(one.group == Key("default", name) for one, _ in decisions.placed)
        assert not count_placed or count_placed >= count
    assert all(why for _, why in decisions.waiting)

    random.shuffle(pod_infos)
    random.shuffle(node_infos)
    assert place(pod_infos, node_infos, NodeUsage(), gangs(min_members)) == decisions


@CALM
@given(PODS, NODES, LEAST)
def test_what_waits_would_not_fit_even_alone_in_what_is_left(
    pods: Any, nodes: Any, min_members: dict[str, int]
) -> None:
    pod_infos, bodies = world(pods, nodes)
    node_infos = [node_info(one) for one in bodies]
    first = place(pod_infos, node_infos, NodeUsage(), gangs(min_members))
    taken = NodeUsage()
    for one, where in first.placed:
        taken.take(one, where)
        taken.join(one)
    second = place([one for one, _ in first.waiting], node_infos, taken, gangs(min_members))
    # Placement does not try all combinations of pods with different sizes, so less free room can help by chance.
    sizes: dict[Key, set[object]] = {}
    for one in pod_infos:
        sizes.setdefault(one.group or one.key, set()).add(one.requests)
    assume(all(len(sizes[one.group or one.key]) == 1 for one, _ in second.placed))
    assert (second.placed, waiting(second)) == ((), waiting(first))


def test_a_large_pod_does_not_keep_smaller_ones_from_making_up_the_gang() -> None:
    pod_infos, bodies = world([(500, "h", 0), (100, "h", 0), (100, "h", 0)], [(500, True, 3)])
    decisions = place(pod_infos, [node_info(one) for one in bodies], NodeUsage(), gangs({"h": 2}))
    assert [one.key.name for one, _ in decisions.placed] == ["p-1", "p-2"]


def held(*devices: str, by: str = "alice (run 7, job demo/train) since 2026-11-16T12:03:11Z") -> LeasedDevices:
    return LeasedDevices(tuple((device, by) for device in devices))


LEASED: dict[str, tuple[list[dict[str, Any]], dict[str, dict[str, LeasedDevices]], str]] = {
    "one holder": (
        [pod(gpu=3)],
        {"node-0": {GPU: held("0", "1", "2", "7")}},
        "0/1 nodes are available: node-0: nvidia.com/gpu: needs 3, 0 of 4 are free; 0-2,7 held by alice (run 7, job"
        " demo/train) since 2026-11-16T12:03:11Z",
    ),
    "two holders": (
        [pod(gpu=3)],
        {"node-0": {GPU: LeasedDevices((*held("1").devices, *held("left", "0", by="bob").devices))}},
        "0/1 nodes are available: node-0: nvidia.com/gpu: needs 3, 1 of 4 is free; 1 held by alice (run 7, job"
        " demo/train) since 2026-11-16T12:03:11Z, 0,left held by bob",
    ),
    "a gang": (
        [pod("p", gpu=2, group="g"), pod("q", gpu=2, group="g")],
        {"node-0": {GPU: held("3", by="bob")}},
        "gang needs 2 pods at once: nvidia.com/gpu: needs 4 together, 3 of 4 are free; 3 held by bob",
    ),
}


@pytest.mark.parametrize("name", LEASED)
def test_who_holds_a_device_elsewhere_is_named(name: str) -> None:
    pods, leased, expected = LEASED[name]
    groups = {Key("default", "g"): GroupInfo(2)}
    decisions = place([pod_info(one) for one in pods], [node_info(node(gpu=4))], NodeUsage(), groups, leased)
    assert waiting(decisions) == dict.fromkeys((one["metadata"]["name"] for one in pods), expected)


def test_pods_go_where_other_runs_leave_room() -> None:
    nodes = [node_info(node(gpu=2)), node_info(node("node-1", gpu=2))]
    leased = {"node-0": {GPU: held("0")}}
    decisions = place([pod_info(pod(gpu=2))], nodes, NodeUsage(), {}, leased)
    assert placed(decisions) == {"p": "node-1"}


def test_pods_are_spread_by_the_share_of_any_device() -> None:
    """Node-0 runs two more pods, but node-1 has fewer free devices."""
    nodes = [node(amd=4), node("node-1", amd=4)]
    bound = [(pod("a"), "node-0"), (pod("b"), "node-0"), (pod("c", amd=3), "node-1")]
    assert placed(decide([pod(amd=1)], nodes, bound)) == {"p": "node-0"}
