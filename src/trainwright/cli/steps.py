# SPDX-License-Identifier: Apache-2.0
"""Finds the steps of a job: it runs the real `core.reconcile` and the real executor in a simulated cluster.

The simulation starts pods, ends the replicas that decide about the job (`policy_text.deciders`), and records the
reaction of the operator: the created and deleted objects, and the phase of the job in the words of its kind.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli import policy_text
from trainwright.cli.policy_text import Ranks
from trainwright.kinds.base import Kind
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Outcome
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.world import World

#: Maximum number of passes for one step. Only a defect of the operator would need more passes.
_MAX_PASSES = 20
#: If replicas are restarted even after they succeeded, the simulation lets them succeed this many times.
_MAX_ROUNDS = 3
#: Upper bound of rounds in which waiting pods are started. Pods can need two rounds: one to get addresses, one to run.
_MAX_STARTS = 32


class Step(Struct, frozen=True, omit_defaults=True):
    """Something that happens in the simulation (`event`, not an Event object), and the reaction of the operator."""

    event: str
    phase: str
    because: str = ""
    creates: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


def site_for(job: Job) -> Site:
    """The site of a simulation: it has the gang scheduler that the job asks for."""
    gangs = frozenset({job.gang.api}) if job.gang is not None and job.gang.asked else frozenset[str]()
    return Site(gangs=gangs)


class StepsOfJob:
    """The simulation of one job. `objects` contains all objects that the operator has created, in order."""

    def __init__(self, kind: Kind, job: Job) -> None:
        self.kind = kind
        self.world = World(job, site=site_for(job))
        self._status: Any = None
        self.steps: list[Step] = []
        self.objects: list[Body] = []

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the job; None if the job has not ended."""
        return self.world.job.ledger.outcome

    def begin(self) -> None:
        """Submit the job, resume it if it is suspended, and start pods until no pod waits."""
        self._record("the job is submitted")
        if self.world.job.lifecycle.suspended:
            self.world.edit(lifecycle=replace(self.world.job.lifecycle, suspended=False))
            self._record("it is resumed")
        self._start()

    def _start(self) -> None:
        for _ in range(_MAX_STARTS):
            waiting = [name for name, pod in self.world.pods().items() if pod.status.phase == "Pending"]
            if not waiting:
                return
            for name in waiting:
                self.world.start(name)
            run = self.world.pods()[waiting[0]].status.phase == "Running"
            verbs = ("runs", "run") if run else ("has its address", "have their addresses")
            who = {1: f"the pod {verbs[0]}", 2: f"both pods {verbs[1]}"}
            self._record(who.get(len(waiting), f"all {len(waiting)} pods {verbs[1]}"))

    def succeed(self, who: Ranks) -> None:
        """Let these replicas succeed, again after each restart, until the job ends. Then wait for the job's TTL."""
        for rounds in range(_MAX_ROUNDS):
            if rounds:
                self._start()
            self.end(who, 0)
            if self.outcome is not None:
                break
        ttl = self.world.job.lifecycle.ttl
        if self.outcome is not None and ttl is not None:
            self.world.wait(ttl)
            self._record(f"{ttl:g} s after its end", "the job itself is removed")

    def end(self, who: Ranks, code: int) -> None:
        """Simulate that these replicas, if they run, exit with this code. Before a restart, wait for the back-off."""
        who = {role: alive for role, ranks in who.items() if (alive := tuple(filter(self._running(role), ranks)))}
        names = [self.world.job.key.replica_name(role, index) for role, ranks in who.items() for index in ranks]
        if not names:
            return
        for name in names:
            self.world.exit(name, code)
        self._record(f"{policy_text.replicas(who)} exit{'s' * (len(names) == 1)} with {code}")
        holds = [hold.until for book in self.world.job.ledger.roles for hold in book.holds]
        if self.outcome is None and holds:
            waited = (max(holds) - self.world.clock).total_seconds()
            self.world.wait(waited)
            self._record(f"{waited:g} s later", "restart")

    def _running(self, role: str) -> Callable[[int], bool]:
        running = {name for name, pod in self.world.pods().items() if pod.status.phase == "Running"}
        return lambda index: self.world.job.key.replica_name(role, index) in running

    def _record(self, event: str, because: str = "") -> None:
        """Reconcile until nothing changes, and record what the operator did. A clean-up is a separate step."""
        before = self.outcome
        plans = self._reconcile()
        status = self.kind.render(self._status, self.world.job, plans[-1].status, self.world.clock)
        self._status = msgspec.convert(status, self.kind.status)
        phase = self.kind.phase_of(status) or str(self.world.job.ledger.phase)
        bodies = [create.body for plan in plans for create in plan.creates]
        self.objects += bodies
        creates = tuple(f"{body['kind']} {body['metadata']['name']}" for body in bodies)
        deletes = tuple(f"{delete.kind} {delete.name}" for plan in plans for delete in plan.deletes)
        if self.outcome is None or before is not None:
            self.steps.append(Step(event, phase, because, creates, deletes))
            return
        self.steps.append(Step(event, phase, policy_text.because(self.world.job, self.outcome), creates))
        if deletes:
            self.steps.append(Step("clean-up", phase, deletes=deletes))

    def _reconcile(self) -> list[Plan]:
        plans: list[Plan] = []
        while len(plans) < _MAX_PASSES and not self.world.gone and not (plans and plans[-1].empty):
            self.world.reap()
            self.world.admit()
            self.world.restart_operator()
            plans.append(self.world.step())
        return plans
