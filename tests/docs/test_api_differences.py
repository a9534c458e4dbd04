# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md lists the differences between our API and a real API server that `tests/cluster` has seen."""

import re
from pathlib import Path

from cluster_differences import INTENDED

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_the_page_lists_every_intended_difference_with_its_reason() -> None:
    section = PAGE.partition("## Kubernetes API of the local engine\n")[2].partition("\n## ")[0]
    rows = [tuple(line.split(" | ")) for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]]
    assert rows == [(one.what, one.why) for one in INTENDED]
