# SPDX-License-Identifier: Apache-2.0
"""Build the plan of a pass: the status, whether it must be stored at once, events, and the next wake-up.

Facts that only the ledger holds are stored at once. Facts that pods still show (for example, a replica succeeded) may
wait for the next write. `exit_events` and `waiting_events` build optional events and decide nothing.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import diagnose, history, ports
from trainwright.core.observe import Snapshot
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod
from trainwright.model.event import (
    EventReason,
    JobEnded,
    JobEvent,
    JobStep,
    Notice,
    PodExited,
    PodWaiting,
    Resized,
    Restarting,
)
from trainwright.model.job import Job
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.plan import Announce, Create, Delete, Patch, Plan, State, Status, Write
from trainwright.model.units import EARLIEST_TIME, Time, after, parse_indexes

_EMPTY = Ledger()


class StepActions(Struct, frozen=True, gc=False):
    """The actions that a step asks for."""

    deletes: tuple[Delete, ...] = ()
    creates: tuple[Create, ...] = ()
    patches: tuple[Patch, ...] = ()
    wake: Time | None = None
    cleaning: bool = False
    remove_job: bool = False
    announces: tuple[Announce, ...] = ()


def make_plan(view: Snapshot, actions: StepActions) -> Plan:
    """Return the plan of this pass."""
    if history.has_changed(view.stored, view.ledger):
        removed = diagnose.removal_class(view)
        view = view.with_ledger(history.record(view.stored, view.ledger, _nodes(view), view.now, removed))
    refused = _refused(view) if view.observed.refusals or view.foreign_pods else {}
    status = Status(view.ledger, view.roles, refused, actions.cleaning, view.job.invalid)
    write = _write(view)
    return Plan(
        status,
        write,
        view.ownership_patches + actions.patches if view.ownership_patches else actions.patches,
        actions.deletes,
        actions.creates,
        () if write is Write.NOT else tuple(_events(view)),
        actions.wake,
        actions.remove_job,
        actions.announces,
    )


def _nodes(view: Snapshot) -> tuple[str, ...]:
    """Return the nodes of the job's pods, sorted."""
    used = {replica.pod.spec.node_name for role in view.roles for replica in role.replicas if replica.pod is not None}
    used.update([one.pod.spec.node_name for one in view.stale_pods])
    return tuple(sorted(used - {""}))


def _refused(view: Snapshot) -> dict[str, str]:
    """Return the children that could not be created: refusals, and names taken by pods that are not ours."""
    told = {refusal.name: f"{refusal.reason}: {refusal.message}" for refusal in view.observed.refusals}
    idle = view.job.deleting or view.job.lifecycle.suspended or view.ledger.outcome is not None
    if not view.foreign_pods or view.all_running or idle:
        return told
    wanted = {
        view.job.key.replica_name(role.name, replica.index)
        for role in view.roles
        for replica in role.replicas
        if replica.state is State.WAITING and not replica.final
    }
    taken = sorted(wanted.intersection(view.foreign_pods) - {patch.name for patch in view.ownership_patches})
    return told | dict.fromkeys(taken, "AlreadyExists: a pod that is not this job's has its name")


def _write(view: Snapshot) -> Write:
    stored, ledger = view.stored, view.ledger
    if ledger is stored or ledger == stored:
        return Write.NOT
    if ledger.phase is not stored.phase:
        return Write.ACCEPTED if _is_plain_acceptance(view) else Write.NOW
    return Write.LATER if _urgent_part(stored) == _urgent_part(ledger) else Write.NOW


def _is_plain_acceptance(view: Snapshot) -> bool:
    """Return whether this pass accepts a job, and decides nothing that only the ledger can hold.

    Ports, sizes and gates are such decisions: pods of one attempt must agree on them, and another operator would decide
    them again if this operator was killed before it stored them.
    """
    job = view.job
    if view.stored != _EMPTY or view.ledger.phase is not Phase.PENDING:
        return False
    if job.invalid or job.handed_over or any(role.gate for role in job.roles):
        return False
    roles = tuple(RoleLedger(role.name) for role in view.ledger.roles)
    accepted = replace(_EMPTY, phase=Phase.PENDING, roles=roles, times=view.ledger.times, history=view.ledger.history)
    return _urgent_part(view.ledger) == accepted


def _urgent_part(ledger: Ledger) -> Ledger:
    """Return the part of the ledger that must be stored at once. The next pass could compute the other fields again."""
    roles = tuple(
        replace(role, succeeded="", reached=0, holds=(), stuck=(), charged="", pending=(), hidden={})
        for role in ledger.roles
    )
    avoided = tuple(replace(one, until=None) for one in ledger.avoided if one.failed)
    return replace(ledger, roles=roles, generation=0, avoided=avoided, budgets={})


def _events(view: Snapshot) -> list[JobEvent]:
    before, after, job = view.stored, view.ledger, view.job
    events: list[JobEvent] = []
    if before.phase is Phase.NEW:
        events += [Notice(EventReason.REMARK, message, reason) for reason, message in job.remarks]
        events += _gang_notices(view)
    events += _port_notices(view)
    if after.times.running is not None and before.times.running is None:
        events.append(JobStep(EventReason.RUNNING, job.key.name))
    if _restarts(after) > _restarts(before):
        events.append(_restarting(before, after))
    events += _resized(before, after)
    if after.phase is Phase.SUSPENDED and before.phase is not Phase.SUSPENDED:
        events.append(JobStep(EventReason.SUSPENDED, job.key.name))
    if after.resumes > before.resumes:
        events.append(JobStep(EventReason.RESUMED, job.key.name))
    if after.outcome is not None and before.outcome is None:
        events.append(JobEnded(after.outcome, job.lifecycle.ending))
    return events


