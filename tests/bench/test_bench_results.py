# SPDX-License-Identifier: Apache-2.0
"""The results file of `python bench/operator --compare`: it survives a kill, and refuses results of other versions."""

from pathlib import Path

import pytest
from bench_runs import HEADER, run
from msgspec.structs import replace
from results import ResultsError, ResultsFile, load


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "results.jsonl"


def test_a_second_call_continues_with_the_runs_of_the_first(path: Path) -> None:
    ResultsFile.open(path, HEADER).append(run(number=0))
    again = ResultsFile.open(path, HEADER)
    again.append(run(number=1))
    assert [one.key for one in again.runs] == [("500x4", 0, "ours"), ("500x4", 1, "ours")]
    assert load(path) == (HEADER, [run(number=0), run(number=1)])


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_that_was_cut_off_by_a_kill_is_dropped(path: Path, kept: int) -> None:
    file = ResultsFile.open(path, HEADER)
    file.append(run(number=0))
    whole = path.read_bytes()
    file.append(run(number=1))
    last = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + last[:kept])
    assert load(path)[1] == [run(number=0)]
    again = ResultsFile.open(path, HEADER)
    again.append(run(number=2))
    assert load(path)[1] == [run(number=0), run(number=2)]


def test_a_header_that_was_cut_off_is_written_anew(path: Path) -> None:
    ResultsFile.open(path, HEADER)
    path.write_bytes(path.read_bytes()[:30])
    ResultsFile.open(path, HEADER).append(run())
    assert load(path) == (HEADER, [run()])


@pytest.mark.parametrize(
    ("field", "value"),
    [("peer", "v1.9.5"), ("source", "def"), ("processors", 4), ("kubernetes", "1.37.0"), ("quick", True)],
)
def test_results_of_other_versions_are_refused(path: Path, field: str, value: object) -> None:
    ResultsFile.open(path, HEADER).append(run())
    before = path.read_bytes()
    with pytest.raises(ResultsError, match=rf"has results of {field} .* \(now {value}\); use --fresh to start anew"):
        ResultsFile.open(path, replace(HEADER, **{field: value}))
    assert path.read_bytes() == before


def test_another_date_or_commit_with_the_same_source_continues(path: Path) -> None:
    ResultsFile.open(path, HEADER).append(run())
    again = ResultsFile.open(path, replace(HEADER, date="2026-11-18 09:00 UTC", commit="fedcba9"))
    assert (again.header, again.runs) == (HEADER, [run()])


def test_fresh_starts_anew(path: Path) -> None:
    ResultsFile.open(path, HEADER).append(run())
    other = replace(HEADER, peer="v1.9.5")
    assert ResultsFile.open(path, other, fresh=True).runs == []
    assert load(path) == (other, [])


def test_a_broken_line_in_the_middle_is_named(path: Path) -> None:
    file = ResultsFile.open(path, HEADER)
    path.write_bytes(path.read_bytes() + b'{"case": 1}\n')
    file.append(run())
    with pytest.raises(ResultsError, match=r"results\.jsonl, line 2: not a result"):
        load(path)


def test_a_missing_file_says_how_to_get_it(path: Path) -> None:
    with pytest.raises(ResultsError, match="measure first"):
        load(path)
