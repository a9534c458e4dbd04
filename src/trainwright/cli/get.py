# SPDX-License-Identifier: Apache-2.0
"""`trainwright get`: list the jobs that run on this machine, or show one job: its replicas, or how it ended.

The engine of a live run gives the current state. For a run that has ended, the command reads the folder of the run. A
killed run has no final status, so the command shows what `run.json`, `replicas.jsonl` and `events.jsonl` contain.
"""

from collections.abc import Iterator
from typing import Literal

import click
import msgspec
from msgspec import Struct

from trainwright.cli.condition import condition
from trainwright.cli.devices import show_leases
from trainwright.cli.flags import age, output_option
from trainwright.cli.live_job import namespaced, reach
from trainwright.cli.output import as_json, as_yaml, columns
from trainwright.cli.record import (
    PodCount,
    RecordedPod,
    count_restarts,
    earlier_attempts,
    read_events,
    read_job,
    read_pods,
    read_run_info,
)
from trainwright.cli.runs import Run, find, jobs, latest
from trainwright.cli.show.news import JobEnding
from trainwright.cli.show.text import details, headline
from trainwright.cli.show.text import line as clean
from trainwright.cli.state import home
from trainwright.core.autosize import within_bounds
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind, load
from trainwright.kinds.registry import find as kind_of
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE
from trainwright.model.units import Time, parse_indexes, parse_time
from trainwright.runtime.ports import WallClock

#: At most this many replicas and this many events of a killed run are listed.
_MAX_REPLICAS = 50
_MAX_EVENTS = 5

Form = Literal["table", "wide", "json", "yaml", "name"]


class ListedJob(Struct, frozen=True):
    """One job: its live or last run, the job object, and (only if the run is live) its pods."""

    run: Run
    body: Body
    pods: list[Body] | None = None

    @property
    def kind(self) -> Kind | None:
        """The kind of the job; None if the kind is not recorded, because the run was killed too early."""
        return kind_of(self.body.get("apiVersion", ""), self.body.get("kind", ""))

    @property
    def ledger(self) -> Ledger:
        """The ledger of the job."""
        return msgspec.convert((self.body.get("status") or {}).get("trainwright") or {}, Ledger)


@click.command("get")
@click.argument("names", metavar="[JOB]...", nargs=-1)
@namespaced
@click.option("-a", "--all", "include_ended", is_flag=True, help="List also jobs whose last run has ended.")
@click.option("--all-users", is_flag=True, help="Show which user and run leases which device of this machine.")
@output_option(
    choices=("table", "wide", "json", "yaml", "name"),
    help="Print a table, a table with more columns, the objects, or only their names.",
)
def command(names: tuple[str, ...], namespace: str, include_ended: bool, all_users: bool, form: Form) -> None:
    """List the jobs that run on this machine, or show each JOB with its replicas.

    For a job whose run has ended, the command shows how it ended. You see only your own jobs; --all-users shows which
    devices other users hold.

    \b
    Examples:
      trainwright get
      trainwright get demo
      trainwright get -o json lab/demo | jq .status.phase
      trainwright get --all-users
    """
    if all_users:
        if names or namespace or include_ended:
            raise UsageError("--all-users lists the device leases of this machine; it takes no JOB, -n or -a")
        show_leases(form)
        return
    if names:
        found = [_listed(find(name, namespace)) for name in names]
    else:
        state = home()
        runs = [run for key in jobs(state) if (run := latest(state, key)) is not None]
        found = [_listed(run) for run in runs if (run.live or include_ended) and namespace in ("", run.key.namespace)]
    if not found:
        click.echo("no job is running here; `trainwright get -a` lists the jobs that have ended", err=True)
    elif form in ("table", "wide"):
        click.echo("\n".join(_tables(found, detailed=bool(names), wide=form == "wide")))
    else:
        click.echo(_objects(found, form, alone=len(names) == 1), nl=False)


def _listed(run: Run) -> ListedJob:
    if not run.live:
        return ListedJob(run, read_job(run.folder, run.key))
    try:
        reached = reach(str(run.key))
    except UsageError:  # the run has ended in the meantime
        return ListedJob(run, read_job(run.folder, run.key))
    with reached.client:
        return ListedJob(run, reached.body, reached.pods())


def _objects(found: list[ListedJob], form: Form, *, alone: bool) -> str:
    bodies = [one.body for one in found]
    if form == "name":
        return "".join(f"{_kind_name(one)}/{one.run.key.name}\n" for one in found)
    whole: Body = bodies[0] if alone else {"apiVersion": "v1", "kind": "List", "items": bodies}
    return as_yaml([whole]) if form == "yaml" else as_json(whole)


def _kind_name(one: ListedJob) -> str:
    return f"{one.kind.singular}.{one.kind.group}" if one.kind is not None else one.body.get("kind", "").lower()


def _tables(found: list[ListedJob], *, detailed: bool, wide: bool) -> Iterator[str]:
    now = WallClock().now()
    head = ["NAMESPACE", "NAME", "KIND", "PHASE", "REPLICAS", "RESTARTS", "AGE"] + ["FOLDER"] * wide
    yield from columns([head, *(_row(one, now, wide=wide) for one in found)])
    for one in found if detailed else ():
        yield ""
        if one.pods is not None:
            yield from _replicas(one, one.pods, now, wide=wide)
        else:
            yield from _ended(one.run)


# -- the row of a job -------------------------------------------------------------------------------------------------


def _row(one: ListedJob, now: Time, *, wide: bool) -> list[str]:
    row = [
        one.run.key.namespace,
        one.run.key.name,
        one.body.get("kind", "?"),
        _phase(one),
        _replica_counts(one),
        str(_restarts(one)),
        _age(one.body.get("metadata") or {}, now) or _run_age(one.run, now),
    ]
    return row + [str(one.run.folder)] * wide


