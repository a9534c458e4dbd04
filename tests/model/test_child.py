# SPDX-License-Identifier: Apache-2.0
"""The slices we read: every field by its wire name, and null wherever a Go server may write it."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from trainwright.model.child import (
    ConfigMap,
    ContainerState,
    ContainerStatus,
    Event,
    Extra,
    GroupStatus,
    Lease,
    LeaseSpec,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectCondition,
    Observed,
    Pod,
    PodSpec,
    PodStatus,
    Running,
    Service,
    Taint,
    Terminated,
    Waiting,
)
from trainwright.model.meta import Meta, ObjectMeta, Owner

T = "2026-11-15T12:00:00Z"
AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
NO_META = {
    "labels": None,
    "ownerReferences": None,
    "creationTimestamp": None,
    "deletionTimestamp": None,
    "deletionGracePeriodSeconds": None,
}


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        pytest.param({"metadata": NO_META, "status": {"conditions": None}}, Pod(Meta()), id="pod conditions"),
        pytest.param(
            {"metadata": NO_META, "status": {"initContainerStatuses": None, "containerStatuses": None}},
            Pod(Meta()),
            id="pod containers",
        ),
        pytest.param({"metadata": {}, "status": {"startTime": None}}, Pod(Meta()), id="pod start time"),
        pytest.param(
            {"metadata": {}, "status": {"containerStatuses": [{"name": "a", "state": None}]}},
            Pod(Meta(), status=PodStatus(container_statuses=(ContainerStatus("a"),))),
            id="container state",
        ),
        pytest.param(
            {
                "metadata": {},
                "status": {
                    "containerStatuses": [
                        {"state": {"waiting": None, "running": {"startedAt": None}, "terminated": None}}
                    ]
                },
            },
            Pod(
                Meta(), status=PodStatus(container_statuses=(ContainerStatus(state=ContainerState(running=Running())),))
            ),
            id="two states of three",
        ),
        pytest.param(
            {"metadata": {}, "status": {"containerStatuses": [{"state": {"terminated": {"finishedAt": None}}}]}},
            Pod(
                Meta(),
                status=PodStatus(container_statuses=(ContainerStatus(state=ContainerState(terminated=Terminated())),)),
            ),
            id="when a container ended",
        ),
        pytest.param(
            {"metadata": NO_META, "spec": {"taints": None}, "status": {"conditions": None, "allocatable": None}},
            Node(Meta()),
            id="node",
        ),
        pytest.param(
            {"metadata": {}, "spec": {"taints": [{"timeAdded": None}]}},
            Node(Meta(), NodeSpec(taints=(Taint(),))),
            id="taint time",
        ),
        pytest.param(
            {"metadata": {}, "status": {"conditions": [{"type": "Ready", "lastTransitionTime": None}]}},
            Node(Meta(), status=NodeStatus((ObjectCondition("Ready"),))),
            id="condition time",
        ),
        pytest.param({"metadata": NO_META}, Service(Meta()), id="service"),
        pytest.param(
            {"metadata": NO_META | {"annotations": None, "finalizers": None}, "data": None},
            ConfigMap(ObjectMeta()),
            id="config map",
        ),
        pytest.param(
            {"kind": "PodGroup", "metadata": NO_META | {"annotations": None, "finalizers": None}, "status": None},
            Extra("PodGroup", ObjectMeta()),
            id="extra",
        ),
        pytest.param(
            {"metadata": NO_META, "count": None, "firstTimestamp": None, "lastTimestamp": None},
            Event(Meta()),
            id="event",
        ),
        pytest.param(
            {
                "metadata": NO_META,
                "spec": {
                    "holderIdentity": None,
                    "leaseDurationSeconds": None,
                    "acquireTime": None,
                    "renewTime": None,
                    "leaseTransitions": None,
                },
            },
            Lease(Meta()),
            id="lease",
        ),
    ],
)
def test_null_reads_as_absent(wire: dict[str, Any], expected: msgspec.Struct) -> None:
    assert expected == msgspec.json.decode(msgspec.json.encode(wire), type=type(expected))


def test_a_pod_is_read_by_its_wire_names() -> None:
    wire = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "job-worker-0",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "12",
            "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "job", "uid": "j", "controller": True}],
            "creationTimestamp": T,
            "deletionTimestamp": T,
            "deletionGracePeriodSeconds": 30,
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "m",
            "podIP": "10.0.0.1",
            "startTime": T,
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "r", "message": "m", "lastTransitionTime": T},
            ],
            "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "r", "message": "m"}}}],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": T}}},
                {
                    "name": "side",
                    "state": {
                        "terminated": {"exitCode": 137, "signal": 9, "reason": "r", "message": "m", "finishedAt": T}
                    },
                },
            ],
        },
    }

    assert Pod(
        Meta(
            "job-worker-0",
            "default",
            "u",
            "12",
            {"a": "b"},
            (Owner("v1", "Job", "job", "j", controller=True),),
            AT,
            AT,
            30,
        ),
        PodSpec("node-1"),
        PodStatus(
            "Failed",
            "Evicted",
            "m",
            "10.0.0.1",
            AT,
            (ObjectCondition("Ready", "False", "r", "m", AT),),
            (ContainerStatus("i", state=ContainerState(waiting=Waiting("r", "m"))),),
            (
                ContainerStatus("main", ready=True, restart_count=2, state=ContainerState(running=Running(AT))),
                ContainerStatus("side", state=ContainerState(terminated=Terminated(137, 9, "r", "m", AT))),
            ),
        ),
    ) == msgspec.json.decode(msgspec.json.encode(wire), type=Pod)


@pytest.mark.parametrize(
    ("waiting", "missing"),
    [
        ({"reason": "CreateContainerConfigError", "message": 'configmap "a.b-c" not found'}, {"a.b-c"}),
        ({"reason": "CreateContainerConfigError", "message": "couldn't find key K in ConfigMap lab/demo"}, {"demo"}),
        ({"reason": "CreateContainerConfigError", "message": 'secret "a" not found', "missing": ["a"]}, set()),
        ({"reason": "ImagePullBackOff", "message": 'configmap "a" not found', "missing": ["a"]}, set()),
        ({}, set()),
    ],
)
def test_which_config_map_is_missing_is_found_when_a_status_is_read(waiting: Any, missing: set[str]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(waiting), type=Waiting).missing == missing
    assert msgspec.convert(waiting, Waiting).missing == missing


def test_a_pod_without_a_status_is_pending_and_nowhere() -> None:
    pod = msgspec.json.decode(b'{"metadata":{"name":"a"}}', type=Pod)

    assert (pod.status.phase, pod.spec.node_name) == ("Pending", "")


def test_a_node_is_read_by_its_wire_names() -> None:
    wire = {
        "metadata": {"name": "node-1"},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": T}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}},
    }

    assert Node(
        Meta("node-1"),
        NodeSpec(unschedulable=True, taints=(Taint("k", "NoExecute", AT),)),
        NodeStatus((ObjectCondition("Ready", "True"),), {"cpu": "4"}),
    ) == msgspec.convert(wire, Node)


def test_an_extra_is_read_with_its_annotations_and_its_phase() -> None:
    wire = {"kind": "PodGroup", "metadata": {"name": "g", "annotations": {"a": "b"}}, "status": {"phase": "Running"}}

    assert Extra("PodGroup", ObjectMeta("g", annotations={"a": "b"}), GroupStatus("Running")) == msgspec.convert(
        wire, Extra
    )


def test_an_event_and_a_lease_are_read_by_their_wire_names() -> None:
    event = {
        "metadata": {"name": "e"},
        "type": "Warning",
        "reason": "Failed",
        "message": "m",
        "count": 2,
    }
    lease = {
        "metadata": {"name": "l"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": T,
            "renewTime": T,
            "leaseTransitions": 1,
        },
    }

    assert Event(Meta("e"), "Warning", "Failed", "m", 2) == msgspec.convert(event, Event)
    assert Lease(Meta("l"), LeaseSpec("me", 15, AT, AT, 1)) == msgspec.convert(lease, Lease)


def test_a_config_map_is_read_with_its_data() -> None:
    wire = {"metadata": {"name": "c"}, "data": {"k": "v"}}

    assert ConfigMap(ObjectMeta("c"), {"k": "v"}) == msgspec.convert(wire, ConfigMap)


def test_nothing_is_known_of_nodes_unless_it_is_said() -> None:
    assert Observed((), (), (), None, ()) == Observed()
