# SPDX-License-Identifier: Apache-2.0
"""The command line of `python bench/operator`."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from cases import case_names
from drive import Sizes
from shapes import SHAPES

_ROOT = Path(__file__).resolve().parents[2]
_ABOUT = """\
Measure `trainwright operator` on a real API server and etcd, with fake nodes.

Without --compare, all runs share one control plane: the operator and the floor, an operator that makes the same writes
and decides nothing, run in turn. With --compare, every run gets a new control plane, and Kubeflow's training-operator
runs TFJobs in alternating rounds with the operator; the results are kept in a file, and a second call continues with
the runs that are missing.

TRAINING_OPERATOR_BIN is the program of the training-operator; --compare requires it:
  GOBIN=$HOME/bin go install github.com/kubeflow/training-operator/cmd/training-operator.v1@v1.9.4
TRAINING_OPERATOR_CRDS is the folder of its CRDs. By default they are read from Go's module cache.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that says only what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Print one line and end the program."""
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        sys.exit(2)


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options; a mistake in them ends the program with one line."""
    parser = _Parser(
        prog="python bench/operator", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Use small sizes and one round: a check of the benchmark.")
    _one_plane(parser.add_argument_group("without --compare"))
    _compare(parser.add_argument_group("with --compare"))
    asked = parser.parse_args(words)
    for part in asked.parts:
        if part not in ("sizes", "present"):
            parser.error(f"{part}: unknown part; choose sizes or present")
    if asked.rounds is not None and asked.rounds < 1:
        parser.error(f"--rounds={asked.rounds}: must be at least 1")
    return asked


def _one_plane(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("parts", nargs="*", metavar="PART", help="Measure only this part: sizes or present.")
    group.add_argument("--kind", choices=SHAPES, default="genericjob", help="Measure jobs of this kind.")
    group.add_argument("--runs", type=int, metavar="N", help="Run everything N times in turn.  [default: 2]")
    group.add_argument("--sizes", type=_sizes, metavar="JxP,…", help="Measure these numbers of jobs and pods per job.")


def _compare(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--compare", action="store_true", help="Compare with training-operator, in rounds.")
    group.add_argument("--rounds", type=int, metavar="N", help="Run N rounds of every case.")
    group.add_argument(
        "--cases", type=case_names, metavar="NAME,…", help="Measure only these cases; `--cases=list` prints them."
    )
    group.add_argument("--results", type=Path, metavar="FILE", help="Keep the results in FILE, as JSON lines.")
    group.add_argument("--fresh", action="store_true", help="Delete the results file first.")
    group.add_argument(
        "--max-others",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="Repeat a run once if other programs used more than SHARE of the machine.  [default: 0.2]",
    )
    group.add_argument("--plan", action="store_true", help="Print the missing runs and an estimate; measure nothing.")
    group.add_argument("--render", action="store_true", help="Only write tables and plots from the results file.")
    group.add_argument("--docs", type=Path, metavar="DIR", help="Write them into DIR.  [default: docs]")


def _sizes(text: str) -> tuple[Sizes, ...]:
    try:
        return tuple(Sizes(*map(int, one.split("x"))) for one in text.split(","))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers of jobs and pods, such as 100x4,1x200") from None


def results_file(asked: argparse.Namespace) -> Path:
    """Return the file of the results; that of --quick is another one."""
    default = _ROOT / "bench" / "results" / ("quick.jsonl" if asked.quick else "operator.jsonl")
    return asked.results or default


def docs_folder(asked: argparse.Namespace) -> Path:
    """Return the folder of the page; figures of --quick do not go to the documentation."""
    return asked.docs or (_ROOT / "bench" / "results" / "quick" if asked.quick else _ROOT / "docs")
