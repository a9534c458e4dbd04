# SPDX-License-Identifier: Apache-2.0
"""`trainwright describe`: everything about a job on one page, as values and as text."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

import click

from trainwright.cli.inspect.events import EventReport, event_lines, event_reports
from trainwright.cli.inspect.evidence import JobEvidence
from trainwright.cli.inspect.facts import JobView, facts_of, view_of
from trainwright.cli.inspect.history import HistoryReport, history_report
from trainwright.cli.inspect.options import Form, JobChoice, collect, job_options
from trainwright.cli.inspect.replicas import STOPPED, UNKNOWN, ReplicaReport, replica_reports
from trainwright.cli.inspect.screen import cut, wrapped
from trainwright.cli.output import as_json, columns
from trainwright.cli.policy_text import restarts as restart_policy
from trainwright.cli.show.text import line as clean
from trainwright.core.budget_report import BudgetState, budget_states
from trainwright.core.explain import explain
from trainwright.core.explanation import Explanation, as_sentence
from trainwright.core.failure_text import loss_text
from trainwright.model.job import Role
from trainwright.model.ledger import Ledger
from trainwright.model.meta import Wire
from trainwright.model.plan import State
from trainwright.model.units import rfc3339, spell
from trainwright.model.verdict import Verdict

#: At most this many replicas and events are printed as text. JSON has all of them.
_MAX_REPLICAS = 50
_MAX_EVENTS = 10


@click.command("describe")
@job_options
def command(choice: JobChoice, form: Form) -> None:
    """Show everything about JOB on one page: times, roles, replicas, restart budgets, verdict, history, last events.

    \b
    Examples:
      trainwright describe demo
      trainwright describe research/demo --context production
      trainwright describe demo -o json | jq .replicas

    \b
    Exit codes:
      0  done
      2  wrong usage, or there is no such job
      3  no answer from the run or from the cluster
    """
    evidence = collect(choice)
    view = view_of(evidence)
    found = describe(evidence, view, explain(facts_of(evidence, view)))
    if form == "json":
        click.echo(as_json(found), nl=False)
    else:
        headline, *rest = description_lines(found)
        click.echo("\n".join((*wrapped([headline]), *cut(rest))))


class RoleReport(Wire, frozen=True, gc=False, omit_defaults=False):
    """One role: its size, and how many of its replicas are in which state."""

    name: str
    replicas: int
    states: dict[str, int]
    #: When its replicas are restarted, in words.
    restarts: str


class BudgetReport(Wire, frozen=True, gc=False, omit_defaults=False):
    """A restart budget. `owner` is Role, Replica, Job or Rate; `window`: seconds in which it refills, 0 if never.

    `refill`: seconds of productive time until the next restart is allowed again.
    """

    owner: str
    name: str
    used: int
    limit: int
    window: float
    refill: float


class Description(Wire, frozen=True, gc=False):
    """Everything about a job. `phase` is in the words of its kind, `step` in those that all kinds share."""

    namespace: str
    name: str
    kind: str
    place: str
    phase: str
    step: str
    headline: str
    uid: str = ""
    created: datetime | None = None
    started: datetime | None = None
    running: datetime | None = None
    ended: datetime | None = None
    roles: tuple[RoleReport, ...] = ()
    replicas: tuple[ReplicaReport, ...] = ()
    budgets: tuple[BudgetReport, ...] = ()
    verdict: Verdict | None = None
    history: HistoryReport | None = None
    events: tuple[EventReport, ...] = ()
    gaps: tuple[str, ...] = ()


def describe(evidence: JobEvidence, view: JobView, explanation: Explanation) -> Description:
    """The description of a job."""
    job, ledger, meta = view.job, view.status.ledger, evidence.body.get("metadata") or {}
    pairs = zip(job.roles, view.status.roles, strict=True)
    replicas = tuple(replica_reports(evidence, view))
    listed = iter(replicas)
    return Description(
        job.key.namespace,
        job.key.name,
        job.owner.kind,
        evidence.place,
        _phase(evidence, ledger),
        ledger.phase,
        explanation.headline,
        str(meta.get("uid") or ""),
        view.created,
        ledger.times.started,
        ledger.times.running,
        ledger.times.ended,
        tuple(_role(role, islice(listed, len(seen.replicas))) for role, seen in pairs),
        replicas,
        tuple(_budget(one) for one in budget_states(job, view.status, evidence.now)),
        ledger.verdict,
        history_report(job.key.namespace, job.key.name, ledger, evidence.now) if ledger.history.total else None,
        tuple(event_reports(evidence.events)),
        evidence.gaps,
    )


def _phase(evidence: JobEvidence, ledger: Ledger) -> str:
    """The phase in the words of the kind. If the run ended before the job, the text says how the run ended."""
    if not evidence.live and ledger.outcome is None:
        return evidence.ending.outcome if evidence.ending is not None else "Lost"
    return evidence.kind.phase_of(evidence.body.get("status") or {}) or "Pending"


def _role(role: Role, replicas: Iterable[ReplicaReport]) -> RoleReport:
    counts: dict[str, int] = {}
    for one in replicas:
        counts[one.state] = counts.get(one.state, 0) + 1
    return RoleReport(role.name, role.replicas, counts, restart_policy(role))


def _budget(one: BudgetState) -> BudgetReport:
    return BudgetReport(one.owner, one.name, one.used, one.limit, one.window, one.refill)


# -- text ------------------------------------------------------------------------------------------------------------


def description_lines(one: Description) -> Iterator[str]:
    """The description for people."""
    yield clean(one.headline)
    yield ""
    times = {"created": one.created, "started": one.started, "running": one.running, "ended": one.ended}
    rows = [
        ("Name", f"{one.namespace}/{one.name}"),
        ("Kind", one.kind),
        ("Where", one.place),
        ("Phase", one.phase + (f" ({one.step})" if one.step and one.step != one.phase else "")),
        *((title.capitalize(), rfc3339(at)) for title, at in times.items() if at is not None),
    ]
    yield from columns([[f"{title}:", text] for title, text in rows])
    yield from _table("Roles:", ["ROLE", "REPLICAS", "STATES", "RESTARTS"], map(_role_row, one.roles))
    yield from _replica_table(one.replicas)
    budgets = [[one.owner, one.name, f"{one.used:g}", str(one.limit), _window(one)] for one in one.budgets]
    yield from _table("Restart budgets:", ["OF", "NAME", "USED", "LIMIT", "REFILLS IN"], budgets)
    yield from _verdict_lines(one.verdict)
    yield from _history_lines(one.history)
    if one.events:
        left_out = len(one.events) - _MAX_EVENTS
        yield ""
        yield "Events:" if left_out <= 0 else f"Events (the last {_MAX_EVENTS} of {len(one.events)}):"
        yield from (f"  {text}" for text in event_lines(list(one.events[-_MAX_EVENTS:])))
    if one.gaps:
        yield ""
        yield "Notes:"
        yield from (f"  {clean(as_sentence(text))}" for text in one.gaps)


def _table(title: str, head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    listed = list(rows)
    if listed:
        yield ""
        yield title
        yield from (f"  {text}" for text in columns([head, *listed]))


def _window(budget: BudgetReport) -> str:
    if not budget.window:
        return "never"
    return spell(budget.window) + (f" (the next one in {spell(budget.refill)})" if budget.refill else "")


def _role_row(one: RoleReport) -> list[str]:
    states = ", ".join(f"{number} {state}" for state, number in one.states.items())
    return [one.name, str(one.replicas), states or "-", one.restarts]


def _replica_table(replicas: tuple[ReplicaReport, ...]) -> Iterator[str]:
    """The replicas. If there are many, those that run or have succeeded are left out first."""
    shown = replicas
    if len(replicas) > _MAX_REPLICAS:
        calm = (State.RUNNING, State.SUCCEEDED, STOPPED, UNKNOWN)
        order = sorted(range(len(replicas)), key=lambda place: (replicas[place].state in calm, place))
        shown = tuple(replicas[place] for place in sorted(order[:_MAX_REPLICAS]))
    head = ["REPLICA", "STATE", "NODE", "ATTEMPT", "RESTARTS", "REASON"]
    rows = [
        [one.name, one.state, one.node or "-", str(one.attempt), str(one.restarts), clean(one.reason) or "-"]
        for one in shown
    ]
    yield from _table("Replicas:", head, rows)
    if len(shown) < len(replicas):
        yield f"  … and {len(replicas) - len(shown)} more"


def _verdict_lines(verdict: Verdict | None) -> Iterator[str]:
    if verdict is None:
        return
    where = [("replica", verdict.replica), ("pod", verdict.pod), ("node", verdict.node)]
    rows = [
        ("decision", f"{verdict.decision} at {rfc3339(verdict.at)}"),
        ("reason", verdict.reason),
        ("class", str(verdict.failure_class)),
        *where,
        ("attempt", str(verdict.attempt) if verdict.replica else ""),
        ("message", clean(verdict.message.replace("\n", " "))),
        ("action", verdict.action),
    ]
    yield ""
    yield "Verdict:"
    yield from (f"  {text}" for text in columns([[f"{title}:", text] for title, text in rows if text]))


def _history_lines(report: HistoryReport | None) -> Iterator[str]:
    if report is None:
        return
    lost = ", ".join(f"{spell(spent)} {loss_text(cause)}" for cause, spent in report.lost.items())
    yield ""
    yield "History:"
    attempts = f"{report.total} attempt{'s' * (report.total != 1)}"
    share = f" (goodput {report.goodput:.0%})" if report.goodput is not None else ""
    yield f"  {attempts} in {spell(report.wall)}; productive for {spell(report.productive)}{share}"
    if lost:
        yield f"  lost: {lost}"
