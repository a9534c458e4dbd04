# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/verdicts.md have exactly the names that the code has."""

import re
from pathlib import Path

from trainwright.core.diagnose import SIGNS
from trainwright.model.job import BUDGETS
from trainwright.model.ledger import Reason
from trainwright.model.verdict import KEPT_ATTEMPT_NODES, KEPT_ATTEMPTS, FailureClass, LossKind, Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8")


def rows(head: str) -> list[list[str]]:
    """The cells of the table whose first line begins with this cell."""
    table = PAGE.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def names(head: str) -> list[str]:
    """The names in the first column of that table."""
    return [name for row in rows(head) for name in re.findall(r"`([^`]+)`", row[0])]


def test_the_fields_of_a_verdict() -> None:
    assert sorted(names("field")) == sorted(Verdict.__struct_encode_fields__)


def test_the_failure_classes() -> None:
    listed = names("class")

    assert sorted(listed) == sorted(set(FailureClass) - {FailureClass.NONE})


def test_which_classes_the_output_of_a_program_decides() -> None:
    by_output = {row[0].strip("` ") for row in rows("class") if "output" in row[-1]}

    assert by_output == {sign.failure_class.value for sign in SIGNS}


def test_the_reasons_of_an_end() -> None:
    assert names("reason of an end") == [reason.value for reason in Reason]


def test_the_annotations() -> None:
    assert names("annotation") == list(BUDGETS.values())


def test_the_numbers_and_words_of_the_history() -> None:
    section = PAGE.partition("## The history")[2].partition("\n## ")[0]

    assert f"has the last {KEPT_ATTEMPTS}." in section
    assert f"(at most {KEPT_ATTEMPT_NODES})" in section
    assert all(f"`{kind}`" in section for kind in LossKind)
