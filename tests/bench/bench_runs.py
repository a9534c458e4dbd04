# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison with simple numbers, for tests."""

from typing import Any

from results import Header, Run

HEADER = Header(
    date="2026-11-17 12:00 UTC",
    commit="0123456",
    source="abc",
    trainwright="0.1.0",
    peer="v1.9.4",
    kubernetes="1.36.4",
    python="3.11.7",
    aiohttp="3.14.5",
    msgspec="0.22.0",
    kernel="6.18",
    processor="Some CPU",
    processors=2,
)
#: CPU milliseconds per job of operator, API server and etcd.
COSTS = {"ours": (8, 20, 4), "peer": (20, 30, 8), "floor": (6, 20, 4), "nobody": (0, 10, 2)}
#: Jobs per second.
RATES = {"ours": 20, "peer": 16, "floor": 25, "nobody": 40}


def run(case: str = "500x4", who: str = "ours", number: int = 0, **fields: Any) -> Run:
    """Return one run; later rounds are a little slower and cost a little more."""
    jobs, more = fields.pop("jobs", 100), 1 + number / 10
    operator, apiserver, etcd = (cost * jobs / 1000 * more for cost in COSTS[who])
    cpu = {"operator": operator, "apiserver": apiserver, "etcd": etcd, "kubelet": 1.0, "driver": 1.0}
    is_operator = who != "nobody"
    usual: dict[str, Any] = {
        "mode": "open",
        "pods": 4,
        "date": HEADER.date,
        "took": 30.0,
        "wall": jobs / RATES[who] * more,
        "p50": 1.0 * is_operator,
        "p99": {"ours": 2.0, "peer": 4.0}.get(who, 1.0) * is_operator,
        "cpu": cpu,
        "cpu_quiet": cpu,
        "tail": 2.0,
        "peak": 100.0 * is_operator,
        "writes": {"create pods": 4 * jobs, "create events": (2 if who == "ours" else 13) * jobs}
        if is_operator
        else {},
        "etcd_bytes": 2048 * jobs,
        "body_bytes": {"create pods": 1024 * jobs},
        "events": 1.0,
        "running": 1.0,
    }
    return Run(case=case, round=number, who=who, jobs=jobs, **usual | fields)


def rounds(case: str, whos: tuple[str, ...], numbers: int = 3, **fields: Any) -> list[Run]:
    """Return several rounds of a case."""
    return [run(case, who, number, **fields) for number in range(numbers) for who in whos]


ALL = ("ours", "peer", "floor", "nobody")
BOTH = ("ours", "peer")
RUNS = [
    *rounds("100x4", ALL, 2),
    *rounds("500x4", ALL, jobs=500),
    *rounds("1x200", BOTH, 1, jobs=1, pods=200),
    *rounds("matched-100x4", BOTH, 1, mode="matched"),
    *rounds("shipped-100x4", BOTH, 1, mode="shipped"),
    *rounds("present-100", BOTH, 1, present=100, rest={"operator": 0.01}),
    *rounds("present-1000", BOTH, 1, present=1000, rest={"operator": 0.02}),
]
