# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence about a job on this machine: from the engine of a live run, or from the folder of a past run.

A killed run has left no final status: the evidence is then the submitted job, its events, and the logs.
"""

import os
from datetime import datetime
from itertools import product
from pathlib import Path

import msgspec

from trainwright.cli.inspect.evidence import LOG_LINES, JobEvidence, LogExcerpt, event_time, true_cause
from trainwright.cli.live_job import LiveJob, reach
from trainwright.cli.logs import LogSelection, chosen, files
from trainwright.cli.record import RecordedPod, read_events, read_job, read_pods, read_run_info
from trainwright.cli.runs import Run, find, select_run
from trainwright.cli.show.news import JobEnding
from trainwright.cli.show.text import line as clean
from trainwright.core.explain import failures_to_quote
from trainwright.core.output import ends_with_own_error
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import find as find_kind
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import Body
from trainwright.model.ledger import Failure, Ledger
from trainwright.model.meta import Key
from trainwright.model.units import parse_time
from trainwright.runtime.ports import WallClock

#: The kinds of the objects that have the name of a replica.
_CHILDREN = ("Pod", "Service")
#: At most this many bytes are read from the end of a log.
_TAIL_BYTES = 64 * 1024
#: If the failure to quote may be a consequence of another one, the logs of at most this many other pods are read.
_MAX_UNSEEN = 32


def collect(word: str, namespace: str, run_id: str = "", *, logs: bool) -> JobEvidence:
    """Collect the evidence about a job of this machine. Raises UsageError if there is no such job or run.

    With `logs`, read also the last log lines of the failure to quote.
    """
    run = select_run(find(word, namespace), run_id)
    if not run.live:
        return _past(run, logs=logs)
    try:
        reached = reach(str(run.key))
    except UsageError:
        # The run has ended in the meantime, or it goes on with other jobs because a user has deleted this one.
        now = select_run(find(str(run.key)), run_id)
        return _past(now, logs=logs)
    with reached.client:
        return _live(run, reached, logs=logs)


def _live(run: Run, reached: LiveJob, *, logs: bool) -> JobEvidence:
    pods = tuple(reached.pods())
    nodes, _ = reached.client.list("nodes")
    events, _ = reached.client.list("events", namespace=run.key.namespace)
    body, info = reached.body, read_run_info(run.folder)
    log = _log(run, _ledger(body), pods) if logs else None
    return JobEvidence(
        kind=reached.kind,
        body=body,
        now=WallClock().now(),
        place=f"run {run.folder.name}, live",
        runtime=info.runtime if info is not None else "",
        pods=pods,
        nodes=tuple(nodes),
        events=_about(run, reached.kind, [one for one in events if _is_of_this_job(one, body)]),
        log=log,
    )


def _past(run: Run, *, logs: bool) -> JobEvidence:
    body, info = read_job(run.folder, run.key), read_run_info(run.folder)
    kind = find_kind(body.get("apiVersion", ""), body.get("kind", ""))
    if kind is None:
        raise UsageError(f"{run.key}: run {run.folder.name} has not recorded the job; it was killed, or it just begins")
    endings = info.endings if info is not None else ()
    ending = next((one for one in endings if Key(one.namespace, one.name) == run.key), None)
    events = _about(run, kind, read_events(run.folder))
    if run.live and (events or read_pods(run.folder)):  # the engine does not have the job any more
        ending = JobEnding(run.key.namespace, run.key.name, "Deleted", 1, 0.0, 0, "the job was deleted before it ended")
    ended = parse_time(info.ended) if info is not None else None
    ledger, killed = _ledger(body), "how the job and its replicas ended is not known, because the run was killed"
    if run.background:
        killed = "the current state is not known: no engine runs; `trainwright up` continues with the job"
    unfinished = "live" if run.live else "without an engine" if run.background else "was killed"
    state = f"ended at {info.ended}" if info is not None and info.ended else unfinished
    return JobEvidence(
        kind=kind,
        body=body,
        now=ended or _last_time(events) or WallClock().now(),
        place=f"run {run.folder.name}, {state}",
        runtime=info.runtime if info is not None else "",
        live=run.live and ending is None,
        waits_for_engine=run.background and not run.live,
        events=events,
        log=_log(run, ledger, ()) if logs else None,
        ending=ending,
        gaps=(killed,) if ending is None and ledger.outcome is None and not run.live else (),
        folder=run.folder,
    )


def _ledger(body: Body) -> Ledger:
    try:
        return msgspec.convert((body.get("status") or {}).get("trainwright") or {}, Ledger)
    except msgspec.ValidationError:
        return Ledger()


def _about(run: Run, kind: Kind, events: list[Body]) -> tuple[Body, ...]:
    """The events about the job and its pods, oldest first. A pod can have the name of another job."""
    pods = [pod.pod for pod in read_pods(run.folder) if pod.job == str(run.key)]
    objects = {(kind.name, run.key.name), *product(_CHILDREN, pods)}
    found = [one for one in events if _is_about(one, run.key.namespace, objects)]
    latest = {(one.get("metadata") or {}).get("name") or str(place): one for place, one in enumerate(found)}
    return tuple(sorted(latest.values(), key=event_time))


def _is_of_this_job(event: Body, job: Body) -> bool:
    """Whether an event is not about an earlier job of the same name, which the background engine may still have."""
    about, meta = event.get("involvedObject") or {}, job["metadata"]
    if (about.get("kind"), about.get("name")) == (job.get("kind"), meta["name"]):
        return about.get("uid") in (None, "", meta["uid"])
    happened, created = parse_time(event_time(event)), parse_time(str(meta.get("creationTimestamp", "")))
    return happened is None or created is None or happened >= created


def _is_about(event: Body, namespace: str, objects: set[tuple[str, str]]) -> bool:
    about = event.get("involvedObject")
    if not isinstance(about, dict) or about.get("namespace") != namespace:
        return False
    return (about.get("kind"), about.get("name")) in objects


def _last_time(events: tuple[Body, ...]) -> datetime | None:
    return parse_time(event_time(events[-1])) if events else None


# -- logs ------------------------------------------------------------------------------------------------------------


def _log(run: Run, ledger: Ledger, pods: tuple[Body, ...]) -> LogExcerpt | None:
    """The last lines of the failure to quote; None if there is no such failure."""
    failures = failures_to_quote(ledger, (msgspec.convert(pod, Pod) for pod in pods))
    if not failures:
        return None
    recorded = chosen(run.folder, LogSelection(str(run.key)))
    found = true_cause([_excerpt(run, recorded, failure) for failure in failures])
    if found is None or not found.doubt:
        return found
    others = (_unseen_excerpt(run, pod, found.failure) for pod in recorded[-_MAX_UNSEEN:])
    return next((one for one in others if one is not None), found)


def _unseen_excerpt(run: Run, pod: RecordedPod, known: Failure) -> LogExcerpt | None:
    """The last log lines of a peer that failed at the same time, if the last pass of the engine had not seen it yet."""
    role, _, index = pod.replica.rpartition("-")
    if pod.attempt != known.attempt or pod.pod == known.pod:
        return None
    for container in pod.containers:
        cause = Cause(CauseKind.EXIT, reason="Error", container=container, node=pod.node)
        excerpt = _excerpt(run, [pod], Failure(role, int(index), pod.pod, pod.attempt, known.at, cause))
        if ends_with_own_error(excerpt.lines):
            return excerpt
    return None


def _excerpt(run: Run, recorded: list[RecordedPod], failure: Failure) -> LogExcerpt:
    who = (f"{failure.role}-{failure.index}", failure.attempt)
    pods = [pod for pod in recorded if (pod.replica, pod.attempt) == who]
    try:
        return LogExcerpt(failure, _last_lines(run, pods, failure.cause.container))
    except OSError as error:
        return LogExcerpt(failure, problem=error.strerror or str(error))


def _last_lines(run: Run, pods: list[RecordedPod], container: str) -> tuple[str, ...]:
    # The last log that is not empty: after a restart in place, the log of the new container is often still empty.
    for file in reversed(files(run.folder, pods, container)):
        lines = _tail(Path(file.path))
        if len(lines) < LOG_LINES:  # the other lines may be in the rotated file
            lines = (*_tail(Path(f"{file.path}.1")), *lines)[-LOG_LINES:]
        if lines:
            return lines
    return ()


def _tail(path: Path) -> tuple[str, ...]:
    """The last lines of a file; none if it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return ()
    # If the beginning was left out, the first line may be incomplete.
    whole = lines[1:] if size > _TAIL_BYTES else lines
    return tuple(clean(line.decode(errors="replace")) for line in whole[-LOG_LINES:])
