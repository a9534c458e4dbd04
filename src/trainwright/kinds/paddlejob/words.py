# SPDX-License-Identifier: Apache-2.0
"""What a PaddleJob says of itself: the texts of its conditions and its events. For `conditions` and the publisher."""

from msgspec.structs import replace

from trainwright.kinds.paddlejob.dialect import CONTROLLER
from trainwright.kinds.paddlejob.roles import SERVICE, WORKER, elastic, intranet, mode
from trainwright.model.cause import brief
from trainwright.model.event import ChildEvent, Emit, JobEnded, JobEvent, JobStep, Moment, Resized, plain
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.model.status import Status

#: Why a job failed, in a word.
REASONS = {
    Reason.RULE: "PodFailed",
    Reason.UNREACHABLE: "PodFailed",
    Reason.BACKOFF_LIMIT: "BackoffLimitExceeded",
    Reason.DEADLINE: "DeadlineExceeded",
    Reason.START_DEADLINE: "DeadlineExceeded",
    Reason.EXTERNAL: "EndedElsewhere",
    Reason.INVALID: "Invalid",
}


def ended(job: Job, outcome: Outcome) -> tuple[str, str]:
    """Reason and message of an end."""
    if outcome.result is Result.SUCCEEDED:
        return "Completed", f"PaddleJob {job.key.name} is completed: {outcome.message}."
    failure = outcome.failure
    said = outcome.message if failure is None else f"{failure.pod}: {failure.cause}"
    if failure is not None and outcome.reason is Reason.BACKOFF_LIMIT:
        said = f"{outcome.message}; the last was of {said}"
    return REASONS[outcome.reason], brief(f"PaddleJob {job.key.name} has failed: {said}", LONGEST_TEXT)


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event under the original's name, with its words where it has some."""
    emit = plain(event, CONTROLLER)
    match event:
        case JobEnded(outcome):
            word = "Failed" if event.warning else "Completed"
            return replace(emit, reason=word, message=brief(ended(job, outcome)[1]))
        case JobStep(Moment.RUNNING) if shared := _shared(job, status):
            return replace(emit, message=brief(f"{emit.message} {shared}"), warning=True)
        case Resized() if any(role.size_key for role in job.roles):
            size = next(book.size for book in status.ledger.roles if book.name == WORKER)
            return replace(emit, message=f"scaled replicas to {size}")
        case ChildEvent(Moment.REFUSED, kind, name, why):
            return replace(emit, reason="Create", message=brief(f"create failed {kind} {name}: {why}"))
        case ChildEvent(moment, kind, name):
            verb = "created" if moment is Moment.CREATED else "deleted"
            return replace(emit, reason=verb.title(), message=f"{verb} {kind} {name}")
    return emit


def _shared(job: Job, status: Status) -> str:
    """Workers of which Paddle's launcher would take several for one, and train without a word with fewer."""
    spec = getattr(job.dialect, "spec", None)
    if spec is None or mode(spec) != "Collective" or intranet(spec) == SERVICE or elastic(spec):
        return ""
    group = next((role for role in status.roles if role.name == WORKER), None)
    hosts: dict[str, str] = {}
    for seen in group.replicas if group is not None else ():
        address = seen.pod.status.pod_ip if seen.pod is not None else ""
        first = hosts.setdefault(address, f"{WORKER}-{seen.index}") if address else ""
        if first not in ("", f"{WORKER}-{seen.index}"):
            return (
                f"But {first} and {WORKER}-{seen.index} share the address {address}: paddle.distributed.launch counts"
                " addresses, not workers, and trains with fewer than there are. Give each worker a node of its own"
                " (podAntiAffinity), or use `intranet: Service`."
            )
    return ""
