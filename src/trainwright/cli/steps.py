# SPDX-License-Identifier: Apache-2.0
"""The first steps of a job, by really driving it through the simulated world. `plan` prints what comes out.

Nothing here knows what a job will do: it starts pods, ends the replicas that `terms.deciders` chose, and writes down
what the operator made of it, in the words of the job's kind.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from trainwright.cli import policy_text
from trainwright.cli.policy_text import Ranks
from trainwright.kinds.base import Kind
from trainwright.model.child import ContainerState, ContainerStatus, PodStatus, Terminated
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Outcome
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.world import World

#: More passes than this for one event would be a defect; a plan must end all the same.
_MOST_PASSES = 20
#: How often replicas that are restarted after success are followed.
_MOST_ROUNDS = 3
#: Stages of pods that start one after the other, each perhaps once to have an address and once to run.
_MOST_STARTS = 32


class Step(Struct, frozen=True, omit_defaults=True):
    """One thing that happens, and what the operator makes of it."""

    event: str
    phase: str
    because: str = ""
    creates: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


class StepsOfJob:
    """One run of a job on a site that offers what it asks for. `objects` is everything it created, in order."""

    def __init__(self, kind: Kind, job: Job) -> None:
        gangs = frozenset({job.gang.api}) if job.gang is not None and job.gang.asked else frozenset[str]()
        self.kind = kind
        self.world = World(job, site=Site(gangs=gangs))
        self._said: Any = None
        self.steps: list[Step] = []
        self.objects: list[Body] = []

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, if it has."""
        return self.world.job.ledger.outcome

    def begin(self) -> None:
        """Submit it, resume it if it is paused, and let every pod run, stage by stage."""
        self._tell("the job is submitted")
        if self.world.job.lifecycle.suspended:
            self.world.edit(lifecycle=replace(self.world.job.lifecycle, suspended=False))
            self._tell("it is resumed")
        self._start()

    def _start(self) -> None:
        for _ in range(_MOST_STARTS):
            waiting = [name for name, pod in self.world.pods().items() if pod.status.phase == "Pending"]
            if not waiting:
                return
            for name in waiting:
                self.world.start(name)
            run = self.world.pods()[waiting[0]].status.phase == "Running"
            verbs = ("runs", "run") if run else ("has its address", "have their addresses")
            who = {1: f"the pod {verbs[0]}", 2: f"both pods {verbs[1]}"}
            self._tell(who.get(len(waiting), f"all {len(waiting)} pods {verbs[1]}"))

    def succeed(self, who: Ranks) -> None:
        """These replicas end well, again and again if they are restarted even so, and the job lives out its time."""
        for rounds in range(_MOST_ROUNDS):
            if rounds:
                self._start()
            self.end(who, 0)
            if self.outcome is not None:
                break
        ttl = self.world.job.lifecycle.ttl
        if self.outcome is not None and ttl is not None:
            self.world.wait(ttl)
            self._tell(f"{ttl:g} s after its end", "the job itself is removed")

    def end(self, who: Ranks, code: int) -> None:
        """Those of these replicas that run end with that code; if they are to be made again, their back-off passes."""
        end = Terminated(code, reason="Error" if code else "Completed", finished_at=self.world.clock)
        ended = (ContainerStatus(self.world.main, state=ContainerState(terminated=end)),)
        status = PodStatus("Failed" if code else "Succeeded", container_statuses=ended)
        who = {role: alive for role, ranks in who.items() if (alive := tuple(filter(self._running(role), ranks)))}
        names = [self.world.job.key.replica_name(role, index) for role, ranks in who.items() for index in ranks]
        if not names:
            return
        self._become(dict.fromkeys(names, status))
        self._tell(f"{policy_text.replicas(who)} exit{'s' * (len(names) == 1)} with {code}")
        holds = [hold.until for book in self.world.job.ledger.roles for hold in book.holds]
        if self.outcome is None and holds:
            waited = (max(holds) - self.world.clock).total_seconds()
            self.world.wait(waited)
            self._tell(f"{waited:g} s later", "restart")

    def _running(self, role: str) -> Callable[[int], bool]:
        running = {name for name, pod in self.world.pods().items() if pod.status.phase == "Running"}
        return lambda index: self.world.job.key.replica_name(role, index) in running

    def _become(self, changes: dict[str, PodStatus]) -> None:
        for name, status in changes.items():
            self.world.change(name, **asdict(status))

    def _tell(self, event: str, because: str = "") -> None:
        """Let the operator work until it rests, and write down what it did; a clean-up has a line of its own."""
        before = self.outcome
        plans = self._passes()
        status = self.kind.render(self._said, self.world.job, plans[-1].status, self.world.clock)
        self._said = msgspec.convert(status, self.kind.status)
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

    def _passes(self) -> list[Plan]:
        plans: list[Plan] = []
        while len(plans) < _MOST_PASSES and not self.world.gone and not (plans and plans[-1].empty):
            self.world.reap()
            self.world.admit()
            self.world.restart_operator()
            plans.append(self.world.step())
        return plans
