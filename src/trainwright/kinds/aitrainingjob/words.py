# SPDX-License-Identifier: Apache-2.0
"""What an AITrainingJob says of itself, as the original does: for its conditions and for its events.

Why a pod failed, on which node, what cannot be created and what cannot be placed: all of it is shown to whoever
describes the job.
"""

from collections.abc import Iterator

from trainwright.model.cause import Cause, Why, brief
from trainwright.model.child import Pod
from trainwright.model.job import Clean, Job, Role, Scope
from trainwright.model.ledger import LONGEST_TEXT, Failure, Ledger, Outcome, Reason, RoleLedger
from trainwright.model.rule import Result
from trainwright.model.status import Seen, State, Status
from trainwright.model.units import rfc3339

RUNNING = "all pods are running"
PENDING = "all pods are waiting for scheduling"
CREATING = "creating containers"
#: So many troubles are told; the rest is counted.
_TOLD = 3
_LOST = (Why.NODE_LOST, Why.DEVICE)


def end(outcome: Outcome) -> str:
    """The phase in which a job ends."""
    if outcome.reason is Reason.EXTERNAL and outcome.word:
        return outcome.word
    if outcome.result is Result.SUCCEEDED:
        return "Succeed"
    if outcome.reason in (Reason.DEADLINE, Reason.START_DEADLINE):
        return "Timeout"
    return "NodeFail" if outcome.failure is not None and outcome.failure.cause.why in _LOST else "Failed"


def ended(job: Job, ledger: Ledger, outcome: Outcome) -> str:
    """What decided the end, in full."""
    name = job.key.name
    if outcome.reason is Reason.RULE and outcome.result is Result.SUCCEEDED:
        return f"job {name} completed"
    if outcome.reason is Reason.DEADLINE:
        limit, since = job.lifecycle.deadline, ledger.times.running
        began = rfc3339(since) if since is not None else "its start"
        seconds = int(limit.seconds) if limit is not None else 0
        return (
            f"job {name} has been running since {began}, and at {rfc3339(outcome.at)} for longer than {seconds} seconds"
        )
    if outcome.failure is None:
        return outcome.message
    told = _failed(job, ledger, outcome.failure)
    return told if outcome.reason is Reason.RULE else brief(f"{told}; {outcome.message}", LONGEST_TEXT)


def kept(job: Job, outcome: Outcome) -> bool:
    """Whether the pods stay after this end."""
    clean = job.lifecycle.clean
    levels = {"Succeed": clean.succeeded, "Failed": clean.failed}
    return outcome.reason is not Reason.EXTERNAL and levels.get(end(outcome), Clean.ALL) is Clean.NONE


def _failed(job: Job, ledger: Ledger, failure: Failure) -> str:
    """Which pods failed, and why, as the replica type's policy looks at them."""
    role = _role(job, failure.role)
    policy = _policy(job, failure.role)
    others = [one for one in ledger.failures if one.role == failure.role]
    if policy == "All" and role is not None and len({one.index for one in others}) >= role.replicas:
        reasons = dict.fromkeys(reason(one.cause) for one in others)
        return brief(f"All {failure.role} pods are failed, {'; '.join(reasons)}", LONGEST_TEXT)
    rank = "rank0 " if policy == "Rank0" and failure.index == 0 else ""
    return brief(f"{rank}pod {failure.pod} is failed, {reason(failure.cause)}", LONGEST_TEXT)


def _policy(job: Job, role: str) -> str:
    spec = getattr(job.dialect, "spec", None)
    one = spec.replica_specs.get(role) if spec is not None else None
    return one.fail_policy if one is not None else ""


def _role(job: Job, name: str) -> Role | None:
    return next((one for one in job.roles if one.name == name), None)


