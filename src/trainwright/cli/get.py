# SPDX-License-Identifier: Apache-2.0
"""What is known of a job whose run was killed before it could write how the job ended. `get` shows it.

Sources are the files that the run writes as things happen: `run.json`, `replicas.jsonl` and `events.jsonl`.

`trainwright get`: jobs that are being run on this machine, and with a name also their replicas, or how they ended.

Live ones are asked of their engine (`live_job`); of the others the folder of the last run tells (`record`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
import msgspec
from msgspec import Struct

from trainwright.cli.condition import condition
from trainwright.cli.devices import show_leases
from trainwright.cli.flags import age
from trainwright.cli.live_job import namespaced, reach
from trainwright.cli.output import columns
from trainwright.cli.record import PodCount, RecordedPod, RunInfo, as_yaml, events, facts_of, pods, shown, status_of
from trainwright.cli.runs import Run, find, jobs, latest
from trainwright.cli.show.news import JobVerdict
from trainwright.cli.show.text import details, headline
from trainwright.cli.show.text import line as clean
from trainwright.cli.state import home
from trainwright.core.autosize import within_bounds
from trainwright.errors import UsageError
from trainwright.kinds.base import load
from trainwright.kinds.registry import find as kind_of
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE, Key
from trainwright.model.units import Time, members, moment
from trainwright.runtime.ports import WallClock

#: Replicas and events that are listed.
_MOST_REPLICAS = 50
_MOST_EVENTS = 5
_UNKNOWN = "how the job and its replicas ended, and restarts of containers inside a pod"


def restarts(folder: Path, key: Key) -> int:
    """Pods that replaced another one of the same replica."""
    seen = _pods(folder, key)
    return len(seen) - len({one.replica for one in seen})


def lines(folder: Path, key: Key, word: str) -> Iterator[str]:
    """What `get` prints below the table of jobs."""
    yield _headline(key, facts_of(folder))
    yield f"not known: {_UNKNOWN}"
    last = {one.replica: one for one in _pods(folder, key)}
    if last:
        yield ""
        rows = [[one.replica, one.pod, str(one.attempt)] for one in list(last.values())[:_MOST_REPLICAS]]
        yield from columns(["REPLICA", "LAST POD", "ATTEMPT"], rows)
        if len(last) > _MOST_REPLICAS:
            yield f"… and {len(last) - _MOST_REPLICAS} more"
    told = [_event(one) for one in events(folder) if _is_of(one, key, {pod.pod for pod in _pods(folder, key)})]
    if told:
        yield ""
        yield "last events:"
        yield from (f"  {text}" for text in told[-_MOST_EVENTS:])
    yield ""
    yield f"`trainwright logs {word}` prints the logs; they are in {folder}, without a final status"


def _headline(key: Key, facts: RunInfo | None) -> str:
    who = f" (process {facts.pid}, started at {facts.started})" if facts is not None else ""
    return f"{key.name} was lost: its run{who} was killed"


def _pods(folder: Path, key: Key) -> list[RecordedPod]:
    return [one for one in pods(folder) if one.job == str(key)]


def _is_of(event: Body, key: Key, names: set[str]) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("namespace") == key.namespace and about.get("name") in {key.name, *names}


def _event(event: Body) -> str:
    about = (event.get("involvedObject") or {}).get("name", "")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return clean(f"{at} {about} {event.get('reason', '')}: {event.get('message', '')}".strip())


Form = Literal["table", "wide", "json", "yaml", "name"]


class ListedJob(Struct, frozen=True):
    """One job: its last run, the object, and its pods if it is live."""

    run: Run
    body: Body
    pods: list[Body] | None = None


@click.command("get")
@click.argument("names", metavar="[JOB]...", nargs=-1)
@namespaced
@click.option("-a", "--all", "every", is_flag=True, help="Also jobs whose last run is over.")
@click.option("--all-users", is_flag=True, help="Show which device of this machine is leased by which user and run.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="A table, one with more columns, the objects, or their names.",
)
def command(names: tuple[str, ...], namespace: str, every: bool, all_users: bool, form: Form) -> None:
    """List the jobs that are being run on this machine, or show each JOB with its replicas.

    A job whose run is over is shown as it ended. The jobs of other users are theirs to see; which devices they hold is
    shown by --all-users.

    \b
    Examples:
      trainwright get
      trainwright get demo
      trainwright get -o json lab/demo | jq .status.phase
      trainwright get --all-users
    """
    if all_users:
        if names or namespace or every:
            raise UsageError("--all-users lists the device leases of this machine; it takes no JOB, -n or -a")
        show_leases(form)
        return
    if names:
        found = [_known(find(name, namespace)) for name in names]
    else:
        state = home()
        runs = [run for key in jobs(state) if (run := latest(state, key)) is not None]
        found = [_known(run) for run in runs if (run.live or every) and namespace in ("", run.key.namespace)]
    if not found:
        click.echo("nothing is being run here; `trainwright get -a` lists what was", err=True)
    elif form in ("table", "wide"):
        click.echo("\n".join(_tables(found, detailed=bool(names), wide=form == "wide")))
    else:
        click.echo(_objects(found, form, alone=len(names) == 1), nl=False)


def _known(run: Run) -> ListedJob:
    if not run.live:
        return ListedJob(run, status_of(run.folder, run.key))
    try:
        reached = reach(str(run.key))
    except UsageError:  # it has just ended
        return ListedJob(run, status_of(run.folder, run.key))
    with reached.portal:
        return ListedJob(run, reached.body, reached.pods())


def _objects(found: list[ListedJob], form: Form, *, alone: bool) -> str:
    bodies = [one.body for one in found]
    if form == "name":
        return "".join(f"{_kind_name(one)}/{one.run.key.name}\n" for one in found)
    whole: Body = bodies[0] if alone else {"apiVersion": "v1", "kind": "List", "items": bodies}
    if form == "yaml":
        return as_yaml([whole])
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _kind_name(one: ListedJob) -> str:
    kind = kind_of(one.body.get("apiVersion", ""), one.body.get("kind", ""))
    return f"{kind.singular}.{kind.group}" if kind is not None else one.body.get("kind", "").lower()


def _tables(found: list[ListedJob], *, detailed: bool, wide: bool) -> Iterator[str]:
    now = WallClock().now()
    head = ["NAMESPACE", "NAME", "KIND", "PHASE", "REPLICAS", "RESTARTS", "AGE"] + ["FOLDER"] * wide
    yield from columns(head, [_row(one, now, wide=wide) for one in found])
    for one in found if detailed else ():
        yield ""
        if one.pods is not None:
            yield from _replicas(one, one.pods, now, wide=wide)
        else:
            yield from _ended(one.run)


def _row(one: ListedJob, now: Time, *, wide: bool) -> list[str]:
    status, ledger = one.body.get("status") or {}, _ledger(one)
    row = [
        one.run.key.namespace,
        one.run.key.name,
        one.body.get("kind", "?"),
        _state(one.body, status) if one.run.live or ledger.outcome is not None else _word(one.run),
        _counted_replicas(one, ledger),
        str(_restarts(one, ledger)),
        _age(one.body.get("metadata") or {}, now) or _since_start(one.run, now),
    ]
    return row + [str(one.run.folder)] * wide


def _counted_replicas(one: ListedJob, ledger: Ledger) -> str:
    """`2/4`; a run that was killed has not said how many had succeeded."""
    total = _total(one.body)
    return f"{_there(one, ledger)}/{total}" if one.run.live or _endings(one.run) else f"?/{total or '?'}"


def _restarts(one: ListedJob, ledger: Ledger) -> int:
    """Of a live job as its ledger and its pods tell; of one whose run is over, as the run told at its end."""
    if one.pods is not None:
        return shown(ledger, (_counted(pod) for pod in one.pods))
    told = [ending.restarts for ending in _endings(one.run)]
    return told[0] if told else restarts(one.run.folder, one.run.key)


def _counted(pod: Body) -> PodCount:
    labels = pod["metadata"]["labels"]
    return PodCount(labels[ROLE], int(labels[INDEX]), int(labels.get(ATTEMPT) or 0), condition(pod).restarts)


def _endings(run: Run) -> list[JobVerdict]:
    """What the run told of this job at its end."""
    facts = facts_of(run.folder)
    return [one for one in facts.endings if (one.namespace, one.name) == _pair(run)] if facts is not None else []


def _state(body: Body, status: Body) -> str:
    kind = kind_of(body.get("apiVersion", ""), body.get("kind", ""))
    return (kind.word(status) if kind is not None else "") or "Pending"


def _word(run: Run) -> str:
    """How a job's run ended that had no outcome."""
    mine = [one.outcome for one in _endings(run)]
    return mine[0] if mine else "Lost"


