# SPDX-License-Identifier: Apache-2.0
"""The merge patch from the stored status to the rendered one; when it is written is in `test_controller`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.kinds.registry import KINDS
from trainwright.local.storage.metadata import merge
from trainwright.model.job import Body
from trainwright.runtime.publisher import _status_fields, difference

OWNED = frozenset({"phase", "tasks", "conditions"})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {"phase": "Pending"}, {"phase": "Pending"}, id="all of a new one"),
        pytest.param({"phase": "Pending"}, {"phase": "Pending"}, {}, id="nothing has changed"),
        pytest.param({"phase": "A", "tasks": [1]}, {"phase": "B", "tasks": [1]}, {"phase": "B"}, id="one field"),
        pytest.param({"tasks": [1, 2]}, {"tasks": [1]}, {"tasks": [1]}, id="lists go whole"),
        pytest.param({"phase": "A"}, {}, {"phase": None}, id="a field of ours that is no more"),
        pytest.param({"theirs": "A"}, {}, {}, id="a field that is not ours stays"),
        pytest.param({"trainwright": {"a": 1}}, {}, {}, id="the durable state is never dropped"),
        pytest.param(
            {"trainwright": {"a": 1, "b": {"c": 1, "d": 2}, "e": 5}},
            {"trainwright": {"a": 1, "b": {"c": 3}, "f": {}}},
            {"trainwright": {"b": {"c": 3, "d": None}, "e": None, "f": {}}},
            id="inside a part, what is gone is named",
        ),
        pytest.param({"trainwright": 5}, {"trainwright": {"a": 1}}, {"trainwright": {"a": 1}}, id="another shape"),
    ],
)
def test_the_patch_names_what_has_changed_and_no_more(before: Body, after: Body, expected: Body) -> None:
    assert difference(before, after, OWNED) == expected


leaves = st.integers(-2, 2) | st.sampled_from(["", "a"]) | st.lists(st.integers(0, 2), max_size=2)
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda one: st.dictionaries(st.sampled_from("abc"), one), max_leaves=6
)
bodies = st.dictionaries(st.sampled_from(["phase", "tasks", "trainwright", "theirs"]), values)


@given(before=bodies, after=bodies)
def test_applied_as_a_merge_patch_it_makes_the_stored_status_the_rendered_one(before: Body, after: Body) -> None:
    stored = merge(before, difference(before, after, OWNED))
    assert stored == {key: part for key, part in before.items() if key not in OWNED} | after
    assert difference(stored, after, OWNED) == {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_status_field_of_a_kind_is_ours_but_the_durable_state_is_never_dropped(kind: Any) -> None:
    fields = _status_fields(kind)
    assert "conditions" in fields
    assert "trainwright" not in fields
