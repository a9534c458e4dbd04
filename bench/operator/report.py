# SPDX-License-Identifier: Apache-2.0
"""Figures from the runs of `--compare`: medians, spread, own cost, growth, and the targets.

A quantity has one value per run; a figure is the median over the rounds with the smallest and the largest value. Ratios
are paired: the spread of a ratio is that of the ratios within each round.
"""

from collections.abc import Callable, Iterable
from statistics import median

from msgspec import Struct
from results import Run

#: The processes whose CPU an operator causes.
PARTS = ("operator", "apiserver", "etcd")
#: The names of the contestants in tables and plots.
NAMES = {"ours": "Trainwright", "peer": "training-operator", "floor": "floor", "nobody": "no operator"}
OPERATORS = ("ours", "peer")
#: A cell of a table for which there is no value.
NONE = "-"
#: Values by round.
Values = dict[int, float]


class Results:
    """The runs, by case and contestant."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: dict[tuple[str, str], dict[int, Run]] = {}
        for run in runs:
            self._runs.setdefault((run.case, run.who), {})[run.round] = run

    def of(self, case: str, who: str) -> list[Run]:
        """Return the runs of a contestant in a case, by round."""
        return [run for _, run in sorted(self._runs.get((case, who), {}).items())]

    def all_of(self, who: str) -> list[Run]:
        """Return all runs of a contestant."""
        return [run for (_, one), runs in self._runs.items() if one == who for run in runs.values()]

    @property
    def cases(self) -> list[str]:
        """Return the names of the cases that have runs."""
        return list(dict.fromkeys(case for case, _ in self._runs))


class Spread(Struct, frozen=True):
    """A median with the smallest and the largest value."""

    middle: float
    low: float
    high: float

    def text(self, digits: int = 1) -> str:
        """Return `12.3 [11.0, 13.1]`; without the range if there is none."""
        middle, low, high = (f"{value:,.{digits}f}" for value in (self.middle, self.low, self.high))
        return middle if low == high else f"{middle} [{low}, {high}]"


def spread(values: Iterable[float]) -> Spread | None:
    """Return the median and the range of some values; None if there are none."""
    found = list(values)
    return Spread(median(found), min(found), max(found)) if found else None


# -- quantities ------------------------------------------------------------------------------------------------------


class Quantity(Struct, frozen=True):
    """Something that each run has a value of."""

    name: str
    unit: str
    digits: int
    value: Callable[[Results, Run], float | None]

    def values(self, results: Results, case: str, who: str) -> Values:
        """Return the values of a contestant in a case."""
        found = {run.round: self.value(results, run) for run in results.of(case, who)}
        return {number: value for number, value in found.items() if value is not None}

    def spread(self, results: Results, case: str, who: str) -> Spread | None:
        """Return the median and the range of these values."""
        return spread(self.values(results, case, who).values())

    def text(self, results: Results, case: str, who: str) -> str:
        """Return the figure for a cell of a table."""
        found = self.spread(results, case, who)
        return f"{found.text(self.digits)}{f' {self.unit}' if self.unit else ''}" if found else NONE


def cpu_ms(run: Run, part: str) -> float:
    """Return the CPU milliseconds per job of a process, until the operator was idle."""
    return 1000 * run.cpu_quiet.get(part, 0.0) / run.jobs


def own_ms(results: Results, run: Run, part: str) -> float | None:
    """Return the same without what a run without an operator uses (median of its rounds)."""
    without = [cpu_ms(other, part) for other in results.of(run.case, "nobody")]
    return cpu_ms(run, part) - median(without) if without else None


def own_cost(results: Results, run: Run) -> float | None:
    """Return the CPU milliseconds per job of operator, API server and etcd that the operator causes."""
    parts = [own_ms(results, run, part) for part in PARTS]
    return None if None in parts or run.who == "nobody" else sum(part for part in parts if part is not None)


def new_ms(run: Run, part: str) -> float:
    """Return the CPU milliseconds of a process per new job, without what it uses at rest."""
    return 1000 * (run.cpu_quiet[part] - run.rest.get(part, 0.0) * (run.wall + run.tail)) / run.jobs


def _waited(value: float, run: Run) -> float | None:
    return None if run.who == "nobody" else value


RATE = Quantity("jobs/s", "", 1, lambda _, run: run.jobs / run.wall)
WALL = Quantity("wall", "s", 1, lambda _, run: run.wall)
P50 = Quantity("p50", "s", 2, lambda _, run: _waited(run.p50, run))
P99 = Quantity("p99", "s", 2, lambda _, run: _waited(run.p99, run))
OPERATOR = Quantity("operator", "ms", 1, lambda _, run: _waited(cpu_ms(run, "operator"), run))
APISERVER = Quantity("API server", "ms", 1, lambda _, run: cpu_ms(run, "apiserver"))
ETCD = Quantity("etcd", "ms", 1, lambda _, run: cpu_ms(run, "etcd"))
OWN = Quantity("own cost", "ms", 1, own_cost)
PEAK = Quantity("peak RSS", "MiB", 0, lambda _, run: _waited(run.peak, run))
WRITES = Quantity("writes", "", 1, lambda _, run: _waited(sum(run.writes.values()) / run.jobs, run))
CONFLICTS = Quantity("409s", "", 0, lambda _, run: _waited(run.conflicts, run))
STORED = Quantity("bytes to etcd", "KiB", 1, lambda _, run: run.etcd_bytes / run.jobs / 1024)
BODIES = Quantity("request bodies", "KiB", 1, lambda _, run: sum(run.body_bytes.values()) / run.jobs / 1024)
EVENTS = Quantity("terminal events stored", "%", 0, lambda _, run: _waited(100 * run.events, run))
RUNNING = Quantity("jobs seen Running", "%", 0, lambda _, run: _waited(100 * run.running, run))
OTHERS = Quantity("others", "%", 0, lambda _, run: 100 * run.others)
NEW_OPERATOR = Quantity("operator", "ms", 1, lambda _, run: new_ms(run, "operator"))
NEW_PLANE = Quantity("API server + etcd", "ms", 1, lambda _, run: new_ms(run, "apiserver") + new_ms(run, "etcd"))


def ratio(results: Results, quantity: Quantity, case: str, pair: tuple[str, str]) -> Spread | None:
    """Return the ratio of two contestants' medians, with the range of the ratios within the rounds."""
    one, other = (quantity.values(results, case, who) for who in pair)
    if not one or not other or not all(other.values()):
        return None
    middle = median(one.values()) / median(other.values())
    paired = [one[number] / other[number] for number in one if number in other] or [middle]
    return Spread(middle, min(middle, *paired), max(middle, *paired))


