# SPDX-License-Identifier: Apache-2.0
"""Which nodes a pod may use."""

from typing import Any

import pytest

from trainwright.core.quarantine import HOSTNAME
from trainwright.core.render import REQUIRED, with_node_terms
from trainwright.local.scheduling.affinity import ANYWHERE, NodeTerms, NodeTraits, refusal, terms, traits

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def node(labels: dict[str, str] | None = None, status: Any = READY, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "node-0", "labels": labels}, "spec": spec, "status": status}


def tainted(effect: str, key: str = "gpu", value: str = "yes") -> dict[str, Any]:
    return node(taints=[{"key": key, "value": value, "effect": effect}])


def affine(*expressions: dict[str, Any], field: bool = False) -> dict[str, Any]:
    wanted = [{"matchFields" if field else "matchExpressions": list(expressions)}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
    return {"affinity": {"nodeAffinity": required}}


def tolerating(**one: Any) -> dict[str, Any]:
    return {"tolerations": [one]}


ZONE_A = {"zone": "a", "size": "8"}
TAINT = "tainted gpu=yes:NoSchedule"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no terms": ({}, node(), ""),
    "not ready": ({}, node(status={"conditions": [{"type": "Ready", "status": "Unknown"}]}), "not ready"),
    "never reported": ({}, node(status=None), "not ready"),
    "cordoned": ({}, node(unschedulable=True), "closed to new pods"),
    "selector met": ({"nodeSelector": {"zone": "a"}}, node(ZONE_A), ""),
    "selector not met": ({"nodeSelector": {"zone": "b"}}, node(ZONE_A), "without the label zone=b"),
    "two labels": ({"nodeSelector": {"zone": "a", "arch": "x"}}, node(ZONE_A), "without the labels arch=x, zone=a"),
    "taint": ({}, tainted("NoSchedule"), TAINT),
    "taint without value": ({}, tainted("NoExecute", value=""), "tainted gpu:NoExecute"),
    "taint that only prefers": ({}, tainted("PreferNoSchedule"), ""),
    "tolerated by value": (tolerating(key="gpu", value="yes", effect="NoSchedule"), tainted("NoSchedule"), ""),
    "tolerated for any effect": (tolerating(key="gpu", value="yes"), tainted("NoExecute"), ""),
    "tolerated by existing": (tolerating(key="gpu", operator="Exists"), tainted("NoSchedule"), ""),
    "all tolerated": (tolerating(operator="Exists"), tainted("NoSchedule"), ""),
    "another value": (tolerating(key="gpu", value="no"), tainted("NoSchedule"), TAINT),
    "another effect": (tolerating(key="gpu", operator="Exists", effect="NoExecute"), tainted("NoSchedule"), TAINT),
    "no key and no Exists": (tolerating(value="yes"), tainted("NoSchedule"), TAINT),
    "affinity In": (affine({"key": "zone", "operator": "In", "values": ["a", "b"]}), node(ZONE_A), ""),
    "affinity NotIn": (affine({"key": "zone", "operator": "NotIn", "values": ["b"]}), node(ZONE_A), ""),
    "affinity Exists": (affine({"key": "zone", "operator": "Exists"}), node(ZONE_A), ""),
    "affinity DoesNotExist": (affine({"key": "rack", "operator": "DoesNotExist"}), node(ZONE_A), ""),
    "affinity Gt": (affine({"key": "size", "operator": "Gt", "values": ["7"]}), node(ZONE_A), ""),
    "affinity Lt": (affine({"key": "size", "operator": "Lt", "values": ["9"]}), node(ZONE_A), ""),
    "affinity by name": (
        affine({"key": "metadata.name", "operator": "In", "values": ["node-0"]}, field=True),
        node(),
        "",
    ),
}  # fmt: skip
UNMET: dict[str, dict[str, Any]] = {
    "In": {"key": "zone", "operator": "In", "values": ["b"]},
    "In, no label": {"key": "rack", "operator": "In", "values": ["b"]},
    "NotIn": {"key": "zone", "operator": "NotIn", "values": ["a"]},
    "Exists": {"key": "rack", "operator": "Exists"},
    "DoesNotExist": {"key": "zone", "operator": "DoesNotExist"},
    "Gt": {"key": "size", "operator": "Gt", "values": ["8"]},
    "Gt of no number": {"key": "zone", "operator": "Gt", "values": ["8"]},
    "Lt of nothing": {"key": "size", "operator": "Lt"},
    "unknown": {"key": "zone", "operator": "Like", "values": ["a"]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_takes_a_pod_or_says_why_not(name: str) -> None:
    spec, body, expected = CASES[name]
    assert refusal(terms(spec), traits(body)) == expected


@pytest.mark.parametrize("name", UNMET)
def test_affinity_that_is_not_met(name: str) -> None:
    assert refusal(terms(affine(UNMET[name])), traits(node(ZONE_A))) == "not what nodeAffinity asks for"


def test_a_node_that_goes_takes_no_pods() -> None:
    body = node()
    body["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
    assert refusal(ANYWHERE, traits(body)) == "closed to new pods"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "required podAffinity",
        ),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "required podAntiAffinity",
        ),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, ""),
        (
            {"topologySpreadConstraints": [{"maxSkew": 1}]},
            "a topologySpreadConstraint with whenUnsatisfiable: DoNotSchedule",
        ),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]}, ""),
    ],
)
def test_demands_that_are_not_supported_are_named(spec: dict[str, Any], expected: str) -> None:
    assert terms(spec).unsupported == expected


def test_terms_are_equal_whatever_the_order_of_labels() -> None:
    one = terms({"nodeSelector": {"a": "1", "b": "2"}})
    other = terms({"nodeSelector": {"b": "2", "a": "1"}})
    assert one == other == NodeTerms((("a", "1"), ("b", "2")))
    assert terms({"nodeSelector": {}, "affinity": None}) is ANYWHERE
    assert NodeTraits("x").ready


def test_a_node_that_failed_a_replica_is_avoided_as_the_decision_demands() -> None:
    ours = {"key": HOSTNAME, "operator": "NotIn", "values": ["node-0"]}
    spec = with_node_terms(
        affine({"key": "zone", "operator": "In", "values": ["a"]}),
        {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ours]}]}},
    )

    assert refusal(terms(spec), traits(node({HOSTNAME: "node-0", "zone": "a"}))) == "not what nodeAffinity asks for"
    assert refusal(terms(spec), traits(node({HOSTNAME: "node-1", "zone": "a"}))) == ""
    assert refusal(terms(spec), traits(node({HOSTNAME: "node-1", "zone": "b"}))) == "not what nodeAffinity asks for"