def _gang_notices(view: Snapshot) -> list[Notice]:
    """Return why a job that asks for gang scheduling does not get it."""
    job, gang, site = view.job, view.job.gang, view.site
    if gang is None or not gang.wanted(site):
        return []
    here = gang.at(site)
    if here is None:
        apis = ", ".join(one.api for one in gang.choices(site.gang_scheduler))
        missing = f"none of {apis} is" if "," in apis else f"{apis} is not"
        return [Notice(EventReason.GANG_MISSING, f"{missing} installed: pods start one by one")]
    asked = {role.name: (role.template.get("spec") or {}).get("schedulerName") for role in job.roles}
    ours = here.scheduler_at(site)
    others = [f"{role} asks for {name}" for role, name in asked.items() if ours and name and name != ours]
    text = f"pods that {ours} does not place are not held back for their gang: {', '.join(others)}"
    return [Notice(EventReason.OTHER_SCHEDULER, text)] if others else []


def _port_notices(view: Snapshot) -> list[Notice]:
    """Return a warning for replicas whose ports are also used by another job."""
    names = ports.shared_ports(view)
    low, high = view.site.host_ports
    text = f"every port from {low} to {high} belongs to a job; some of these may meet on one node: {', '.join(names)}"
    return [Notice(EventReason.REMARK, text, "PortsExhausted")] if names else []


def _restarting(before: Ledger, after: Ledger) -> Restarting:
    """Return the event for a restart, with the first failure that caused it. A restart after success has no failure."""
    over = {(role.name, index) for role in after.roles if role.failed for index in parse_indexes(role.failed)}
    new = (one for one in after.failures if one not in before.failures and (one.role, one.index) not in over)
    return Restarting(next(new, None))


def _resized(before: Ledger, after: Ledger) -> list[Resized]:
    """Return one event for each role with a new size, with the reason if the user did not ask for it."""
    known = {role.name: role for role in before.roles}
    found = [_scaled(old, role) for role in after.roles if (old := known.get(role.name)) is not None]
    return [event for event in found if event is not None]


def _scaled(old: RoleLedger, new: RoleLedger) -> Resized | None:
    # A new ceiling means that the size was chosen automatically.
    before = old.ceiling.most if old.ceiling is not None else -1
    decided = new.ceiling if new.ceiling is not None and new.ceiling.most != before else None
    if 0 <= old.size != new.size >= 0:
        return Resized(new.name, old.size, new.size, decided.why if decided is not None else "")
    return Resized(new.name, -1, decided.most, decided.why) if new.size < 0 and decided is not None else None


def _restarts(ledger: Ledger) -> int:
    """Return the number of restarts. Restarts by kubelets are left out, because they have no event."""
    counts = [pair for role in ledger.roles for pair in role.restarts.items()]
    return sum(times for why, times in counts if why != CauseKind.IN_PLACE)


def exit_events(job: Job, before: Ledger, after: Ledger, *, every: bool = True) -> tuple[PodExited, ...]:
    """Return one event for each pod that exited between these ledgers; without `every`, only for failures."""
    failures = [one for one in after.failures if one.cause.why is CauseKind.EXIT and one not in before.failures]
    ends = [PodExited(one.pod, one.cause.code) for one in failures]
    return (*ends, *(PodExited(pod, 0) for pod in _succeeded(job, before, after) if every))


def _succeeded(job: Job, before: Ledger, after: Ledger) -> Iterator[str]:
    known = {entry.name: entry.succeeded for entry in before.roles}
    for entry in after.roles:
        if entry.succeeded != known.get(entry.name, ""):
            for index in sorted(parse_indexes(entry.succeeded) - parse_indexes(known.get(entry.name, ""))):
                yield job.key.replica_name(entry.name, index)


#: Seconds that a pod may wait before an event reports the wait. Most images are pulled in that time.
WAITING_NOTICE_SECONDS = 10.0


def waiting_events(status: Status, now: Time) -> dict[tuple[str, str], PodWaiting]:
    """Return one event per role and reason, about the first pod that has waited long for that reason."""
    found: dict[tuple[str, str], PodWaiting] = {}
    for role in status.roles if status.ledger.outcome is None else ():
        for replica in role.replicas:
            told = _waiting_event(replica.pod, now) if replica.pod is not None and not replica.final else None
            if told is not None:
                found.setdefault((role.name, told.reason), told)
    return found


def _waiting_event(pod: Pod, now: Time) -> PodWaiting | None:
    """Return the event that says what a pod waits for; None if the pod does not wait, or not long enough."""
    meta, status = pod.metadata, pod.status
    if meta.deletion_timestamp is not None or status.phase not in ("Pending", "Running"):
        return None
    if meta.creation_timestamp is None or now < after(meta.creation_timestamp, WAITING_NOTICE_SECONDS):
        return None
    containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    for one in containers:
        waiting = one.state.waiting if one.state is not None else None
        if waiting is not None and waiting.reason and waiting.message:
            return PodWaiting(meta.name, waiting.reason, waiting.message, one.name)
    return _condition_event(pod) if not containers else None


def _condition_event(pod: Pod) -> PodWaiting | None:
    """Return an event with the newest condition of a pod without container statuses; None if that condition is True."""
    newest = max(pod.status.conditions or (), key=lambda one: one.last_transition_time or EARLIEST_TIME, default=None)
    if newest is None or newest.status == "True" or not (newest.reason and newest.message):
        return None
    return PodWaiting(pod.metadata.name, newest.reason, newest.message)
