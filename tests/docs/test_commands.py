# SPDX-License-Identifier: Apache-2.0
"""Every command that the documents show works as shown, and every file they name is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def commands() -> list[str]:
    """The lines of shell blocks, comments and prompts off."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            found += [line.split("#")[0].removeprefix("$ ").strip() for line in block.splitlines()]
    return sorted({line for line in found if line})


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("trainwright ")])
def test_a_command_shown_in_the_documents_works(command: str) -> None:
    words = [sys.executable, "-m", "trainwright", *shlex.split(command.split(" | ", maxsplit=1)[0])[1:]]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_make_command_shown_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {shlex.split(line)[1] for line in commands() if line.startswith("make ")}

    assert shown
    assert shown <= targets


def test_no_other_command_is_shown() -> None:
    assert [line for line in commands() if not line.startswith(("trainwright ", "make "))] == []


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    assert [link for link in targets if not (page.parent / link).exists()] == []
