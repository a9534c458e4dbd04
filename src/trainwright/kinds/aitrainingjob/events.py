# SPDX-License-Identifier: Apache-2.0
"""The events of an AITrainingJob: one for each step, with the reason of its condition, and the original's of children.

The engines call `event` for whatever `core` or they themselves have to tell.
"""

from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import words
from trainwright.model.action import Emit, Moment
from trainwright.model.job import Job
from trainwright.model.ledger import Reason
from trainwright.model.status import Status

SOURCE = "TrainingJobOperator"
_OF_CHILD = (Moment.CREATED, Moment.DELETED, Moment.REFUSED)


def event(job: Job, status: Status, emit: Emit) -> Emit:
    """An event in this kind's words; `job` still has the ledger from before."""
    ledger, outcome = status.ledger, status.ledger.outcome
    word, message = str(emit.moment), emit.message
    match emit.moment:
        case Moment.RUNNING:
            message = words.RUNNING
        case Moment.SUSPENDED | Moment.RESUMED | Moment.RESIZED:
            pass
        case Moment.RESTARTING:
            message = words.restarted(job.ledger, ledger)[1] or message
        case Moment.SUCCEEDED | Moment.FAILED if outcome is not None:
            # The condition has the annotation's value alone, as in the original; the event also names the annotation.
            asked = outcome.reason is Reason.EXTERNAL
            word, message = words.end(outcome), message if asked else words.ended(job, ledger, outcome)
        case moment if moment in _OF_CHILD:
            return replace(_of_child(emit), source=SOURCE)
        case _:
            return replace(emit, source=SOURCE)
    return replace(emit, message=message, reason=f"TrainingJob{word}", source=SOURCE)


def _of_child(emit: Emit) -> Emit:
    """Of one child: the original has a reason for each kind, and no more words than these."""
    said = emit.message.split()
    refused = emit.moment is Moment.REFUSED
    what = (said[0] if refused else said[1]).rstrip(":").lower()
    kind = {"pod": "Pod", "service": "Service"}.get(what, what)
    message = f"Error creating: {emit.message}" if refused else " ".join(said[:3])
    return replace(emit, reason=f"{emit.moment}{kind}", message=message)