def reason(cause: Cause) -> str:
    """Why a pod failed."""
    if cause.why is Why.EXIT:
        text = f"container {cause.container} on node {cause.node} exited with reason {cause.reason or 'Error'}"
        detail = f": {cause.message}" if cause.message else ""
        return f"{text} exitcode {cause.code}{detail}"
    if cause.why is Why.NODE_LOST:
        return f"Node {cause.node} is failed and offline" + (f": {cause.message}" if cause.message else "")
    if cause.why is Why.DEVICE:
        return f"GPUs of node {cause.node} have failed" + (f": {cause.message}" if cause.message else "")
    if cause.why is Why.CREATE_ERROR:
        return f"create container failed[{_create_error(cause)}]"
    told = ", ".join(part for part in (cause.reason, cause.message) if part) or str(cause)
    return f"{told} on node {cause.node}" if cause.node else told


def _create_error(cause: Cause) -> str:
    detail = f": {cause.message}" if cause.message else ""
    return f"{cause.container}: {cause.reason}{detail}"


# -- restarts --------------------------------------------------------------------------------------------------------


def restarted(before: Ledger, after: Ledger) -> tuple[str, str]:
    """The replica type whose failure is answered with a restart in this pass, and what to say of it; or nothing."""
    raised = raises(before, after)
    if not raised:
        return "", ""
    new = [one for one in after.failures if one not in before.failures and one.role in raised]
    name = new[0].role if new else next(iter(raised))
    why = f"pod {new[0].pod}: {reason(new[0].cause)}" if new else "a pod is made again"
    return name, brief(f"restart times is {_total(after, name)}, {why}", LONGEST_TEXT)


def raises(before: Ledger, after: Ledger) -> dict[str, int]:
    """By how much the restarts of each replica type have risen, where they have."""
    rises = {book.name: _total(after, book.name) - _total(before, book.name) for book in after.roles}
    return {name: rise for name, rise in rises.items() if rise > 0}


def _total(ledger: Ledger, name: str) -> int:
    return next((sum(book.restarts.values()) for book in ledger.roles if book.name == name), 0)


def resized(before: Ledger, after: Ledger) -> str:
    """Which replica types start anew because they have another size, and why if nobody asked for it."""
    known = {book.name: book for book in before.roles if book.size >= 0}
    found = [(known.get(book.name, book), book) for book in after.roles if book.size >= 0]
    return brief("; ".join(_scaled(old, book) for old, book in found if old.size != book.size), LONGEST_TEXT)


def _scaled(old: RoleLedger, book: RoleLedger) -> str:
    why = (
        f": {book.ceiling.why}" if book.ceiling is not None and book.ceiling != old.ceiling and book.ceiling.why else ""
    )
    return f"{book.name} is scaled from {old.size} to {book.size} replica{'s' * (book.size != 1)}{why}"


def restarting(job: Job, name: str) -> str:
    """What starts anew, once what was there before is gone."""
    role = _role(job, name)
    scope = role.restart.scope if role is not None else Scope.POD
    if scope is Scope.JOB:
        return "All pods are restarting now"
    return f"{name} pods are restarting now" if scope is Scope.ROLE else "pod is restarting now"


# -- what keeps a job waiting ----------------------------------------------------------------------------------------


def troubles(status: Status) -> str:
    """What keeps pods from running: they cannot be made, placed or started."""
    found = list(_troubles(status))
    more = [f"{len(found) - _TOLD} more pods wait"] if len(found) > _TOLD else []
    return brief("; ".join((*found[:_TOLD], *more)), LONGEST_TEXT)


def _troubles(status: Status) -> Iterator[str]:
    yield from (f"pod {name} could not be created: {why}" for name, why in sorted(status.refused.items()))
    for group in status.roles:
        if group.calm:
            continue
        for seen in group.replicas:
            if seen.state is State.STARTING and seen.pod is not None:
                yield from _trouble(seen, seen.pod)


def _trouble(seen: Seen, pod: Pod) -> Iterator[str]:
    name = pod.metadata.name
    if seen.cause is not None and seen.cause.why is Why.CREATE_ERROR:
        node = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
        yield f"pod {name}{node} create container failed[{_create_error(seen.cause)}]"
    for one in pod.status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False" and one.message:
            yield f"pod {name}: {one.message}"
