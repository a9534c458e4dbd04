# SPDX-License-Identifier: Apache-2.0
"""Writes docs/state-machine.md from the code: the moves, the order of decisions, each kind's names of the phases.

Run: python tools/statemachine.py   (a test compares the page with this output)
"""

from pathlib import Path

from trainwright.core import attempts, classify
from trainwright.core.observe import TRANSITIONS
from trainwright.kinds.genericjob import status
from trainwright.kinds.paddlejob import status as paddlejob
from trainwright.model.cause import CauseKind
from trainwright.model.ledger import Phase, Reason
from trainwright.model.plan import State

PAGE = Path(__file__).parent.parent / "docs" / "state-machine.md"

HEAD = """# The state machine

<!-- Written by tools/statemachine.py from the code. Change the code, then run `python tools/statemachine.py`. -->

All kinds use one state machine. Its state is the job's `status.trainwright` (durable) and the job's pods (observed).
`reconcile` computes the next state from these alone, so the operator can be killed at any point and continues after it.
One test drives random worlds and fails for any move that is not in the table below; another test makes every move.

"""

ORDER = """## What is decided, in which order

The first case that applies decides (`core/reconcile.py`):

1. The job is being deleted: the operator creates nothing; the garbage collector removes the children.
2. The manifest is invalid: a new job fails; a job that was accepted before stays as it is until the edit is fixed.
3. The outcome was decided earlier: clean up, and delete the job after its time to live. An outcome never changes.
4. Suspension is requested: delete every pod and forget finished replicas. Success in the same pass takes precedence,
   because the work is done.
5. The success rule is fulfilled. Every kind evaluates success before failure, because the work is done.
6. Somebody asked for the end.
7. The deadline has passed; then the start deadline.
8. A failure rule is fulfilled, success has become impossible, or the job's restart budget is used up.
9. Replicas that ended and may be restarted get a new attempt, after their back-off.
10. Create missing children; delete superfluous ones.

The order of writes is status → patches → deletes → creates → events. A count or an outcome is stored before the
operator acts on it. Only the acceptance of a new job may be stored later than its pods are created: with the next
change, or after 5 s. If the operator is killed in this time, the next operator accepts the job again, from the time at
which its first pod was created.

"""


def page() -> str:
    """Return the whole page."""
    return HEAD + _diagram() + _moves() + ORDER + _replicas() + _causes() + _words()


def _name(phase: Phase) -> str:
    return phase.value or "(new)"


def _diagram() -> str:
    arrows = [
        f"    {before.value or '[*]'} --> {after.value}" for before, moves in TRANSITIONS.items() for after in moves
    ]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(arrows) + "\n```\n\n"


def _moves() -> str:
    rows = [f"| {_name(b)} | {_name(a)} | {why} |" for b, moves in TRANSITIONS.items() for a, why in moves.items()]
    return "## Moves of a job\n\n| from | to | when |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"


MEANING = {
    State.WAITING: "there is no pod of its current attempt",
    State.STARTING: "its pod exists and does not run yet; with a cause if its containers cannot be created",
    State.RUNNING: "its pod runs",
    State.STOPPING: "somebody else deletes its pod; a new one follows, and this is not a failure",
    State.SUCCEEDED: "its pod, or the containers that count, ended with 0; stored even when the pod is gone",
    State.FAILED: "it ended in another way, with a cause; stored once it will not be restarted",
    State.LOST: "its node was removed, or has not answered for longer than the grace period",
}


def _replicas() -> str:
    rows = [f"| {state.value} | {MEANING[state]} |" for state in State]
    return "## The states of a replica\n\n| state | means |\n|---|---|\n" + "\n".join(rows) + "\n\n"


CAUSES = {
    CauseKind.COMPLETED: "it ended with 0; a cause of restart only under a policy that restarts success",
    CauseKind.EXIT: "a container ended with another code or by a signal",
    CauseKind.EVICTED: "its kubelet evicted it because of its own usage",
    CauseKind.DISRUPTED: "it was preempted, drained or shut down with its node (`DisruptionTarget`, node shutdown)",
    CauseKind.DELETED: "somebody deleted its pod; it is always created again",
    CauseKind.NODE_LOST: "its node is lost",
    CauseKind.DEVICE: "the GPUs of its node have failed; treated like a lost node, unless a policy names this cause",
    CauseKind.CREATE_ERROR: f"a container cannot be created ({', '.join(sorted(classify.CREATE_ERRORS))})",
    CauseKind.IN_PLACE: "not an end: restarts by the kubelet inside a pod that has since been replaced",
    CauseKind.REJECTED: "it failed without a container status, for example because its node did not admit it",
}


def _causes() -> str:
    rows = [f"| {why.value} | {CAUSES[why]} |" for why in CauseKind]
    delays = f"{attempts.FIRST_BACKOFF_SECONDS:g} s, doubling to {attempts.LONGEST_BACKOFF_SECONDS:g} s"
    forgiven = f"{attempts.BACKOFF_RESET_SECONDS / 60:g} minutes"
    return (
        "## Why a replica ended\n\n| cause | means |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        "The steps of a restart: cause → does the role's policy restart after it → is there budget → back-off "
        f"({delays}; reset after the replica has run for {forgiven}) → scope (pod, role or job) → new attempt.\n\n"
        "Reasons for an outcome: " + ", ".join(f"`{reason.value}`" for reason in Reason) + ".\n\n"
    )


#: A TFJob has no phase; its last condition that is True is its state.
TFJOB = {
    Phase.NEW: "",
    Phase.PENDING: "Created; Running as soon as one replica trains",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Restarting while the failed pod exists, then Running",
    Phase.SUSPENDED: "Suspended",
    Phase.RESUMING: "Created; Running as soon as one replica trains",
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
}


#: An AITrainingJob also has phases for placed pods and for the deletion of old pods.
AITRAININGJOB = {
    Phase.NEW: "",
    Phase.PENDING: "Pending, then Creating once every pod has a node; after a restart as below",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Terminating while old pods are deleted, then Restarting; Pending, Creating if not counted",
    Phase.SUSPENDED: "Suspended",
    Phase.RESUMING: "Pending, then Creating",
    Phase.SUCCEEDED: "Terminating while pods are deleted, then Succeed",
    Phase.FAILED: "Terminating while pods are deleted, then Failed, Timeout, NodeFail or Preempted",
}


#: A PaddleJob has a phase for the time when some of its pods run.
PADDLEJOB = paddlejob.PHASES | {
    Phase.NEW: "",
    Phase.PENDING: "Pending; Starting once one pod runs",
    Phase.RESUMING: "Pending; Starting once one pod runs",
}


def _words() -> str:
    words = [
        (phase, word, TFJOB[phase], PADDLEJOB[phase], AITRAININGJOB[phase]) for phase, word in status.PHASES.items()
    ]
    rows = [f"| {_name(phase)} | {' | '.join(more)} |" for phase, *more in words]
    states = "TFJob and the other kinds of Kubeflow: the last condition that is True"
    kinds = f"GenericJob: `phase` | {states} | PaddleJob: `phase` | AITrainingJob: `phase`"
    head = f"| phase | {kinds} |\n|---|---|---|---|---|\n"
    return "## The phases of each kind\n\n" + head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
