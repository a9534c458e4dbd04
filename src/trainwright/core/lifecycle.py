# SPDX-License-Identifier: Apache-2.0
"""The edges of a job's life: accepted, suspended, resumed, ended and cleaned up, deleted. Steps of `reconcile`.

Each step takes the pass and answers with a plan, or with None where it has nothing to say.
"""

from msgspec.structs import replace

from trainwright.core import attempts, budget, classify, gate, observe, removal, render, report, restart, verdict
from trainwright.core.classify import awaits_restart
from trainwright.core.observe import Snapshot
from trainwright.core.report import StepActions
from trainwright.model.cause import CauseKind, brief
from trainwright.model.child import Pod
from trainwright.model.event import EventReason, Notice
from trainwright.model.job import Body, CleanPods, Job, Role
from trainwright.model.ledger import LONGEST_TEXT, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.meta import ADOPT
from trainwright.model.plan import Delete, Patch, Plan, RoleState, Status
from trainwright.model.rule import Result
from trainwright.model.units import after, format_row, parse_row


def unmanaged(view: Snapshot) -> Plan | None:
    """Another controller looks after the job: its children and its status are not ours."""
    return Plan(Status(view.stored, view.roles), untouched=True) if view.job.unmanaged else None


def deleted(view: Snapshot) -> Plan | None:
    """The job object is going: its children follow by their owner references, and nothing new is made."""
    if not view.job.deleting:
        return None
    plan = report.make_plan(view.with_ledger(view.stored), StepActions(patches=_finalizer_patches(view.job)))
    return replace(plan, untouched=True) if _belongs_to_other(view) else plan


def _finalizer_patches(job: Job) -> tuple[Patch, ...]:
    """The job without finalizers that nobody answers for any more: it would stay for ever."""
    if job.finalizers is None:
        return ()
    body: Body = {"metadata": {"finalizers": list(job.finalizers)}}
    why = "whoever put its finalizer on it is not there any more"
    return (Patch(job.owner.kind, job.key.name, job.uid, body, why, api=job.owner.api_version),)


def foreign(view: Snapshot) -> Plan | None:
    """Another controller has begun the job and may still look after it: people are told how to hand it over."""
    job = view.job
    if not _belongs_to_other(view):
        return None
    group = job.owner.api_version.partition("/")[0]
    text = (
        f"{job.foreign} wrote the status of this unfinished job, and nothing in it is Trainwright's: the job is left"
        " alone. To hand it over, stop that controller, then run `kubectl annotate"
        f" {job.kind}.{group} {job.key.name} -n {job.key.namespace} {ADOPT}=true`: the pods and services that it made"
        " under the names of replicas are removed, and the job starts anew"
    )
    event = Notice(EventReason.FOREIGN, text, once=True)
    return Plan(Status(view.stored, view.roles), events=(event,), untouched=True)


def _belongs_to_other(view: Snapshot) -> bool:
    """A job that has children of ours is ours, although somebody has overwritten its status."""
    ours = _all_pods(view) or view.observed.services or view.observed.extras
    return bool(view.job.foreign) and not ours


def begin(view: Snapshot) -> Snapshot:
    """Accept a new job; resume one that is no longer suspended."""
    ledger = view.ledger
    if ledger.phase is Phase.NEW:
        times = Times(accepted=view.now, started=view.now)
        return view.with_ledger(replace(ledger, phase=Phase.PENDING, times=times))
    if ledger.phase is Phase.SUSPENDED and not view.job.lifecycle.suspended:
        times = replace(ledger.times, started=view.now, running=None)
        return view.with_ledger(replace(ledger, phase=Phase.RESUMING, resumes=ledger.resumes + 1, times=times))
    return view


def invalid(view: Snapshot) -> Plan | None:
    """A manifest that cannot be run: a new job fails, any other is left as it is until the edit is mended."""
    before = view.stored.outcome
    if not view.job.invalid or (before is not None and before.reason is Reason.INVALID):
        return None
    if view.stored.phase is not Phase.NEW or view.job.unreadable:
        return report.make_plan(replace(view.with_ledger(view.stored), ownership_patches=()), StepActions())
    outcome = Outcome(Result.FAILED, Reason.INVALID, view.now, message=brief(view.job.invalid, LONGEST_TEXT))
    return finished(end(view, outcome))


def suspended(view: Snapshot) -> Plan | None:
    """No pod of a suspended job exists, and what had finished is forgotten: it starts anew when it resumes."""
    if not view.job.lifecycle.suspended:
        return None
    outcome = verdict.end_requested(view)
    if view.ledger.phase is not Phase.SUSPENDED:
        # Work that is done is done, also when it is suspended a moment later.
        settled = verdict.settle(view)
        outcome = verdict.success(settled) or outcome
        view = settled.view if outcome is not None else _suspend(view)
    if outcome is not None:
        return finished(end(view, outcome))
    doomed = [(pod, "the job is suspended") for pod in _all_pods(view)]
    deletes = removal.pod_deletes(view, doomed) + _other_deletes(view, set(), "the job is suspended")
    wake = removal.next_check_at(view, (pod for pod, _ in doomed))
    return report.make_plan(view, StepActions(tuple(deletes), wake=wake, cleaning=bool(doomed)))


