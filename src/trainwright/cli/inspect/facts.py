# SPDX-License-Identifier: Apache-2.0
"""Turns the evidence about a job into plain values that `core` explains: replicas, refusals, admission, warnings."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.cli.inspect.evidence import JobEvidence, event_time
from trainwright.core import autosize
from trainwright.core.advice import RunPlace
from trainwright.core.explain import failure_to_quote
from trainwright.core.explanation import JobFacts
from trainwright.core.observe import observe
from trainwright.kinds.base import load
from trainwright.model.child import Extra, Node, Observed, Pod, Refusal
from trainwright.model.event import EventReason
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Failure
from trainwright.model.plan import Status
from trainwright.model.site import Site
from trainwright.model.units import Time, parse_time

#: Why a run ended before its job, if the run recorded no sentence.
_RUN_ENDS = {
    "Interrupted": "its run was interrupted",
    "TimedOut": "--timeout of its run passed",
    "Broken": "the engine of its run failed",
}
_WORKLOAD = "Workload"
#: The conditions of a Kueue Workload that can be quoted, in this order: its quota is reserved, and it is admitted.
_WORKLOAD_CONDITIONS = ("QuotaReserved", "Admitted")
#: Condition types and phases of a pod group which mean that its pods wait.
_GROUP_WAITS = frozenset({"Unschedulable", "Pending", "Inqueue"})


class JobView(Struct, frozen=True):
    """A job with the state of its replicas."""

    job: Job
    status: Status
    pods: tuple[Pod, ...]
    created: Time | None = None


def view_of(evidence: JobEvidence) -> JobView:
    """The job as one pass would see it. This function decides nothing: the ledger stays as it is stored."""
    job = autosize.within_bounds(load(evidence.kind, evidence.body).job)
    pods = tuple(msgspec.convert(pod, Pod) for pod in evidence.pods)
    found = None if evidence.nodes is None else [msgspec.convert(node, Node) for node in evidence.nodes]
    nodes = None if found is None else {node.metadata.name: node for node in found}
    seen = observe(job, Observed(pods=pods, nodes=nodes), Site(), evidence.now)
    created = parse_time(str((evidence.body.get("metadata") or {}).get("creationTimestamp") or ""))
    return JobView(seen.job, Status(seen.ledger, seen.roles, invalid=job.invalid), pods, created)


def facts_of(evidence: JobEvidence, view: JobView) -> JobFacts:
    """What `core.explain` needs."""
    job, log, ending = view.job, evidence.log, evidence.ending
    stopped = ""
    if not evidence.live and job.ledger.outcome is None:
        lost = "no engine runs" if evidence.waits_for_engine else "its run was killed"
        stopped = lost if ending is None else ending.because or _RUN_ENDS.get(ending.outcome, "")
    return JobFacts(
        job=job,
        status=view.status,
        now=evidence.now,
        place=RunPlace(evidence.runtime),
        failure=log.failure if log is not None else _failure(view),
        lines=log.lines if log is not None else (),
        log_problem=log.problem if log is not None else "",
        refusals=tuple(_refusals(evidence, job)),
        extras=tuple(msgspec.convert(one, Extra) for one in evidence.admission if one.get("kind") != _WORKLOAD),
        admission=tuple(_admission(evidence)),
        warnings=_warnings(evidence),
        shortages=evidence.shortages,
        suspended_by=_suspended_by(evidence.body),
        resume_command=_resume_command(evidence, job),
        stopped=stopped,
        last_event=_last_event(evidence),
        was_deleted=ending is not None and ending.outcome == "Deleted",
        gaps=evidence.gaps,
        unsettled=_unsettled(evidence),
        restarts=ending.restarts if ending is not None and ending.outcome != "Deleted" else None,
    )


def _unsettled(evidence: JobEvidence) -> tuple[str, ...]:
    """The replicas that had not ended. If the run had several jobs, the name of the job before each is removed."""
    ending = evidence.ending
    return (
        tuple(text.removeprefix(f"{ending.namespace}/").removeprefix(f"{ending.name}/") for text in ending.unsettled)
        if ending is not None
        else ()
    )


def states_at_end(evidence: JobEvidence) -> dict[str, str]:
    """The state and the reason of replicas that had not ended when the run ended, by the name of the replica."""
    return {name: text for name, _, text in (one.partition(" ") for one in _unsettled(evidence))}


def _failure(view: JobView) -> Failure | None:
    return failure_to_quote(view.job.ledger, view.pods)


# -- events ----------------------------------------------------------------------------------------------------------


def _refusals(evidence: JobEvidence, job: Job) -> Iterator[Refusal]:
    """Children that the API server refused. The source is the events: the operator keeps refusals only in memory.

    After a refusal, the operator creates no other child of the same role for a while. So the refusal holds for every
    replica of that role. It has no effect on replicas that have a pod.
    """
    told = [
        event
        for event in evidence.events
        if str(event.get("reason", "")).startswith(EventReason.REFUSED)
        and (event.get("involvedObject") or {}).get("kind") != "Pod"
    ]
    for event in told:
        message = str(event.get("message", ""))
        words = set(re.findall(r"[\w.-]+", message))
        since = parse_time(str(event.get("firstTimestamp") or event.get("eventTime") or ""))
        reason = message.partition("could not be created: ")[2] or message
        for role in job.roles:
            names = [job.key.replica_name(role.name, index) for index in range(role.replicas)]
            if words.intersection(names):
                quota = "exceeded quota" in message
                yield from (Refusal(name, "", reason, since=since, quota=quota) for name in names)


def _warnings(evidence: JobEvidence) -> dict[str, tuple[str, str]]:
    """The last warning about each pod that exists, by name: reason and message."""
    uids = {pod["metadata"].get("uid") for pod in evidence.pods}
    found: dict[str, tuple[str, str]] = {}
    for event in evidence.events:
        about = event.get("involvedObject") or {}
        if event.get("type") == "Warning" and about.get("kind") == "Pod" and about.get("uid") in uids:
            found[about.get("name", "")] = (str(event.get("reason", "")), str(event.get("message", "")))
    return found


def _last_event(evidence: JobEvidence) -> str:
    if not evidence.events:
        return ""
    last = evidence.events[-1]
    return f"{event_time(last)} {last.get('reason', '')}: {last.get('message', '')}"


# -- admission and suspension ----------------------------------------------------------------------------------------


def _admission(evidence: JobEvidence) -> Iterator[str]:
    """What the quota system or the gang scheduler says about a job that it holds back, in its own words."""
    for body in evidence.admission:
        name, status = (body.get("metadata") or {}).get("name", ""), body.get("status") or {}
        conditions = [one for one in status.get("conditions") or () if isinstance(one, dict)]
        if body.get("kind") == _WORKLOAD:
            told = next(_held_by_kueue(conditions), None)
            if told is not None:
                yield f"Kueue has not admitted it (Workload {name}): {_said(told)}"
            continue
        last = max(conditions, key=lambda one: str(one.get("lastTransitionTime", "")), default={})
        waits = last.get("type") in _GROUP_WAITS and last.get("status", "True") == "True"
        if waits and _said(last):
            yield f"the gang scheduler holds it back ({body.get('kind')} {name}): {_said(last)}"
        elif not conditions and status.get("phase") in _GROUP_WAITS:
            yield f"the gang scheduler holds it back ({body.get('kind')} {name}): its phase is {status['phase']}"


def _held_by_kueue(conditions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    by_type = {one.get("type"): one for one in conditions}
    if (by_type.get("Admitted") or {}).get("status") == "True":
        return
    for type_ in _WORKLOAD_CONDITIONS:
        if (by_type.get(type_) or {}).get("status") == "False":
            yield by_type[type_]


def _said(condition: dict[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "").strip()


def _resume_command(evidence: JobEvidence, job: Job) -> str:
    """The command that resumes the job. On a cluster it is kubectl: `trainwright resume` works only on this machine."""
    if evidence.runtime:
        return f"trainwright resume {job.key}"
    patch = msgspec.json.encode(evidence.kind.suspend(evidence.body, False)).decode()
    what = f"{evidence.kind.plural}.{evidence.kind.group}/{job.key.name}"
    return f"kubectl patch {what} -n {job.key.namespace} --type merge -p '{patch}'"


def _suspended_by(body: Body) -> str:
    """The client that set the field which suspends the job, and when, as the API server recorded it."""
    for entry in reversed((body.get("metadata") or {}).get("managedFields") or ()):
        if isinstance(entry, dict) and entry.get("subresource") != "status" and _owns_suspend(entry.get("fieldsV1")):
            when = f" at {entry['time']}" if entry.get("time") else ""
            return f"{entry.get('manager', 'another client')}{when}"
    return ""


def _owns_suspend(fields: object) -> bool:
    if not isinstance(fields, dict):
        return False
    return any(str(key).startswith(("f:suspend", "f:pause")) or _owns_suspend(part) for key, part in fields.items())
