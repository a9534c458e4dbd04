# SPDX-License-Identifier: Apache-2.0
"""Merge patches: they follow RFC 7386 and copy only the changed parts."""

from copy import deepcopy
from json import dumps
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.local.storage.metadata import merge, same

SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.floats(0, 2) | st.sampled_from(["", "x"])
KEYS = st.sampled_from("abc")
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner), max_leaves=8)
BODIES = st.dictionaries(KEYS, VALUES)


def reference(target: Any, patch: Any) -> Any:
    """The pseudo-code of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = reference(result.get(name), value)
    return result


def text(value: Any) -> str:
    """The value as JSON, where true is not 1."""
    return dumps(value, sort_keys=True)


@given(BODIES, BODIES)
def test_a_merge_is_what_the_rfc_says_and_edits_neither(target: dict[str, Any], patch: dict[str, Any]) -> None:
    old, asked = deepcopy(target), deepcopy(patch)
    assert text(merge(target, patch)) == text(reference(target, patch))
    assert (text(target), text(patch)) == (text(old), text(asked))


@given(BODIES, BODIES)
def test_a_merge_that_changes_nothing_is_the_very_object(target: dict[str, Any], patch: dict[str, Any]) -> None:
    merged = merge(target, patch)
    assert (merged is target) == (text(merged) == text(target))
    assert merge(merged, patch) is merged


@given(BODIES, BODIES)
def test_what_is_not_patched_is_shared(target: dict[str, Any], patch: dict[str, Any]) -> None:
    merged = merge(target, patch)
    assert all(merged[name] is target[name] for name in target if name not in patch)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}, id="the last of a mapping"),
        pytest.param({"a": [1]}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}, id="nulls are never stored"),
        pytest.param({"a": {}}, {"a": [None]}, {"a": [None]}, id="but in lists they are"),
        pytest.param({"a": 1}, {"a": True}, {"a": True}, id="true is not one"),
        pytest.param({"a": [1]}, {"a": [True]}, {"a": [True]}, id="nor in a list"),
        pytest.param({}, {"a": {}}, {"a": {}}, id="an empty mapping"),
    ],
)
def test_merges_that_are_easily_wrong(target: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert text(merge(target, patch)) == text(expected)


@given(VALUES, VALUES)
def test_the_same_is_the_same_json(one: Any, other: Any) -> None:
    assert same(one, other) == (text(one) == text(other))
    assert same(one, deepcopy(one))
