# SPDX-License-Identifier: Apache-2.0
"""Which pods have exited from one ledger to the next."""

from passes import lived

from trainwright.core.report import exit_events
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.event import EventReason
from trainwright.model.ledger import Failure, RoleLedger
from trainwright.testing.factories import NOW, job, role

JOB = job(role("worker", replicas=9), role("ps"))


def failure(index: int, code: int, why: CauseKind = CauseKind.EXIT) -> Failure:
    return Failure("worker", index, f"job-worker-{index}", 0, NOW, Cause(why, code, container="main"))


def test_each_is_told_of_once_with_its_code() -> None:
    before = lived(RoleLedger("worker", succeeded="0,3"), RoleLedger("ps"), failures=(failure(1, 1),))
    after = lived(
        RoleLedger("worker", succeeded="0,3-5"),
        RoleLedger("ps", succeeded="0"),
        failures=(failure(1, 1), failure(2, 137), failure(6, 1, CauseKind.DISRUPTED)),
    )

    told = exit_events(JOB, before, after)

    assert [str(event) for event in told] == [
        "job-worker-2 exited with code 137",
        "job-worker-4 exited with code 0",
        "job-worker-5 exited with code 0",
        "job-ps-0 exited with code 0",
    ]
    assert {(event.event_reason, event.warning) for event in told} == {(EventReason.EXITED, False)}
    assert exit_events(JOB, after, after) == ()
    assert exit_events(JOB, before, after, every=False) == told[:1]


def test_nothing_is_told_of_what_is_forgotten_and_all_of_what_is_new() -> None:
    ended, anew = lived(RoleLedger("worker", succeeded="0")), lived(RoleLedger("worker"))

    assert exit_events(JOB, ended, anew) == ()
    assert [str(event) for event in exit_events(JOB, lived(RoleLedger("other")), ended)] == [
        "job-worker-0 exited with code 0"
    ]
