# SPDX-License-Identifier: Apache-2.0
"""The scheduler's picture: totals follow the pods, whatever order events come in."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from places import node, pod

from trainwright.local.scheduling.cache import SchedulerCache, claim
from trainwright.model.meta import Key

GROUP = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2, "priority": 3}}
G = Key("default", "g")


def seen(version: int, where: str = "", phase: str = "Pending", uid: str = "u", **more: Any) -> dict[str, Any]:
    body = pod(more.pop("name", "p"), group=more.pop("group", ""), cpu=more.pop("cpu", 1), spec={"nodeName": where})
    body["metadata"] |= {"uid": uid, "resourceVersion": str(version)} | more
    body["status"] = {"phase": phase}
    return body


def used(board: SchedulerCache) -> dict[str, int]:
    return {name: amounts["cpu"] for name, amounts in board.tally.used.items() if any(amounts.values())}


def test_a_pod_takes_room_from_when_it_is_bound_until_it_ends() -> None:
    board = SchedulerCache()
    board.pod(seen(1))
    assert ([*board.pending], used(board)) == ([Key("default", "p")], {})
    board.pod(seen(2, "node-0"))
    assert ([*board.pending], used(board)) == ([], {"node-0": 1000})
    board.pod(seen(3, "node-0", "Running"))
    assert used(board) == {"node-0": 1000}
    board.pod(seen(4, "node-0", "Failed"))
    assert used(board) == {}
    board.pod_gone(seen(5, "node-0", "Failed"))
    assert used(board) == {}


def test_a_pod_that_is_removed_gives_its_room_back() -> None:
    board = SchedulerCache()
    board.pod(seen(1, "node-0"))
    board.pod_gone(seen(2, "node-0"))
    assert used(board) == {}
    assert board.seat(Key("default", "p")) is None


def test_a_terminating_pod_keeps_its_room_until_it_is_gone() -> None:
    board = SchedulerCache()
    board.pod(seen(1, "node-0", group="g"))
    assert board.tally.members == {G: {"p"}}
    board.pod(seen(2, "node-0", group="g", deletionTimestamp="2026-11-15T12:00:00Z"))
    assert used(board) == {"node-0": 1000}
    assert board.tally.members == {}


def test_older_events_and_events_told_twice_change_nothing() -> None:
    board = SchedulerCache()
    board.pod(seen(3, "node-0"))
    for late in (seen(2), seen(3, "node-0"), seen(1)):
        board.pod(late)
    assert (used(board), board.pending) == ({"node-0": 1000}, {})
    board.pod_gone(seen(2, uid="another"))
    assert used(board) == {"node-0": 1000}


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    board = SchedulerCache()
    board.pod(seen(1, "node-0", cpu=2))
    board.pod(seen(5, uid="v"))
    assert used(board) == {}
    assert [one.uid for one in board.pending.values()] == ["v"]


def test_a_list_replaces_what_was_known() -> None:
    board = SchedulerCache()
    board.pods_listed([seen(1, "node-0"), seen(2, name="q", uid="q")])
    board.nodes_listed([node("node-0"), node("node-1")])
    board.groups_listed([GROUP])
    assert (used(board), [*board.pending]) == ({"node-0": 1000}, [Key("default", "q")])
    board.pods_listed([])
    board.nodes_listed([node("node-1")])
    board.groups_listed([])
    assert (used(board), board.pending, [*board.offers], board.groups) == ({}, {}, ["node-1"], {})


def test_only_what_matters_is_news() -> None:
    board = SchedulerCache()
    board.node(node())
    board.pod(seen(1, "node-0", "Pending"))
    before = board.news
    board.pod(seen(2, "node-0", "Running"))
    later = node()
    later["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-11-15T12:00:00Z"
    board.node(later)
    assert board.news == before
    board.pod(seen(3, "node-0", "Succeeded"))
    assert board.news > before


def test_a_member_that_has_done_its_work_counts_after_it_is_removed() -> None:
    board = SchedulerCache()
    board.group(GROUP)
    board.pod(seen(1, "node-0", group="g"))
    board.pod(seen(2, "node-0", "Succeeded", group="g", deletionTimestamp="2026-11-15T12:00:00Z"))
    board.pod_gone(seen(3, "node-0", "Succeeded", group="g"))
    assert board.tally.members == {G: {"p"}}
    board.group_gone(GROUP)
    assert board.tally.members == {}


def test_members_outlive_their_group_while_they_are_there() -> None:
    board = SchedulerCache()
    board.group(GROUP)
    board.pod(seen(1, "node-0", group="g"))
    board.group_gone(GROUP)
    assert (board.groups, board.tally.members) == ({}, {G: {"p"}})
    board.pod_gone(seen(2, "node-0", group="g"))
    assert board.tally.members == {}


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
    board = SchedulerCache()
    board.group(GROUP)
    for name, uid, version, where, phase, gone in events:
        body = seen(version, where, phase, uid, name=name, group="g", cpu=1 if uid == "u" else 2)
        (board.pod_gone if gone else board.pod)(body)
        seats = [seat for key in ("p", "q") if (seat := board.seat(Key("default", key))) is not None]
        expected = sum(dict(seat.claim.asks)["cpu"] for seat in seats if seat.holds)
        assert board.tally.used.get("node-0", {}).get("cpu", 0) == expected
        assert {key: claim(board.seat(key).body) for key in board.pending} == board.pending  # type: ignore[union-attr]
