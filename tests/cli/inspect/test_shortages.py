# SPDX-License-Identifier: Apache-2.0
"""What is missing on which node of a cluster: amounts and places, as the embedded scheduler words them."""

import pytest

from trainwright.cli.inspect.shortages import find_shortages
from trainwright.model.job import Body


def node(name: str, cpu: str = "4", **spec: object) -> Body:
    ready = [{"type": "Ready", "status": "True"}]
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": ready, "allocatable": allocatable}}


def pod(name: str, cpu: str = "", on: str = "", **spec: object) -> Body:
    requests = {"requests": {"cpu": cpu}} if cpu else {}
    body = {"containers": [{"name": "main", "resources": requests}], **spec} | ({"nodeName": on} if on else {})
    return {"metadata": {"name": name, "namespace": "lab"}, "spec": body}


@pytest.mark.parametrize(
    ("waiting", "used", "expected"),
    [
        (pod("a", "9"), [], "nearest is east: cpu: needs 9, this node has 4"),
        (pod("a", "9"), None, "nearest is east: cpu: needs 9, this node has 4"),
        (
            pod("a", "3"),
            [pod("b", "2", on="east"), pod("c", "2", on="west")],
            "2 too little cpu; nearest is east: cpu: needs 3, 2 of 4 are free",
        ),
    ],
    ids=["too large", "too large, use unknown", "in use"],
)
def test_the_amount_and_the_place_are_named(waiting: Body, used: list[Body] | None, expected: str) -> None:
    assert find_shortages([waiting], [node("east"), node("west", "2")], used) == {"a": expected}


@pytest.mark.parametrize(
    ("waiting", "used"),
    [
        (pod("a", "3"), None),
        (pod("a", nodeSelector={"gpu": "yes"}), []),
        (pod("a", "1", topologySpreadConstraints=[{"maxSkew": 1}]), []),
    ],
    ids=["use unknown", "no such label", "spread"],
)
def test_nothing_is_said_where_amounts_are_not_known_to_be_the_reason(waiting: Body, used: list[Body] | None) -> None:
    assert find_shortages([waiting], [node("east"), node("west")], used) == {}
