# SPDX-License-Identifier: Apache-2.0
"""What `--compare` measures: the cases, and the order of their runs.

Contestants: `ours` and `peer` (training-operator); `floor`, which makes our writes and decides nothing; `nobody`, which
is no operator at all: the jobs are submitted, and the kubelet runs pods that were created before.
"""

import argparse
from collections.abc import Iterable
from difflib import get_close_matches
from math import ceil

from drive import Sizes
from msgspec import Struct
from msgspec.structs import replace

OPERATORS = ("ours", "peer")
BESIDE = ("floor", "nobody")
#: Seconds that a run takes in addition to its wall time: it starts a control plane, makes a few requests as a warm-up,
#: and waits until all is idle.
_AROUND = {"ours": 11.0, "peer": 15.0, "floor": 11.0, "nobody": 11.0}


class Case(Struct, frozen=True, kw_only=True):
    """One load and one setting of the operators' limits."""

    name: str
    sizes: Sizes
    rounds: int = 3
    #: `open`: the fastest settings; `matched`: the same limits for both; `shipped`: the defaults of both.
    mode: str = "open"
    #: The floor and nobody run in this number of rounds.
    beside: int = 0
    #: The number of jobs that exist before.
    present: int = 0
    #: The expected wall time in seconds, by contestant.
    expected: dict[str, float] = {}

    def contestants(self, number: int) -> tuple[str, ...]:
        """Return the contestants of a round in their order: reversed in every second round, and rotated."""
        has_beside = self.beside and number % ceil(self.rounds / self.beside) == 0
        all_ = OPERATORS + (BESIDE if has_beside else ())
        first = number // 2 % len(all_)
        order = all_[first:] + all_[:first]
        return order[::-1] if number % 2 else order


class Task(Struct, frozen=True):
    """One run that is to be made."""

    case: Case
    number: int
    who: str

    @property
    def key(self) -> tuple[str, int, str]:
        """Return what identifies the run in the results file."""
        return (self.case.name, self.number, self.who)

    @property
    def expected(self) -> float:
        """Return the estimated duration of the whole run, in seconds."""
        return _AROUND[self.who] + self.case.expected.get(self.who, self.case.expected["ours"])


CASES = (
    Case(name="100x4", sizes=Sizes(100, 4), rounds=7, beside=3, expected={"ours": 8}),
    Case(name="500x4", sizes=Sizes(500, 4), rounds=7, beside=3, expected={"ours": 25, "nobody": 20}),
    Case(name="1000x4", sizes=Sizes(1000, 4), beside=2, expected={"ours": 50, "nobody": 40}),
    Case(name="1x200", sizes=Sizes(1, 200), expected={"ours": 7}),
    Case(name="1x1000", sizes=Sizes(1, 1000), expected={"ours": 12, "peer": 25}),
    Case(name="2000x1", sizes=Sizes(2000, 1), expected={"ours": 45, "peer": 55}),
    Case(name="matched-100x4", sizes=Sizes(100, 4), mode="matched", expected={"ours": 24, "peer": 40}),
    Case(name="shipped-100x4", sizes=Sizes(100, 4), mode="shipped", rounds=1, expected={"ours": 8, "peer": 115}),
    Case(name="present-100", sizes=Sizes(100, 4), rounds=1, present=100, expected={"ours": 30}),
    Case(name="present-1000", sizes=Sizes(100, 4), rounds=1, present=1000, expected={"ours": 60}),
    Case(name="present-5000", sizes=Sizes(100, 4), rounds=1, present=5000, expected={"ours": 180, "peer": 230}),
)
#: The sizes of `--quick`; the cases keep their names.
_QUICK = {"100x4": Sizes(5, 2), "500x4": Sizes(10, 2), "1000x4": Sizes(15, 2), "1x200": Sizes(1, 5)}
_QUICK |= {"1x1000": Sizes(1, 10), "2000x1": Sizes(10, 1)}


def quick(case: Case) -> Case:
    """Return the case with a small size and one round."""
    sizes, present = _QUICK.get(case.name, Sizes(3, 2)), case.present // 50
    expected = {"ours": 7.0 + (10 if present else 0)}
    return replace(case, sizes=sizes, rounds=1, beside=min(case.beside, 1), present=present, expected=expected)


def chosen(names: Iterable[str] | None, *, rounds: int | None, small: bool) -> list[Case]:
    """Return the cases to measure."""
    found = [case for case in CASES if names is None or case.name in names]
    found = [quick(case) if small else case for case in found]
    if rounds is None:
        return found
    return [replace(case, rounds=rounds, beside=rounds if case.beside else 0) for case in found]


def tasks(cases: Iterable[Case]) -> list[Task]:
    """Return all runs: the first round of every case, then the second, so that the rounds of a case are spread out."""
    cases = list(cases)
    last = max((case.rounds for case in cases), default=0)
    return [
        Task(case, number, who)
        for number in range(last)
        for case in cases
        if number < case.rounds
        for who in case.contestants(number)
    ]


def case_names(text: str) -> tuple[str, ...]:
    """Read the value of --cases; an unknown name is refused, with the nearest known name."""
    known = [case.name for case in CASES]
    if text == "list":
        raise argparse.ArgumentTypeError(f"the cases are {', '.join(known)}")
    for name in text.split(","):
        if name not in known:
            near = get_close_matches(name, known, 1, 0.0)[0]
            raise argparse.ArgumentTypeError(f"{name}: unknown case; the nearest is {near}; all: {', '.join(known)}")
    return tuple(text.split(","))
