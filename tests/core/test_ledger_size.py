# SPDX-License-Identifier: Apache-2.0
"""The ledger of a large job stays small, and a pass in which nothing changes leaves it alone."""

import random
from datetime import datetime

import msgspec
import pytest
from msgspec.structs import replace
from passes import on

from trainwright.core import history
from trainwright.core.attempts import find_entry
from trainwright.core.reconcile import reconcile
from trainwright.model.cause import CauseKind
from trainwright.model.child import Observed, Pod
from trainwright.model.job import PROGRAM_BUDGET, Job, Restart, RestartRate, RestartScope
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.model.units import parse_counts
from trainwright.testing.factories import NOW, container, job, later, node, pod, role

REPLICAS, RESTARTS = 10_000, 100
POD = RestartScope.POD
LIMIT = 256 * 1024
#: Longest name of a node, and the longest termination message that a kubelet reports.
NODES = [f"node-{number}.{'x' * 230}" for number in range(REPLICAS // 8)]
MESSAGE = "E" * 4096
HEALTHY = {name: node(name) for name in NODES}


def policy(scope: RestartScope) -> Restart:
    """A policy without an end. Each replica that restarts alone has its own budget, which the ledger stores."""
    return on(CauseKind.EXIT, scope=scope, limit=10**6, per_replica=scope is RestartScope.POD, shared=True)


def large_job(*sizes: tuple[RestartScope, int]) -> Job:
    """A job with one role for each scope and size."""
    parts = [role(f"worker{number}", size, restart=policy(scope)) for number, (scope, size) in enumerate(sizes)]
    return job(*parts, restart_rates={PROGRAM_BUDGET: RestartRate(10**6, 3600)})


def running(index: int, name: str, attempt: int) -> Pod:
    return pod(index, role=name, attempt=attempt, node=NODES[index % len(NODES)], name=f"job-{name}-{index}")


def failed(one: Pod, code: int) -> Pod:
    end = container(exit_code=code, reason="Error", message=MESSAGE, finished_at=NOW)
    return replace(one, status=replace(one.status, phase="Failed", container_statuses=(end,)))


class Run:
    """A job whose pods the test starts and ends."""

    def __init__(self, given: Job) -> None:
        self.job, self.now = given, NOW
        self.pods: dict[tuple[str, int], Pod] = {}

    def step(self, seconds: float) -> Plan:
        """One pass, and the ledger that is read back."""
        self.now = later(seconds, self.now)
        plan = reconcile(self.job, Observed(tuple(self.pods.values()), nodes=HEALTHY), Site(), self.now)
        encoded = msgspec.json.encode(plan.status.ledger)
        assert len(encoded) < LIMIT
        self.job = replace(self.job, ledger=msgspec.json.decode(encoded, type=Ledger))
        return plan

    def start_pods(self) -> None:
        """Every replica runs in a pod of its current attempt."""
        for part in self.job.roles:
            entry = find_entry(self.job.ledger, part.name)
            tries = parse_counts(entry.retries)
            for index in range(part.replicas):
                attempt = entry.epoch + tries.get(index, 0)
                if (known := self.pods.get((part.name, index))) is None or attempt_of(known) != attempt:
                    self.pods[part.name, index] = running(index, part.name, attempt)

    def fail(self, who: list[tuple[str, int]], code: int) -> None:
        for one in who:
            self.pods[one] = failed(self.pods[one], code)


def attempt_of(one: Pod) -> int:
    return int((one.metadata.labels or {})["trainwright.dev/attempt"])


@pytest.mark.parametrize(
    ("sizes", "at_once"),
    [
        pytest.param(((POD, REPLICAS - 100), (RestartScope.ROLE, 100)), 200, id="replicas and roles"),
        # Replicas that restart together share one number, so a smaller job has the same ledger.
        pytest.param(((RestartScope.JOB, 500), (RestartScope.JOB, 500)), 1, id="the whole job"),
    ],
)
def test_the_ledger_of_a_large_job_that_was_often_restarted_is_small(
    sizes: tuple[tuple[RestartScope, int], ...], at_once: int
) -> None:
    """Random replicas fail on many nodes, each with the longest message."""
    dice = random.Random(15)  # noqa: S311 - the same failures in every run
    one = Run(large_job(*sizes))
    one.step(0)
    one.start_pods()
    one.step(10)
    for _ in range(RESTARTS):
        one.fail(dice.sample(sorted(one.pods), at_once), dice.choice([1, 2, 137]))
        one.step(dice.uniform(61, 90))
        one.start_pods()
    one.step(90)

    ledger = one.job.ledger
    assert ledger.phase is Phase.RUNNING
    assert (ledger.history.total, len(ledger.history.attempts)) == (RESTARTS + 1, 16)
    made = sum(entry.made() for entry in ledger.roles)
    assert made >= RESTARTS * (at_once // 2 if at_once > 1 else 1)


def test_nothing_is_computed_in_a_pass_in_which_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdict and history cost nothing then: the ledger is the same object, and nobody asks for the history."""
    one = Run(large_job((POD, 8)))
    one.step(0)
    one.start_pods()
    one.step(10)
    one.fail([("worker0", 3)], 1)
    one.step(1)
    one.start_pods()
    one.step(70)
    one.job = replace(one.job, restart_rates={})
    asked: list[datetime] = []
    monkeypatch.setattr(history, "record", lambda *given: asked.append(given[-1]))
    stored = one.job.ledger

    for seconds in (0, 1, 3600, 10**6):
        plan = reconcile(one.job, Observed(tuple(one.pods.values()), nodes=HEALTHY), Site(), later(seconds, one.now))
        assert plan.status.ledger is stored
        assert (plan.write, plan.wake, asked) == (Write.NOT, None, [])


def test_a_change_of_something_else_leaves_verdict_and_history_alone() -> None:
    one = Run(large_job((POD, 8)))
    one.step(0)
    one.start_pods()
    one.step(10)
    one.fail([("worker0", 3)], 1)
    one.step(1)
    stored = one.job.ledger
    one.start_pods()
    one.pods["worker0", 0] = failed(one.pods["worker0", 0], 0)
    one.pods["worker0", 0] = replace(
        one.pods["worker0", 0], status=replace(one.pods["worker0", 0].status, phase="Succeeded")
    )
    del one.pods["worker0", 3]

    plan = reconcile(one.job, Observed(tuple(one.pods.values()), nodes=HEALTHY), Site(), later(1, one.now))

    assert plan.status.ledger is not stored
    assert plan.status.ledger.roles[0].succeeded == "0"
    assert plan.status.ledger.verdict is stored.verdict
    assert plan.status.ledger.history is stored.history
