# SPDX-License-Identifier: Apache-2.0
"""`trainwright wait`: wait until a job has ended, or until it runs."""

import time
from typing import Literal

import click

from trainwright.cli.background.attach import check_record, read_ending
from trainwright.cli.completion import complete_jobs
from trainwright.cli.flags import ClusterOptions, choice_option, cluster_choice, duration_option
from trainwright.cli.live_job import namespaced, reach
from trainwright.cli.runs import Run, find
from trainwright.cli.show.text import headline
from trainwright.errors import EngineError, UsageError
from trainwright.model.ledger import Phase
from trainwright.model.meta import Key

_POLL_SECONDS = 0.1
_TIMED_OUT = 124


@click.command("wait")
@click.argument("names", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@namespaced
@cluster_choice
@choice_option("--for", "goal", choices=("end", "running"), help="Wait until each JOB has ended, or until it runs.")
@duration_option("--timeout", help="Give up after TIME.")
def command(
    names: tuple[str, ...],
    namespace: str,
    cluster: ClusterOptions,
    goal: Literal["end", "running"],
    timeout: float | None,
) -> int:
    """Wait until each JOB has ended, and exit with the worst outcome.

    If the engine or the API server is restarted meanwhile, the command waits for the next one.

    \b
    Examples:
      trainwright wait demo && echo done
      trainwright wait --for running --timeout 5m demo
      trainwright wait --context production demo

    \b
    Exit codes:
      0  every job succeeded (with --for running: runs)      2  there is no such job
      1  a job failed or was deleted                         124  --timeout passed
    """
    until = None if timeout is None else time.monotonic() + timeout
    codes = _codes(names, namespace, cluster, goal, until)
    if isinstance(codes, Key):
        click.echo(f"{codes} has not {'ended' if goal == 'end' else 'started to run'} within the time", err=True)
        return _TIMED_OUT
    return max(codes)


def _codes(
    names: tuple[str, ...], namespace: str, cluster: ClusterOptions, goal: str, until: float | None
) -> list[int] | Key:
    """The exit codes of all jobs, or the job for which the time was too short."""
    if cluster.given:
        from trainwright.cli.remote.outcome import wait_on_cluster  # noqa: PLC0415 - this machine needs no HTTP

        return wait_on_cluster(cluster, names, namespace, goal, until)
    codes = []
    for run in [find(name, namespace) for name in names]:
        code = _wait(run, goal, until)
        if code is None:
            return run.key
        codes.append(code)
    return codes


def _wait(run: Run, goal: str, until: float | None) -> int | None:
    """Wait for one job. Returns its exit code, or None if the time is over."""
    while True:
        code = _reached(run, goal)
        if code is not None:
            return code
        if until is not None and time.monotonic() >= until:
            return None
        time.sleep(_POLL_SECONDS)


def _reached(run: Run, goal: str) -> int | None:
    """The exit code if the goal is reached; None if it is not."""
    ending = read_ending(run)
    if ending is not None:
        click.echo(headline(ending))
        return ending.exit_code
    check_record(run)
    if not run.background and not find(str(run.key)).live and read_ending(run) is None:
        raise EngineError(f"{run.key}: its run was killed, so nobody will know how it ended")
    if goal == "running" and _runs(run):
        click.echo(f"{run.key} runs")
        return 0
    return None


def _runs(run: Run) -> bool:
    try:
        reached = reach(str(run.key))
    except (UsageError, EngineError):  # the engine is being restarted, or the job has just ended
        return False
    with reached.client:
        status = (reached.body.get("status") or {}).get("trainwright") or {}
    return status.get("phase") == Phase.RUNNING.value
