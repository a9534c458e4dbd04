# SPDX-License-Identifier: Apache-2.0
"""Simulates a day of jobs on one operator process, and on several that share the jobs by UID. See docs/scale.md.

The cost of a job comes from `bench/operator --compare` (bench/results/operator.jsonl). A process serves one job at a
time, in the order of arrival: a job needs CPU when it is submitted, when its pods run and when they have ended. Half of
the jobs of a day arrive within two hours, and a sweep of 500 jobs arrives at once.

Run: python bench/scale.py [MILLISECONDS_PER_JOB]
"""

import sys
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from statistics import median

import msgspec
from msgspec import Struct

RESULTS = Path(__file__).with_name("results") / "operator.jsonl"
DAY, PEAK_HOURS, PEAK_SHARE, SWEEP = 86_400.0, 2.0, 0.5, 500
#: The parts of a job's CPU: creating its children, its start, its end.
PARTS = (0.5, 0.25, 0.25)
#: Seconds from the submission of a job to its start, and from its start to its end.
STARTS, LASTS = 20.0, 1800.0


class Day(Struct, frozen=True):
    """What a day looks like for the processes."""

    #: The share of the day, and of the busiest minute, in which a process works.
    busy: float
    busiest: float
    #: Seconds that jobs wait until a process begins to create their pods.
    wait_p99: float
    wait_most: float


def arrivals(jobs: int, random: Random) -> list[float]:
    """Return the times of submission, in seconds."""
    peak = [random.uniform(9, 9 + PEAK_HOURS) * 3600 for _ in range(int(jobs * PEAK_SHARE))]
    sweep = [10 * 3600.0] * min(SWEEP, jobs // 10)
    return sorted(peak + sweep + [random.uniform(0, DAY) for _ in range(jobs - len(peak) - len(sweep))])


def simulate(jobs: int, seconds: float, shards: int) -> Day:
    """Run one day. Each job belongs to one shard for its whole life."""
    random = Random(16)  # noqa: S311 - a simulation
    free, work = [0.0] * shards, [0.0] * shards
    minutes: dict[tuple[int, int], float] = {}
    waits, count = list[float](), 0
    due: list[tuple[float, int, int, int]] = []
    for at in arrivals(jobs, random):
        heappush(due, (at, count, random.randrange(shards), 0))
        count += 1
    while due:
        at, _, shard, part = heappop(due)
        begin, cost = max(at, free[shard]), seconds * PARTS[part]
        free[shard] = begin + cost
        work[shard] += cost
        minute = (shard, int(begin // 60))
        minutes[minute] = minutes.get(minute, 0.0) + cost
        if part == 0:
            waits.append(begin - at)
        if part < 2:
            count += 1
            heappush(due, (begin + (STARTS, LASTS)[part] * random.uniform(0.5, 1.5), count, shard, part + 1))
    waits.sort()
    return Day(max(work) / DAY, max(minutes.values()) / 60, waits[int(0.99 * len(waits))], waits[-1])


def measured() -> float | None:
    """Return the median of the operator's CPU milliseconds per job at 1,000 x 4 or else at 500 x 4."""
    if not RESULTS.exists():
        return None
    lines = [msgspec.json.decode(line) for line in RESULTS.read_bytes().splitlines()[1:]]
    for case in ("1000x4", "500x4"):
        found = [1000 * one["cpu_quiet"]["operator"] / one["jobs"] for one in lines if _is_ours(one, case)]
        if found:
            return float(median(found))
    return None


def _is_ours(run: dict[str, object], case: str) -> bool:
    return (run["case"], run["who"]) == (case, "ours")


def main(words: list[str]) -> int:
    each = float(words[0]) if words else measured()
    if each is None:
        print(f"no cost of a job in {RESULTS}: give it in milliseconds, or run bench/operator --compare first")
        return 2
    print(f"{each:.1f} ms of CPU per job of four pods\n")
    print("| jobs a day | processes | busy, mean | busiest minute | wait for the first pod, p99 / longest |")
    print("|---|---|---|---|---|")
    for jobs in (10_000, 100_000, 1_000_000):
        for shards in (1, 2, 4):
            day = simulate(jobs, each / 1000, shards)
            waits = f"{1000 * day.wait_p99:,.0f} ms / {day.wait_most:,.1f} s"
            print(f"| {jobs:,} | {shards} | {100 * day.busy:.1f} % | {100 * day.busiest:.0f} % | {waits} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
