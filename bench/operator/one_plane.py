# SPDX-License-Identifier: Apache-2.0
"""Measures the operator and the floor in turn, at several sizes; then the operator alone with more and more jobs."""

import argparse
import os
import platform
from datetime import UTC, datetime
from statistics import median

import aiohttp
import msgspec
import peer
from cluster_binaries import MissingError, find, version
from cluster_plane import ControlPlane
from contestants import control_plane, running
from cpu import memory, quiet, resting
from drive import RUNS, Result, Sizes, clear, fill, measured, quantile
from shapes import SHAPES, Shape

import trainwright

SIZES = (Sizes(100, 4), Sizes(500, 4), Sizes(1000, 4), Sizes(1, 200))
QUICK = (Sizes(20, 4), Sizes(1, 20))
#: Seconds for which the CPU of an idle operator is measured.
REST = 20.0


def main(asked: argparse.Namespace) -> int:
    """Measure and print the tables; without a control plane, print one line."""
    quick, shape = asked.quick, SHAPES[asked.kind]
    runs = asked.runs or (1 if quick else 2)
    sizes = asked.sizes or (QUICK if quick else SIZES)
    parts = asked.parts or ["sizes", "present"]
    try:
        find("etcd", "kube-apiserver", "kubectl")
    except MissingError as missing:
        print(f"SKIPPED: the operator was not measured: {missing}")
        return 0
    _head(runs, shape)
    with control_plane() as plane:
        if "sizes" in parts:
            _sizes(plane, shape, sizes, runs)
        if "present" in parts:
            _present(plane, shape, (20, 50, 100) if quick else (100, 1000, 5000), 10 if quick else 100)
    return 0


def _who(shape: Shape) -> list[str]:
    """Return the operators to measure in turn; the original too, if it is installed and supports the kind."""
    return ["floor", "ours", *(["peer"] if shape.kind == "tfjob" and peer.program() else [])]


def _head(runs: int, shape: Shape) -> None:
    when = datetime.now(UTC)  # noqa: TID251 - a benchmark's own date
    print(
        f"{when:%Y-%m-%d %H:%M} UTC, Trainwright {trainwright.__version__}, CPython {platform.python_version()},",
        end=" ",
    )
    print(f"aiohttp {aiohttp.__version__}, msgspec {msgspec.__version__}, Kubernetes {version()}, {platform.release()}")
    print(f"{os.cpu_count()} processors in total, load {os.getloadavg()[0]:.2f}; {runs} runs of each in turn", end="")
    print(f"; {shape.resource.kind}{f'; peer is {peer.NAME} {peer.version()}' if 'peer' in _who(shape) else ''}\n")


# -- compared with the floor -----------------------------------------------------------------------------------------


def _sizes(plane: ControlPlane, shape: Shape, all_sizes: tuple[Sizes, ...], runs: int) -> None:
    if "peer" in _who(shape):
        peer.prepare(plane)
    print(
        "| jobs x pods | who | jobs/s | submit → all pods p50 / p99 | CPU per job | peak RSS | writes | 409s | others |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for sizes in all_sizes:
        results: dict[str, list[Result]] = {what: [] for what in _who(shape)}
        for _ in range(runs):
            for what, found in results.items():
                found.append(_run(plane, shape, what, sizes))
        for what, found in results.items():
            _row(sizes, what, found)
        verdicts += [_verdict(sizes, results, what) for what in results if what != "ours"]
    print(f"\nWithout the {RUNS:g} s that pods run: " + "; ".join(verdicts), end="\n\n")


def _verdict(sizes: Sizes, results: dict[str, list[Result]], what: str) -> str:
    """Compare ours with another operator, as text."""
    wall = {who: median(one.wall - RUNS for one in found) for who, found in results.items()}
    cost = {who: median(one.cpu for one in found) for who, found in results.items()}
    return f"{sizes}: {wall[what] / wall['ours']:.2f} x the {what}'s jobs/s, {cost['ours'] / cost[what]:.2f} x its CPU"


def _run(plane: ControlPlane, shape: Shape, what: str, sizes: Sizes) -> Result:
    with running(plane, shape, what) as place:
        result, space = measured(place, sizes)
    clear(plane, shape, space)
    return result


def _row(sizes: Sizes, what: str, found: list[Result]) -> None:
    def middle(name: str) -> float:
        return float(median(getattr(one, name) for one in found))

    waits = [median(quantile(one.waits, share) for one in found) for share in (0.5, 0.99)]
    each = 1000 * middle("cpu") / sizes.jobs
    print(
        f"| {sizes} | {what} | {sizes.jobs / middle('wall'):.1f} | {waits[0]:.2f} / {waits[1]:.2f} s | {each:.1f} ms |"
        f" {max(one.peak for one in found):.0f} MiB | {middle('writes') / sizes.jobs:.1f} | {middle('conflicts'):.0f} |"
        f" {100 * middle('others'):.0f} % |",
        flush=True,
    )


# -- with existing jobs ----------------------------------------------------------------------------------------------


def _present(plane: ControlPlane, shape: Shape, numbers: tuple[int, ...], new: int) -> None:
    """Measure new jobs of four pods while more and more other jobs exist: half of them ended, half running."""
    print("| existing jobs | at rest | new jobs | CPU per new job | jobs/s | submit → all pods p99 | RSS | others |")
    print("|---|---|---|---|---|---|---|---|")
    with running(plane, shape, "ours") as place:
        there, operator = 0, place.operator
        for number in numbers:
            fill(place, number - there)
            there = number + new
            quiet(operator)
            rest = resting({"operator": operator}, REST)["operator"]
            result, _ = measured(place, Sizes(new, 4))
            each = 1000 * (result.cpu - rest * result.wall) / new
            print(
                f"| {number:,} | {100 * rest:.1f} % | {new} x 4 | {each:.1f} ms | {new / result.wall:.1f} |"
                f" {quantile(result.waits, 0.99):.2f} s | {memory(operator.pid, 'VmRSS'):.0f} MiB |"
                f" {100 * result.others:.0f} % |",
                flush=True,
            )
