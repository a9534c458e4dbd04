# SPDX-License-Identifier: Apache-2.0
"""Values from clients: the limit of nesting, nulls, and short error messages."""

from collections.abc import Callable
from typing import Any

import pytest

from trainwright.api.untrusted import MAX_LEVELS, check_levels, shown
from trainwright.errors import InvalidError
from trainwright.local.storage.metadata import without_nulls


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value] if lists else {"a": value, "b": 1}
    return value


@pytest.mark.parametrize("lists", [False, True])
def test_the_limit_of_nesting(lists: bool) -> None:
    check_levels(nested(MAX_LEVELS, lists=lists), "the body")
    for levels in (MAX_LEVELS + 1, 100_000):
        with pytest.raises(InvalidError, match="the body: nested in more than 64 levels"):
            check_levels(nested(levels, lists=lists), "the body")


def test_nulls_are_removed_from_maps_only() -> None:
    value = {"a": None, "b": {"c": None}, "d": [None, {"e": None, "f": 0}], "g": {"h": ""}}
    result = without_nulls(value)
    assert result == {"b": {}, "d": [None, {"f": 0}], "g": {"h": ""}}
    assert result["g"] is value["g"]
    assert without_nulls(result) is result


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: nested(100_000), id="maps"),
        pytest.param(lambda: nested(100_000, lists=True), id="lists"),
        pytest.param(lambda: "x" * 100_000, id="text"),
        pytest.param(lambda: list(range(100_000)), id="numbers"),
    ],
)
def test_an_error_shows_a_part_of_a_large_value(made: Callable[[], Any]) -> None:
    assert 0 < len(shown(made())) < 300


def test_a_short_value_is_shown_as_it_is() -> None:
    assert shown("/metadata/labels/a") == "'/metadata/labels/a'"
