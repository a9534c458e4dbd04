# SPDX-License-Identifier: Apache-2.0
"""The random worlds: pods fail, vanish, linger and lose their node; the operator is stale or killed between any two
writes; events are repeated and delayed; clocks jump. The invariants hold in all of these worlds.
"""

import os
from typing import Any

import worlds_aitrainingjob
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace
from worlds_invariants import WorldInvariants
from worlds_jobs import kubeflow, lifecycles, mostly, paddlejobs, roles, rules, tfjobs

from trainwright.core.classify import awaits_restart
from trainwright.model.child import Service
from trainwright.model.job import (
    Job,
    Lifecycle,
    RequestedEnd,
    Role,
)
from trainwright.model.ledger import Phase
from trainwright.model.meta import Meta, Owner
from trainwright.model.rule import Result, Rule
from trainwright.testing import factories

#: `WORLDS=2000 make test` tries more worlds than usual.
EXAMPLES = int(os.environ.get("WORLDS", "150"))


def world_settings(examples: int) -> settings:
    """The settings of a state machine that tries this many worlds."""
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class WorldMachine(WorldInvariants):
    """Everything that may happen to a job, in any order."""

    @initialize(
        parts=roles(),
        lifecycle=lifecycles,
        ends=st.tuples(mostly(None, rules(Result.SUCCEEDED)), mostly(None, rules(Result.FAILED))),
        nodes=mostly(("node-1", "node-2"), st.just(())),
        ending=mostly(False, st.just(True)),
        defers=st.booleans(),
        of_kind=st.none() | st.none() | tfjobs() | kubeflow | paddlejobs() | worlds_aitrainingjob.jobs(),
    )
    def begin(
        self,
        *,
        parts: tuple[Role, ...],
        lifecycle: Lifecycle,
        ends: tuple[Rule | None, Rule | None],
        nodes: tuple[str, ...],
        ending: bool,
        defers: bool,
        of_kind: Job | None,
    ) -> None:
        given: dict[str, Any] = {
            name: rule for name, rule in zip(("success", "failure"), ends, strict=True) if rule is not None
        }
        chosen = of_kind or factories.job(*parts, lifecycle=lifecycle, **given)
        self.start_world(chosen, nodes=nodes, defers=defers, ending=ending)

    # -- the operator --------------------------------------------------------------------------------------------

    @rule(times=st.integers(1, 3))
    def look(self, times: int) -> None:
        for _ in range(times):
            self.step()

    @rule(writes=st.integers(0, 6))
    def look_and_die(self, writes: int) -> None:
        self.step(dies_after=writes)

    @rule()
    def progress(self) -> None:
        """Everything that should happen happens: so that worlds get somewhere."""
        for _ in range(3):
            self.world.reap()
            self.world.catch_up()
            self.step()
            self.start_all("node-1")
        self.world.catch_up()
        self.step()

    @rule(position=st.integers(0, 8), code=st.sampled_from([0, 1, 137]), seconds=st.sampled_from([0, 1, 70]))
    def replica_ends(self, position: int, code: int, seconds: int) -> None:
        """A replica ends, the operator notices, time passes."""
        self.exit(position, code)
        self.world.catch_up()
        self.step()
        self.world.wait(seconds)
        self.world.reap()
        self.world.catch_up()
        self.step()

    @rule(position=st.integers(0, 8))
    def finished_pod_vanishes(self, position: int) -> None:
        """A replica succeeds, the operator notices, and its pod is collected."""
        self.exit(position, 0)
        self.world.catch_up()
        self.step()
        self.vanish(position)
        self.world.catch_up()
        self.step()

    @rule()
    def suspend_and_resume(self) -> None:
        """Suspended and resumed, perhaps before everything has gone."""
        self.suspend(True)
        self.world.catch_up()
        self.step()
        self.suspend(False)
        self.world.catch_up()
        self.step()

    @rule()
    def restart_operator(self) -> None:
        self.world.restart_operator()
        self.forget_what_was_not_stored()

    @rule(position=st.integers(0, 20), times=st.integers(1, 3))
    def deliver(self, position: int, times: int) -> None:
        for _ in range(times):
            self.world.deliver(position)

    @rule(position=st.integers(0, 20))
    def deliver_twice(self, position: int) -> None:
        if self.world.notes:
            note = self.world.notes[position % len(self.world.notes)]
            self.world.notes.insert(self.world.notes.index(note), note)

    @rule()
    def catch_up(self) -> None:
        self.world.catch_up()

    @rule()
    def same_plan_twice(self) -> None:
        """Applied a second time, a plan changes nothing."""
        self.world.catch_up()
        plan = self.world.look()
        self.world.carry_out(plan)
        self.check_transition()
        truth, ledger = dict(self.world.truth), self.world.job.ledger
        self.world.carry_out(plan)
        assert truth == self.world.truth
        assert ledger == self.world.job.ledger

    # -- the world -----------------------------------------------------------------------------------------------

    def some_pod(self, position: int) -> str:
        names = sorted(name for name, pod in self.world.pods().items() if pod not in self.foreign)
        assume(names)
        return names[position % len(names)]

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def start_all(self, node: str) -> None:
        self.start_pending(node)

    @rule(position=st.integers(0, 8), node=st.sampled_from(["node-1", "node-2"]))
    def start(self, position: int, node: str) -> None:
        name = self.some_pod(position)
        if self.world.pods()[name].status.phase == "Pending":
            self.world.start(name, node)

    @rule(position=st.integers(0, 8))
    def unplace(self, position: int) -> None:
        """There is no room for a pod."""
        name = self.some_pod(position)
        if self.world.pods()[name].status.phase == "Pending":
            self.world.unplace(name)

    @rule(seconds=st.sampled_from([31, 61, 200]))
    def no_room(self, seconds: int) -> None:
        """Whatever waits has no place for a while, and the operator looks."""
        self.world.catch_up()
        for name, pod in self.world.pods().items():
            if pod.status.phase == "Pending" and pod not in self.foreign:
                self.world.unplace(name)
        self.world.catch_up()
        self.step()
        self.world.wait(seconds)
        self.step()
        self.world.reap()
        self.world.catch_up()
        self.step()

    @rule(position=st.integers(0, 8), room=st.booleans(), seconds=st.sampled_from([61, 200, 1000]))
    def shortage_of_room(self, position: int, room: bool, seconds: int) -> None:
        """A pod goes and finds no place again; later there is room, or there is not."""
        self.progress()
        self.vanish(position)
        self.world.catch_up()
        self.step()
        self.world.wait(2)
        self.step()
        self.no_room(31)
        self.progress()
        self.world.wait(seconds)
        self.step()
        if room:
            self.start_all("node-2")
        else:
            self.no_room(31)
        self.world.catch_up()
        self.step()

    @rule()
    def nodes_recover(self) -> None:
        """The nodes are well again, for long enough to be trusted."""
        for name in ("node-1", "node-2"):
            self.world.return_node(name)
        self.step()
        self.world.wait(130)
        self.step()

    @rule(position=st.integers(0, 8))
    def no_image(self, position: int) -> None:
        """A container cannot be made."""
        name = self.some_pod(position)
        if self.world.pods()[name].status.phase == "Pending":
            self.world.bind(name)
            self.world.change(name, container_statuses=(factories.container(waiting="ErrImagePull"),))

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def sicken_node(self, node: str) -> None:
        self.world.sicken_node(node)

    @rule(position=st.integers(0, 8), code=st.sampled_from([0, 0, 1, 137]))
    def exit(self, position: int, code: int) -> None:
        name = self.some_pod(position)
        if self.world.pods()[name].status.phase == "Running":
            self.world.exit(name, code)

    @rule(position=st.integers(0, 8), code=st.sampled_from([1, 137]))
    def crash(self, position: int, code: int) -> None:
        """A container ends and waits to be restarted in place, where the kubelet does that."""
        name = self.some_pod(position)
        pod = self.world.pods()[name]
        if pod.status.phase == "Running" and pod.spec.restart_policy != "Never":
            self.world.crash(name, code)

    @rule(position=st.integers(0, 8))
    def restart_in_place(self, position: int) -> None:
        name = self.some_pod(position)
        if awaits_restart(self.world.pods()[name]):
            self.world.restart(name)

    @rule(position=st.integers(0, 8))
    def evict(self, position: int) -> None:
        name = self.some_pod(position)
        if self.world.pods()[name].status.phase == "Running":
            self.world.evict(name)

    @rule(position=st.integers(0, 8))
    def vanish(self, position: int) -> None:
        self.world.vanish(self.some_pod(position))

    @rule(position=st.integers(0, 8))
    def user_deletes_pod(self, position: int) -> None:
        self.world.delete(("Pod", self.some_pod(position)))

    @rule()
    def reap(self) -> None:
        self.world.reap()

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def lose_node(self, node: str) -> None:
        self.world.lose_node(node)

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def return_node(self, node: str) -> None:
        self.world.return_node(node)

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def remove_node(self, node: str) -> None:
        """An engine keeps a node that was removed as silent since; one that it does not know at all is not judged."""
        self.world.lose_node(node)

    @rule(node=st.sampled_from(["node-1", "node-2"]))
    def forget_node(self, node: str) -> None:
        if self.world.nodes is not None:
            self.world.nodes = {name: known for name, known in self.world.nodes.items() if name != node}

    @rule(seconds=st.sampled_from([0.2, 1, 2, 30, 61, 700, -5, -100]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(position=st.integers(0, 3), ours=st.booleans())
    def foreign_pod(self, position: int, ours: bool) -> None:
        """Somebody else's pod takes a name that we want, perhaps even with our labels on it."""
        address = ("Pod", f"job-worker-{position}")
        if not self.foreign:
            owner = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)
            pod = factories.pod(position, owners=(owner,), uid="foreign")
            pod = pod if ours else replace(pod, metadata=replace(pod.metadata, labels=None))
            self.world.put(address, pod)
            self.foreign.append(self.world.pods()[address[1]])

    @rule(position=st.integers(0, 3))
    def foreign_service(self, position: int) -> None:
        """Somebody else's service takes a name that we want."""
        address = ("Service", f"job-worker-{position}")
        if address not in self.world.truth:
            owner = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)
            service = Service(Meta(address[1], "default", f"foreign-{position}", owner_references=(owner,)))
            self.world.put(address, service)
            self.foreign_services.append(self.world.truth[address])

    # -- edits ---------------------------------------------------------------------------------------------------

    @rule(suspended=mostly(False, st.just(True)))
    def suspend(self, suspended: bool) -> None:
        self.disturbed |= suspended
        self.world.edit(lifecycle=replace(self.world.job.lifecycle, suspended=suspended))

    @rule(replicas=st.integers(1, 4))
    def scale(self, replicas: int) -> None:
        first, *rest = self.world.job.roles
        self.disturbed |= replicas != first.replicas
        self.world.edit(roles=(replace(first, replicas=replicas), *rest))

    @precondition(lambda self: self.is_accepted())
    @rule(killed=st.booleans(), readable=st.booleans(), seconds=st.sampled_from([0, 1, 30]))
    def edit_what_cannot_be_applied(self, killed: bool, readable: bool, seconds: int) -> None:
        """An edit that the job cannot follow, until the user fixes it. The job stays as it is, with all its pods."""
        job = self.world.job
        # A manifest that cannot be read has no roles.
        self.world.edit(invalid="bad", roles=job.roles if readable else ())
        if killed:
            self.restart_operator()
        self.world.catch_up()
        pods = self.world.pods()
        for _ in range(2):
            self.world.step()
            self.world.catch_up()
            self.world.wait(seconds)
        outcome = self.world.job.ledger.outcome
        assert outcome == job.ledger.outcome, "an accepted job has ended because of an edit"
        assert outcome is not None or self.world.pods() == pods
        self.world.edit(invalid="", roles=job.roles)
        self.world.catch_up()
        self.check_transition()

    def is_accepted(self) -> bool:
        """Whether the acceptance is stored, or a pod proves it."""
        ours = [pod for pod in self.world.pods().values() if pod not in self.foreign]
        return self.world.job.ledger.phase is not Phase.NEW or any(pod.metadata.controller is not None for pod in ours)

    @precondition(lambda self: self.may_end and self.world.job.lifecycle.ending is None)
    @rule(succeeded=st.booleans())
    def request_end(self, succeeded: bool) -> None:
        self.world.edit(
            lifecycle=replace(self.world.job.lifecycle, ending=RequestedEnd("Preempted", "please", succeeded))
        )
