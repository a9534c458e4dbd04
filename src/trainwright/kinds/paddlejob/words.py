# SPDX-License-Identifier: Apache-2.0
"""What a PaddleJob says of itself: the texts of its conditions and its events. For `conditions` and the publisher."""

from msgspec.structs import replace

from trainwright.kinds.paddlejob.dialect import CONTROLLER
from trainwright.kinds.paddlejob.roles import SERVICE, WORKER, elastic, intranet, mode
from trainwright.model.action import Emit, Moment
from trainwright.model.cause import brief
from trainwright.model.job import Job
from trainwright.model.ledger import LONGEST_TEXT, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.model.status import Status

_KINDS = {"pod": "Pod", "service": "Service", "configmap": "ConfigMap", "podgroup": "PodGroup"}
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


def event(job: Job, status: Status, emit: Emit) -> Emit:
    """An event under the original's name, with its words where it has some."""
    outcome = status.ledger.outcome
    match emit.moment:
        case Moment.SUCCEEDED | Moment.FAILED if outcome is not None:
            word = "Completed" if outcome.result is Result.SUCCEEDED else "Failed"
            return replace(emit, reason=word, message=brief(ended(job, outcome)[1]), source=CONTROLLER)
        case Moment.RUNNING if shared := _shared(job, status):
            return replace(emit, message=brief(f"{emit.message} {shared}"), warning=True, source=CONTROLLER)
        case Moment.RESIZED if any(role.size_key for role in job.roles):
            size = next(book.size for book in status.ledger.roles if book.name == WORKER)
            return replace(emit, message=f"scaled replicas to {size}", source=CONTROLLER)
        case Moment.CREATED | Moment.DELETED | Moment.REFUSED:
            return replace(_of_child(emit), source=CONTROLLER)
    return replace(emit, source=CONTROLLER)


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


def _of_child(emit: Emit) -> Emit:
    """Of one child, in the original's words; the kind that it left out is said."""
    words = emit.message.split()
    if emit.moment is Moment.REFUSED:
        kind, name, rest = words[0], words[1], emit.message.partition("could not be created: ")[2]
        return replace(emit, reason="Create", message=brief(f"create failed {kind} {name}: {rest}"))
    verb = "created" if emit.moment is Moment.CREATED else "deleted"
    kind = words[1].rstrip(":")
    return replace(emit, reason=verb.title(), message=f"{verb} {_KINDS.get(kind, kind)} {words[2]}")
