# SPDX-License-Identifier: Apache-2.0
"""The tables and plots of the comparison, and that docs/performance.md shows the results that are in the repository."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_runs import HEADER, RUNS
from plots import plots
from render import BEGIN, END, insert, section, write
from report import Results
from results import ResultsError, load

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("comparison.md")
STORED = ROOT / "bench" / "results" / "operator.jsonl"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_tables_are_those_of_the_golden_file() -> None:
    """To renew the file after an intended change: `python tests/bench/test_bench_render.py`."""
    assert section(HEADER, RUNS) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(plots(Results(RUNS))))
def test_a_plot_is_well_formed_and_names_its_axes(name: str) -> None:
    picture = ElementTree.fromstring(plots(Results(RUNS))[name])  # noqa: S314 - our own text
    words = [one.text for one in picture.iter(f"{SVG}text")]
    assert picture.tag == f"{SVG}svg"
    assert {"Trainwright", "training-"} & set(words)
    assert any(word in ("jobs/s", "seconds", "ms of CPU per job") for word in words)
    assert any("existing jobs" in str(word) or word == "jobs x pods per job" for word in words)


def test_a_plot_has_one_dot_per_round() -> None:
    picture = ElementTree.fromstring(plots(Results(RUNS))["jobs-per-second.svg"])  # noqa: S314 - our own text
    dots = len(list(picture.iter(f"{SVG}circle")))
    assert dots == sum(run.case in ("100x4", "500x4") and run.who != "nobody" for run in RUNS)


def test_nothing_is_drawn_outside_of_a_plot() -> None:
    for text in plots(Results(RUNS)).values():
        width, height = (float(word) for word in re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0])
        assert all(0 <= float(x) <= width for x in re.findall(r' (?:x|x1|x2|cx)="([^"]+)"', text))
        assert all(0 <= float(y) <= height for y in re.findall(r' (?:y|y1|y2|cy)="([^"]+)"', text))


def test_results_of_one_case_or_of_none_are_rendered() -> None:
    for runs in ([], RUNS[:1], [run for run in RUNS if run.who == "nobody"]):
        assert "not measured" in section(HEADER, runs)
        for text in plots(Results(runs)).values():
            ElementTree.fromstring(text)  # noqa: S314 - our own text


def test_rendering_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\n# After\n")
    paths = write(tmp_path, HEADER, RUNS)
    once = paths[0].read_text(encoding="utf-8")
    assert once.startswith(f"# Before\n\n{BEGIN}\n")
    assert once.endswith(f"{END}\n\n# After\n")
    assert "old" not in once
    linked = set(re.findall(r"\]\(([^)]+)\)", once))
    assert linked == {str(path.relative_to(tmp_path)) for path in paths[1:]}
    write(tmp_path, HEADER, RUNS)
    assert paths[0].read_text(encoding="utf-8") == once


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ResultsError, match=r"page\.md has no lines <!-- compare:begin -->"):
        insert("# A page\n", "text", "page.md")


def test_the_page_has_the_markers() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1


@pytest.mark.skipif(not STORED.exists(), reason="no results are stored")
def test_the_page_and_the_plots_show_the_stored_results() -> None:
    """To renew them: `python bench/operator --compare --render`."""
    header, runs = load(STORED)
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert insert(page, section(header, runs)) == page
    for name, text in plots(Results(runs)).items():
        assert (ROOT / "docs" / "performance" / name).read_text(encoding="utf-8") == text


if __name__ == "__main__":
    GOLDEN.write_text(section(HEADER, RUNS), encoding="utf-8")
