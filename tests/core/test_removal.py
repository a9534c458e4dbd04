# SPDX-License-Identifier: Apache-2.0
"""Which delete a child needs now, if any."""

from datetime import datetime
from typing import Any

import pytest
from passes import group, view

from trainwright.core import removal
from trainwright.model.child import Node, Pod
from trainwright.model.plan import Delete
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, job, later, node, pod, service

SITE = Site(node_grace=10, linger=5)
SILENT = {"node-1": node(ready=False)}
FINE = {"node-1": node()}


def plain(*, force: bool = False) -> Delete:
    return Delete("Pod", "job-worker-0", "job-worker-0-0", "why", force=force)


LINGERED = Delete("Pod", "job-worker-0", "job-worker-0-0", "why; its node is lost and it has lingered", force=True)


@pytest.mark.parametrize(
    ("one", "nodes", "seconds", "expected"),
    [
        pytest.param(pod(), FINE, 0, plain(), id="once"),
        pytest.param(pod(), None, 99, plain(), id="where nodes are not known"),
        pytest.param(pod(), SILENT, 9.9, plain(), id="its node is in doubt"),
        pytest.param(pod(), SILENT, 10, plain(force=True), id="its node is lost"),
        pytest.param(pod(deleting=later(99)), FINE, 999, None, id="it is going"),
        pytest.param(pod(deleting=later(-99)), None, 999, None, id="it is going, where nodes are not known"),
        pytest.param(pod(deleting=later(-99)), SILENT, 9.9, None, id="it is going, its node is in doubt"),
        pytest.param(pod(deleting=later(20)), SILENT, 24.9, None, id="it is going, its node is lost, it may linger"),
        pytest.param(pod(deleting=later(20)), SILENT, 25, LINGERED, id="it has lingered"),
    ],
)
def test_a_pod_is_deleted_once_and_by_force_where_its_node_is_lost(
    one: Pod, nodes: dict[str, Node] | None, seconds: float, expected: Delete | None
) -> None:
    seen = view(job(), one, nodes=nodes, now=later(seconds), site=SITE)

    assert [expected] * (expected is not None) == removal.pod_deletes(seen, [(one, "why")])


def test_services_and_extras_go_at_once() -> None:
    assert Delete("Service", "a", "service-a", "why") == removal.service_delete(service("a"), "why")
    assert Delete("PodGroup", "job", "uid-job", "why", api="gang/v1") == removal.extra_delete(group(), "why")


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        pytest.param(pod(), False, id="pod"),
        pytest.param(pod(deleting=NOW), True, id="pod that goes"),
        pytest.param(service("a"), False, id="service"),
        pytest.param(group(), False, id="extra"),
        pytest.param(group(deletion_timestamp=NOW), True, id="extra that goes"),
    ],
)
def test_what_is_going(child: Any, expected: bool) -> None:
    assert expected is removal.is_terminating(child)


ON_2 = pod(1, node="node-2")


@pytest.mark.parametrize(
    ("pods", "nodes", "seconds", "expected"),
    [
        pytest.param((pod(),), None, 0, None, id="where nodes are not known"),
        pytest.param((pod(),), FINE, 0, None, id="its node is fine"),
        pytest.param((), SILENT, 0, None, id="no pods"),
        pytest.param((pod(),), SILENT, 0, later(10), id="its node is in doubt"),
        pytest.param((pod(),), SILENT, 9.9, later(10), id="until it is lost"),
        pytest.param((pod(),), SILENT, 10, None, id="it is lost"),
        pytest.param((pod(deleting=later(2)),), SILENT, 0, later(10), id="it is going: until its node is lost"),
        pytest.param((pod(deleting=later(20)),), SILENT, 0, later(25), id="it is going: until it has lingered"),
        pytest.param((pod(deleting=later(20)),), SILENT, 24.9, later(25), id="it is going: still until then"),
        pytest.param((pod(deleting=later(20)),), SILENT, 25, None, id="it has lingered"),
        pytest.param(
            (pod(), ON_2), SILENT | {"node-2": node("node-2", ready=False, since=later(-4))}, 0, later(6), id="next"
        ),
        pytest.param(
            (pod(), ON_2), SILENT | {"node-2": node("node-2", ready=False, since=later(-4))}, 6, later(10), id="then"
        ),
        pytest.param((pod(node=""), pod(1)), SILENT, 0, later(10), id="one is not put anywhere"),
    ],
)
def test_when_to_look_again(
    pods: tuple[Pod, ...], nodes: dict[str, Node] | None, seconds: float, expected: datetime | None
) -> None:
    seen = view(job(), *pods, nodes=nodes, now=later(seconds), site=SITE)

    assert expected == removal.next_check_at(seen, pods)
