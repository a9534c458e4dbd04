# SPDX-License-Identifier: Apache-2.0
"""The start and the end of a job: accepted, suspended, resumed, ended, cleaned up, deleted.

A step takes the snapshot of a pass. Some steps return a changed snapshot, others a plan, or None if they do not apply.
"""

from msgspec.structs import replace

from trainwright.core import (
    attempts,
    budget,
    classify,
    diagnose,
    gate,
    observe,
    outcomes,
    removal,
    render,
    report,
    restart,
    waiting,
)
from trainwright.core.budget import EndedReplica
from trainwright.core.classify import awaits_restart
from trainwright.core.observe import Snapshot
from trainwright.core.report import StepActions
from trainwright.model.cause import CauseKind, brief
from trainwright.model.child import Extra, Pod, Service
from trainwright.model.event import EventReason, Notice
from trainwright.model.job import Body, CleanPods, Job, Role
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.meta import ADOPT
from trainwright.model.plan import Delete, Patch, Plan, RoleState, Status
from trainwright.model.rule import Result
from trainwright.model.units import Time, after, format_row, parse_row


def unmanaged(view: Snapshot) -> Plan | None:
    """Do nothing for a job that another controller manages."""
    return Plan(Status(view.stored, view.roles), untouched=True) if view.job.unmanaged else None


def deleted(view: Snapshot) -> Plan | None:
    """Create nothing for a job that is being deleted. The garbage collector removes its children."""
    if not view.job.deleting:
        return None
    plan = report.make_plan(view.with_ledger(view.stored), StepActions(patches=_finalizer_patches(view.job)))
    return replace(plan, untouched=True) if _belongs_to_other(view) else plan


def _finalizer_patches(job: Job) -> tuple[Patch, ...]:
    """Remove finalizers whose controller no longer exists; the job could not be deleted otherwise."""
    if job.finalizers is None:
        return ()
    body: Body = {"metadata": {"finalizers": list(job.finalizers)}}
    why = "the controller that added its finalizer no longer exists"
    return (Patch(job.owner.kind, job.key.name, job.uid, body, why, api=job.owner.api_version),)


def foreign(view: Snapshot) -> Plan | None:
    """Only send an event for a job that another controller has started; the event says how to hand the job over."""
    job = view.job
    if not _belongs_to_other(view):
        return None
    resource = f"{job.owner.kind.lower()}.{job.owner.api_version.partition('/')[0]}"
    text = (
        f"{job.foreign} wrote the status of this unfinished job, and nothing in it is Trainwright's: the job is left"
        " alone. To hand it over, stop that controller, then run `kubectl annotate"
        f" {resource} {job.key.name} -n {job.key.namespace} {ADOPT}=true`: the pods and services that it made"
        " under the names of replicas are removed, and the job starts anew"
    )
    event = Notice(EventReason.FOREIGN, text, once=True)
    return Plan(Status(view.stored, view.roles), events=(event,), untouched=True)


def _belongs_to_other(view: Snapshot) -> bool:
    """Return whether another controller started the job. A job with our children is ours, whatever its status."""
    return bool(view.job.foreign) and not _children(view)


def _children(view: Snapshot) -> list[Pod | Service | Extra]:
    return [*_all_pods(view), *view.observed.services, *view.observed.extras]


def begin(view: Snapshot) -> Snapshot:
    """Accept a new job, or resume a job that is no longer suspended."""
    ledger = view.ledger
    if ledger.phase is Phase.NEW:
        accepted = _accepted_at(view)
        times = Times(accepted=accepted, started=accepted)
        return view.with_ledger(replace(ledger, phase=Phase.PENDING, times=times))
    if ledger.phase is Phase.SUSPENDED and not view.job.lifecycle.suspended:
        times = replace(ledger.times, started=view.now, running=None)
        return view.with_ledger(replace(ledger, phase=Phase.RESUMING, resumes=ledger.resumes + 1, times=times))
    return view


def _accepted_at(view: Snapshot) -> Time:
    """Return when a job without a ledger was accepted: now, or when its first child was created.

    Children can exist before the ledger is stored (`Write.ACCEPTED`). If the operator was killed in this window, the
    times of the children keep the job's deadlines.
    """
    created = [child.metadata.creation_timestamp for child in _children(view)]
    return min([view.now, *(time for time in created if time is not None)])


