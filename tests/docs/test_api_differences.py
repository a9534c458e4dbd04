# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md lists the differences between our API and a real API server that `tests/cluster` has seen."""

import re
from pathlib import Path

from cluster_differences import INTENDED
from cluster_kubectl_steps import STEPS

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


SECTION = PAGE.partition("## Kubernetes API of the local engine\n")[2].partition("\n## ")[0]


def _tables() -> list[list[tuple[str, ...]]]:
    """The rows of each table of the section, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", SECTION, re.MULTILINE)
    return [[tuple(line[2:-2].split(" | ")) for line in table.splitlines()[2:]] for table in tables]


def test_the_page_lists_every_intended_difference_with_its_reason() -> None:
    assert _tables()[0] == [(one.what, one.why) for one in INTENDED]


def test_the_page_lists_every_difference_of_kubectl() -> None:
    listed = {row[0] for table in _tables() for row in table}
    for step in STEPS:
        assert not step.differs or step.differs in listed, step.line
        assert bool(step.says) == bool(step.differs), f"{step.line}: what does the engine say?"
