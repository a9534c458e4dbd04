# SPDX-License-Identifier: Apache-2.0
"""Problems: how they read, what they suggest, and that they stay short."""

from collections.abc import Iterable

import pytest

from trainwright.model.problem import Problem, nearest, shown


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        pytest.param(Problem("spec.x", "is not known"), "spec.x: is not known", id="path and message"),
        pytest.param(Problem("", "is empty"), "(document): is empty", id="no path"),
        pytest.param(
            Problem("spec.cleanUpPolcy", "is not known", "cleanUpPolicy"),
            "spec.cleanUpPolcy: is not known; did you mean `cleanUpPolicy`?",
            id="a suggestion",
        ),
        pytest.param(Problem("spec.x", "is ignored", warning=True), "spec.x: is ignored", id="a warning"),
    ],
)
def test_a_problem_reads_as_one_line(problem: Problem, expected: str) -> None:
    assert expected == str(problem)


def test_problems_sort_by_path_then_message() -> None:
    problems = [Problem("b", "1"), Problem("a", "2"), Problem("a", "1")]

    assert [Problem("a", "1"), Problem("a", "2"), Problem("b", "1")] == sorted(problems)


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        pytest.param("cleanUpPolcy", ["cleanUpPolicy", "replicas"], "cleanUpPolicy", id="a letter left out"),
        pytest.param("CLEANUPPOLICY", ["cleanUpPolicy"], "cleanUpPolicy", id="another case"),
        pytest.param("replica", ["restart", "replicas", "rule"], "replicas", id="the nearest of several"),
        pytest.param("abcde", ["abcxy"], "abcxy", id="just near enough: 0.6"),
        pytest.param("abcdefg", ["abcdxyz"], "", id="just too far: 0.57"),
        pytest.param("zzz", ["cleanUpPolicy"], "", id="nothing like it"),
        pytest.param("a", [], "", id="nothing is known"),
        pytest.param("a" * 128, ["a" * 127], "a" * 127, id="as long as is compared"),
        pytest.param("a" * 129, ["a" * 128], "", id="too long to compare"),
    ],
)
def test_nearest_is_what_was_probably_meant(word: str, known: Iterable[str], expected: str) -> None:
    assert expected == nearest(word, known)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, "nothing (null)", id="null"),
        pytest.param(True, "true", id="true"),
        pytest.param(False, "false", id="false"),
        pytest.param("abc", "the text 'abc'", id="text"),
        pytest.param("a\nb", r"the text 'a\nb'", id="text of two lines, on one"),
        pytest.param("a" * 60, f"the text '{'a' * 60}'", id="text of 60"),
        pytest.param("a" * 61, f"the text '{'a' * 57}...'", id="text of 61"),
        pytest.param(3, "the number 3", id="integer"),
        pytest.param(1.5, "the number 1.5", id="float"),
        pytest.param(1e300, "the number 1e+300", id="a large float is short"),
        pytest.param(10**40 - 1, f"the number {'9' * 40}", id="forty digits"),
        pytest.param(10**40, "the number a very large number", id="forty-one digits"),
        pytest.param(-(10**5000), "the number a very large number", id="more digits than Python prints"),
        pytest.param({}, "a mapping with 0 keys", id="empty mapping"),
        pytest.param({"a": 1}, "a mapping with 1 key", id="mapping of one"),
        pytest.param({"a": 1, "b": 2}, "a mapping with 2 keys", id="mapping of two"),
        pytest.param([1, 2, 3], "a list of 3", id="list"),
        pytest.param((1,), "a list of 1", id="tuple"),
        pytest.param(b"abc", "a bytes", id="anything else"),
    ],
)
def test_a_value_is_shown_short_and_on_one_line(value: object, expected: str) -> None:
    assert expected == shown(value)