def invalid(view: Snapshot) -> Plan | None:
    """Fail a new job whose manifest cannot be run. An accepted job stays as it is until the edit is fixed."""
    before = view.stored.outcome
    if not view.job.invalid or (before is not None and before.reason is Reason.INVALID):
        return None
    if view.stored.phase is not Phase.NEW or view.job.unreadable:
        return report.make_plan(replace(view.with_ledger(view.stored), ownership_patches=()), StepActions())
    if _children(view):  # accepted before the edit; the acceptance was not stored
        return report.make_plan(replace(begin(view), ownership_patches=()), StepActions())
    outcome = Outcome(Result.FAILED, Reason.INVALID, view.now, message=brief(view.job.invalid, LONGEST_TEXT))
    return finished(end(view, outcome))


def suspended(view: Snapshot) -> Plan | None:
    """Delete all pods of a suspended job and forget its results: it starts from the beginning when it resumes."""
    if not view.job.lifecycle.suspended:
        return None
    outcome = outcomes.end_requested(view)
    if view.ledger.phase is not Phase.SUSPENDED:
        # A suspension must not discard the result of a job that has just succeeded.
        settled = outcomes.settle(view)
        outcome = outcomes.success(settled) or outcome
        view = settled.view if outcome is not None else _suspend(view)
    if outcome is not None:
        return finished(end(view, outcome))
    doomed = [(pod, "the job is suspended") for pod in _all_pods(view)]
    deletes = removal.pod_deletes(view, doomed) + _other_deletes(view, set(), "the job is suspended")
    wake = removal.next_check_at(view, (pod for pod, _ in doomed))
    return report.make_plan(view, StepActions(tuple(deletes), wake=wake, cleaning=bool(doomed)))


def _suspend(view: Snapshot) -> Snapshot:
    """Reset every replica; keep the kubelets' restart counts."""
    ledger = view.ledger
    pairs = zip(ledger.roles, view.roles, strict=True)
    entries = tuple(
        attempts.next_epoch(
            restart.keep_in_place_counts(view, replace(entry, size=-1, stuck=(), ceiling=None), group.replicas)
        )
        for entry, group in pairs
    )
    times = Times(accepted=ledger.times.accepted or _accepted_at(view))
    ledger = replace(ledger, phase=Phase.SUSPENDED, generation=view.job.generation, roles=entries, times=times)
    return view.with_ledger(ledger).reobserve()


def end(view: Snapshot, outcome: Outcome, ended: tuple[EndedReplica, ...] = ()) -> Snapshot:
    """Store the outcome and the verdict, which never change afterwards. `ended` are the replicas of this pass."""
    phase = Phase.SUCCEEDED if outcome.result is Result.SUCCEEDED else Phase.FAILED
    times = replace(view.ledger.times, ended=outcome.at)
    pairs = zip(view.ledger.roles, view.roles, strict=True)
    entries = tuple(_closed_entry(entry, group, outcome) for entry, group in pairs)
    late = outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE)
    obstacle = waiting.first_obstacle(view.job, view.roles, view.observed.refusals, view.now) if late else ""
    verdict = diagnose.end_verdict(view, outcome, ended, obstacle)
    ledger = replace(view.ledger, phase=phase, outcome=outcome, times=times, roles=entries, verdict=verdict)
    return view.with_ledger(ledger)


def _closed_entry(entry: RoleLedger, group: RoleState, outcome: Outcome) -> RoleLedger:
    """Add the kubelets' restart counts. Keep only the charges of the replica whose failure decided the outcome."""
    failure = outcome.failure
    index = failure.index if failure is not None and failure.role == entry.name else -1
    charged = format_row({index: parse_row(entry.charged).get(index, 0)}) if entry.charged else ""
    return replace(entry, inside=entry.inside + budget.in_place_restarts(group.replicas), charged=charged)


def finished(view: Snapshot) -> Plan | None:
    """Clean up after an ended job as its policy says, and remove the job after its time to live."""
    outcome = view.ledger.outcome
    if outcome is None:
        return None
    level, why = _clean_up_policy(view, outcome), f"the job has {outcome.result.lower()}"
    stale = {one.pod.metadata.uid for one in view.stale_pods}
    doomed = [(pod, why) for pod in _all_pods(view) if _is_removed(pod, level, stale)]
    deletes = removal.pod_deletes(view, doomed)
    gone = {pod.metadata.name for pod, _ in doomed}
    kept = {pod.metadata.name for pod in _all_pods(view)} - gone if level is not CleanPods.ALL else set()
    if level is CleanPods.NONE:
        kept = {service.metadata.name for service in view.observed.services}
    deletes += _other_deletes(view, kept, why)
    return report.make_plan(view, _with_ttl(view, outcome, StepActions(tuple(deletes), cleaning=bool(doomed)), doomed))


