# SPDX-License-Identifier: Apache-2.0
"""Random worlds through `reconcile`: pods that fail, vanish, linger, lose their node; an operator that is stale or
killed between any two writes; repeated and delayed events; clocks that jump. The invariants hold in all of them.
"""

import os
from typing import Any

import msgspec
import worlds_aitrainingjob
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from trainwright.cli.record import PodCount, count_restarts
from trainwright.core import attempts
from trainwright.core.classify import awaits_restart
from trainwright.core.observe import FINAL_PHASES, TRANSITIONS
from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.paddlejob.wire import PaddleJobStatus
from trainwright.kinds.tfjob import TFJOB
from trainwright.kinds.tfjob.wire import TFJobStatus
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod, Service
from trainwright.model.job import (
    CleanPods,
    CleanUp,
    Deadline,
    Elastic,
    Job,
    Lifecycle,
    RequestedEnd,
    Restart,
    RestartScope,
    Role,
    Since,
)
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason
from trainwright.model.meta import ATTEMPT, INDEX, KIND, ROLE, SPARE, Meta, Owner
from trainwright.model.plan import Plan, State
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.model.units import parse_indexes, parse_row
from trainwright.testing import factories
from trainwright.testing.apiserver import Child
from trainwright.testing.factories import job, later, role
from trainwright.testing.world import World

#: `WORLDS=2000 make test` looks longer than usual.
EXAMPLES = int(os.environ.get("WORLDS", "150"))
CAUSES = [
    CauseKind.EXIT,
    CauseKind.COMPLETED,
    CauseKind.DISRUPTED,
    CauseKind.NODE_LOST,
    CauseKind.EVICTED,
    CauseKind.REJECTED,
    CauseKind.DELETED,
]
FREE = frozenset({CauseKind.DISRUPTED, CauseKind.NODE_LOST, CauseKind.DELETED})


