# SPDX-License-Identifier: Apache-2.0
"""Strategic merge patches: the table of cases, what they share with the target, and their limits."""

import json
from copy import deepcopy
from typing import Any

import pytest
from patch_cases import STRATEGIC, Body, PatchCase, containers, env, final, spec

from trainwright.api.strategic import KINDS, strategic_merge
from trainwright.errors import InvalidError


@pytest.mark.parametrize("case", STRATEGIC, ids=lambda case: case.name)
def test_a_strategic_merge_patch(case: PatchCase) -> None:
    target, patch = deepcopy(case.target), deepcopy(case.patch)
    if isinstance(case.expected, type):
        with pytest.raises(case.expected):
            strategic_merge(case.kind, target, patch)
    else:
        result = strategic_merge(case.kind, target, patch)
        assert json.dumps(result, sort_keys=True) == json.dumps(case.expected, sort_keys=True)
        assert (result is target) == (case.expected == case.target)
    assert (target, patch) == (case.target, case.patch)
    assert case.kind in KINDS


def test_unchanged_parts_are_shared() -> None:
    target = {**final("a"), **containers({"name": "a", "env": env(one="1")}, {"name": "b", "env": env(two="2")})}
    containers_of_patch = [{"name": "a", "image": "y", "env": env(one="1")}, {"name": "b", "image": "x"}]
    result = strategic_merge("Pod", target, {**final("a"), **spec(containers=containers_of_patch)})
    changed, unchanged = result["spec"]["containers"]
    assert result["metadata"] is target["metadata"]
    assert unchanged is target["spec"]["containers"][1]
    assert changed["env"] is target["spec"]["containers"][0]["env"]
    assert changed["image"] == "y"


def test_the_whole_object_can_be_replaced() -> None:
    target = {"metadata": {"name": "a"}, "data": {"a": "1"}}
    assert strategic_merge("ConfigMap", target, {"$patch": "replace", "data": {}}) == {"data": {}}
    assert strategic_merge("ConfigMap", target, {"$patch": "replace", **deepcopy(target)}) is target


def test_the_result_does_not_share_lists_that_it_arranged() -> None:
    target, patch = spec(containers=[]), containers({"name": "a"})
    result = strategic_merge("Pod", target, patch)
    assert result == patch
    assert target == spec(containers=[])


def test_items_with_equal_keys_stay() -> None:
    """A port number may be used twice, with TCP and UDP; the first is changed, as in an API server."""
    dns: list[Body] = [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    result = strategic_merge("Service", spec(ports=dns), spec(ports=[{"port": 53, "name": "dns"}]))
    assert result == spec(ports=[{**dns[0], "name": "dns"}, dns[1]])


@pytest.mark.parametrize("value", [{"a": 1}, [1]])
def test_a_merge_key_must_be_a_plain_value(value: Any) -> None:
    with pytest.raises(InvalidError, match="cannot identify an item"):
        strategic_merge("Pod", containers({"name": "a"}), spec(containers=[{"name": value}]))


def test_numbers_and_truth_values_are_different_keys() -> None:
    result = strategic_merge("Service", spec(ports=[{"port": 1}]), spec(ports=[{"port": True}]))
    assert len(result["spec"]["ports"]) == 2


def test_a_patch_that_is_nested_too_deep_is_refused() -> None:
    deep: Body = {}
    for _ in range(5_000):
        deep = {"a": deep}
    with pytest.raises(InvalidError, match="64 levels"):
        strategic_merge("ConfigMap", {}, deep)


def test_long_lists_are_merged_in_linear_time() -> None:
    """A quadratic merge of these lists would compare 400 million items."""
    many = [{"name": f"v{number}", "value": "x"} for number in range(20_000)]
    result = strategic_merge(
        "Pod", containers({"name": "a", "env": many}), spec(containers=[{"name": "a", "env": many[::-1]}])
    )
    assert result["spec"]["containers"][0]["env"] == many[::-1]
