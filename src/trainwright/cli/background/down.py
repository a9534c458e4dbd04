# SPDX-License-Identifier: Apache-2.0
"""`trainwright down`: end the background engine, and either keep its jobs running or end them."""

import signal
import sys
import time
from typing import Literal

import click
from msgspec import Struct

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
@click.option(
    "--end", "jobs", flag_value="end", help="End all unfinished jobs like `trainwright delete`, and all other pods."
)
@duration_option("--grace", help="With --end: kill replicas that have not ended after TIME.")
def command(jobs: Literal["keep", "end"] | None, grace: float | None) -> None:
    """End the engine that `trainwright up` has started.

    If jobs, or pods that a client of the API has created, are unfinished, say with --keep-running or --end what happens
    to them; in a terminal, the command asks.
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
        status = client.call("status", {})
        unfinished = sum(number for phase, number in status["jobs"].items() if phase not in _OVER)
        found = _Unfinished(unfinished, status.get("pods", 0))
        how = jobs or (_ask(found) if found.count else "idle")
        if how == "end" and found.count:
            click.echo(f"ending {found}, each replica with its grace period")
        try:
            result = client.call_slow("down", {"jobs": how, "grace": grace})
        except ConflictError:
            raise UsageError(f"a job or a pod was created just now; {_CHOICES}") from None
        except UnavailableError:  # the engine was ended by somebody else meanwhile
            result = {"jobs": []}
    _wait_gone(process.pid)
    ended = _Unfinished(len(result["jobs"]), len(result.get("pods", ())))
    one = ended.count == 1
    going_on = f"{ended} continue{'s' * one} without it; `trainwright up` takes {'it' if one else 'them'} over"
    text = (f"{ended} ended" if how == "end" else going_on) if ended.count else ""
    click.echo("the engine is down" + (f"; {text}" if text else ""))


class _Unfinished(Struct, frozen=True):
    """The numbers of unfinished jobs, and of pods that belong to no job."""

    jobs: int
    pods: int

    @property
    def count(self) -> int:
        return self.jobs + self.pods

    def __str__(self) -> str:
        parts = ((self.jobs, "job", ""), (self.pods, "pod", " of no job"))
        return " and ".join(f"{count} {what}{'s' * (count != 1)}{rest}" for count, what, rest in parts if count)


def _not_running() -> str:
    left = replicas_may_run(engine_folder())
    hint = "; replicas of the last engine run on: `trainwright up` takes them over" if left else ""
    return f"no engine runs in the background{hint}"


def _ask(found: _Unfinished) -> Literal["keep", "end"]:
    """Ask what happens to unfinished jobs and pods. Raises UsageError if there is no terminal."""
    what = f"{found} {'is' if found.count == 1 else 'are'} unfinished"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{what}; {_CHOICES}")
    answer = click.prompt(
        f"{what}. Let the replicas run on (keep), or end them (end)?",
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
