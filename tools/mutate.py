# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of core/: checks that a test fails for every change of the code. Prints the score and the survivors.

Run: make mutate   (works on a copy, so the source tree does not change; takes a while on two cores)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
MUTMUT = Path(sys.executable).with_name("mutmut")
#: mutmut 3.8 reads an attribute that pytest 9.2 no longer has.
SHIM = "from _pytest.nodes import Node\n\nNode._nodeid = property(lambda self: self.nodeid)\n"
#: Without debug output, mutmut 3.8 captures pytest's output in a way that makes every run fail: all mutants would count
#: as killed, even those that change nothing.
LOUD = ("[tool.mutmut]", "[tool.mutmut]\ndebug = true")


def main() -> None:
    """Copy the tree, run the mutants and print the score."""
    with tempfile.TemporaryDirectory(prefix="trainwright-mutants-") as folder:
        work = Path(folder)
        for part in ("src", "tests/core", "tests/model"):
            shutil.copytree(ROOT / part, work / part)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, work / name)
        settings = work / "pyproject.toml"
        settings.write_text(settings.read_text(encoding="utf-8").replace(*LOUD), encoding="utf-8")
        (work / "tests" / "conftest.py").write_text(SHIM, encoding="utf-8")
        progress(work)
        report(run("results", "--all", "true", cwd=work))


def progress(work: Path) -> None:
    """Run all mutants and show the progress."""
    words = [str(MUTMUT), "run", "--max-children", "2"]
    with subprocess.Popen(words, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:  # noqa: S603
        for line in running.stdout or ():
            if (done := re.search(r"\d+/\d+", line)) and "🎉" in line:
                print(f"\r{done[0]} mutants", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def run(*words: str, cwd: Path) -> str:
    """Call mutmut once and return its output."""
    return subprocess.run([MUTMUT, *words], cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603


def report(results: str) -> None:
    """Print the score from lines such as `name: killed`."""
    pairs = [line.strip().rsplit(": ", 1) for line in results.splitlines() if ": " in line]
    counts = Counter(verdict for _, verdict in pairs)
    for name, verdict in pairs:
        if verdict != "killed":
            print(f"{verdict}: {name}")
    caught = counts["killed"] + counts["timeout"]
    print(dict(counts))
    print(f"mutation score of core/: {caught} of {len(pairs)}, {caught / max(len(pairs), 1):.1%}")


if __name__ == "__main__":
    main()
