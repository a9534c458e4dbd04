# SPDX-License-Identifier: Apache-2.0
"""The nodes as `core` wants to see them, through the cache that an informer feeds."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from trainwright.core.nodes import not_ready_since
from trainwright.model.child import Node, NodeSpec, NodeStatus, ObjectCondition
from trainwright.model.meta import Key, Meta
from trainwright.runtime.cache import _MAX_REMOVED_NODES, Cache, NodeIndex
from trainwright.runtime.ports import NODES, ListPage, WatchEvent, WatchEventType
from trainwright.testing.factories import NOW, later


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time


class NodeIndexRig:
    """A cache of nodes, and the index built from it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.nodes = NodeIndex(Cache(NODES), self.clock)
        self.version = 1

    def sync(self) -> None:
        self.nodes.cache.replace(ListPage((), "1"))

    def put(self, name: str, ready: str = "True", since: datetime = NOW, **more: object) -> set[str]:
        self.version += 1
        conditions = (ObjectCondition("Ready", ready, last_transition_time=since),)
        node = Node(Meta(name, resource_version=str(self.version)), status=NodeStatus(conditions))
        return self.tell(WatchEventType.MODIFIED, replace(node, **more))

    def remove(self, name: str) -> set[str]:
        self.version += 1
        return self.tell(WatchEventType.DELETED, Node(Meta(name, resource_version=str(self.version))))

    def tell(self, what: WatchEventType, node: Node) -> set[str]:
        self.nodes.cache.apply(WatchEvent(what, node.metadata.resource_version, node))
        return self.nodes.update({Key("", node.metadata.name)})

    def known(self) -> dict[str, Node]:
        return dict(self.nodes.known or {})


@pytest.fixture
def rig() -> NodeIndexRig:
    rig = NodeIndexRig()
    rig.sync()
    return rig


def test_nobody_is_judged_before_the_nodes_have_been_listed() -> None:
    rig = NodeIndexRig()
    assert rig.nodes.known is None
    rig.sync()
    assert rig.nodes.known == {}


def test_a_heartbeat_is_no_news(rig: NodeIndexRig) -> None:
    assert rig.put("a") == {"a"}
    assert rig.put("a") == set()
    assert rig.put("a", status=NodeStatus((ObjectCondition("Ready", "True", "x", "y", NOW),), {"cpu": "4"})) == set()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ready": "Unknown", "since": later(5)}, id="falls silent"),
        pytest.param({"since": later(5)}, id="was silent for a moment"),
        pytest.param({"spec": NodeSpec(unschedulable=True)}, id="is cordoned"),
    ],
)
def test_what_passes_depend_on_is_news(rig: NodeIndexRig, change: dict[str, object]) -> None:
    rig.put("a")
    assert rig.put("a", **change) == {"a"}  # type: ignore[arg-type]


def test_a_node_that_was_removed_stays_as_silent_since_it_went(rig: NodeIndexRig) -> None:
    rig.put("a")
    rig.clock.time = later(30)
    assert rig.remove("a") == {"a"}
    assert not_ready_since(rig.known()["a"]) == later(30)
    rig.clock.time = later(90)
    assert rig.nodes.update({Key("", "a")}) == set()
    assert not_ready_since(rig.known()["a"]) == later(30)


def test_a_node_that_comes_back_is_as_it_is(rig: NodeIndexRig) -> None:
    rig.put("a")
    rig.remove("a")
    assert rig.put("a", since=later(99)) == {"a"}
    assert not_ready_since(rig.known()["a"]) is None
    rig.clock.time = later(200)
    rig.remove("a")
    assert not_ready_since(rig.known()["a"]) == later(200)


def test_a_node_that_nobody_has_seen_is_not_known(rig: NodeIndexRig) -> None:
    assert rig.nodes.update({Key("", "ghost")}) == set()
    assert rig.known() == {}


def test_of_removed_nodes_only_so_many_are_remembered(rig: NodeIndexRig) -> None:
    for number in range(_MAX_REMOVED_NODES + 3):
        rig.put(f"n{number}")
        rig.clock.time += timedelta(seconds=1)
        rig.remove(f"n{number}")
    assert list(rig.known()) == [f"n{number}" for number in range(3, _MAX_REMOVED_NODES + 3)]


def test_a_node_of_pods_that_is_in_no_list_is_gone_since_it_was_missed(rig: NodeIndexRig) -> None:
    rig.put("a")
    rig.clock.time = later(30)

    rig.nodes.add_missing({"a", "b", ""})

    assert set(rig.known()) == {"a", "b"}
    assert not_ready_since(rig.known()["b"]) == later(30)
    assert not_ready_since(rig.known()["a"]) is None
    rig.clock.time = later(40)
    rig.nodes.add_missing({"b"})
    assert not_ready_since(rig.known()["b"]) == later(30)


def test_a_node_that_was_only_late_is_as_it_is(rig: NodeIndexRig) -> None:
    rig.nodes.add_missing({"a"})

    assert rig.put("a") == {"a"}
    assert not_ready_since(rig.known()["a"]) is None


def test_before_the_nodes_have_been_listed_none_is_missed() -> None:
    rig = NodeIndexRig()

    rig.nodes.add_missing({"a"})

    rig.sync()
    assert rig.known() == {}


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [
        pytest.param({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "7"}, True, id="a GPU less"),
        pytest.param({"nvidia.com/gpu": "8"}, {}, True, id="none any more"),
        pytest.param({"memory": "8Gi"}, {"memory": "7Gi"}, False, id="a little less memory"),
    ],
)
def test_of_what_a_node_has_to_give_only_devices_matter(
    rig: NodeIndexRig, before: dict[str, str], after: dict[str, str], matters: bool
) -> None:
    ready = (ObjectCondition("Ready", "True", last_transition_time=NOW),)
    rig.put("a", status=NodeStatus(ready, before))

    assert bool(rig.put("a", status=NodeStatus(ready, after))) is matters


def test_when_a_node_changes_those_that_are_silent_are_judged_anew(rig: NodeIndexRig) -> None:
    rig.put("a", "Unknown")
    rig.put("b")

    assert rig.put("c", "False") == {"a", "c"}
    assert rig.put("c") == {"a", "c"}
    assert rig.put("c") == set()
