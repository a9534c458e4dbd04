# SPDX-License-Identifier: Apache-2.0
"""Writes docs/state-machine.md from the code: the moves, the order of decisions, each kind's words for the phases.

Run: python tools/statemachine.py   (a test compares the page with what this prints)
"""

from pathlib import Path

from trainwright.core import attempts, classify, restart
from trainwright.core.observe import TRANSITIONS
from trainwright.kinds.genericjob import status
from trainwright.kinds.paddlejob import status as paddlejob
from trainwright.model.cause import CauseKind
from trainwright.model.ledger import Phase, Reason
from trainwright.model.plan import State

PAGE = Path(__file__).parent.parent / "docs" / "state-machine.md"

HEAD = """# The state machine

<!-- Written by tools/statemachine.py from the code. Change the code, then run `python tools/statemachine.py`. -->

All kinds run under one machine. Its state is `status.trainwright` of the job (what must survive) and the job's pods
(what is observed); `reconcile` computes the next state from these alone, so it can be killed at any point and goes on.
A test drives random worlds and refuses any move that is not in the table below; another one makes every move in it.

"""

ORDER = """## What is decided, in which order

The first that answers wins (`core/reconcile.py`):

1. The job is being deleted: nothing is made any more, children follow by their owner.
2. The manifest cannot be run: a new job fails; one that was accepted before is left as it is until the edit is mended.
3. The outcome was decided earlier: clean up, live out the time to live. An outcome never changes.
4. Suspension is asked for: every pod goes, what had finished is forgotten. Unless the success rule is fulfilled at that
   very moment: work that is done is done.
5. The success rule is fulfilled. Success is judged before failure, in every kind: work that is done is done.
6. Somebody asked for the end.
7. The deadline has passed; then the start deadline.
8. A failure rule is fulfilled, or success is out of reach for good, or the job's restart budget is used up.
9. Replicas that ended and may be tried again get a new attempt, after their back-off.
10. What is missing is made; what is left over is removed.

Writes follow in the order status → patches → deletes → creates → events. A count or an outcome is stored before
anything is done about it.

"""


def page() -> str:
    """The whole page."""
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
    State.STARTING: "its pod is there and does not run yet; with a cause if its containers cannot be made",
    State.RUNNING: "its pod runs",
    State.STOPPING: "somebody else removes its pod; a new one follows, and nothing has failed",
    State.SUCCEEDED: "its pod, or the containers that count, ended with 0; remembered even when the pod is gone",
    State.FAILED: "it ended otherwise, for a cause; remembered once it will not be tried again",
    State.LOST: "its node is gone, or has been silent for longer than the grace",
}


def _replicas() -> str:
    rows = [f"| {state.value} | {MEANING[state]} |" for state in State]
    return "## What is concluded of a replica\n\n| state | means |\n|---|---|\n" + "\n".join(rows) + "\n\n"


CAUSES = {
    CauseKind.COMPLETED: "it ended with 0; a cause of restart only under a policy that restarts success",
    CauseKind.EXIT: "a container ended with another code or by a signal",
    CauseKind.EVICTED: "its kubelet threw it out for what it used itself",
    CauseKind.DISRUPTED: "it was preempted, drained or shut down with its node (`DisruptionTarget`, node shutdown)",
    CauseKind.DELETED: "somebody removed its pod; it is made again as a matter of course",
    CauseKind.NODE_LOST: "its node is lost",
    CauseKind.DEVICE: "the GPUs of its node have failed; answered and counted as a lost node, unless a policy names it",
    CauseKind.CREATE_ERROR: f"a container cannot be made ({', '.join(sorted(classify.CREATE_ERRORS))})",
    CauseKind.IN_PLACE: "not an end: restarts the kubelet made inside a pod that has since been replaced",
    CauseKind.REJECTED: "it failed without a container's word, for example when its node would not admit it",
}


def _causes() -> str:
    rows = [f"| {why.value} | {CAUSES[why]} |" for why in CauseKind]
    delays = f"{attempts.FIRST_BACKOFF_SECONDS:g} s, doubling to {attempts.LONGEST_BACKOFF_SECONDS:g} s"
    forgiven = f"{restart.BACKOFF_RESET_SECONDS / 60:g} minutes"
    return (
        "## Why a replica ended\n\n| cause | means |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        "A restart goes: cause → does the role's policy answer it → is there budget → back-off "
        f"({delays}; forgiven after the replica lasted {forgiven}) → scope (pod, role or job) → new attempt.\n\n"
        "Reasons of an outcome: " + ", ".join(f"`{reason.value}`" for reason in Reason) + ".\n\n"
    )


#: A TFJob has no phase: it has conditions, of which the last that holds says where it is.
TFJOB = {
    Phase.NEW: "",
    Phase.PENDING: "Created; Running as soon as one trains",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Restarting while the failed pod is there, then Running",
    Phase.SUSPENDED: "Suspended",
    Phase.RESUMING: "Created; Running as soon as one trains",
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
}


#: An AITrainingJob also tells when its pods are placed, and when old ones go.
AITRAININGJOB = {
    Phase.NEW: "",
    Phase.PENDING: "Pending, then Creating once every pod has its node; after a restart as below",
    Phase.RUNNING: "Running",
    Phase.RESTARTING: "Terminating while old pods go, then Restarting; Pending, Creating where no restart is counted",
    Phase.SUSPENDED: "Suspended",
    Phase.RESUMING: "Pending, then Creating",
    Phase.SUCCEEDED: "Terminating while pods go, then Succeed",
    Phase.FAILED: "Terminating while pods go, then Failed, Timeout, NodeFail or Preempted",
}


#: A PaddleJob tells when the first pods run.
PADDLEJOB = paddlejob.PHASES | {
    Phase.NEW: "",
    Phase.PENDING: "Pending; Starting once one runs",
    Phase.RESUMING: "Pending; Starting once one runs",
}


def _words() -> str:
    words = [
        (phase, word, TFJOB[phase], PADDLEJOB[phase], AITRAININGJOB[phase]) for phase, word in status.PHASES.items()
    ]
    rows = [f"| {_name(phase)} | {' | '.join(more)} |" for phase, *more in words]
    kinds = "GenericJob: `phase` | TFJob: the last condition that is True | PaddleJob: `phase` | AITrainingJob: `phase`"
    head = f"| phase | {kinds} |\n|---|---|---|---|---|\n"
    return "## The phases in each kind's words\n\n" + head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