# -- targets ---------------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """One target: what was measured, and whether it is reached. None: not measured."""

    what: str
    target: str
    ours: str
    peer: str
    ratio: str
    reached: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """Return all targets in the order of the table."""
    return [
        _compared(results, OWN, "500x4", "own cost per job, 500 x 4", 0.65),
        _compared(results, RATE, "500x4", "jobs/s, 500 x 4", -1.15),
        _compared(results, P99, "500x4", "submit → all pods p99, 500 x 4", 0.75),
        _compared(results, P99, "1x200", "time to all pods, 1 x 200", 0.5),
        _compared(results, WALL, "matched-100x4", "wall time at equal limits, 100 x 4", 0.5),
        _absolute(results, WALL, "shipped-100x4", "wall time as shipped, 100 x 4", 12.0),
        _absolute(results, OPERATOR, "1000x4", "CPU of the operator per job, 1,000 x 4", 8.0),
        _absolute(results, PEAK, "1000x4", "peak RSS of the operator, 1,000 x 4", 110.0),
        _to_floor(results),
        _always(results, EVENTS),
        _always(results, RUNNING),
    ]


def _compared(results: Results, quantity: Quantity, case: str, what: str, bound: float) -> Verdict:
    """Compare a ratio with a bound: at most the bound, or at least its absolute value if it is negative."""
    found = ratio(results, quantity, case, OPERATORS)
    reached = None if found is None else found.middle <= bound if bound > 0 else found.middle >= -bound
    ours, peer = (quantity.text(results, case, who) for who in OPERATORS)
    target = f"{'≤' if bound > 0 else '≥'} {abs(bound):g} x"
    return Verdict(what, target, ours, peer, found.text(2) if found else NONE, reached)


def _absolute(results: Results, quantity: Quantity, case: str, what: str, bound: float) -> Verdict:
    found = quantity.spread(results, case, "ours")
    both = ratio(results, quantity, case, OPERATORS)
    ours, peer = (quantity.text(results, case, who) for who in OPERATORS)
    reached = None if found is None else found.middle <= bound
    return Verdict(what, f"≤ {bound:g} {quantity.unit}", ours, peer, both.text(2) if both else NONE, reached)


def _to_floor(results: Results) -> Verdict:
    """Compare with the floor, at the size where the ratio is the smallest."""
    sizes = {case: ratio(results, RATE, case, ("ours", "floor")) for case in ("100x4", "500x4", "1000x4")}
    known = {case: found for case, found in sizes.items() if found}
    what = "jobs/s compared with the floor"
    if not known:
        return Verdict(what, "≥ 0.9 x", NONE, NONE, NONE, None)
    worst = min(known, key=lambda case: known[case].middle)
    ours, floor = (RATE.text(results, worst, who) for who in ("ours", "floor"))
    what += f", smallest ratio of all sizes ({label(results, worst)})"
    return Verdict(what, "≥ 0.9 x", ours, f"floor: {floor}", known[worst].text(2), known[worst].middle >= 0.9)


def _always(results: Results, quantity: Quantity) -> Verdict:
    """Require 100 % in every run."""
    least = {}
    for who in OPERATORS:
        found = [quantity.value(results, run) for run in results.all_of(who)]
        least[who] = min((value for value in found if value is not None), default=None)
    ours, peer = (NONE if least[who] is None else f"{least[who]:.0f} %" for who in OPERATORS)
    reached = None if least["ours"] is None else least["ours"] == 100.0
    return Verdict(f"{quantity.name}, smallest value of all runs", "100 %", ours, peer, NONE, reached)


def label(results: Results, case: str) -> str:
    """Return the name of a case for a reader."""
    run = next(run for who in NAMES for run in results.of(case, who))
    sizes = f"{run.jobs:,} x {run.pods:,}"
    return {"open": sizes, "matched": f"{sizes}, equal limits", "shipped": f"{sizes}, as shipped"}[run.mode]
