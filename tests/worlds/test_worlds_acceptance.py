# SPDX-License-Identifier: Apache-2.0
"""Random worlds that begin in the window in which pods exist and the acceptance of their job is not stored.

`test_worlds` also hits this window, but only in some of its worlds: its operator must delay writes, and its job must be
plain. Here every world begins in the window, and the test checks that kills and edits have happened in it.
"""

from collections import Counter
from typing import Any, ClassVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from msgspec.structs import replace
from worlds_jobs import lifecycles, mostly, restarts, tfjobs
from worlds_machine import EXAMPLES, WorldMachine, world_settings
from worlds_witness import WitnessedWorld

from trainwright.model.job import Job, Lifecycle, Restart
from trainwright.model.ledger import Ledger, Phase
from trainwright.testing.factories import job, role


def plain_jobs() -> st.SearchStrategy[Job]:
    """Jobs whose acceptance may be stored later."""

    def build(workers: int, restart: Restart, lifecycle: Lifecycle, servers: int) -> Job:
        parts = (role("worker", workers, restart=restart, service=True), role("ps", servers, restart=restart))
        return job(*parts[: 1 + bool(servers)], lifecycle=replace(lifecycle, suspended=False))

    return st.builds(build, st.integers(1, 4), restarts, lifecycles, st.integers(0, 2))


class WindowWorld(WitnessedWorld):
    """A world that counts what happens in the window, and checks the time of the acceptance when it is stored."""

    #: How many times something has happened in the window, over all worlds.
    hits: ClassVar[Counter[str]] = Counter()

    def __init__(self, given: Job, **more: Any) -> None:
        self.was_set_back = False
        super().__init__(given, **more)

    @property
    def is_open(self) -> bool:
        """Whether pods exist, and the stored job does not say that it was accepted."""
        return self.job.ledger == Ledger() and bool(self.pods()) and not self.gone

    def count(self, what: str) -> None:
        """Count what happens in the window."""
        if self.is_open:
            self.hits[what] += 1

    def restart_operator(self) -> None:
        """Start a new operator, which finds pods and no ledger."""
        self.count("kill")
        super().restart_operator()

    def edit(self, **changes: Any) -> None:
        """Edit the job, and count the edit under the part that changes."""
        lifecycle = changes.get("lifecycle", self.job.lifecycle)
        if changes.get("invalid"):
            self.count("invalid edit")
        elif lifecycle.suspended:
            self.count("suspend")
        elif lifecycle.ending is not None:
            self.count("end")
        elif len(changes.get("roles", ())) and changes["roles"] != self.job.roles:
            self.count("scale")
        super().edit(**changes)

    def wait(self, seconds: float) -> None:
        """Let time pass. If the clock is set back, times of creation prove nothing."""
        self.was_set_back |= seconds < 0
        super().wait(seconds)

    def _store(self, ledger: Ledger) -> None:
        was_open = self.is_open
        super()._store(ledger)
        if was_open:
            self.hits[f"stored as {ledger.phase.value}"] += 1
        accepted = ledger.times.accepted
        if was_open and accepted is not None and ledger.phase is not Phase.SUSPENDED and not self.was_set_back:
            born = [pod.metadata.creation_timestamp for pod in self.observed().pods if pod.metadata.controller]
            assert all(accepted <= time for time in born if time is not None), "accepted after a pod was created"


class WindowMachine(WorldMachine):
    """Random worlds whose first pass accepts a job and creates pods, and perhaps is killed."""

    world: WindowWorld
    world_type = WindowWorld

    @initialize(
        chosen=plain_jobs() | tfjobs(),
        nodes=mostly(("node-1", "node-2"), st.just(())),
        ending=st.booleans(),
        dies_after=st.none() | st.integers(2, 8),
    )
    def begin(self, *, chosen: Job, nodes: tuple[str, ...], ending: bool, dies_after: int | None) -> None:
        assume(not chosen.lifecycle.suspended)
        self.start_world(chosen, nodes=nodes, defers=True, ending=ending)
        self.step(dies_after=dies_after)
        assume(self.world.is_open)
        self.world.hits["worlds"] += 1


def test_worlds_that_begin_in_the_window() -> None:
    WindowWorld.hits.clear()
    run_state_machine_as_test(WindowMachine, settings=world_settings(EXAMPLES))

    happened = {"kill", "invalid edit", "suspend", "scale", "end"}
    stored = {f"stored as {phase.value}" for phase in (Phase.PENDING, Phase.RUNNING, Phase.SUSPENDED, Phase.FAILED)}
    assert happened | stored <= WindowWorld.hits.keys(), WindowWorld.hits
