# SPDX-License-Identifier: Apache-2.0
"""When a node is lost, and when to look again."""

from datetime import datetime
from typing import Any

import pytest

from trainwright.core.nodes import UNREACHABLE, NodeHealth, not_ready_since, unhealthy_nodes
from trainwright.model.child import NODE_GONE as GONE_REASON
from trainwright.model.child import Node, NodeSpec, NodeStatus, ObjectCondition, Observed, Pod, Taint
from trainwright.model.meta import Meta
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, later, node, pod

GRACE = Site(node_grace=10)
NOT_READY, GONE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def silent(*conditions: ObjectCondition, born: datetime | None = NOW, taints: tuple[Taint, ...] | None = None) -> Node:
    return Node(Meta("node-1", creation_timestamp=born), NodeSpec(taints=taints), NodeStatus(conditions or None))


def unready(seconds: float | None, status: str = "Unknown") -> ObjectCondition:
    return ObjectCondition("Ready", status, last_transition_time=None if seconds is None else later(seconds))


@pytest.mark.parametrize(
    ("one", "known", "expected"),
    [
        pytest.param(pod(), node(since=later(-999)), None, id="ready"),
        pytest.param(pod(node=""), None, None, id="not put anywhere"),
        pytest.param(pod(), silent(unready(-3)), later(-3), id="unknown since"),
        pytest.param(pod(), silent(unready(-3, "False")), later(-3), id="not ready since"),
        pytest.param(
            pod(),
            silent(ObjectCondition("MemoryPressure", "True"), unready(-3)),
            later(-3),
            id="another condition before it",
        ),
        pytest.param(
            pod(),
            silent(unready(-3), ObjectCondition("NetworkUnavailable", "True")),
            later(-3),
            id="another condition after it",
        ),
        pytest.param(
            pod(),
            silent(ObjectCondition("Ready", "True"), ObjectCondition("NetworkUnavailable", "False")),
            None,
            id="ready, and another condition after it",
        ),
        pytest.param(
            pod(),
            silent(ObjectCondition("DiskPressure", "False", last_transition_time=later(-99)), unready(-3)),
            later(-3),
            id="only readiness counts",
        ),
        pytest.param(
            pod(), silent(unready(-3), taints=(Taint(GONE, "NoExecute", later(-5)),)), later(-5), id="tainted before"
        ),
        pytest.param(
            pod(), silent(unready(-9), taints=(Taint(NOT_READY, "", later(-5)),)), later(-9), id="tainted after"
        ),
        pytest.param(
            pod(), silent(unready(-3), taints=(Taint("other", "NoExecute", later(-99)),)), later(-3), id="another taint"
        ),
        pytest.param(pod(), silent(unready(-3), taints=(Taint(GONE),)), later(-3), id="a taint without a time"),
        pytest.param(pod(), silent(unready(None), born=later(-7)), later(-7), id="nobody knows since when: its birth"),
        pytest.param(pod(), silent(born=later(-7)), later(-7), id="no word of readiness: its birth"),
        pytest.param(pod(), silent(born=None), None, id="nothing is known of it"),
        pytest.param(
            pod(),
            Node(
                Meta("node-1"),
                NodeSpec(taints=(Taint(GONE, "", later(-99)),)),
                NodeStatus((ObjectCondition("Ready", "True"),)),
            ),
            None,
            id="ready, with a taint that lags behind",
        ),
        pytest.param(pod(born=later(-8), started=later(-6)), None, None, id="nobody knows it, so it is not judged"),
    ],
)
def test_a_node_is_lost_once_it_has_been_silent_for_the_grace(one: Pod, known: Node | None, expected: Any) -> None:
    nodes = {"other": node("other")} if known is None else {"node-1": known, "other": node("other")}
    health = unhealthy_nodes(job(), Observed((one,), nodes=nodes), GRACE, NOW).get("node-1")

    if expected is None:
        assert health is None or not health.is_lost(later(1e9))
    else:
        due = later(10, expected)
        assert known is not None
        assert not_ready_since(known) == expected
        assert health == NodeHealth(silent=True, lost_at=due)
        assert not health.is_lost(later(-0.001, due))
        assert health.is_lost(due)