def _clean_up_policy(view: Snapshot, outcome: Outcome) -> CleanPods:
    clean = view.job.lifecycle.clean
    if outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE, Reason.EXTERNAL):
        return clean.ended
    failure = outcome.failure
    if clean.lost is not None and failure is not None and failure.cause.why in (CauseKind.NODE_LOST, CauseKind.DEVICE):
        return clean.lost
    return clean.succeeded if outcome.result is Result.SUCCEEDED else clean.failed


def _is_removed(pod: Pod, level: CleanPods, stale: set[str]) -> bool:
    """Return whether the clean-up deletes this pod, or another client is deleting it.

    Every policy deletes running pods of old attempts and pods that a kubelet would restart: they would occupy GPUs for
    a job that has ended.
    """
    ended = pod.status.phase in ("Succeeded", "Failed")
    if removal.is_terminating(pod) or (not ended and (pod.metadata.uid in stale or awaits_restart(pod))):
        return True
    return level is CleanPods.ALL or (level is CleanPods.UNFINISHED and not ended)


def _all_pods(view: Snapshot) -> list[Pod]:
    pods = [replica.pod for role in view.roles for replica in role.replicas if replica.pod is not None]
    return pods + [one.pod for one in view.stale_pods]


def _other_deletes(view: Snapshot, kept: set[str], why: str) -> list[Delete]:
    """Return deletes for services whose names are not in `kept`, and for extras that the job no longer needs."""
    services = [s for s in view.observed.services if s.metadata.name not in kept and not removal.is_terminating(s)]
    basis = gate.visible_to_dialect(view.job, view.roles, view.observed)
    bodies = view.job.dialect.extras(view.job, basis, view.site) if view.observed.extras else ()
    wanted = {render.extra_key(view.job, body) for body in bodies}
    extras = [
        extra
        for extra in view.observed.extras
        if removal.extra_key(extra) not in wanted
        and not removal.is_terminating(extra)
        and not gate.is_current(view.job, extra)
    ]
    return [removal.service_delete(s, why) for s in services] + [removal.extra_delete(extra, why) for extra in extras]


def _with_ttl(view: Snapshot, outcome: Outcome, actions: StepActions, doomed: list[tuple[Pod, str]]) -> StepActions:
    """Remove the job when its time to live is over, or wake up at that time."""
    wake = removal.next_check_at(view, (pod for pod, _ in doomed))
    if view.job.lifecycle.ttl is None:
        return replace(actions, wake=wake)
    due = after(outcome.at, view.job.lifecycle.ttl)
    if view.now >= due:
        return replace(actions, remove_job=True)
    return replace(actions, wake=due if wake is None else min(due, wake))


def advance(view: Snapshot) -> Snapshot:
    """Update the ledger of a live job: phase, which replicas have existed or are stuck, and back-offs that are over."""
    phase = observe.phase_of(view)
    if phase is Phase.RUNNING and view.ledger.times.running is None:
        view = view.with_ledger(replace(view.ledger, times=replace(view.ledger.times, running=view.now)))
    if phase is not view.ledger.phase:
        view = view.with_ledger(replace(view.ledger, phase=phase))
    ledger = view.ledger
    for place, (role, group, entry) in enumerate(zip(view.job.roles, view.roles, ledger.roles, strict=True)):
        may_be_stuck = role.recreates_pods and not group.all_running
        if entry.holds or entry.stuck or entry.reached < role.replicas or may_be_stuck:
            new = _advanced_entry(view, role, group, entry)
            ledger = replace(ledger, roles=(*ledger.roles[:place], new, *ledger.roles[place + 1 :]))
    if ledger.generation != view.job.generation:
        ledger = replace(ledger, generation=view.job.generation)
    return view.with_ledger(ledger)


def _advanced_entry(view: Snapshot, role: Role, group: RoleState, entry: RoleLedger) -> RoleLedger:
    if entry.holds:
        entry = attempts.drop_expired_holds(entry, view.now)
    if entry.stuck or (role.recreates_pods and not group.all_running):
        entry = classify.update_stuck(entry, role, group.replicas, view.now)
    if entry.reached < role.replicas and observe.all_reached(view, group):
        entry = replace(entry, reached=role.replicas)
    return entry
