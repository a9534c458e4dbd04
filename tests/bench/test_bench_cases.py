# SPDX-License-Identifier: Apache-2.0
"""Which runs `python bench/operator --compare` makes, and in which order."""

from collections import Counter

import pytest
from cases import CASES, chosen, tasks
from options import parse


def test_the_operators_take_turns_at_being_first() -> None:
    for case in CASES:
        first = Counter(next(who for who in case.contestants(n) if who in ("ours", "peer")) for n in range(case.rounds))
        assert abs(first["ours"] - first["peer"]) <= 1, case.name


def test_the_floor_and_the_run_without_operator_have_fewer_rounds() -> None:
    planned = Counter((task.case.name, task.who) for task in tasks(CASES))
    assert planned["500x4", "ours"] == planned["500x4", "peer"] == 7
    assert planned["500x4", "floor"] == planned["500x4", "nobody"] == 3
    assert planned["1000x4", "floor"] == planned["1000x4", "nobody"] == 2
    assert ("matched-100x4", "floor") not in planned


def test_the_first_round_of_all_cases_comes_first() -> None:
    numbers = [task.number for task in tasks(CASES)]
    assert numbers == sorted(numbers)


def test_everything_fits_into_an_hour() -> None:
    assert sum(task.expected for task in tasks(CASES)) <= 3600


def test_quick_has_all_cases_and_contestants_in_one_round() -> None:
    planned = tasks(chosen(None, rounds=None, small=True))
    assert {task.case.name for task in planned} == {case.name for case in CASES}
    assert {task.who for task in planned} == {"ours", "peer", "floor", "nobody"}
    assert max(task.case.sizes.jobs for task in planned) <= 20


def test_rounds_and_cases_can_be_chosen() -> None:
    asked = parse(["--compare", "--cases=1x200,500x4", "--rounds=2"])
    found = chosen(asked.cases, rounds=asked.rounds, small=asked.quick)
    assert [(case.name, case.rounds) for case in found] == [("500x4", 2), ("1x200", 2)]
    assert len(tasks(found)) == 2 * 4 + 2 * 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--compare", "--cases=50x4"], "--cases: 50x4: unknown case; the nearest is 500x4; all: 100x4,"),
        (["--compare", "--cases=100x4,matchd"], "matchd: unknown case; the nearest is matched-100x4;"),
        (["--compare", "--rounds=0"], "--rounds=0: must be at least 1"),
        (["--sizes=100"], "--sizes: 100: expected numbers of jobs and pods, such as 100x4,1x200"),
        (["past"], "past: unknown part; choose sizes or present"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(words)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert line in said
    assert said.count("\n") == 1
