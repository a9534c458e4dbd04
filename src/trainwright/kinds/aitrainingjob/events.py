# SPDX-License-Identifier: Apache-2.0
"""The events of an AITrainingJob: one for each step, with the reason of its condition, and the original's of children.

The engines call `worded` for whatever `core` or they themselves have to tell.
"""

from msgspec.structs import replace

from trainwright.kinds.aitrainingjob import words
from trainwright.model.event import (
    ChildEvent,
    Emit,
    JobEnded,
    JobEvent,
    JobStep,
    Moment,
    Resized,
    Restarting,
    plain,
    with_child_kind,
)
from trainwright.model.job import Job
from trainwright.model.ledger import Reason
from trainwright.model.status import Status

SOURCE = "TrainingJobOperator"


def worded(job: Job, status: Status, event: JobEvent) -> Emit:
    """An event in this kind's words; `job` still has the ledger from before."""
    emit = plain(event, SOURCE)
    word, message = str(emit.moment), emit.message
    match event:
        case JobStep(Moment.RUNNING):
            message = words.RUNNING
        case Restarting():
            message = words.restarted(job.ledger, status.ledger)[1] or message
        case JobEnded(outcome):
            word = words.end(outcome)
            # The condition has the annotation's value alone, as in the original; the event also names the annotation.
            if outcome.reason is not Reason.EXTERNAL:
                message = words.ended(job, status.ledger, outcome)
        case JobStep() | Resized():
            pass
        case ChildEvent():
            return with_child_kind(event, SOURCE)
        case _:
            return emit
    return replace(emit, message=message, reason=f"TrainingJob{word}")
