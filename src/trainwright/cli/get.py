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

from trainwright.cli.completion import complete_jobs
from trainwright.cli.condition import condition
from trainwright.cli.devices import show_leases
from trainwright.cli.flags import ClusterOptions, age, cluster_choice, output_option
from trainwright.cli.live_job import NO_ENGINE, JobClient, connect_to, namespaced, reach, resource_of
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
from trainwright.cli.runs import Run, find, is_open, latest_runs
from trainwright.cli.show.news import JobEnding
from trainwright.cli.show.text import details, headline
from trainwright.cli.show.text import line as clean
from trainwright.cli.state import home
from trainwright.cli.summary import succeeded_replicas, total_replicas
from trainwright.errors import NotFoundError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kinds.registry import find as kind_of
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, ROLE, RUN, Key, is_replica
from trainwright.model.units import Time, parse_time
from trainwright.runtime.ports import WallClock

#: At most this many replicas and this many events of a killed run are listed.
_MAX_REPLICAS = 50
_MAX_EVENTS = 5
#: Selects the unfinished jobs. An engine can keep thousands of finished jobs, so the engine selects, not the command.
_UNFINISHED = f"status.trainwright.phase!={Phase.SUCCEEDED.value},status.trainwright.phase!={Phase.FAILED.value}"

Form = Literal["table", "wide", "json", "yaml", "name"]


class ListedJob(Struct, frozen=True):
    """One job: its live or last run, the job object, and its pods."""

    key: Key
    body: Body
    #: None if the run has ended, or if the caller may not list pods of the cluster.
    pods: list[Body] | None = None
    #: None if the job is on a cluster.
    run: Run | None = None
    #: The lines about a job of a cluster that has ended: how it ended.
    ended: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind | None:
        """The kind of the job; None if the kind is not recorded, because the run was killed too early."""
        return kind_of(self.body.get("apiVersion", ""), self.body.get("kind", ""))

    @property
    def ledger(self) -> Ledger:
        """The ledger of the job."""
        return msgspec.convert((self.body.get("status") or {}).get("trainwright") or {}, Ledger)

    @property
    def past_run(self) -> Run | None:
        """The run if it has ended."""
        return self.run if self.run is not None and not self.run.live else None


@click.command("get")
@click.argument("names", metavar="[JOB]...", nargs=-1, shell_complete=complete_jobs)
@namespaced
@cluster_choice
@click.option("-a", "--all", "include_ended", is_flag=True, help="List also jobs whose last run has ended.")
@click.option(
    "-A",
    "--all-namespaces",
    is_flag=True,
    help="List the jobs of all namespaces; on this machine, that is the default.",
)
@click.option("--all-users", is_flag=True, help="Show which user and run leases which device of this machine.")
@output_option(
    choices=("table", "wide", "json", "yaml", "name"),
    help="Print a table, a table with more columns, the objects, or only their names.",
)
def command(names: tuple[str, ...], namespace: str, cluster: ClusterOptions, form: Form, **given: bool) -> None:
    """List the jobs that run on this machine or on a cluster, or show each JOB with its replicas.

    For a job whose run has ended, the command shows how it ended. You see only your own jobs; --all-users shows which
    devices other users hold. On a cluster, it lists the jobs of the namespace of the context.

    \b
    Examples:
      trainwright get
      trainwright get demo
      trainwright get -o json lab/demo | jq .status.phase
      trainwright get --all-users
      trainwright get --context production -A
    """
    if given["all_users"]:
        if names or namespace or cluster.given or given["include_ended"] or given["all_namespaces"]:
            raise UsageError("--all-users lists the device leases of this machine; it takes no JOB, -n, -a or cluster")
        show_leases(form)
        return
    if given["all_namespaces"] and (names or namespace):
        raise UsageError("--all-namespaces lists all jobs; it takes no JOB and no -n")
    if cluster.given:
        from trainwright.cli.remote.jobs import listed_jobs  # noqa: PLC0415 - this machine needs no HTTP

        scope = None if given["all_namespaces"] else namespace
        found = listed_jobs(cluster, names, scope, include_ended=given["include_ended"])
    elif names:
        found = [_listed(find(name, namespace)) for name in names]
    else:
        runs = [run for run in latest_runs(home()) if namespace in ("", run.key.namespace)]
        runs = [run for run in runs if given["include_ended"] or is_open(run)]
        if form in ("table", "wide") and runs:
            click.echo("\n".join(_table(runs, wide=form == "wide")))
            return
        found = _all_listed(runs)
    if not found:
        where = "there" if cluster.given else "here"
        click.echo(f"no job is running {where}; `trainwright get -a` lists the jobs that have ended", err=True)
    elif form in ("table", "wide"):
        click.echo("\n".join(_tables(found, wide=form == "wide", alone=not names)))
    else:
        click.echo(_objects(found, form, alone=len(names) == 1), nl=False)


def _all_listed(runs: list[Run]) -> list[ListedJob]:
    """Jobs with their pods. The jobs of the background engine come from one connection, because there can be many."""
    background = next((run for run in runs if run.background and run.live), None)
    if background is None:
        return [_listed(run) for run in runs]
    stored = _stored_jobs(background)
    found = []
    for run in runs:
        body, pods = stored.get(run.folder.name, (None, [])) if run.background and run.live else (None, [])
        found.append(_listed(run) if body is None else ListedJob(run.key, body, pods, run))
    return found


def _unfinished(client: JobClient, kind: Kind) -> list[Body]:
    """The unfinished jobs of a kind. An engine of an older version may not have the kind."""
    try:
        return client.list(resource_of(kind), fields=_UNFINISHED)[0]
    except NotFoundError:
        return []


