# SPDX-License-Identifier: Apache-2.0
"""JSON patches: the table of cases, what they share with the target, and their limits."""

import json
from copy import deepcopy
from typing import Any

import pytest
from patch_cases import JSON, Body, PatchCase, op

from trainwright.api.jsonpatch import MAX_OPERATIONS, PatchError, apply_json_patch
from trainwright.errors import InvalidError, TooLargeError


@pytest.mark.parametrize("case", JSON, ids=lambda case: case.name)
def test_a_json_patch(case: PatchCase) -> None:
    target, patch = deepcopy(case.target), deepcopy(case.patch)
    if isinstance(case.expected, type):
        with pytest.raises(case.expected):
            apply_json_patch(target, patch)
    else:
        result = apply_json_patch(target, patch)
        assert json.dumps(result, sort_keys=True) == json.dumps(case.expected, sort_keys=True)
        assert (result is target) == (case.expected == case.target)
    assert (target, patch) == (case.target, case.patch)


def test_unchanged_parts_are_shared() -> None:
    target: Body = {"metadata": {"labels": {"a": "1"}}, "spec": {"list": [{"x": 1}, {"y": 2}]}}
    result = apply_json_patch(target, [op("add", "/spec/list/0/z", 3)])
    assert result["metadata"] is target["metadata"]
    assert result["spec"]["list"][1] is target["spec"]["list"][1]
    assert result["spec"]["list"][0] == {"x": 1, "z": 3}


def test_a_copy_and_its_source_change_separately() -> None:
    operations = [
        op("add", "/a", {"x": 1}),
        op("add", "/a/y", 2),
        op("copy", "/b", source="/a"),
        op("add", "/a/z", 3),
        op("remove", "/b/x"),
    ]
    assert apply_json_patch({}, operations) == {"a": {"x": 1, "y": 2, "z": 3}, "b": {"y": 2}}
    assert operations[0]["value"] == {"x": 1}


def test_operations_that_cancel_each_other_change_nothing() -> None:
    target = {"data": {"a": "1"}}
    assert apply_json_patch(target, [op("add", "/data/b", "2"), op("remove", "/data/b")]) is target


def test_values_of_another_type_are_not_equal() -> None:
    for value in (True, 1.0, "1"):
        with pytest.raises(PatchError, match=r"operation 0, test: the value at '/n'"):
            apply_json_patch({"n": 1}, [op("test", "/n", value)])
        assert apply_json_patch({"n": 1}, [op("replace", "/n", value)]) == {"n": value}


def test_the_whole_document_can_be_replaced_by_another_object_only() -> None:
    assert apply_json_patch({"a": 1}, [op("replace", "", {"b": 2}), op("test", "", {"b": 2})]) == {"b": 2}
    others: tuple[Any, ...] = (None, [], "text")
    for value in others:
        with pytest.raises(PatchError, match="not an object"):
            apply_json_patch({"a": 1}, [op("replace", "", value)])


def test_an_error_names_the_operation() -> None:
    with pytest.raises(PatchError, match=r"^operation 1, remove: path '/data/b' does not exist$"):
        apply_json_patch({"data": {"a": "1"}}, [op("test", "/data/a", "1"), op("remove", "/data/b")])


def test_too_many_operations_are_refused() -> None:
    operations = [op("add", "/list/0", 1)] * MAX_OPERATIONS
    assert len(apply_json_patch({"list": []}, operations)["list"]) == MAX_OPERATIONS
    with pytest.raises(TooLargeError, match="10,001"):
        apply_json_patch({"list": []}, [*operations, op("add", "/list/0", 1)])


def test_copies_cannot_make_a_huge_document() -> None:
    with pytest.raises(PatchError, match="3,145,728 bytes"):
        apply_json_patch({"a": ["x" * 100]}, [op("copy", "/a/-", source="/a")] * 30)
    with pytest.raises(PatchError, match="operation 2, copy"):
        apply_json_patch({"a": "x" * 1_500_000}, [op("copy", f"/{name}", source="/a") for name in "bcd"])


def test_moves_cannot_nest_a_document_without_end() -> None:
    deeper = [op("add", "/b", {}), op("move", "/b/c", source="/a"), op("move", "/a", source="/b")]
    assert apply_json_patch({"a": {}}, deeper * 62) != {"a": {}}
    for rounds in (63, MAX_OPERATIONS // 3):
        with pytest.raises(InvalidError, match="more than 64 levels"):
            apply_json_patch({"a": {}}, deeper * rounds)
    with pytest.raises(PatchError, match="too deep"):
        apply_json_patch({"a": {}}, [*deeper * 3_000, op("copy", "/b", source="/a")])
