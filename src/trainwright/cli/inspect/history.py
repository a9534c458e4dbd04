# SPDX-License-Identifier: Apache-2.0
"""`trainwright history`: the attempts of a job and where its time went, as values and as text."""

from collections.abc import Iterator
from datetime import datetime

import click

from trainwright.cli.inspect.evidence import Wanted
from trainwright.cli.inspect.facts import view_of
from trainwright.cli.inspect.options import Form, JobChoice, collect, job_options
from trainwright.cli.output import as_json, columns
from trainwright.core import history
from trainwright.core.failure_text import loss_text
from trainwright.model.ledger import Ledger
from trainwright.model.meta import Wire
from trainwright.model.units import Time, rfc3339, spell
from trainwright.model.verdict import AttemptRecord

#: At most this many nodes of an attempt are shown.
_MAX_NODES = 3


@click.command("history")
@job_options
def command(choice: JobChoice, form: Form) -> None:
    """Print the attempts of JOB: when each began, how long it took, why it ended, and how much time was lost.

    An attempt ends with each restart of a part of the job, and with a suspension. Time is productive while all replicas
    run. Goodput is productive time divided by the time since the job was accepted. A + marks an attempt that has not
    ended.

    \b
    Examples:
      trainwright history demo
      trainwright history demo -o json | jq .goodput

    \b
    Exit codes:
      0  done
      2  wrong usage, or there is no such job
      3  no answer from the run or from the cluster
    """
    evidence = collect(choice, Wanted.JOB)
    job = view_of(evidence).job
    found = history_report(job.key.namespace, job.key.name, job.ledger, evidence.now)
    if form == "json":
        click.echo(as_json(found), nl=False)
    else:
        click.echo("\n".join(history_lines(found)))
    for text in evidence.gaps if form == "text" else ():
        click.echo(text, err=True)


class AttemptReport(Wire, frozen=True, gc=False):
    """One attempt. Durations are in seconds; those of an attempt without an end count up to now."""

    number: int
    start: datetime
    duration: float
    #: Seconds in which not all replicas ran.
    lost: float
    running: datetime | None = None
    end: datetime | None = None
    nodes: tuple[str, ...] = ()
    #: The class of the failure that ended the attempt; empty: no failure ended it.
    cause: str = ""
    #: What was restarted: `Pod`, `Role` or `Job`; empty: nothing.
    scope: str = ""
    #: The first replica that failed.
    replica: str = ""


class HistoryReport(Wire, frozen=True, gc=False, omit_defaults=False):
    """The history. Sums are exact, also if older attempts are no longer listed."""

    namespace: str
    name: str
    #: How many attempts there were; `attempts` lists the last of them.
    total: int
    attempts: tuple[AttemptReport, ...]
    #: Seconds since the job was accepted, up to its end or up to now.
    wall: float
    productive: float
    #: Productive ÷ wall; null if no time is recorded: the job has just begun, or an older version ran it.
    goodput: float | None
    #: Lost seconds by cause: a failure class, `Start` or `Suspended`.
    lost: dict[str, float]


def history_report(namespace: str, name: str, ledger: Ledger, now: Time) -> HistoryReport:
    """The history of a job up to its end or up to `now`."""
    shares, book = history.time_shares(ledger, now), ledger.history
    attempts = tuple(_attempt(one, ledger, now) for one in book.attempts)
    times = (shares.wall, shares.productive, shares.goodput, shares.lost)
    return HistoryReport(namespace, name, book.total, attempts, *times)


def _attempt(one: AttemptRecord, ledger: Ledger, now: Time) -> AttemptReport:
    lost = one.lost / 1000
    if one.end is None and ledger.outcome is None and ledger.history.now_lost_to and ledger.history.until is not None:
        lost += max((now - ledger.history.until).total_seconds(), 0.0)  # the ledger counts it at the next change
    duration = max(((one.end or now) - one.start).total_seconds(), 0.0)
    return AttemptReport(
        one.number,
        one.start,
        round(duration, 3),
        round(lost, 3),
        one.running,
        one.end,
        one.nodes,
        one.cause,
        one.scope,
        one.replica,
    )


def history_lines(report: HistoryReport) -> Iterator[str]:
    """The attempts as a table, then the sums."""
    if not report.attempts:
        yield f"{report.name} has no recorded attempts"
        return
    left_out = report.total - len(report.attempts)
    head = ["ATTEMPT", "START", "DURATION", "LOST", "CAUSE", "REPLICA", "RESTARTED", "NODES"]
    yield from columns([head, *(_row(one) for one in report.attempts)])
    if left_out:
        several = "attempts are" if left_out > 1 else "attempt is"
        yield f"({left_out} earlier {several} not listed; the sums below include the time of all attempts)"
    yield ""
    share = f" (goodput {report.goodput:.0%})" if report.goodput is not None else ""
    yield f"total: {spell(report.wall)}, productive for {spell(report.productive)}{share}"
    for cause, seconds in sorted(report.lost.items(), key=lambda pair: -pair[1]):
        yield f"lost:  {spell(seconds)} {loss_text(cause)}"


def _row(one: AttemptReport) -> list[str]:
    nodes = ",".join(one.nodes[:_MAX_NODES]) + (
        f",+{len(one.nodes) - _MAX_NODES}" if len(one.nodes) > _MAX_NODES else ""
    )
    ended = "" if one.end is not None else "+"
    return [
        str(one.number),
        rfc3339(one.start),
        spell(one.duration) + ended,
        spell(one.lost) + ended,
        one.cause or "-",
        one.replica or "-",
        one.scope or "-",
        nodes or "-",
    ]