def _stored_jobs(run: Run) -> dict[str, tuple[Body, list[Body]]]:
    """The unfinished jobs of the background engine by the name of their folder, each with its pods."""
    with connect_to(run) as client:
        bodies = [body for kind in KINDS for body in _unfinished(client, kind)]
        pods, _ = client.list("pods")
    by_job: dict[str, list[Body]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if is_replica(labels):
            by_job.setdefault(labels.get(JOB_UID, ""), []).append(pod)
    return {
        (body["metadata"].get("annotations") or {}).get(RUN, ""): (body, by_job.get(body["metadata"]["uid"], []))
        for body in bodies
    }


def _listed(run: Run) -> ListedJob:
    if not run.live:
        return ListedJob(run.key, read_job(run.folder, run.key), run=run)
    try:
        reached = reach(str(run.key))
    except UsageError:  # the run has ended in the meantime
        return ListedJob(run.key, read_job(run.folder, run.key), run=run)
    with reached.client:
        return ListedJob(run.key, reached.body, reached.pods(), run)


def _objects(found: list[ListedJob], form: Form, *, alone: bool) -> str:
    bodies = [one.body for one in found]
    if form == "name":
        return "".join(f"{_kind_name(one)}/{one.key.name}\n" for one in found)
    whole: Body = bodies[0] if alone else {"apiVersion": "v1", "kind": "List", "items": bodies}
    return as_yaml([whole]) if form == "yaml" else as_json(whole)


def _kind_name(one: ListedJob) -> str:
    return f"{one.kind.singular}.{one.kind.group}" if one.kind is not None else one.body.get("kind", "").lower()


def _table(runs: list[Run], *, wide: bool) -> Iterator[str]:
    """The table of many jobs. The rows of finished jobs of the background engine come from their summaries."""
    now = WallClock().now()
    quick = {run.key: row for run in runs if (row := _recorded_row(run, now, wide=wide)) is not None}
    others = {one.key: _row(one, now, wide=wide) for one in _all_listed([run for run in runs if run.key not in quick])}
    yield from columns([_head(wide=wide), *(quick.get(run.key) or others[run.key] for run in runs)])


def _tables(found: list[ListedJob], *, wide: bool, alone: bool) -> Iterator[str]:
    """The table of jobs, alone or with what is known about each job below it."""
    now = WallClock().now()
    folders = wide and any(one.run is not None for one in found)
    yield from columns([_head(wide=folders), *(_row(one, now, wide=folders) for one in found)])
    for one in () if alone else found:
        yield ""
        yield from one.ended
        if one.pods is not None:
            yield from _replicas(one, one.pods, now, wide=wide)
        elif one.run is not None:
            yield from _ended(one.run)


def _head(*, wide: bool) -> list[str]:
    return ["NAMESPACE", "NAME", "KIND", "PHASE", "REPLICAS", "RESTARTS", "AGE"] + ["FOLDER"] * wide


# -- the row of a job -------------------------------------------------------------------------------------------------


def _row(one: ListedJob, now: Time, *, wide: bool) -> list[str]:
    row = [
        one.key.namespace,
        one.key.name,
        one.kind.title if one.kind is not None else one.body.get("kind", "?"),
        _phase(one),
        _replica_counts(one),
        str(_restarts(one)),
        _age(one.body.get("metadata") or {}, now) or (_run_age(one.run, now) if one.run is not None else ""),
    ]
    return row + [str(one.run.folder) if one.run is not None else ""] * wide


def _recorded_row(run: Run, now: Time, *, wide: bool) -> list[str] | None:
    """The row of a finished job from its summary; None if there is no summary."""
    info = read_run_info(run.folder) if run.background and not run.live else None
    if info is None or info.summary is None:
        return None
    one, restarts = info.summary, sum(ending.restarts for ending in info.endings)
    row = [run.key.namespace, run.key.name, one.kind, one.phase, one.replicas, str(restarts)]
    return [*row, _age({"creationTimestamp": one.created}, now), *[str(run.folder)] * wide]


def _phase(one: ListedJob) -> str:
    """The phase of the job. If the run ended before the job, the text says how the run ended."""
    run = one.past_run
    if run is not None and one.ledger.outcome is None:
        return next((ending.outcome for ending in _endings(run)), "NoEngine" if run.background else "Lost")
    return (one.kind.phase_of(one.body.get("status") or {}) if one.kind is not None else "") or "Pending"


def _replica_counts(one: ListedJob) -> str:
    """For example `2/4`: the running replicas, or after the job's end the succeeded replicas; `?` for a killed run."""
    total = total_replicas(one.kind, one.body) if one.kind is not None else 0
    unknown = (
        not _endings(one.past_run) if one.past_run is not None else one.pods is None and one.ledger.outcome is None
    )
    if unknown:
        return f"?/{total or '?'}"
    if one.pods is not None and one.ledger.outcome is None:
        return f"{sum(condition(pod).phase == 'Running' for pod in one.pods)}/{total}"
    return f"{succeeded_replicas(one.ledger)}/{total}"


def _restarts(one: ListedJob) -> int:
    """The restarts: from ledger and pods (live run), the ending (ended run), or the recorded pods (killed run)."""
    if one.pods is not None or one.run is None:
        return count_restarts(one.ledger, (_pod_count(pod) for pod in one.pods or ()))
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
    if not endings and run.background:
        yield f"{run.key.name} is unfinished, but {NO_ENGINE}"
        return
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
