# SPDX-License-Identifier: Apache-2.0
"""The requests of a pod, and amounts as text."""

from typing import Any

import pytest

from trainwright.node.requests import asks, needed, present, thousandths, total

GI = 1024**3 * 1000


def container(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any) -> Any:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}, **more}


SPECS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "nothing": ({"containers": [{"name": "c"}]}, {}),
    "nulls": ({"containers": [{"name": "c", "resources": None}], "initContainers": None}, {}),
    "sum of containers": (
        {"containers": [container({"cpu": "500m"}), container({"cpu": 1, "memory": "1Gi"})]},
        {"cpu": 1500, "memory": GI},
    ),
    "limits stand in, each for itself": (
        {"containers": [container({"cpu": "1"}, {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": 2})]},
        {"cpu": 1000, "memory": 2 * GI, "nvidia.com/gpu": 2000},
    ),
    "the largest init container, not their sum": (
        {"initContainers": [container({"cpu": 3}), container({"cpu": 2})], "containers": [container({"cpu": 1})]},
        {"cpu": 3000},
    ),
    "each resource by itself": (
        {"initContainers": [container({"memory": "4Gi", "cpu": 1})], "containers": [container({"cpu": 2})]},
        {"cpu": 2000, "memory": 4 * GI},
    ),
    "a sidecar runs along with all that follow": (
        {
            "initContainers": [container({"cpu": 1}, restartPolicy="Always"), container({"cpu": 3})],
            "containers": [container({"cpu": 2})],
        },
        {"cpu": 4000},
    ),
    "overhead comes on top": (
        {"containers": [container({"cpu": 1})], "overhead": {"cpu": "250m", "memory": "1Gi"}},
        {"cpu": 1250, "memory": GI},
    ),
    "what is asked for the pod has precedence": (
        {"containers": [container({"cpu": 1, "memory": "1Gi"})], "resources": {"requests": {"cpu": 5}}},
        {"cpu": 5000, "memory": GI},
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_what_a_pod_asks_for(name: str) -> None:
    spec, expected = SPECS[name]
    assert asks(spec) == expected | {"pods": 1000}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1", 1000),
        (2, 2000),
        ("1500m", 1500),
        ("1u", 1),
        (0.5, 500),
        ("1Ki", 1024000),
        ("-1", 0),
        ("lots", 0),
        (True, 0),
    ],
)
def test_quantities_become_thousandths_rounded_up(given: object, expected: int) -> None:
    assert thousandths(given) == expected


@pytest.mark.parametrize(
    ("name", "amount", "up", "down"),
    [
        ("cpu", 1000, "1", "1"),
        ("cpu", 1500, "1.5", "1.5"),
        ("cpu", 10_000, "10", "10"),
        ("memory", 0, "0", "0"),
        ("memory", 16 * GI, "16Gi", "16Gi"),
        ("memory", 16 * GI + 1000, "16.01Gi", "16Gi"),
        ("memory", 700 * 1000, "700", "700"),
        ("memory", 512 * 1024 * 1024 * 1000, "512Mi", "512Mi"),
        ("nvidia.com/gpu", 8000, "8", "8"),
    ],
)
def test_amounts_in_words_never_hide_a_difference(name: str, amount: int, up: str, down: str) -> None:
    assert (needed(name, amount), present(name, amount)) == (up, down)


def test_amounts_add_up() -> None:
    assert total([{"cpu": 1}, {"cpu": 2, "memory": 3}, {}]) == {"cpu": 3, "memory": 3}
