# SPDX-License-Identifier: Apache-2.0
"""The operator and the floor in turn, at several sizes; then the operator alone with ever more jobs present.

`__main__` calls it; `drive` does a run.
"""

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
from cluster_binaries import MissingError, find, version
from cluster_install import install_crds
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from cluster_process import Process
from drive import RUNS, Result, Sizes, clear, manifest, measured, memory, namespace, quantile, quiet, reach, resting

import trainwright
from trainwright.crd.rights import RBAC, bindings, cluster_role, lease_role
from trainwright.kinds.registry import KINDS

SIZES = (Sizes(100, 4), Sizes(500, 4), Sizes(1000, 4), Sizes(1, 200))
QUICK = (Sizes(20, 4), Sizes(1, 20))
FLOOR = Path(__file__).with_name("floor.py")
HOME = "trainwright"
#: Seconds for which it is seen what an operator does that has nothing to do.
REST = 20.0


def main(words: list[str]) -> int:
    """Measure; one line if there is no control plane to be had."""
    quick = "--quick" in words
    runs = next((int(word.partition("=")[2]) for word in words if word.startswith("--runs=")), 1 if quick else 2)
    asked = next((word.partition("=")[2].split(",") for word in words if word.startswith("--sizes=")), None)
    sizes = tuple(Sizes(*map(int, one.split("x"))) for one in asked) if asked else QUICK if quick else SIZES
    parts = [word for word in words if word in ("sizes", "present")] or ["sizes", "present"]
    try:
        find("etcd", "kube-apiserver", "kubectl")
    except MissingError as missing:
        print(f"SKIPPED: the operator was not measured: {missing}")
        return 0
    _head(runs)
    with _plane() as plane:
        if "sizes" in parts:
            _sizes(plane, sizes, runs)
        if "present" in parts:
            _present(plane, (20, 50, 100) if quick else (100, 1000, 5000), 10 if quick else 100)
    return 0


def _head(runs: int) -> None:
    when = datetime.now(UTC)  # noqa: TID251 - a benchmark's own date
    print(
        f"{when:%Y-%m-%d %H:%M} UTC, Trainwright {trainwright.__version__}, CPython {platform.python_version()},",
        end=" ",
    )
    print(f"aiohttp {aiohttp.__version__}, msgspec {msgspec.__version__}, Kubernetes {version()}, {platform.release()}")
    print(f"{os.cpu_count()} processors for all of it, load {os.getloadavg()[0]:.2f}; {runs} runs of each in turn\n")


@contextmanager
def _plane() -> Iterator[ControlPlane]:
    """API server and etcd, our kinds, and the operator's rights; no controllers, no scheduler."""
    with ControlPlane(controllers=False, scheduler=False, first=install_crds) as plane:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        whole, own = bindings(HOME, {"kind": "User", "name": "operator", "apiGroup": RBAC})
        items = [cluster_role(KINDS), lease_role(HOME), own, whole]
        plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        yield plane


@contextmanager
def _running(plane: ControlPlane, what: str) -> Iterator[tuple[Process, list[Process]]]:
    """An operator of either sort, ready, and everything else that takes part."""
    kubeconfig = str(plane.kubeconfig("operator"))
    words = {
        "ours": ["-m", "trainwright", "operator", "--kubeconfig", kubeconfig, "--lease", f"{HOME}/operator"],
        "floor": [str(FLOOR), kubeconfig],
    }[what]
    with TemporaryDirectory() as folder, fake_nodes(plane, 10, binds=True) as kubelet:
        operator = Process(what, [sys.executable, *words], Path(folder) / "log")
        operator.start()
        try:
            quiet(operator)
            yield operator, [kubelet, *plane.processes.values()]
        finally:
            operator.end()


# -- beside the floor ------------------------------------------------------------------------------------------------


def _sizes(plane: ControlPlane, all_sizes: tuple[Sizes, ...], runs: int) -> None:
    print(
        "| jobs x pods | who | jobs/s | submit → all pods p50 / p99 | CPU a job | peak RSS | writes | 409s | others |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for sizes in all_sizes:
        results: dict[str, list[Result]] = {"floor": [], "ours": []}
        for _ in range(runs):
            for what, found in results.items():
                found.append(_run(plane, what, sizes))
        for what, found in results.items():
            _row(sizes, what, found)
        floor, ours = (median(one.wall - RUNS for one in results[what]) for what in ("floor", "ours"))
        cost = [median(one.cpu for one in results[what]) for what in ("floor", "ours")]
        verdicts.append(f"{sizes}: {floor / ours:.2f} x the floor's jobs/s, {cost[1] / cost[0]:.2f} x its CPU")
    print(f"\nWithout the {RUNS:g} s that pods run: " + "; ".join(verdicts), end="\n\n")


def _run(plane: ControlPlane, what: str, sizes: Sizes) -> Result:
    with _running(plane, what) as (operator, others):
        result, space = measured(plane, operator, others, sizes)
    clear(plane, space)
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


# -- jobs that are there ---------------------------------------------------------------------------------------------


def _present(plane: ControlPlane, numbers: tuple[int, ...], new: int) -> None:
    """So many new jobs of four pods, while ever more others are there: half of them ended, half running."""
    print(
        "| jobs present | at rest | new jobs | CPU a job beyond that | jobs/s | submit → all pods p99 | RSS | others |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with _running(plane, "ours") as (operator, others):
        there = 0
        for number in numbers:
            _fill(plane, operator, number - there)
            there = number + new
            quiet(operator)
            rest = resting(operator.pid, REST)
            result, _ = measured(plane, operator, others, Sizes(new, 4))
            each = 1000 * (result.cpu - rest * result.wall) / new
            print(
                f"| {number:,} | {100 * rest:.1f} % | {new} x 4 | {each:.1f} ms | {new / result.wall:.1f} |"
                f" {quantile(result.waits, 0.99):.2f} s | {memory(operator.pid, 'VmRSS'):.0f} MiB |"
                f" {100 * result.others:.0f} % |",
                flush=True,
            )


def _fill(plane: ControlPlane, operator: Process, number: int) -> None:
    """Jobs of one pod."""
    if number <= 0:
        return
    for phase, runs in (("Succeeded", "0"), ("Running", "forever")):
        jobs = [manifest(f"there-{index}", 1, service=False, runs=runs) for index in range(number // 2)]
        asyncio.run(reach(plane, namespace(plane), jobs, operator, phase))
