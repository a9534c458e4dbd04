# SPDX-License-Identifier: Apache-2.0
"""AITrainingJobs in the random worlds, through their real kind: which are drawn, and what must hold of what they say.

`worlds_machine` draws them, `worlds_invariants` reports each pass. Their conditions follow the table of transitions.
"""

from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import strategies as st

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.aitrainingjob.conditions import FINAL_PHASES
from trainwright.kinds.aitrainingjob.wire import MAX_CONDITIONS, AITrainingJobStatus
from trainwright.kinds.base import load
from trainwright.model.job import Job
from trainwright.model.ledger import Phase
from trainwright.model.plan import Plan
from trainwright.testing import factories

KIND = AITRAININGJOB.singular
_TEMPLATE = {"spec": {"containers": [{"name": "aitj-main", "image": "python"}]}}
_POLICIES = ["Never", "OnFailure", "ExitCode", "OnNodeFail", "OnNodeFailWithExitCode", "Always"]
_ENDS = ["Any", "Rank0", "All", "None"]
#: Which step may follow which.
MOVES: dict[str, frozenset[str]] = {
    "Pending": frozenset({"Creating", "Running", "Restarting", "Terminating", "Suspended"}) | FINAL_PHASES,
    "Creating": frozenset({"Pending", "Running", "Restarting", "Terminating", "Suspended"}) | FINAL_PHASES,
    "Running": frozenset({"Pending", "Creating", "Restarting", "Terminating", "Suspended"}) | FINAL_PHASES,
    "Restarting": frozenset({"Running", "Terminating", "Suspended"}) | FINAL_PHASES,
    "Terminating": frozenset({"Restarting", "Suspended"}) | FINAL_PHASES,
    "Suspended": frozenset({"Pending", "Creating", "Running", "Terminating"}) | FINAL_PHASES,
}


def jobs() -> st.SearchStrategy[Job]:
    """Jobs of one or two replica types."""
    return st.builds(_job, _specs(), st.none() | st.none() | st.none() | st.sampled_from(["preempted", "Succeed"]))


def _replicas(least: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "replicas": st.integers(least, 3),
            "template": st.just(_TEMPLATE),
            "restartPolicy": st.sampled_from(_POLICIES),
            # A budget there is: a replica that may be restarted without end in a world that kills it never rests.
            "restartLimit": st.integers(0, 3),
        },
        optional={
            "restartScope": st.sampled_from(["All", "Replica", "Pod"]),
            "failPolicy": st.sampled_from(_ENDS),
            "completePolicy": st.sampled_from(_ENDS),
            "edlPolicy": st.sampled_from(["Manual", "Never", "Auto"]),
            "minReplicas": st.just(least),
            "maxReplicas": st.just(3),
        },
    )


def _specs() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "replicaSpecs": st.fixed_dictionaries({"Worker": _replicas(1)}, optional={"ps": _replicas(0)}),
            "restartingExitCode": st.sampled_from([137, "137, 1", []]),
        },
        optional={
            "cleanPodPolicy": st.sampled_from(["All", "None"]),
            "timeLimit": st.integers(1, 300),
            "failPolicy": st.sampled_from(_ENDS),
            "completePolicy": st.sampled_from(_ENDS),
        },
    )


def _job(spec: dict[str, Any], asked: str | None) -> Job:
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    notes = {"annotations": {asked: "please"}} if asked else {}
    loaded = load(
        AITRAININGJOB,
        {"apiVersion": AITRAININGJOB.api_version, "kind": "AITrainingJob", "metadata": meta | notes, "spec": spec},
    )
    assert loaded.errors == ()
    return loaded.job


class Story:
    """What one job has said so far."""

    def __init__(self) -> None:
        self.said = AITrainingJobStatus()

    def tell(self, seen: Job, plan: Plan, now: datetime, *, stored: bool) -> None:
        """One pass: where the job says it is, and how it came there; `stored`: what it says is remembered."""
        body = AITRAININGJOB.render(self.said, seen, plan.status, now)
        new = msgspec.json.decode(msgspec.json.encode(body), type=AITrainingJobStatus)
        self._hold(new, plan)
        self._follow(new)
        if stored:
            self.said = new

    def _hold(self, new: AITrainingJobStatus, plan: Plan) -> None:
        ledger, steps = plan.status.ledger, new.conditions or ()
        assert new.trainwright == ledger
        assert len(steps) <= MAX_CONDITIONS
        assert [one.status for one in steps] == ["False"] * (len(steps) - 1) + ["True"]
        assert new.phase == steps[-1].type
        assert len(msgspec.json.encode(steps)) < 200_000
        if ledger.outcome is not None:
            assert new.phase in (
                FINAL_PHASES if not plan.status.cleaning or self.said.phase in FINAL_PHASES else {"Terminating"}
            )
        else:
            assert (new.phase == "Suspended") == (ledger.phase is Phase.SUSPENDED)
            assert new.phase == "Running" or ledger.phase is not Phase.RUNNING
            assert bool(new.restart_replica_name) == (new.phase == "Terminating")
        assert bool(new.end_time) == (new.phase in FINAL_PHASES)

    def _follow(self, new: AITrainingJobStatus) -> None:
        """Each step that was added follows from the one before; an end is final."""
        before, after = ([one.type for one in status.conditions or ()] for status in (self.said, new))
        if self.said.phase in FINAL_PHASES:
            assert (new.phase, before) == (self.said.phase, after)
        for first, second in pairwise(after):
            assert second in MOVES[first], f"{first} -> {second}"
        assert new.restarts >= self.said.restarts
