# SPDX-License-Identifier: Apache-2.0
"""The scheduler's cache: its totals match the pods, in whatever order events arrive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_objects import node, pod

from trainwright.local.scheduling.cache import SchedulerCache, pod_info
from trainwright.model.meta import Key

GROUP = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2, "priority": 3}}
G = Key("default", "g")


def pod_event(version: int, node_name: str = "", phase: str = "Pending", uid: str = "u", **more: Any) -> dict[str, Any]:
    body = pod(more.pop("name", "p"), group=more.pop("group", ""), cpu=more.pop("cpu", 1), spec={"nodeName": node_name})
    body["metadata"] |= {"uid": uid, "resourceVersion": str(version)} | more
    body["status"] = {"phase": phase}
    return body


def used(cache: SchedulerCache) -> dict[str, int]:
    return {name: amounts["cpu"] for name, amounts in cache.usage.used.items() if any(amounts.values())}


def test_a_pod_takes_room_from_when_it_is_bound_until_it_ends() -> None:
    cache = SchedulerCache()
    cache.update_pod(pod_event(1))
    assert ([*cache.pending], used(cache)) == ([Key("default", "p")], {})
    cache.update_pod(pod_event(2, "node-0"))
    assert ([*cache.pending], used(cache)) == ([], {"node-0": 1000})
    cache.update_pod(pod_event(3, "node-0", "Running"))
    assert used(cache) == {"node-0": 1000}
    cache.update_pod(pod_event(4, "node-0", "Failed"))
    assert used(cache) == {}
    cache.remove_pod(pod_event(5, "node-0", "Failed"))
    assert used(cache) == {}


def test_a_pod_that_is_removed_gives_its_room_back() -> None:
    cache = SchedulerCache()
    cache.update_pod(pod_event(1, "node-0"))
    cache.remove_pod(pod_event(2, "node-0"))
    assert used(cache) == {}
    assert cache.cached(Key("default", "p")) is None


def test_a_terminating_pod_keeps_its_room_until_it_is_gone() -> None:
    cache = SchedulerCache()
    cache.update_pod(pod_event(1, "node-0", group="g"))
    assert cache.usage.members == {G: {"p"}}
    cache.update_pod(pod_event(2, "node-0", group="g", deletionTimestamp="2026-11-15T12:00:00Z"))
    assert used(cache) == {"node-0": 1000}
    assert cache.usage.members == {}


def test_older_events_and_events_told_twice_change_nothing() -> None:
    cache = SchedulerCache()
    cache.update_pod(pod_event(3, "node-0"))
    for late in (pod_event(2), pod_event(3, "node-0"), pod_event(1)):
        cache.update_pod(late)
    assert (used(cache), cache.pending) == ({"node-0": 1000}, {})
    cache.remove_pod(pod_event(2, uid="another"))
    assert used(cache) == {"node-0": 1000}


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    cache = SchedulerCache()
    cache.update_pod(pod_event(1, "node-0", cpu=2))
    cache.update_pod(pod_event(5, uid="v"))
    assert used(cache) == {}
    assert [one.uid for one in cache.pending.values()] == ["v"]


def test_a_list_replaces_what_was_known() -> None:
    cache = SchedulerCache()
    cache.replace_pods([pod_event(1, "node-0"), pod_event(2, name="q", uid="q")])
    cache.replace_nodes([node("node-0"), node("node-1")])
    cache.replace_groups([GROUP])
    assert (used(cache), [*cache.pending]) == ({"node-0": 1000}, [Key("default", "q")])
    cache.replace_pods([])
    cache.replace_nodes([node("node-1")])
    cache.replace_groups([])
    assert (used(cache), cache.pending, [*cache.nodes], cache.groups) == ({}, {}, ["node-1"], {})


def test_only_what_matters_is_news() -> None:
    cache = SchedulerCache()
    cache.update_node(node())
    cache.update_pod(pod_event(1, "node-0", "Pending"))
    before = cache.revision
    cache.update_pod(pod_event(2, "node-0", "Running"))
    later = node()
    later["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-15T12:00:00Z"
    cache.update_node(later)
    assert cache.revision == before
    cache.update_pod(pod_event(3, "node-0", "Succeeded"))
    assert cache.revision > before


def test_a_member_that_has_done_its_work_counts_after_it_is_removed() -> None:
    cache = SchedulerCache()
    cache.update_group(GROUP)
    cache.update_pod(pod_event(1, "node-0", group="g"))
    cache.update_pod(pod_event(2, "node-0", "Succeeded", group="g", deletionTimestamp="2026-11-15T12:00:00Z"))
    cache.remove_pod(pod_event(3, "node-0", "Succeeded", group="g"))
    assert cache.usage.members == {G: {"p"}}
    cache.remove_group(GROUP)
    assert cache.usage.members == {}


def test_members_outlive_their_group_while_they_are_there() -> None:
    cache = SchedulerCache()
    cache.update_group(GROUP)
    cache.update_pod(pod_event(1, "node-0", group="g"))
    cache.remove_group(GROUP)
    assert (cache.groups, cache.usage.members) == ({}, {G: {"p"}})
    cache.remove_pod(pod_event(2, "node-0", group="g"))
    assert cache.usage.members == {}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["p", "q"]),
        st.sampled_from(["u", "v"]),
        st.integers(1, 9),
        st.sampled_from(["", "node-0"]),
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        st.booleans(),
    ),
    max_size=30,
)


@given(EVENTS)
def test_totals_are_always_the_sum_of_those_who_hold_room(events: Any) -> None:
    cache = SchedulerCache()
    cache.update_group(GROUP)
    for name, uid, version, node_name, phase, deleted in events:
        body = pod_event(version, node_name, phase, uid, name=name, group="g", cpu=1 if uid == "u" else 2)
        (cache.remove_pod if deleted else cache.update_pod)(body)
        known = [cached for key in ("p", "q") if (cached := cache.cached(Key("default", key))) is not None]
        expected = sum(dict(cached.info.requests)["cpu"] for cached in known if cached.uses_node)
        assert cache.usage.used.get("node-0", {}).get("cpu", 0) == expected
        bodies = {key: cached.body for key in cache.pending if (cached := cache.cached(key)) is not None}
        assert {key: pod_info(body) for key, body in bodies.items()} == cache.pending


@pytest.mark.parametrize(
    "spec", [{"tolerations": "x"}, {"affinity": 7}, {"schedulingGates": 5}, {"containers": [{"resources": "x"}]}]
)
def test_a_pod_whose_spec_cannot_be_read_gets_no_node(spec: dict[str, Any]) -> None:
    cache = SchedulerCache()
    body = pod_event(1)
    cache.update_pod(body | {"spec": spec})
    (found,) = cache.pending.values()
    assert (found.key, found.uid, found.terms.unsupported) == (Key("default", "p"), "u", "a spec that cannot be read")
