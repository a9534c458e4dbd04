# SPDX-License-Identifier: Apache-2.0
"""`trainwright down`: end the background engine, and either keep its jobs running or end them."""

import signal
import sys
import time
from typing import Literal

import click

from trainwright.cli.background.place import connect, engine_folder, replicas_may_run, running_engine
from trainwright.cli.flags import duration_option
from trainwright.errors import ConflictError, EngineError, UnavailableError, UsageError

_POLL_SECONDS = 0.05
#: After the answer to `down`, the engine must end within this many seconds.
_END_SECONDS = 60.0
_OVER = ("Succeeded", "Failed")
_CHOICES = "give --keep-running to let them continue without the engine, or --end to end them"


@click.command("down")
@click.option(
    "--keep-running",
    "jobs",
    flag_value="keep",
    help="Let jobs continue: their replicas run on, and the next `trainwright up` takes them over. Without an engine, "
    "no replica is restarted.",
)
@click.option("--end", "jobs", flag_value="end", help="End all unfinished jobs like `trainwright delete`.")
@duration_option("--grace", help="With --end: kill replicas that have not ended after TIME.")
def command(jobs: Literal["keep", "end"] | None, grace: float | None) -> None:
    """End the engine that `trainwright up` has started.

    If jobs are unfinished, say with --keep-running or --end what happens to them; in a terminal, the command asks.
    Finished jobs and all logs are kept.

    \b
    Examples:
      trainwright down
      trainwright down --keep-running
      trainwright down --end --grace 10s
    """
    if grace is not None and jobs != "end":
        raise UsageError("--grace works only with --end: without it, replicas keep running")
    process = running_engine()
    if process is None:
        raise UsageError(_not_running())
    with connect() as client:
        counts = client.call("status", {})["jobs"]
        unfinished = sum(number for phase, number in counts.items() if phase not in _OVER)
        how = jobs or (_ask(unfinished) if unfinished else "idle")
        if how == "end" and unfinished:
            click.echo(f"ending {unfinished} job{'s' * (unfinished != 1)}, each replica with its grace period")
        try:
            ended = client.call_slow("down", {"jobs": how, "grace": grace})["jobs"]
        except ConflictError:
            raise UsageError(f"a job was submitted just now; {_CHOICES}") from None
        except UnavailableError:  # the engine was ended by somebody else meanwhile
            ended = []
    _wait_gone(process.pid)
    many = len(ended) != 1
    count = f"{len(ended)} job{'s' * many}"
    going_on = f"{count} continue{'s' * (not many)} without it; `trainwright up` takes {'them' if many else 'it'} over"
    text = (f"{count} ended" if how == "end" else going_on) if ended else ""
    click.echo("the engine is down" + (f"; {text}" if text else ""))


def _not_running() -> str:
    left = replicas_may_run(engine_folder())
    hint = "; replicas of the last engine run on: `trainwright up` takes them over" if left else ""
    return f"no engine runs in the background{hint}"


def _ask(unfinished: int) -> Literal["keep", "end"]:
    """Ask what happens to unfinished jobs. Raises UsageError if there is no terminal."""
    what = f"{unfinished} job{'s are' if unfinished != 1 else ' is'} unfinished"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{what}; {_CHOICES}")
    answer = click.prompt(
        f"{what}. Let the replicas run on (keep), or end the jobs (end)?",
        type=click.Choice(("keep", "end", "cancel")),
        default="keep",
        err=True,
    )
    if answer == "cancel":
        raise click.Abort
    return "end" if answer == "end" else "keep"


def _wait_gone(pid: int) -> None:
    """Wait until the process of the engine has ended. If it hangs, say how to kill it."""
    until = time.monotonic() + _END_SECONDS
    while (process := running_engine()) is not None and process.pid == pid:
        if time.monotonic() > until:
            raise EngineError(f"the engine (process {pid}) does not end; `kill -{signal.SIGKILL} {pid}` ends it")
        time.sleep(_POLL_SECONDS)