def test_another_node_says_nothing_of_this_one() -> None:
    nodes = {"node-1": node(), "node-2": node("node-2", ready=False)}

    assert unhealthy_nodes(job(), Observed((pod(),), nodes=nodes), GRACE, later(99)) == {}


def cluster(silent: int, of: int, since: datetime = NOW) -> dict[str, Node]:
    """So many nodes, of which the first ones have fallen silent."""
    return {f"node-{i}": node(f"node-{i}", ready=i > silent, since=since) for i in range(1, of + 1)}


@pytest.mark.parametrize(
    ("silent", "of", "seconds"),
    [
        pytest.param(1, 1, None, id="the only node"),
        pytest.param(3, 3, None, id="all of a few"),
        pytest.param(9, 9, None, id="all of many"),
        pytest.param(2, 3, 10, id="most of a few, which says little"),
        pytest.param(3, 4, 50, id="most of four"),
        pytest.param(11, 20, 10, id="just not most of them"),
        pytest.param(12, 20, 50, id="most of them"),
        pytest.param(19, 20, 50, id="nearly all"),
        pytest.param(1, 20, 10, id="one"),
    ],
)
def test_the_more_nodes_fall_silent_the_longer_they_are_waited_for(silent: int, of: int, seconds: float | None) -> None:
    found = unhealthy_nodes(job(), Observed((pod(),), nodes=cluster(silent, of)), GRACE, NOW)

    assert found == {"node-1": NodeHealth(silent=True, lost_at=None if seconds is None else later(seconds))}


def gone(name: str) -> Node:
    return Node(
        Meta(name), status=NodeStatus((ObjectCondition("Ready", "False", GONE_REASON, last_transition_time=NOW),))
    )


def test_a_node_that_was_removed_is_gone_whatever_the_others_do() -> None:
    nodes = cluster(4, 5) | {"node-1": gone("node-1")}

    found = unhealthy_nodes(job(), Observed((pod(), pod(1, node="node-2")), nodes=nodes), GRACE, NOW)

    assert found["node-1"].lost_at == later(10)
    assert found["node-2"].lost_at == later(50)


def test_nodes_that_were_removed_do_not_speak_for_those_that_are_there() -> None:
    nodes = cluster(1, 4) | {f"old-{i}": gone(f"old-{i}") for i in range(9)}

    assert unhealthy_nodes(job(), Observed((pod(),), nodes=nodes), GRACE, NOW)["node-1"].lost_at == later(10)


def test_where_all_that_is_left_was_removed_nothing_is_judged() -> None:
    assert (
        unhealthy_nodes(job(), Observed((pod(),), nodes={"node-1": gone("node-1")}), GRACE, NOW)["node-1"].lost_at
        is None
    )


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(None, set(), id="where nodes are not known"),
        pytest.param({"node-1": node(), "node-2": node("node-2")}, set(), id="all answer"),
        pytest.param({"node-1": node(ready=False), "node-2": node("node-2")}, {"node-1"}, id="one does not"),
        pytest.param({"node-1": node()}, set(), id="one that nobody knows"),
        pytest.param({}, set(), id="none that anybody knows"),
        pytest.param({"node-2": node("node-2", ready=False)}, {"node-2"}, id="one does not, one nobody knows"),
        pytest.param(
            {"node-1": node(ready=False), "node-2": node("node-2", ready=False)}, {"node-1", "node-2"}, id="none does"
        ),
        pytest.param(
            {"node-1": node(), "node-2": node("node-2"), "node-3": node("node-3", ready=False)},
            set(),
            id="one of nobody's",
        ),
    ],
)
def test_the_nodes_of_a_job_that_do_not_answer(nodes: dict[str, Node] | None, expected: set[str]) -> None:
    pods = (pod(0), pod(1, node="node-2"), pod(2, node=""))
    found = unhealthy_nodes(job(), Observed(pods=pods, nodes=nodes), Site(), NOW)

    assert expected == set(found)
    assert all(health.silent for health in found.values())


def test_a_node_that_answers_has_not_fallen_silent() -> None:
    assert not_ready_since(node(since=later(-9))) is None


def test_the_taints_that_tell_of_a_silent_node() -> None:
    assert {NOT_READY, GONE} == UNREACHABLE