def _phase(one: ListedJob) -> str:
    """The phase of the job. If the run ended before the job, the text says how the run ended."""
    if not one.run.live and one.ledger.outcome is None:
        return next((ending.outcome for ending in _endings(one.run)), "Lost")
    return (one.kind.phase_of(one.body.get("status") or {}) if one.kind is not None else "") or "Pending"


def _replica_counts(one: ListedJob) -> str:
    """For example `2/4`: the running replicas, or after the job's end the succeeded replicas; `?` for a killed run."""
    roles = within_bounds(load(one.kind, one.body).job).roles if one.kind is not None else ()
    total = sum(role.replicas for role in roles)
    if not one.run.live and not _endings(one.run):
        return f"?/{total or '?'}"
    if one.pods is not None and one.ledger.outcome is None:
        return f"{sum(condition(pod).phase == 'Running' for pod in one.pods)}/{total}"
    return f"{sum(len(parse_indexes(role.succeeded)) for role in one.ledger.roles)}/{total}"


def _restarts(one: ListedJob) -> int:
    """The restarts: from ledger and pods (live run), the ending (ended run), or the recorded pods (killed run)."""
    if one.pods is not None:
        return count_restarts(one.ledger, (_pod_count(pod) for pod in one.pods))
    ending = next(iter(_endings(one.run)), None)
    if ending is not None:
        return ending.restarts
    recorded = _recorded_pods(one.run)
    return len(recorded) - len({pod.replica for pod in recorded})


def _pod_count(pod: Body) -> PodCount:
    labels = pod["metadata"]["labels"]
    return PodCount(labels[ROLE], int(labels[INDEX]), int(labels.get(ATTEMPT) or 0), condition(pod).restarts)


def _endings(run: Run) -> list[JobEnding]:
    """The endings of this job that the run recorded at its end; a killed run has recorded none."""
    info, key = read_run_info(run.folder), run.key
    return [one for one in info.endings if (one.namespace, one.name) == (key.namespace, key.name)] if info else []


def _age(source: Body, now: Time) -> str:
    since = parse_time(str(source.get("creationTimestamp") or source.get("startTime") or ""))
    return age((now - since).total_seconds()) if since is not None else ""


def _run_age(run: Run, now: Time) -> str:
    """The time since the start of the run. It is shown if the creation time of the job is not recorded (killed run)."""
    info = read_run_info(run.folder)
    return _age({"startTime": info.started}, now) if info is not None else "?"


# -- the replicas of a live job ---------------------------------------------------------------------------------------


def _replicas(one: ListedJob, pods: list[Body], now: Time, *, wide: bool) -> Iterator[str]:
    ledger = one.ledger
    rows = []
    for pod in sorted(pods, key=_role_and_index):
        labels, state = pod["metadata"]["labels"], condition(pod)
        restarts = earlier_attempts(ledger, labels[ROLE], int(labels.get(ATTEMPT) or 0)) + state.restarts
        row = [f"{labels[ROLE]}-{labels[INDEX]}", state.phase, pod["spec"].get("nodeName", "")]
        row += [str(restarts), _age(pod["metadata"], now)]
        row += [pod["metadata"]["name"], (pod.get("status") or {}).get("podIP", "")] if wide else []
        rows.append([*row, state.reason])
    head = ["REPLICA", "PHASE", "NODE", "RESTARTS", "AGE"] + ["POD", "ADDRESS"] * wide + ["REASON"]
    yield from columns([head, *rows]) if rows else ["the job has no replicas now"]


def _role_and_index(pod: Body) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels[ROLE], int(labels[INDEX])


# -- a run that has ended ---------------------------------------------------------------------------------------------


def _ended(run: Run) -> Iterator[str]:
    endings = _endings(run)
    if not endings:
        yield from _killed(run)
        return
    for one in endings:
        yield headline(one)
        yield from (f"  {line}" for line in details(one))
    yield f"logs and final status: {run.folder}"


def _killed(run: Run) -> Iterator[str]:
    """The lines about a killed run, from the files that it has left."""
    info, recorded = read_run_info(run.folder), _recorded_pods(run)
    process = f" (process {info.pid}, started at {info.started})" if info is not None else ""
    yield f"{run.key.name} was lost: its run{process} was killed"
    yield "not known: how the job and its replicas ended, and restarts of containers inside a pod"
    last = {pod.replica: pod for pod in recorded}
    if last:
        yield ""
        rows = [[pod.replica, pod.pod, str(pod.attempt)] for pod in list(last.values())[:_MAX_REPLICAS]]
        yield from columns([["REPLICA", "LAST POD", "ATTEMPT"], *rows])
        if len(last) > _MAX_REPLICAS:
            yield f"… and {len(last) - _MAX_REPLICAS} more"
    names = {run.key.name, *(pod.pod for pod in recorded)}
    events = [_event_line(event) for event in read_events(run.folder) if _is_about(event, run.key.namespace, names)]
    if events:
        yield ""
        yield "last events:"
        yield from (f"  {text}" for text in events[-_MAX_EVENTS:])
    yield ""
    yield f"`trainwright logs {run.word}` prints the logs; they are in {run.folder}, without a final status"


def _recorded_pods(run: Run) -> list[RecordedPod]:
    return [pod for pod in read_pods(run.folder) if pod.job == str(run.key)]


def _is_about(event: Body, namespace: str, names: set[str]) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("namespace") == namespace and about.get("name") in names


def _event_line(event: Body) -> str:
    about = (event.get("involvedObject") or {}).get("name", "")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return clean(f"{at} {about} {event.get('reason', '')}: {event.get('message', '')}".strip())
