# SPDX-License-Identifier: Apache-2.0
"""The parts of a status that several kinds render in the same way."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from trainwright.kinds.scalars import Condition
from trainwright.model.cause import Cause, CauseKind, brief
from trainwright.model.job import Body, Job
from trainwright.model.ledger import LONGEST_TEXT
from trainwright.model.plan import ReplicaState, State, Status
from trainwright.model.units import Time, rfc3339

C = TypeVar("C")
HistoryT = TypeVar("HistoryT", bound=Condition)
TRUE, FALSE = "True", "False"
#: We add a condition of this type if an edit cannot be applied; only for kinds whose last condition is the phase.
UNAPPLIED = "Invalid"


class NewCondition(NamedTuple):
    """One condition, without its transition time."""

    type: str
    status: bool
    reason: str
    message: str


def dated(make: Callable[..., C], new: NewCondition, known: Mapping[str, Any], now: Time) -> C:
    """The condition with a transition time: the time of the stored condition if its status is equal, else `now`."""
    truth, before = TRUE if new.status else FALSE, known.get(new.type)
    since = before.last_transition_time if before is not None and before.status == truth else ""
    return make(new.type, truth, new.reason, new.message, since or rfc3339(now))


def in_order(
    order: Sequence[str], make: Callable[..., C], new: Iterable[NewCondition], known: Mapping[str, Any], now: Time
) -> tuple[C, ...]:
    """The new conditions in a fixed order, each with its transition time."""
    found = {one.type: one for one in new}
    return tuple(dated(make, found[name], known, now) for name in order if name in found)


def with_unapplied(
    make: Callable[..., HistoryT], stored: tuple[HistoryT, ...] | None, reason: str, status: Status, now: Time
) -> tuple[HistoryT, ...]:
    """The stored conditions, and a condition with the errors of an edit that cannot be applied."""
    known, message, since = stored or (), brief(status.invalid, LONGEST_TEXT), rfc3339(now)
    if any(one.type == UNAPPLIED and one.message == message for one in known):
        return known
    # The new condition is the first: the last condition is the phase of the job, which has not changed.
    return (make(UNAPPLIED, TRUE, reason, message, since, since), *(one for one in known if one.type != UNAPPLIED))


def status_body(status: Struct, job: Job) -> Body:
    """The status that we store. If the stored ledger cannot be read, we write no ledger, so the stored ledger stays."""
    body: Body = msgspec.to_builtins(status)
    if job.unreadable:
        body.pop("trainwright", None)
    return body


def replica_error(replica: ReplicaState) -> Cause | None:
    """Why a replica failed or cannot start; None if it has no error or is being restarted."""
    cause = replica.cause if replica.state in (State.FAILED, State.LOST, State.STARTING) else None
    return cause if cause is not None and cause.why is not CauseKind.COMPLETED else None