def mostly(usual: Any, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The dull case four times out of five: a world in which everything is odd ends before anything happens."""
    return st.integers(0, 4).flatmap(lambda dice: other if dice == 4 else st.just(usual))


restarts = st.builds(
    Restart,
    causes=mostly(frozenset(CAUSES) - {CauseKind.COMPLETED}, st.frozensets(st.sampled_from(CAUSES))),
    codes=mostly(None, st.just(((128, 255),))),
    free=st.sampled_from([frozenset(), FREE]),
    # A budget there is: a replica that may be restarted without end in a world that always kills it never rests.
    limit=st.integers(0, 3),
    per_replica=st.booleans(),
    scope=st.sampled_from(RestartScope),
)
cleanups = st.builds(CleanUp, *[st.sampled_from(CleanPods)] * 3)
lifecycles = st.builds(
    Lifecycle,
    suspended=mostly(False, st.just(True)),
    clean=cleanups,
    backoff_limit=mostly(None, st.integers(0, 4)),
    counts_in_place=st.booleans(),
    deadline=mostly(None, st.builds(Deadline, st.integers(1, 300), st.sampled_from(Since))),
    start_deadline=mostly(None, st.integers(1, 300)),
    ttl=mostly(None, st.integers(0, 300)),
    ending=st.none(),
)


sizes = st.builds(Elastic, st.integers(1, 2), st.integers(2, 4), st.booleans())


def roles() -> st.SearchStrategy[tuple[Role, ...]]:
    worker = st.builds(
        lambda n, restart, service, more: role("worker", n, restart=restart, service=service, **more),
        st.integers(1, 4),
        restarts,
        st.booleans(),
        st.fixed_dictionaries(
            {
                "elastic": st.none() | sizes,
                "resize": st.sampled_from([None, RestartScope.ROLE, RestartScope.JOB]),
                "recreates_pods": st.booleans(),
                "gpus": st.integers(0, 1),
            }
        ),
    )
    server = st.builds(
        lambda n, restart, awaits: role("ps", n, restart=restart, stage=1, awaits_running=awaits),
        st.integers(0, 2),
        restarts,
        st.booleans(),
    )
    return st.tuples(worker) | st.tuples(worker, server)


TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "tensorflow"}]}}
POLICIES = ["Never", "OnFailure", "Always", "ExitCode"]


def tfjobs() -> st.SearchStrategy[Job]:
    """TFJobs, through their real kind."""
    replica = st.fixed_dictionaries(
        {"replicas": st.integers(0, 3), "restartPolicy": st.sampled_from(POLICIES), "template": st.just(TEMPLATE)}
    )
    worker = st.fixed_dictionaries(
        {"replicas": st.integers(1, 4), "restartPolicy": st.sampled_from(POLICIES), "template": st.just(TEMPLATE)}
    )
    policy = st.fixed_dictionaries(
        # A budget there is, as above.
        {"backoffLimit": st.integers(0, 5)},
        optional={
            "cleanPodPolicy": st.sampled_from(["", "None", "Running", "All"]),
            "activeDeadlineSeconds": st.integers(1, 300),
            "ttlSecondsAfterFinished": st.integers(0, 300),
            "suspend": mostly(False, st.just(True)),
        },
    )
    spec = st.fixed_dictionaries(
        {
            "tfReplicaSpecs": st.fixed_dictionaries(
                {"Worker": worker}, optional={"PS": replica, "Evaluator": replica, "Chief": replica}
            ),
            "runPolicy": policy,
        },
        optional={"successPolicy": st.sampled_from(["", "AllWorkers"]), "enableDynamicWorker": st.booleans()},
    )
    return st.builds(_tfjob, spec, st.sampled_from(["v1", "v1alpha2"]))


def _tfjob(spec: dict[str, Any], version: str) -> Job:
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    loaded = load(TFJOB, {"apiVersion": f"kubeflow.org/{version}", "kind": "TFJob", "metadata": meta, "spec": spec})
    assert loaded.errors == ()
    return loaded.job


def paddlejobs() -> st.SearchStrategy[Job]:
    """PaddleJobs, through their real kind."""
    template = st.just({"spec": {"containers": [{"name": "paddle", "image": "paddle"}]}})
    policy = st.fixed_dictionaries(
        # A budget there is, as above.
        {"backoffLimit": st.integers(0, 5)},
        optional={
            "activeDeadlineSeconds": st.integers(1, 300),
            "ttlSecondsAfterFinished": st.integers(0, 300),
            "suspend": mostly(False, st.just(True)),
            "successPolicy": st.sampled_from(["All", "Workers"]),
        },
    )
    few = st.fixed_dictionaries({"replicas": st.integers(0, 2), "template": template})
    spec = st.fixed_dictionaries(
        {
            "worker": st.fixed_dictionaries({"replicas": st.integers(1, 3), "template": template}),
            "intranet": st.sampled_from(["PodIP", "PodIP", "Service", "Host"]),
            "runPolicy": policy,
        },
        optional={
            "ps": few,
            "heter": few,
            "elastic": mostly(1, st.just(1)),
            "cleanPodPolicy": st.sampled_from(["", "Always", "Never", "OnFailure", "OnCompletion"]),
        },
    )
    return st.builds(_paddlejob, spec)


def _paddlejob(spec: dict[str, Any]) -> Job:
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    head = {"apiVersion": PADDLEJOB.api_version, "kind": "PaddleJob", "metadata": meta}
    loaded = load(PADDLEJOB, {**head, "spec": spec})
    assert loaded.errors == ()
    return loaded.job


def rules(result: Result) -> st.SearchStrategy[Rule]:
    atoms: st.SearchStrategy[Rule] = st.builds(
        Atom,
        st.sampled_from(["worker", "ps"]),
        st.sampled_from(Which) | st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
        st.just(result),
    )
    return st.recursive(
        atoms,
        lambda inner: (
            st.builds(AllOf, st.lists(inner, max_size=2).map(tuple))
            | st.builds(AnyOf, st.lists(inner, max_size=2).map(tuple))
        ),
        max_leaves=4,
    )


class Worlds(RuleBasedStateMachine):
    world: World
    outcome: Outcome | None = None

    @initialize(
        parts=roles(),
        lifecycle=lifecycles,
        ends=st.tuples(mostly(None, rules(Result.SUCCEEDED)), mostly(None, rules(Result.FAILED))),
        nodes=mostly(("node-1", "node-2"), st.just(())),
        ending=mostly(False, st.just(True)),
        defers=st.booleans(),
        of_kind=st.none() | st.none() | tfjobs() | paddlejobs() | worlds_aitrainingjob.jobs(),
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
        chosen = of_kind or job(*parts, lifecycle=lifecycle, **given)
        self.world = World(chosen, nodes=nodes, defers=defers)
        self.said = TFJobStatus()
        self.story = worlds_aitrainingjob.Story()
        self.outcome = None
        self.phase = Phase.NEW
        self.attempts: dict[tuple[str, int], int] = {}
        self.counted: dict[str, int] = {}
        self.foreign: list[Pod] = []
        self.foreign_services: list[Child] = []
        self.done: set[tuple[str, int, int]] = set()
        #: Every pod that ever was: role, index, attempt.
        self.created: set[tuple[str, int, int]] = set()
        self.told: dict[str, int] = {}
        #: Something has called restarts off, or begun replicas anew without one.
        self.disturbed = chosen.lifecycle.suspended
        self.may_end = ending

    # -- the operator --------------------------------------------------------------------------------------------

    def step(self, dies_after: int | None = None) -> None:
        """One pass, with what must hold of it."""
        held = {
            # A change of size starts all of a role anew at once, also what is held back.
            (book.name, index, attempts.current_attempt(book, index))
            for book in self.world.seen_job.ledger.roles
            for index in attempts.held_replicas(book, self.world.clock)
        }
        before = self.world.seen_job
        pods = {pod.metadata.uid: pod for pod in self.world.observed().pods}
        plan = self.world.step(dies_after=dies_after)
        self.note_pods()
        self.check_what_stays(plan, pods)
        if before.kind == TFJOB.singular and dies_after is None:
            self.render(before, plan)
        if before.kind == PADDLEJOB.singular:
            self.render_paddle(before, plan)
        if before.kind == worlds_aitrainingjob.KIND and dies_after is None:
            stored = self.world.seen_job.ledger == plan.status.ledger
            self.story.tell(before, plan, self.world.clock, stored=stored)
        for create in plan.creates:
            if create.body["kind"] == "Pod" and create.body["metadata"]["labels"][ATTEMPT] != SPARE:
                labels = create.body["metadata"]["labels"]
                replica = (labels[ROLE], int(labels[INDEX]), int(labels[ATTEMPT]))
                assert replica not in held, "created during its back-off"
                assert replica not in self.done, "a finished replica was run again"
        if dies_after is None and self.world.seen_job.ledger == plan.status.ledger:
            self.note_finished(plan)
        elif dies_after is not None:
            self.forget_what_was_not_stored()
        self.check_moves()

    def check_what_stays(self, plan: Plan, pods: dict[str, Pod]) -> None:
        """A pod of an ended job that its policy keeps, and that simply runs, is not removed."""
        outcome = plan.status.ledger.outcome
        if outcome is None or self.level(outcome) is not CleanPods.NONE:
            return
        wanted = {one.pod.metadata.uid for group in plan.status.roles for one in group.replicas if one.pod is not None}
        for delete in plan.deletes:
            pod = pods.get(delete.uid)
            if pod is not None and delete.uid in wanted and pod.metadata.deletion_timestamp is None:
                assert awaits_restart(pod), "a pod that its policy keeps was removed"

    def render(self, seen: Job, plan: Plan) -> None:
        """A TFJob says where it is, by the last of its conditions that holds; each is there once, an end is final."""
        body = TFJOB.render(self.said, seen, plan.status, self.world.clock)
        new = msgspec.json.decode(msgspec.json.encode(body), type=TFJobStatus)
        assert new.trainwright == plan.status.ledger
        holding = [one.type for one in new.conditions or () if one.status == "True"]
        assert len({one.type for one in new.conditions or ()}) == len(new.conditions or ())
        assert not {"Running", "Restarting"} <= set(holding)
        outcome = plan.status.ledger.outcome
        if outcome is not None and outcome.reason is not Reason.EXTERNAL:
            assert holding[-1] == outcome.result
            assert len({"Succeeded", "Failed"} & set(holding)) == 1
        assert (holding[-1] == "Suspended") == (plan.status.ledger.phase is Phase.SUSPENDED)
        if self.world.seen_job.ledger == plan.status.ledger:
            self.said = new

    def render_paddle(self, seen: Job, plan: Plan) -> None:
        """A PaddleJob says where it is in its phase, and why in its conditions."""
        body = PADDLEJOB.render(None, seen, plan.status, self.world.clock)
        new = msgspec.json.decode(msgspec.json.encode(body), type=PaddleJobStatus)
        holding = {one.type for one in new.conditions or () if one.status == "True"} - {"ReplicaFailure"}
        assert new.trainwright == plan.status.ledger
        assert holding <= {new.phase}
        outcome = plan.status.ledger.outcome
        assert (new.phase in ("Completed", "Failed")) == (outcome is not None)

    def note_finished(self, plan: Plan) -> None:
        """What the operator has seen to succeed, and stored, is never run again in the same attempt."""
        for part, group in zip(self.world.seen_job.roles, plan.status.roles, strict=True):
            if CauseKind.COMPLETED not in part.restart.causes:
                done = [one for one in group.replicas if one.state is State.SUCCEEDED and one.index < part.replicas]
                self.done |= {(part.name, one.index, one.attempt) for one in done}

    def forget_what_was_not_stored(self) -> None:
        """A new operator knows what the job and its pods say; of a pod collected before that was stored, nothing."""
        stored = {(book.name, index) for book in self.world.job.ledger.roles for index in parse_indexes(book.succeeded)}
        self.done = {one for one in self.done if one[:2] in stored}

    @rule(times=st.integers(1, 3))
    def look(self, times: int) -> None:
        for _ in range(times):
            self.step()

    @rule(writes=st.integers(0, 6))
    def look_and_die(self, writes: int) -> None:
        self.step(dies_after=writes)

    @rule()
    def a_good_while(self) -> None:
        """Everything that should happen happens: so that worlds get somewhere."""
        for _ in range(3):
            self.world.reap()
            self.world.catch_up()
            self.step()
            self.start_all("node-1")
        self.world.catch_up()
        self.step()

    @rule(position=st.integers(0, 8), code=st.sampled_from([0, 1, 137]), seconds=st.sampled_from([0, 1, 70]))
    def a_bad_while(self, position: int, code: int, seconds: int) -> None:
        """A replica ends, the operator notices, time passes."""
        self.exit(position, code)
        self.world.catch_up()
        self.step()
        self.world.wait(seconds)
        self.world.reap()
        self.world.catch_up()
        self.step()

    @rule(position=st.integers(0, 8))
    def a_collection(self, position: int) -> None:
        """A replica succeeds, the operator notices, and its pod is collected."""
        self.exit(position, 0)
        self.world.catch_up()
        self.step()
        self.vanish(position)
        self.world.catch_up()
        self.step()

    @rule()
    def a_pause(self) -> None:
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
        self.check_moves()
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
        for name, pod in self.world.pods().items():
            if pod.status.phase == "Pending" and pod not in self.foreign:
                self.world.start(name, node)

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
    def a_shortage(self, position: int, room: bool, seconds: int) -> None:
        """A pod goes and finds no place again; later there is room, or there is not."""
        self.a_good_while()
        self.vanish(position)
        self.world.catch_up()
        self.step()
        self.world.wait(2)
        self.step()
        self.no_room(31)
        self.a_good_while()
        self.world.wait(seconds)
        self.step()
        if room:
            self.start_all("node-2")
        else:
            self.no_room(31)
        self.world.catch_up()
        self.step()

    @rule()
    def a_recovery(self) -> None:
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
    def somebody_deletes(self, position: int) -> None:
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

    @precondition(lambda self: self.may_end and self.world.job.lifecycle.ending is None)
    @rule(succeeded=st.booleans())
    def ask_for_the_end(self, succeeded: bool) -> None:
        self.world.edit(
            lifecycle=replace(self.world.job.lifecycle, ending=RequestedEnd("Preempted", "please", succeeded))
        )

    # -- what always holds ---------------------------------------------------------------------------------------

    def check_moves(self) -> None:
        """Called after each pass: the stored state moved along the table."""
        phase = self.world.job.ledger.phase
        if phase is not self.phase:
            assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
            if phase is Phase.SUSPENDED:
                self.check_everything_is_stale()
            self.phase = phase

    def check_everything_is_stale(self) -> None:
        """No pod from before a pause can be taken for one from after it."""
        for part in self.world.job.roles:
            book = attempts.find_entry(self.world.job.ledger, part.name)
            for index in range(5):
                assert attempts.current_attempt(book, index) > self.attempts.get((part.name, index), -1)

    @invariant()
    def one_pod_per_replica(self) -> None:
        live = [pod for pod in self.world.pods().values() if pod not in self.foreign]
        replicas = [(pod.metadata.labels[ROLE], pod.metadata.labels[INDEX]) for pod in live if pod.metadata.labels]
        assert len(replicas) == len(set(replicas))

    @invariant()
    def budgets_hold(self) -> None:
        for part in self.world.job.roles:
            book = attempts.find_entry(self.world.job.ledger, part.name)
            counted = attempts.budget_used(
                book, (part.uncounted | {CauseKind.IN_PLACE}) - {CauseKind.DELETED} | part.restart.free
            )
            # Where they share their budgets, a restart counts on all roles and is limited by the one that caused it.
            charged = parse_row(book.charged)
            most = counted if not part.restart.per_replica else max(charged.values(), default=0)
            assert part.restart.limit is None or part.restart.shared or most <= part.restart.limit
            if part.restart.per_replica and self.world.job.ledger.outcome is None:
                assert sum(charged.values()) == counted, "a restart is charged to nobody, or twice"
            assert counted >= self.counted.get(part.name, 0), "a count was lost"
            self.counted[part.name] = counted

    @invariant()
    def no_restart_is_shown_that_did_not_happen(self) -> None:
        """Each that is shown began a replica anew that had had a pod; and what was shown is not taken back."""
        pods = [PodCount(*one) for one in self.note_pods()]
        for book in self.world.job.ledger.roles:
            made = book.made(frozenset({CauseKind.IN_PLACE}))
            seen = count_restarts(Ledger(roles=(replace(book, inside=0),)), pods) - book.restarts.get(
                CauseKind.IN_PLACE, 0
            )
            assert made >= self.told.get(book.name, 0), "a restart that was shown is not shown any more"
            assert made <= seen <= self.began_anew(book.name), "a restart is shown that did not happen"
            self.told[book.name] = made

    def note_pods(self) -> set[tuple[str, int, int]]:
        """The pods that are there now: role, index, attempt."""
        labels = [pod.metadata.labels or {} for pod in self.world.pods().values() if pod not in self.foreign]
        now = {(one[ROLE], int(one[INDEX]), int(one[ATTEMPT])) for one in labels if one[ATTEMPT] != SPARE}
        self.created |= now
        return now

    def began_anew(self, name: str) -> int:
        """How many pods of a role were made for a replica that had had one of an earlier attempt."""
        mine = [(index, attempt) for part, index, attempt in self.created if part == name]
        first = {index: min(attempt for one, attempt in mine if one == index) for index, _ in mine}
        return sum(attempt > first[index] for index, attempt in mine)

    @invariant()
    def outcome_is_final(self) -> None:
        outcome = self.world.job.ledger.outcome
        if self.outcome is not None:
            assert outcome == self.outcome
        self.outcome = outcome
        assert (outcome is not None) == (self.world.job.ledger.phase in FINAL_PHASES)

    @invariant()
    def a_pause_forgets(self) -> None:
        ledger = self.world.job.ledger
        if ledger.phase is Phase.SUSPENDED:
            assert not any(book.succeeded or book.failed or book.reached for book in ledger.roles)

    @invariant()
    def attempts_only_grow(self) -> None:
        for part in self.world.job.roles:
            book = attempts.find_entry(self.world.job.ledger, part.name)
            for index in range(5):
                now = attempts.current_attempt(book, index)
                assert now >= self.attempts.get((part.name, index), 0)
                self.attempts[part.name, index] = now

    @invariant()
    def no_pod_is_ahead_of_its_status(self) -> None:
        """Status first: what a pod carries has been stored before it was made."""
        for pod in self.world.pods().values():
            labels = pod.metadata.labels
            if (
                pod not in self.foreign
                and labels is not None
                and labels[ATTEMPT] != SPARE
                and any(part.name == labels[ROLE] for part in self.world.job.roles)
            ):
                book = attempts.find_entry(self.world.job.ledger, labels[ROLE])
                assert int(labels[ATTEMPT]) <= attempts.current_attempt(book, int(labels[INDEX]))

    def live(self, part: Role) -> list[Pod]:
        """The pods of a role that run, or will."""
        return [
            pod
            for pod in self.world.pods().values()
            if pod not in self.foreign
            and (pod.metadata.labels or {}).get(ROLE) == part.name
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase not in ("Succeeded", "Failed")
        ]

    @invariant()
    def no_two_epochs_side_by_side(self) -> None:
        """Of a role that starts anew, no pod of before goes on beside one of after."""
        for part in self.world.job.roles:
            epoch = attempts.find_entry(self.world.job.ledger, part.name).epoch
            labels = [(pod.metadata.labels or {})[ATTEMPT] for pod in self.live(part)]
            assert len({int(attempt) >= epoch for attempt in labels if attempt != SPARE}) < 2

    @invariant()
    def sizes_are_within_their_bounds(self) -> None:
        """A role that resizes itself is never below its least, nor above what is asked for."""
        world = self.world
        for part, group in zip(world.seen_job.roles, world.look().status.roles, strict=True):
            size, bounds = len(group.replicas), part.elastic
            if bounds is None:
                assert size == part.replicas
            else:
                assert bounds.least <= size <= max(bounds.least, min(part.replicas, bounds.most))
                assert bounds.auto or size == min(max(part.replicas, bounds.least), bounds.most)

    @invariant()
    def spares_hold_places_and_nothing_else(self) -> None:
        for part in self.world.job.roles:
            spares = [pod for pod in self.live(part) if (pod.metadata.labels or {})[ATTEMPT] == SPARE]
            assert all(pod.status.phase == "Pending" for pod in spares)
            assert part.is_autosized or not spares

    @invariant()
    def the_ledger_is_small(self) -> None:
        ledger = self.world.job.ledger
        assert len(ledger.avoided) <= 3
        assert all(len(book.stuck) <= 4 for book in ledger.roles)
        assert len(msgspec.json.encode(ledger)) < 6000

    @invariant()
    def same_world_same_plan(self) -> None:
        first, second = self.world.look(), self.world.look()
        assert first == second
        assert msgspec.json.encode(first.status.ledger) == msgspec.json.encode(second.status.ledger)

    @invariant()
    def foreign_pods_are_left_alone(self) -> None:
        for child in (*self.foreign, *self.foreign_services):
            assert self.world.gone or child in self.world.truth.values()

    # -- when the world stops changing ---------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        self.unseen_strangers_go()
        if world.nodes is not None:
            # While no node is ready, none is judged.
            world.nodes = world.nodes | {"node-9": factories.node("node-9", since=world.clock)}
        # Where a role resizes itself there is no rest before it has found room for all.
        auto = any(part.is_autosized for part in world.job.roles)
        world.settle(place="node-9" if auto else "")
        self.outcome_is_final()
        if world.gone:
            return
        assert world.look().empty
        ledger, mine = world.job.ledger, [p for p in world.pods().values() if p not in self.foreign]
        assert self.leaving(mine) == []
        if ledger.phase is Phase.SUSPENDED:
            assert not mine
            assert not any(book.succeeded or book.failed for book in ledger.roles)
        elif ledger.outcome is not None:
            self.cleaned(ledger.outcome, mine)
        else:
            self.complete()
            self.all_restarts_are_shown()

    def all_restarts_are_shown(self) -> None:
        """A live job at rest has made every restart that it decided on, unless something called it off."""
        world = self.world
        if self.disturbed or self.foreign or any(part.is_autosized or part.awaits_running for part in world.job.roles):
            return
        for part in world.job.roles:
            book = attempts.find_entry(world.look().status.ledger, part.name)
            assert book.pending == ()
            if part.restart.scope is RestartScope.POD and part.barrier_scope is RestartScope.POD and not part.gate:
                assert book.hidden == {}

    def unseen_strangers_go(self) -> None:
        """What is refused is asked for again and again, so there would be no rest while they stay."""
        for service in self.foreign_services:
            address = ("Service", service.metadata.name)
            if self.world.truth.get(address) is service:
                self.world.put(address, None)
        self.foreign_services.clear()
        for pod in [pod for pod in self.foreign if KIND not in (pod.metadata.labels or {})]:
            self.foreign.remove(pod)
            self.world.put(("Pod", pod.metadata.name), None)

    def leaving(self, mine: list[Pod]) -> list[str]:
        """No pod of a live job that should run lingers for ever, not even on a node that is lost."""
        if self.world.job.ledger.outcome is not None:
            return []
        going = [pod for pod in mine if pod.metadata.deletion_timestamp is not None]
        return [pod.metadata.name for pod in going if pod.status.phase != "Succeeded"]

    def level(self, outcome: Outcome) -> CleanPods:
        """What the clean-up policy removes after this end."""
        clean, failure = self.world.job.lifecycle.clean, outcome.failure
        if outcome.reason in ("Deadline", "StartDeadline", "External"):
            return clean.ended
        if (
            clean.lost is not None
            and failure is not None
            and failure.cause.why in (CauseKind.NODE_LOST, CauseKind.DEVICE)
        ):
            return clean.lost
        return clean.succeeded if outcome.result is Result.SUCCEEDED else clean.failed

    def cleaned(self, outcome: Outcome, mine: list[Pod]) -> None:
        level = self.level(outcome)
        assert not any(awaits_restart(pod) for pod in mine), "a pod is restarted although its job has ended"
        services = [child for child in self.world.truth.values() if isinstance(child, Service)]
        services = [service for service in services if service not in self.foreign_services]
        if level is CleanPods.ALL:
            assert not mine
            assert not services
        if level is CleanPods.UNFINISHED:
            assert all(pod.status.phase in ("Succeeded", "Failed") for pod in mine)

    def size(self, part: Role, held: bool) -> int:
        """What a role comes to once there is room for all; it stays as it is if some have ended or cannot be made."""
        if part.elastic is None:
            return part.replicas
        ceiling = attempts.find_entry(self.world.job.ledger, part.name).ceiling
        wanted = min(max(part.replicas, part.elastic.least), part.elastic.most)
        if ceiling is None or not held or not part.elastic.auto or ceiling.most < 0:
            return wanted
        return max(min(wanted, ceiling.most), part.elastic.least)

    def complete(self) -> None:
        """A live job at rest: each replica has its pod, or has finished, or cannot be made."""
        world = self.world
        blocked = {pod.metadata.name for pod in self.foreign}
        groups = world.look().status.roles
        for part, group in zip(world.job.roles, groups, strict=True):
            restarted = groups if part.resize is RestartScope.JOB else (group,)
            held = any(seen.final for one in restarted for seen in one.replicas) or bool(self.foreign)
            assert len(group.replicas) == self.size(part, held)
            for seen in group.replicas:
                name = f"job-{part.name.lower()}-{seen.index}"
                assert seen.pod is not None or seen.final or name in blocked or part.awaits_running
        if world.job.kind == PADDLEJOB.singular and not blocked:
            self.everybody_knows_everybody()

    def everybody_knows_everybody(self) -> None:
        """At rest nobody waits for peers, and whoever runs has read of those that are there, and of no others."""
        world = self.world
        for _ in range(3):
            self.start_all("node-9")
            world.settle()
        if world.gone or world.job.ledger.outcome is not None or not world.job.roles[0].gate:
            return
        now = {pod.metadata.name: pod for pod in world.pods().values()}
        for pod in now.values():
            if pod.status.phase == "Running":
                told = world.read[pod.metadata.uid]
                assert told["PADDLE_TRAINERS_NUM"] == str(
                    next(r for r in world.job.roles if r.name == "worker").replicas
                )
                for word, kind in (("PADDLE_TRAINER_ENDPOINTS", "worker"), ("PADDLE_PSERVERS_IP_PORT_LIST", "ps")):
                    for place, end in enumerate(filter(None, told.get(word, "").split(","))):
                        peer = now.get(f"job-{kind}-{place}")
                        host = peer.status.pod_ip if peer is not None else ""
                        by_name = f"job-{kind}-{place}.default"
                        assert peer is None or end.rpartition(":")[0] in (host, by_name), (word, end, host)


def resizing() -> st.SearchStrategy[Role]:
    """Roles that resize themselves, and live through most of what happens to them."""
    return st.builds(
        lambda n, bounds, scope, resize, gpus: role(
            "worker",
            n,
            restart=Restart(frozenset(CAUSES) - {CauseKind.COMPLETED}, limit=9, scope=scope),
            elastic=bounds,
            resize=resize,
            gpus=gpus,
            recreates_pods=True,
        ),
        st.integers(2, 4),
        st.builds(Elastic, st.integers(1, 2), st.just(4), st.just(True)),
        st.sampled_from(RestartScope),
        st.sampled_from([None, RestartScope.ROLE, RestartScope.JOB]),
        st.integers(0, 1),
    )


class Resizing(Worlds):
    """The same, with nothing but a role that resizes itself: there is more time for what only such a role does."""

    @initialize(part=resizing(), defers=st.booleans())
    def begin(self, *, part: Role, defers: bool) -> None:
        super().begin(
            parts=(part,),
            lifecycle=Lifecycle(),
            ends=(None, None),
            nodes=("node-1", "node-2"),
            ending=False,
            defers=defers,
            of_kind=None,
        )


Resizing.TestCase.settings = settings(
    max_examples=EXAMPLES // 2,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestResizing = Resizing.TestCase

Worlds.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWorlds = Worlds.TestCase


def test_time_is_virtual() -> None:
    world = World(job())
    world.wait(3600)
    assert later(3600) == world.clock
