# SPDX-License-Identifier: Apache-2.0
"""How a job of a cluster ended, in the same words as for a job of this machine; and `trainwright wait`."""

import time

import click
import msgspec

from trainwright.cli.flags import ClusterOptions
from trainwright.cli.live_job import LiveJob
from trainwright.cli.remote.connection import connect_to_cluster, reach_by
from trainwright.cli.run.ending import EndingInput, RunEnd, find_ending
from trainwright.cli.run.model import JobRow
from trainwright.cli.show.news import JobEnding
from trainwright.cli.show.text import headline
from trainwright.errors import UnavailableError, UntrustedError
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.meta import Key
from trainwright.model.units import Time, parse_time
from trainwright.runtime.ports import WallClock

_POLL_SECONDS = 0.5


def ledger_of(body: Body) -> Ledger:
    """The ledger in the status of a job."""
    return msgspec.convert((body.get("status") or {}).get("trainwright") or {}, Ledger)


def ending_of(kind: Kind, body: Body, now: Time, *, deleted: bool = False) -> JobEnding | None:
    """How the job ended; None if it has not ended. The last log lines are left out: `explain` has them."""
    ledger, meta = ledger_of(body), body["metadata"]
    if ledger.outcome is None and not deleted:
        return None
    created = parse_time(str(meta.get("creationTimestamp", "")))
    end = ledger.outcome.at if ledger.outcome is not None else now
    took = (end - created).total_seconds() if created is not None else 0.0
    row = JobRow(Key(meta["namespace"], meta["name"]), kind, body, {}, 0, ledger, deleted=deleted)
    return find_ending(row, EndingInput(RunEnd.DONE, "", max(took, 0.0), [], lambda *_: ()))


# -- wait --------------------------------------------------------------------------------------------------------------


def wait_on_cluster(
    cluster: ClusterOptions, names: tuple[str, ...], namespace: str, goal: str, until: float | None
) -> list[int] | Key:
    """Wait for each job. Returns the exit codes, or the job for which the time was too short."""
    codes = []
    with connect_to_cluster(cluster) as client:
        for reached in [reach_by(client, name, namespace) for name in names]:
            code = _wait(reached, goal, until)
            if code is None:
                return reached.job
            codes.append(code)
    return codes


def _wait(reached: LiveJob, goal: str, until: float | None) -> int | None:
    """Wait for one job. Returns its exit code, or None if the time is over."""
    last: Body | None = reached.body
    while True:
        ending = ending_of(reached.kind, last or reached.body, WallClock().now(), deleted=last is None)
        if ending is not None:
            click.echo(headline(ending))
            return ending.exit_code
        if goal == "running" and last is not None and ledger_of(last).phase is Phase.RUNNING:
            click.echo(f"{reached.job} runs")
            return 0
        if until is not None and time.monotonic() >= until:
            return None
        left = _POLL_SECONDS if until is None else until - time.monotonic()
        time.sleep(max(0.0, min(_POLL_SECONDS, left)))
        last = _next(reached, last)


def _next(reached: LiveJob, last: Body | None) -> Body | None:
    """The job as it is now. If the API server is being restarted, the job as it was."""
    try:
        return reached.current()
    except UntrustedError:
        raise
    except UnavailableError:
        return last
