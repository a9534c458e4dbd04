# SPDX-License-Identifier: Apache-2.0
"""Index text: shortest spelling, exact reading, and no harm from text that is not ours."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.model.units import (
    LARGEST_INDEX,
    format_counts,
    format_indexes,
    format_row,
    parse_counts,
    parse_indexes,
    parse_row,
)

INDEXES = st.frozensets(st.integers(0, LARGEST_INDEX) | st.integers(0, 12))
COUNTS = st.dictionaries(
    st.integers(0, LARGEST_INDEX) | st.integers(0, 12), st.integers(1, 3) | st.integers(1, 999_999_999)
)


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        pytest.param([], "", id="none"),
        pytest.param([0], "0", id="one"),
        pytest.param([3, 1, 2], "1-3", id="a run in any order"),
        pytest.param([0, 1], "0-1", id="two in a row"),
        pytest.param([0, 2], "0,2", id="a gap"),
        pytest.param([0, 1, 2, 3, 7], "0-3,7", id="a run and one more"),
        pytest.param([5, 5, 5], "5", id="the same one again"),
        pytest.param([9, 10, 11, 100], "9-11,100", id="numeric, not alphabetic"),
    ],
)
def test_a_set_has_one_shortest_spelling(indexes: list[int], expected: str) -> None:
    assert expected == format_indexes(indexes)


@pytest.mark.parametrize(
    ("by_index", "expected"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({0: 1}, "0:1", id="one"),
        pytest.param({7: 2, 0: 1, 1: 1, 2: 1, 3: 1}, "0-3:1,7:2", id="a run and one more"),
        pytest.param({0: 1, 1: 2}, "0:1,1:2", id="neighbours of unequal count"),
        pytest.param({0: 1, 1: 0, 2: 1}, "0:1,2:1", id="zeros are left out"),
    ],
)
def test_counts_have_one_shortest_spelling(by_index: dict[int, int], expected: str) -> None:
    assert expected == format_counts(by_index)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", set(), id="nothing"),
        pytest.param("0-3,7", {0, 1, 2, 3, 7}, id="a run and one more"),
        pytest.param("0-3:2,7:1", {0, 1, 2, 3, 7}, id="counts do not matter"),
        pytest.param("4-4", {4}, id="a run of one"),
        pytest.param("99999", {99_999}, id="the largest index"),
        pytest.param("100000", set(), id="beyond the largest index"),
        pytest.param("99998-9999999", {99_998, 99_999}, id="a run beyond the largest index"),
        pytest.param("007", {7}, id="leading zeros"),
        pytest.param("3-1", set(), id="a run backwards"),
        pytest.param("10000000", set(), id="eight digits"),
        pytest.param("0-10000000", set(), id="a run to eight digits"),
        pytest.param("-1", set(), id="negative"),
        pytest.param("1-", set(), id="an open run"),
        pytest.param("1-2-3", set(), id="a double run"),
        pytest.param("1:", set(), id="an open count"),
        pytest.param("1:-2", set(), id="a negative count"),
        pytest.param("1:1000000000", set(), id="a count of ten digits"),
        pytest.param(" 1", set(), id="a blank"),
        pytest.param("1\n", set(), id="a line end"),
        pytest.param("1.5", set(), id="a fraction"),
        pytest.param("abc,2,def", {2}, id="junk around a good part"),
        pytest.param(",,,5,,", {5}, id="empty parts"),
        pytest.param("1-2,2-3", {1, 2, 3}, id="runs that overlap"),
    ],
)
def test_members_reads_what_is_of_the_form_and_nothing_else(text: str, expected: set[int]) -> None:
    assert expected == parse_indexes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("0-2:1,7:2", {0: 1, 1: 1, 2: 1, 7: 2}, id="a run and one more"),
        pytest.param("0-1,7", {0: 1, 1: 1, 7: 1}, id="no count is one"),
        pytest.param("1:999999999", {1: 999_999_999}, id="nine digits"),
        pytest.param("1:1000000000", {}, id="ten digits"),
        pytest.param("1:2,1:3", {1: 3}, id="the last word on an index counts"),
        pytest.param("x:1,2:3", {2: 3}, id="junk beside a good part"),
    ],
)
def test_counts_reads_what_is_of_the_form_and_nothing_else(text: str, expected: dict[int, int]) -> None:
    assert expected == parse_counts(text)


@given(INDEXES)
def test_a_set_survives_its_spelling(indexes: frozenset[int]) -> None:
    assert indexes == parse_indexes(format_indexes(indexes))


@given(COUNTS)
def test_counts_survive_their_spelling(by_index: Mapping[int, int]) -> None:
    assert by_index == parse_counts(format_counts(by_index))


@given(st.frozensets(st.integers(0, 30)))
def test_no_two_parts_of_a_spelling_could_be_one(indexes: frozenset[int]) -> None:
    runs = [part.split("-") for part in format_indexes(indexes).split(",") if part]

    for one, following in pairwise(runs):
        assert int(one[-1]) + 1 < int(following[0])


@given(st.lists(st.text(alphabet="0123456789:-abc \n", max_size=6)).map(",".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert parse_indexes(text) == parse_counts(text).keys()


def test_digits_of_other_scripts_are_not_of_the_form() -> None:
    assert parse_indexes("\u0663,1") == {1}


def test_ranges_are_read_for_as_many_indexes_as_there_can_be() -> None:
    assert parse_indexes(",".join(["0-99999"] * 16_384)) == frozenset(range(100_000))
    assert parse_indexes("0-99999,1") == frozenset(range(100_000))
    assert parse_indexes("5-3,1") == {1}


@pytest.mark.parametrize(
    ("by_index", "text"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({0: 1, 1: 1, 2: 1}, "1x3", id="alike"),
        pytest.param({0: 1, 2: 2}, "1,0,2", id="a gap"),
        pytest.param({998: 3}, "0x998,3", id="one of many"),
        pytest.param({0: 0, 1: 0}, "", id="zeros"),
    ],
)
def test_a_row_is_spelled_and_read(by_index: dict[int, int], text: str) -> None:
    assert format_row(by_index) == text
    assert parse_row(text) == {index: count for index, count in by_index.items() if count}


@given(st.dictionaries(st.integers(0, 300), st.integers(1, 3)))
def test_a_row_survives_its_spelling(by_index: Mapping[int, int]) -> None:
    assert by_index == parse_row(format_row(by_index))


@given(st.lists(st.text(alphabet="0123456789x: \n", max_size=6)).map(",".join))
def test_any_row_is_read_without_an_error_and_within_bounds(text: str) -> None:
    assert max(parse_row(text), default=0) <= LARGEST_INDEX


@pytest.mark.parametrize("found", [parse_counts("0-3:1"), parse_row("1x4")], ids=["counts", "row"])
def test_what_is_read_once_for_all_cannot_be_edited(found: Mapping[int, int]) -> None:
    with pytest.raises(TypeError):
        found[0] = 9  # type: ignore[index]
    assert dict(found) == {0: 1, 1: 1, 2: 1, 3: 1}
