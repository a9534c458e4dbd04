# SPDX-License-Identifier: Apache-2.0
"""What the record says about a pod that was deleted: by a user, or by the cluster for a reason that the pod shows."""

import pytest
from passes import on

from trainwright.model.cause import CauseKind
from trainwright.model.child import ObjectCondition
from trainwright.model.job import RestartScope
from trainwright.model.verdict import Decision, FailureClass
from trainwright.testing.factories import job, role
from trainwright.testing.world import World

POD = "job-worker-0"


def started(scope: RestartScope) -> World:
    """A job whose only replica runs. With a wider scope than the pod, a deleted pod restarts that scope."""
    causes = (CauseKind.EXIT, CauseKind.DELETED) if scope is not RestartScope.POD else (CauseKind.EXIT,)
    one = World(job(role(replicas=1, restart=on(*causes, scope=scope))), nodes=("a", "b"))
    one.settle()
    one.start(POD, node="a")
    one.settle()
    return one


def delete(one: World, reason: str) -> None:
    """Delete the pod, and let the operator see that before the pod is gone."""
    if reason:
        one.change(POD, conditions=(ObjectCondition("DisruptionTarget", "True", reason=reason),))
    one.delete(("Pod", POD))
    one.catch_up()
    one.step()
    one.wait(2)
    one.reap()
    one.settle()


CLASSES = {
    "": FailureClass.DELETED,
    "PreemptionByScheduler": FailureClass.PREEMPTED,
    "EvictionByEvictionAPI": FailureClass.DISRUPTED,
    "DeletionByTaintManager": FailureClass.DISRUPTED,
}


@pytest.mark.parametrize("reason", CLASSES)
def test_the_restart_of_the_job_names_what_the_pod_was_deleted_for(reason: str) -> None:
    one = started(RestartScope.JOB)
    delete(one, reason)

    verdict = one.job.ledger.verdict
    assert verdict is not None
    assert (verdict.decision, verdict.failure_class, verdict.replica) == (Decision.RESTART, CLASSES[reason], "worker-0")
    text = "deleted by somebody else" if not reason else f"deleted ({CLASSES[reason]})"
    assert verdict.message == f"worker-0: {text}"


@pytest.mark.parametrize("reason", CLASSES)
def test_one_deletion_ends_one_attempt(reason: str) -> None:
    one = started(RestartScope.JOB)
    delete(one, reason)

    first, second = one.job.ledger.history.attempts
    assert (first.cause, first.scope, first.replica, first.nodes) == (CLASSES[reason], "Job", "worker-0", ("a",))
    assert (second.cause, second.end) == (FailureClass.NONE, None)
    assert one.job.ledger.history.total == 2


@pytest.mark.parametrize("reason", CLASSES)
def test_the_time_without_a_pod_that_is_only_replaced_is_lost_to_the_same(reason: str) -> None:
    one = started(RestartScope.POD)
    delete(one, reason)

    ledger = one.job.ledger
    assert ledger.verdict is None
    assert (ledger.history.now_lost_to, list(ledger.history.lost)) == (CLASSES[reason], [])
    assert [attempt.cause for attempt in ledger.history.attempts] == [CLASSES[reason], ""]
