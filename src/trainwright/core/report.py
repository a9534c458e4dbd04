# SPDX-License-Identifier: Apache-2.0
"""Closing a pass: the conclusion, whether it must be stored at once, what to tell people, when to look again.

Every step of `reconcile` that answers ends here. Durable facts are stored at once; what the pods still show (a replica
that succeeded) may ride along with the next write.
"""

from msgspec import Struct
from msgspec.structs import replace

from trainwright.core import ports
from trainwright.core.observe import View
from trainwright.model.action import Announce, Create, Delete, Patch, Plan, Write
from trainwright.model.cause import Why
from trainwright.model.event import JobEnded, JobEvent, JobStep, Moment, Notice, Resized, Restarting
from trainwright.model.indexes import members
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.status import State, Status
from trainwright.model.units import Time


class Actions(Struct, frozen=True, gc=False):
    """What a step wants done."""

    deletes: tuple[Delete, ...] = ()
    creates: tuple[Create, ...] = ()
    patches: tuple[Patch, ...] = ()
    wake: Time | None = None
    cleaning: bool = False
    remove_job: bool = False
    announces: tuple[Announce, ...] = ()


def close(view: View, actions: Actions) -> Plan:
    """The plan of this pass."""
    refused = _refused(view) if view.observed.refusals or view.foreign else {}
    status = Status(view.ledger, view.roles, refused, actions.cleaning, view.job.invalid)
    write = _write(view.stored, view.ledger)
    return Plan(
        status,
        write,
        view.claims + actions.patches if view.claims else actions.patches,
        actions.deletes,
        actions.creates,
        () if write is Write.NOT else tuple(_events(view)),
        actions.wake,
        actions.remove_job,
        actions.announces,
    )


def _refused(view: View) -> dict[str, str]:
    """What could not be made: what the engine was told, and names that somebody else's pods bear."""
    told = {refusal.name: f"{refusal.reason}: {refusal.message}" for refusal in view.observed.refusals}
    idle = view.job.deleting or view.job.lifecycle.suspended or view.ledger.outcome is not None
    if not view.foreign or view.calm or idle:
        return told
    wanted = {
        view.job.key.replica_name(role.name, seen.index)
        for role in view.roles
        for seen in role.replicas
        if seen.state is State.WAITING and not seen.final
    }
    taken = sorted(wanted.intersection(view.foreign) - {patch.name for patch in view.claims})
    return told | dict.fromkeys(taken, "AlreadyExists: a pod that is not this job's has its name")


def _write(stored: Ledger, ledger: Ledger) -> Write:
    if ledger is stored or ledger == stored:
        return Write.NOT
    return Write.LATER if _urgent(stored) == _urgent(ledger) else Write.NOW


def _urgent(ledger: Ledger) -> Ledger:
    """The ledger without what can wait: it is on the pods as well, or only saves a little work."""
    waits = {"succeeded": "", "reached": 0, "holds": (), "stuck": (), "charged": "", "pending": (), "hidden": {}}
    roles = tuple(replace(role, **waits) for role in ledger.roles)
    avoided = tuple(replace(one, until=None) for one in ledger.avoided if one.failed)
    return replace(ledger, roles=roles, generation=0, avoided=avoided)


def _events(view: View) -> list[JobEvent]:
    before, after, job = view.stored, view.ledger, view.job
    events: list[JobEvent] = []
    if before.phase is Phase.NEW:
        events += [Notice(Moment.REMARK, message, reason) for reason, message in job.remarks]
        events += _of_gang(view)
    events += _of_ports(view)
    if after.times.running is not None and before.times.running is None:
        events.append(JobStep(Moment.RUNNING, job.key.name))
    if _restarts(after) > _restarts(before):
        events.append(_restarting(before, after))
    events += _resized(before, after)
    if after.phase is Phase.SUSPENDED and before.phase is not Phase.SUSPENDED:
        events.append(JobStep(Moment.SUSPENDED, job.key.name))
    if after.resumes > before.resumes:
        events.append(JobStep(Moment.RESUMED, job.key.name))
    if after.outcome is not None and before.outcome is None:
        events.append(JobEnded(after.outcome, job.lifecycle.ending))
    return events


def _of_gang(view: View) -> list[Notice]:
    """What keeps a job that wants to be a gang from being one."""
    job, gang, site = view.job, view.job.gang, view.site
    if gang is None or not gang.wanted(site):
        return []
    here = gang.at(site)
    if here is None:
        apis = ", ".join(one.api for one in gang.choices(site.gang_scheduler))
        missing = f"none of {apis} is" if "," in apis else f"{apis} is not"
        return [Notice(Moment.GANG_MISSING, f"{missing} installed: pods start one by one")]
    asked = {role.name: (role.template.get("spec") or {}).get("schedulerName") for role in job.roles}
    ours = here.called(site)
    others = [f"{role} asks for {name}" for role, name in asked.items() if ours and name and name != ours]
    text = f"pods that {ours} does not place are not held back for their gang: {', '.join(others)}"
    return [Notice(Moment.OTHER_SCHEDULER, text)] if others else []


def _of_ports(view: View) -> list[Notice]:
    """Replicas that may meet another job's on a machine where each should be alone."""
    names = ports.shared(view)
    low, high = view.site.host_ports
    text = f"every port from {low} to {high} belongs to a job; some of these may meet on one node: {', '.join(names)}"
    return [Notice(Moment.REMARK, text, "PortsExhausted")] if names else []


def _restarting(before: Ledger, after: Ledger) -> Restarting:
    """Names the first failure that is answered; a restart of what had succeeded has none."""
    over = {(role.name, index) for role in after.roles if role.failed for index in members(role.failed)}
    new = (one for one in after.failures if one not in before.failures and (one.role, one.index) not in over)
    return Restarting(next(new, None))


def _resized(before: Ledger, after: Ledger) -> list[Resized]:
    """One event for each role whose size is another, with the reason where it was not the user's wish."""
    known = {role.name: role for role in before.roles}
    return [_scaled(old, role) for role in after.roles if (old := known.get(role.name)) and _other_size(old, role)]


def _other_size(old: RoleLedger, new: RoleLedger) -> bool:
    return 0 <= old.size != new.size >= 0 or (new.size < 0 and _decided(old, new))


def _decided(old: RoleLedger, new: RoleLedger) -> bool:
    """Whether we chose another size ourselves."""
    most = new.ceiling.most if new.ceiling is not None else -1
    return most != (old.ceiling.most if old.ceiling is not None else -1) and new.ceiling is not None


def _scaled(old: RoleLedger, new: RoleLedger) -> Resized:
    why = new.ceiling.why if new.ceiling is not None and _decided(old, new) else ""
    if new.size >= 0:
        return Resized(new.name, old.size, new.size, why)
    return Resized(new.name, -1, new.ceiling.most if new.ceiling is not None else -1, why)


def _restarts(ledger: Ledger) -> int:
    return sum(_total(role) for role in ledger.roles)


def _total(role: RoleLedger) -> int:
    """What the kubelet restarted was never announced; it is only written down when its pod goes."""
    return sum(times for why, times in role.restarts.items() if why != Why.IN_PLACE)
