# SPDX-License-Identifier: Apache-2.0
"""`--compare`: makes the missing runs in their order, stores each result at once, then writes tables and plots."""

import argparse
import os
import signal
import sys
from statistics import median

import peer
from cases import Task, chosen, tasks
from cluster_binaries import MissingError, find
from cluster_process import PlaneError
from measure import perform
from options import docs_folder, results_file
from render import write
from results import ResultsError, ResultsFile, Run, load
from versions import header


def main(asked: argparse.Namespace) -> int:
    """Measure what is missing and render the results; errors are one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the control plane is removed
    try:
        return _render(asked) if asked.render else _compare(asked)
    except (MissingError, ResultsError) as error:
        print(f"bench/operator --compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues with the runs that are missing", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the plan has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _render(asked: argparse.Namespace) -> int:
    head, runs = load(results_file(asked))
    for path in write(docs_folder(asked), head, runs):
        print(path)
    return 0


def _compare(asked: argparse.Namespace) -> int:
    peer.check()
    find("etcd", "kube-apiserver", "kubectl")
    wanted = tasks(chosen(asked.cases, rounds=asked.rounds, small=asked.quick))
    path = results_file(asked)
    if asked.plan:
        _plan(wanted, load(path)[1] if path.exists() and not asked.fresh else [])
        return 0
    file = ResultsFile.open(path, header(quick=asked.quick), fresh=asked.fresh)
    failed = _measure(_missing(wanted, file.runs), file, asked.max_others)
    failed = _measure(failed, file, asked.max_others)
    _render(asked)
    if failed:
        print(f"runs that failed twice: {len(failed)}; the same command repeats them", file=sys.stderr)
    return int(bool(failed))


def _plan(wanted: list[Task], runs: list[Run]) -> None:
    for task in _missing(wanted, runs):
        print(f"  {task.case.name}, round {task.number + 1}, {task.who}: {_seconds(task, runs):.0f} s")


def _missing(wanted: list[Task], runs: list[Run]) -> list[Task]:
    """Return the runs that are still to be made, and print how long they take."""
    done = {run.key for run in runs}
    missing = [task for task in wanted if task.key not in done]
    print(
        f"{len(wanted)} runs, {len(wanted) - len(missing)} of them done; about {_time(missing, runs)} left", flush=True
    )
    return missing


def _measure(missing: list[Task], file: ResultsFile, most: float) -> list[Task]:
    """Make the runs, store their results, and return those that failed."""
    failed = []
    for index, task in enumerate(missing):
        what = f"{task.case.name}, round {task.number + 1} of {task.case.rounds}, {task.who}"
        try:
            run = _undisturbed(task, what, most)
        except (PlaneError, AssertionError, OSError) as error:
            failed.append(task)
            print(f"{what} failed: {_line(error)}", file=sys.stderr, flush=True)
            continue
        file.append(run)
        left = missing[index + 1 :]
        print(f"{what}: {_said(run)}; {len(left)} runs left, about {_time(left, file.runs)}", flush=True)
    return failed


def _undisturbed(task: Task, what: str, most: float) -> Run:
    """Make a run; make it once more if other programs used more than this share of the machine."""
    run = perform(task)
    if run.others <= most:
        return run
    print(f"{what}: other programs used {100 * run.others:.0f} % of the machine; the run is repeated", flush=True)
    again = perform(task)
    return min(run, again, key=lambda one: one.others)


def _said(run: Run) -> str:
    cost = 1000 * sum(run.cpu_quiet.get(name, 0.0) for name in ("operator", "apiserver", "etcd")) / run.jobs
    wait = f"p99 {run.p99:.2f} s, " if run.p99 else ""
    return (
        f"{run.wall:.1f} s, {run.jobs / run.wall:.1f} jobs/s, {wait}{cost:.1f} ms CPU per job,"
        f" others {100 * run.others:.0f} %, {run.took:.0f} s in total"
    )


def _line(error: Exception) -> str:
    """Return the first and the last line of an error: what failed, and the end of its log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"


def _time(some: list[Task], runs: list[Run]) -> str:
    seconds = sum(_seconds(task, runs) for task in some)
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _seconds(task: Task, runs: list[Run]) -> float:
    """Estimate a run by earlier runs of the same case and contestant, or by the table of cases."""
    took = [run.took for run in runs if (run.case, run.who) == (task.case.name, task.who)]
    return median(took) if took else task.expected
