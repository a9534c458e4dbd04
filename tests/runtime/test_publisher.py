# SPDX-License-Identifier: Apache-2.0
"""The whole status that is written, with the fields of other writers; when it is written is in `test_controller`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.runtime.publisher import _status_fields, with_foreign_fields

OWNED = frozenset({"phase", "tasks", "conditions"})


@pytest.mark.parametrize(
    ("stored", "rendered", "expected"),
    [
        pytest.param({}, {"phase": "Pending"}, {"phase": "Pending"}, id="all of a new one"),
        pytest.param(
            {"phase": "A", "tasks": [1]}, {"phase": "B"}, {"phase": "B"}, id="a field of ours that is no more"
        ),
        pytest.param({"phase": "A"}, {}, {}, id="nothing is left"),
        pytest.param(
            {"theirs": "A"}, {"phase": "B"}, {"theirs": "A", "phase": "B"}, id="a field that is not ours stays"
        ),
        pytest.param({"theirs": "A"}, {"theirs": "B"}, {"theirs": "B"}, id="what we render is ours"),
        pytest.param({"trainwright": {"a": 1}}, {}, {"trainwright": {"a": 1}}, id="the durable state is never dropped"),
        pytest.param(
            {"trainwright": {"a": 1, "b": {"c": 1, "d": 2}, "e": 5}},
            {"trainwright": {"a": 1, "b": {"c": 3}, "f": {}}},
            {"trainwright": {"a": 1, "b": {"c": 3}, "f": {}}},
            id="inside a part, what is gone is gone",
        ),
        pytest.param({"trainwright": 5}, {"trainwright": {"a": 1}}, {"trainwright": {"a": 1}}, id="another shape"),
    ],
)
def test_the_new_status_is_the_rendered_one_with_the_fields_of_others(
    stored: Body, rendered: Body, expected: Body
) -> None:
    assert with_foreign_fields(stored, rendered, OWNED) == expected


leaves = st.integers(-2, 2) | st.sampled_from(["", "a"]) | st.lists(st.integers(0, 2), max_size=2)
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda one: st.dictionaries(st.sampled_from("abc"), one), max_leaves=6
)
bodies = st.dictionaries(st.sampled_from(["phase", "tasks", "trainwright", "theirs"]), values)


@given(stored=bodies, rendered=bodies)
def test_a_status_that_is_stored_is_not_written_again(stored: Body, rendered: Body) -> None:
    written = with_foreign_fields(stored, rendered, OWNED)
    assert written == {key: part for key, part in stored.items() if key not in OWNED} | rendered
    assert with_foreign_fields(written, rendered, OWNED) == written


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_status_field_of_a_kind_is_ours_but_the_durable_state_is_never_dropped(kind: Any) -> None:
    fields = _status_fields(kind)
    assert "conditions" in fields
    assert "trainwright" not in fields
