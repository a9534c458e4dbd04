# SPDX-License-Identifier: Apache-2.0
"""`trainwright events`: the events about a job, as values and as a table."""

from collections.abc import Iterable, Iterator

import click

from trainwright.cli.inspect.evidence import Wanted, event_time
from trainwright.cli.inspect.options import Form, JobChoice, collect, job_options
from trainwright.cli.output import as_json, columns
from trainwright.cli.show.text import line as clean
from trainwright.model.job import Body
from trainwright.model.meta import Wire
from trainwright.model.units import parse_time, rfc3339


@click.command("events")
@job_options
@click.option("--warnings", is_flag=True, help="Print only the events that warn.")
def command(choice: JobChoice, form: Form, warnings: bool) -> None:
    """Print the events about JOB and its pods, oldest first.

    \b
    Examples:
      trainwright events demo
      trainwright events demo --warnings
      trainwright events demo -o json | jq -r '.events[].message'

    \b
    Exit codes:
      0  done
      2  wrong usage, or there is no such job
      3  no answer from the run or from the cluster
    """
    evidence = collect(choice, Wanted.EVENTS)
    found = event_reports(evidence.events, warnings=warnings)
    if form == "json":
        click.echo(as_json({"events": found, "gaps": evidence.gaps}), nl=False)
        return
    if found:
        click.echo("\n".join(event_lines(found)))
    else:
        click.echo(f"there are no {'warnings' if warnings else 'events'} about {choice.word}", err=True)
    for text in evidence.gaps:
        click.echo(text, err=True)


class EventReport(Wire, frozen=True, gc=False):
    """One event. If it happened several times, `count` says how often, and `first` when it happened first."""

    time: str
    type: str
    reason: str
    #: Kind and name of the object, for example `Pod/demo-worker-0`.
    object: str
    message: str
    count: int = 1
    first: str = ""


def event_reports(events: Iterable[Body], *, warnings: bool = False) -> list[EventReport]:
    """The events in the given order, which is oldest first. With `warnings`, only events of the type Warning."""
    return [_report(event) for event in events if not warnings or event.get("type") == "Warning"]


def _report(event: Body) -> EventReport:
    about, time = event.get("involvedObject") or {}, event_time(event)
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    first = str(event.get("firstTimestamp") or event.get("eventTime") or "")
    return EventReport(
        time,
        str(event.get("type") or "Normal"),
        str(event.get("reason") or ""),
        f"{about.get('kind', '')}/{about.get('name', '')}",
        str(event.get("message") or ""),
        int(count),
        first if first != time else "",
    )


def event_lines(events: list[EventReport]) -> Iterator[str]:
    """The table."""
    rows = [[_time(one.time), one.type, one.reason, one.object, str(one.count), one.message] for one in events]
    cleaned = [[_one_line(text) for text in row] for row in rows]
    yield from columns([["TIME", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"], *cleaned])


def _time(text: str) -> str:
    """The time in whole seconds. A cluster writes fractions of a second into some events."""
    found = parse_time(text)
    return rfc3339(found) if found is not None else text


def _one_line(text: str) -> str:
    return clean(" ".join(text.split()))