def _pair(run: Run) -> tuple[str, str]:
    return run.key.namespace, run.key.name


def _there(one: ListedJob, ledger: Ledger) -> int:
    """Replicas that run; once it is over, those that succeeded."""
    if one.pods is not None and ledger.outcome is None:
        return sum(condition(pod).phase == "Running" for pod in one.pods)
    return sum(len(members(role.succeeded)) for role in ledger.roles)


def _total(body: Body) -> int:
    kind = kind_of(body.get("apiVersion", ""), body.get("kind", ""))
    return sum(role.replicas for role in within_bounds(load(kind, body).job).roles) if kind is not None else 0


def _age(holder: Body, now: Time) -> str:
    since = moment(str(holder.get("creationTimestamp") or holder.get("startTime") or ""))
    return age((now - since).total_seconds()) if since is not None else ""


def _since_start(run: Run, now: Time) -> str:
    """Of a run that was killed only its own start is known."""
    facts = facts_of(run.folder)
    return _age({"startTime": facts.started}, now) if facts is not None else "?"


def _replicas(one: ListedJob, pods: list[Body], now: Time, *, wide: bool) -> Iterator[str]:
    ledger = _ledger(one)
    rows = []
    for pod in sorted(pods, key=_place):
        labels, seen = pod["metadata"]["labels"], condition(pod)
        restarts = _attempts(ledger, labels) + seen.restarts
        row = [f"{labels[ROLE]}-{labels[INDEX]}", seen.phase, pod["spec"].get("nodeName", "")]
        row += [str(restarts), _age(pod["metadata"], now)]
        row += [pod["metadata"]["name"], (pod.get("status") or {}).get("podIP", "")] if wide else []
        rows.append([*row, seen.reason])
    head = ["REPLICA", "PHASE", "NODE", "RESTARTS", "AGE"] + ["POD", "ADDRESS"] * wide + ["REASON"]
    yield from columns(head, rows) if rows else ["no replicas now"]


def _ledger(one: ListedJob) -> Ledger:
    return msgspec.convert((one.body.get("status") or {}).get("trainwright") or {}, Ledger)


def _attempts(ledger: Ledger, labels: dict[str, str]) -> int:
    """Earlier tries at a replica; after a suspension all began anew, so only those since then.

    A change of size also begins anew, and so does a restart of the whole role, above the attempts of all replicas: no
    replica was restarted more often than the job as a whole.
    """
    attempt = int(labels.get(ATTEMPT) or 0)
    if not ledger.resumes:
        return min(attempt, sum(number for role in ledger.roles for number in role.restarts.values()))
    epoch = next((role.epoch for role in ledger.roles if role.name == labels[ROLE]), 0)
    return max(attempt - epoch, 0)


def _place(pod: Body) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels[ROLE], int(labels[INDEX])


def _ended(run: Run) -> Iterator[str]:
    endings = _endings(run)
    if not endings:
        yield from lines(run.folder, run.key, run.word)
        return
    for one in endings:
        yield headline(one)
        yield from (f"  {line}" for line in details(one))
    yield f"logs and final status: {run.folder}"
