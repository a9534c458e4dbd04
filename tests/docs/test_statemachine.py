# SPDX-License-Identifier: Apache-2.0
"""docs/state-machine.md is what the code says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_code_says() -> None:
    made: str = runpy.run_path(str(ROOT / "tools" / "statemachine.py"))["page"]()

    assert made == (ROOT / "docs" / "state-machine.md").read_text(encoding="utf-8"), "run python tools/statemachine.py"