def _suspend(view: Snapshot) -> Snapshot:
    """Every replica starts anew some day; what the kubelet counted in its pods is kept."""
    ledger = view.ledger
    pairs = zip(ledger.roles, view.roles, strict=True)
    entries = tuple(
        replace(
            attempts.next_epoch(restart.keep_in_place_counts(view, entry, group.replicas)),
            size=-1,
            stuck=(),
            ceiling=None,
        )
        for entry, group in pairs
    )
    times = Times(accepted=ledger.times.accepted or view.now)
    generation = view.job.generation
    return view.with_ledger(
        replace(ledger, phase=Phase.SUSPENDED, generation=generation, roles=entries, times=times)
    ).reobserve()


def end(view: Snapshot, outcome: Outcome) -> Snapshot:
    """The outcome is decided; from here on it never changes."""
    phase = Phase.SUCCEEDED if outcome.result is Result.SUCCEEDED else Phase.FAILED
    times = replace(view.ledger.times, ended=outcome.at)
    pairs = zip(view.ledger.roles, view.roles, strict=True)
    entries = tuple(_closed_entry(entry, group, outcome) for entry, group in pairs)
    return view.with_ledger(replace(view.ledger, phase=phase, outcome=outcome, times=times, roles=entries))


def _closed_entry(entry: RoleLedger, group: RoleState, outcome: Outcome) -> RoleLedger:
    """What the kubelets counted is kept; of the charges, only those of the replica that decided the end matter now."""
    failure = outcome.failure
    index = failure.index if failure is not None and failure.role == entry.name else -1
    charged = format_row({index: parse_row(entry.charged).get(index, 0)}) if entry.charged else ""
    return replace(entry, inside=entry.inside + budget.in_place_restarts(group.replicas), charged=charged)


def finished(view: Snapshot) -> Plan | None:
    """The job has ended: remove what its policy says, live out the time to live."""
    outcome = view.ledger.outcome
    if outcome is None:
        return None
    level = _clean_up_policy(view, outcome)
    stale = {one.pod.metadata.uid for one in view.stale_pods}
    doomed = [
        (pod, f"the job has {outcome.result.lower()}") for pod in _all_pods(view) if _is_removed(pod, level, stale)
    ]
    deletes = removal.pod_deletes(view, doomed)
    gone = {pod.metadata.name for pod, _ in doomed}
    kept = {pod.metadata.name for pod in _all_pods(view)} - gone if level is not CleanPods.ALL else set()
    if level is CleanPods.NONE:
        kept = {service.metadata.name for service in view.observed.services}
    deletes += _other_deletes(view, kept, f"the job has {outcome.result.lower()}")
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
    """Whether the clean-up takes this pod, or somebody has deleted it already.

    No policy keeps a live pod of an old attempt, nor one that its kubelet would restart: it would hold its GPUs and
    crash again and again for a job that has ended.
    """
    ended = pod.status.phase in ("Succeeded", "Failed")
    if removal.is_terminating(pod) or (not ended and (pod.metadata.uid in stale or awaits_restart(pod))):
        return True
    return level is CleanPods.ALL or (level is CleanPods.UNFINISHED and not ended)


def _all_pods(view: Snapshot) -> list[Pod]:
    pods = [replica.pod for role in view.roles for replica in role.replicas if replica.pod is not None]
    return pods + [one.pod for one in view.stale_pods]


def _other_deletes(view: Snapshot, kept: set[str], why: str) -> list[Delete]:
    """Services without their pod, and what the job as a whole no longer has."""
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
    """With the time to live: remove the job once it is over, look again when it will be."""
    wake = removal.next_check_at(view, (pod for pod, _ in doomed))
    if view.job.lifecycle.ttl is None:
        return replace(actions, wake=wake)
    due = after(outcome.at, view.job.lifecycle.ttl)
    if view.now >= due:
        return replace(actions, remove_job=True)
    return replace(actions, wake=due if wake is None else min(due, wake))


def advance(view: Snapshot) -> Snapshot:
    """The ledger of a live job moves on: its phase, what has been reached, holds that are over."""
    view = _with_phase(view)
    ledger = view.ledger
    roles = view.job.roles
    for place, entry in enumerate(ledger.roles):
        role, group = roles[place], view.roles[place]
        if (
            entry.holds
            or entry.stuck
            or entry.reached < role.replicas
            or (role.recreates_pods and not group.all_running)
        ):
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


def _with_phase(view: Snapshot) -> Snapshot:
    ledger: Ledger = view.ledger
    phase = observe.phase_of(view)
    if phase is Phase.RUNNING and ledger.times.running is None:
        ledger = replace(ledger, times=replace(ledger.times, running=view.now))
    return view.with_ledger(ledger if phase is ledger.phase else replace(ledger, phase=phase))
