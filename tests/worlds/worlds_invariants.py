# SPDX-License-Identifier: Apache-2.0
"""The invariants of the random worlds, as a hypothesis state machine without rules."""

from datetime import timedelta

import msgspec
import worlds_aitrainingjob
from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec import UNSET
from msgspec.structs import replace
from worlds_witness import Witness, WitnessedWorld, check_counts

from trainwright.cli.record import PodCount, count_restarts
from trainwright.core import attempts
from trainwright.core.classify import awaits_restart
from trainwright.core.observe import FINAL_PHASES, TRANSITIONS
from trainwright.kinds.kubeflow.wire import KubeflowStatus
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.paddlejob.wire import PaddleJobStatus, RoleStatus
from trainwright.kinds.registry import KINDS
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod, Service
from trainwright.model.job import (
    CleanPods,
    Job,
    RestartScope,
    Role,
)
from trainwright.model.ledger import Ledger, Outcome, Phase, Reason
from trainwright.model.meta import ATTEMPT, INDEX, KIND, ROLE, SPARE
from trainwright.model.plan import Plan, State
from trainwright.model.rule import Result
from trainwright.model.units import parse_indexes, parse_row
from trainwright.testing import factories
from trainwright.testing.apiserver import Child

#: The kinds of Kubeflow v1, by id.
KUBEFLOW = {kind.id: kind for kind in KINDS if issubclass(kind.status, KubeflowStatus)}


class WorldInvariants(RuleBasedStateMachine):
    """One world, one pass of its operator, and what must hold after each step and at the end."""

    world: WitnessedWorld
    world_type: type[WitnessedWorld] = WitnessedWorld
    outcome: Outcome | None = None

    def start_world(self, chosen: Job, *, nodes: tuple[str, ...], defers: bool, ending: bool) -> None:
        """Begin with this job; `defers`: the operator delays writes that are not urgent."""
        self.world = self.world_type(chosen, nodes=nodes, defers=defers)
        self.witness = Witness(self.world)
        self.said: KubeflowStatus | None = None
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
            (entry.name, index, attempts.current_attempt(entry, index))
            for entry in self.world.seen_job.ledger.roles
            for index in attempts.held_replicas(entry, self.world.clock)
        }
        before = self.world.seen_job
        pods = {pod.metadata.uid: pod for pod in self.world.observed().pods}
        self.witness.note(self.foreign)
        truth, up_to_date = self.world.pods(), self.is_up_to_date()
        plan = self.world.step(dies_after=dies_after)
        self.note_pods()
        self.witness.note(self.foreign)
        self.check_kept_pods(plan, pods)
        self.witness.check_decision(before.ledger, plan.status.ledger)
        if up_to_date:
            self.witness.check_status(plan, truth)
        if before.kind in KUBEFLOW and dies_after is None:
            self.render_kubeflow(before, plan)
        if before.kind == PADDLEJOB.singular:
            self.render_paddlejob(before, plan)
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
        self.check_transition()

    def is_up_to_date(self) -> bool:
        """Whether the operator has seen everything, and its job is the stored one."""
        return not self.world.notes and self.world.seen_version == self.world.version and not self.foreign

    def check_kept_pods(self, plan: Plan, pods: dict[str, Pod]) -> None:
        """A pod of an ended job that its policy keeps, and that simply runs, is not removed."""
        outcome = plan.status.ledger.outcome
        if outcome is None or self.clean_up_level(outcome) is not CleanPods.NONE:
            return
        wanted = {one.pod.metadata.uid for group in plan.status.roles for one in group.replicas if one.pod is not None}
        for delete in plan.deletes:
            pod = pods.get(delete.uid)
            if pod is not None and delete.uid in wanted and pod.metadata.deletion_timestamp is None:
                assert awaits_restart(pod), "a pod that its policy keeps was removed"

    def render_kubeflow(self, seen: Job, plan: Plan) -> None:
        """A job of Kubeflow v1 says where it is, by the last of its conditions that holds; each is there once, an end
        is final."""
        kind = KUBEFLOW[seen.kind]
        body = kind.render(self.said, seen, plan.status, self.world.clock)
        new: KubeflowStatus = msgspec.json.decode(msgspec.json.encode(body), type=kind.status)
        assert new.trainwright == plan.status.ledger
        counts = new.replica_statuses or {}
        check_counts(plan.status, {name: (one.active, one.succeeded) for name, one in counts.items()})
        holding = [one.type for one in new.conditions or () if one.status == "True"]
        assert len({one.type for one in new.conditions or ()}) == len(new.conditions or ())
        assert not {"Running", "Restarting"} <= set(holding)
        outcome = plan.status.ledger.outcome
        assert (new.completion_time is not UNSET) == (outcome is not None)
        # No field of such a job requests an end, so its conditions have no words for one.
        requested = outcome is not None and outcome.reason is Reason.EXTERNAL
        if outcome is not None and not requested:
            assert holding[-1] == outcome.result
            assert len({"Succeeded", "Failed"} & set(holding)) == 1
        if not requested:
            assert (holding[-1] == "Suspended") == (plan.status.ledger.phase is Phase.SUSPENDED)
        if self.world.seen_job.ledger == plan.status.ledger:
            self.said = new

    def render_paddlejob(self, seen: Job, plan: Plan) -> None:
        """A PaddleJob says where it is in its phase, and why in its conditions."""
        body = PADDLEJOB.render(None, seen, plan.status, self.world.clock)
        new = msgspec.json.decode(msgspec.json.encode(body), type=PaddleJobStatus)
        holding = {one.type for one in new.conditions or () if one.status == "True"} - {"ReplicaFailure"}
        assert new.trainwright == plan.status.ledger
        assert holding <= {new.phase}
        counts = {name: getattr(new, name) or RoleStatus() for name in ("ps", "worker", "heter")}
        check_counts(plan.status, {name: (one.running, one.succeeded) for name, one in counts.items()})
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
        stored = {
            (entry.name, index) for entry in self.world.job.ledger.roles for index in parse_indexes(entry.succeeded)
        }
        self.done = {one for one in self.done if one[:2] in stored}

    def start_pending(self, node: str) -> None:
        """Start all pods of the job that wait."""
        for name, pod in self.world.pods().items():
            if pod.status.phase == "Pending" and pod not in self.foreign:
                self.world.start(name, node)

    # -- what always holds ---------------------------------------------------------------------------------------

    def check_transition(self) -> None:
        """Called after each pass: the stored state moved along the table."""
        phase = self.world.job.ledger.phase
        if phase is not self.phase:
            assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
            if phase is Phase.SUSPENDED:
                self.check_all_attempts_are_new()
            self.phase = phase

    def check_all_attempts_are_new(self) -> None:
        """No pod from before a pause can be taken for one from after it."""
        for part in self.world.job.roles:
            entry = attempts.find_entry(self.world.job.ledger, part.name)
            for index in range(5):
                assert attempts.current_attempt(entry, index) > self.attempts.get((part.name, index), -1)

    @invariant()
    def one_pod_per_replica(self) -> None:
        live = [pod for pod in self.world.pods().values() if pod not in self.foreign]
        replicas = [(pod.metadata.labels[ROLE], pod.metadata.labels[INDEX]) for pod in live if pod.metadata.labels]
        assert len(replicas) == len(set(replicas))

    @invariant()
    def budgets_hold(self) -> None:
        for part in self.world.job.roles:
            entry = attempts.find_entry(self.world.job.ledger, part.name)
            counted = attempts.budget_used(
                entry, (part.uncounted | {CauseKind.IN_PLACE}) - {CauseKind.DELETED} | part.restart.free
            )
            # Where they share their budgets, a restart counts on all roles and is limited by the one that caused it.
            charged = parse_row(entry.charged)
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
        for entry in self.world.job.ledger.roles:
            made = entry.made(frozenset({CauseKind.IN_PLACE}))
            seen = count_restarts(Ledger(roles=(replace(entry, inside=0),)), pods) - entry.restarts.get(
                CauseKind.IN_PLACE, 0
            )
            assert made >= self.told.get(entry.name, 0), "a restart that was shown is not shown any more"
            assert made <= seen <= self.replaced_pods(entry.name), "a restart is shown that did not happen"
            self.told[entry.name] = made

    def note_pods(self) -> set[tuple[str, int, int]]:
        """The pods that are there now: role, index, attempt."""
        labels = [pod.metadata.labels or {} for pod in self.world.pods().values() if pod not in self.foreign]
        now = {(one[ROLE], int(one[INDEX]), int(one[ATTEMPT])) for one in labels if one[ATTEMPT] != SPARE}
        self.created |= now
        return now

    def replaced_pods(self, name: str) -> int:
        """How many pods of a role were made for a replica that had had one of an earlier attempt.

        If the role grows and is restarted at the same time, the first pod of the restart may be that of a new replica.
        """
        mine = [(index, attempt) for part, index, attempt in self.created if part == name]
        peers = {index: {one for one, _ in mine} if self.disturbed else {index} for index, _ in mine}
        first = {index: min(attempt for one, attempt in mine if one in peers[index]) for index, _ in mine}
        return sum(attempt > first[index] for index, attempt in mine)

    @invariant()
    def outcome_is_final(self) -> None:
        outcome = self.world.job.ledger.outcome
        if self.outcome is not None:
            assert outcome == self.outcome
        self.outcome = outcome
        assert (outcome is not None) == (self.world.job.ledger.phase in FINAL_PHASES)

    @invariant()
    def a_suspended_job_keeps_no_ends(self) -> None:
        ledger = self.world.job.ledger
        if ledger.phase is Phase.SUSPENDED:
            assert not any(entry.succeeded or entry.failed or entry.reached for entry in ledger.roles)

    @invariant()
    def attempts_only_grow(self) -> None:
        for part in self.world.job.roles:
            entry = attempts.find_entry(self.world.job.ledger, part.name)
            for index in range(5):
                now = attempts.current_attempt(entry, index)
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
                entry = attempts.find_entry(self.world.job.ledger, labels[ROLE])
                assert int(labels[ATTEMPT]) <= attempts.current_attempt(entry, int(labels[INDEX]))

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
    def all_time_is_accounted_for(self) -> None:
        """Lost and productive time are the whole time since the job was accepted, whatever happened."""
        history = self.world.job.ledger.history
        if history.begun is not None and history.until is not None:
            whole = (history.until - history.begun) // timedelta(milliseconds=1)
            assert history.productive + sum(history.lost.values()) == whole
            assert history.total >= len(history.attempts)
            ends = [one.end for one in history.attempts[:-1]]
            assert all(end is not None for end in ends)

    @invariant()
    def attempts_are_those_of_the_pods(self) -> None:
        """The history and the ledger count the attempts that were there."""
        self.witness.note(self.foreign)
        self.witness.check_writes()
        self.witness.check_history()
        if not self.disturbed and not self.foreign:
            self.witness.check_pods()

    @invariant()
    def the_ledger_is_small(self) -> None:
        ledger = self.world.job.ledger
        assert len(ledger.avoided) <= 3
        assert all(len(entry.stuck) <= 4 for entry in ledger.roles)
        assert len(msgspec.json.encode(ledger)) < 9000

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
        self.remove_foreign_objects()
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
        assert self.lingering_pods(mine) == []
        if ledger.phase is Phase.SUSPENDED:
            assert not mine
            assert not any(entry.succeeded or entry.failed for entry in ledger.roles)
        elif ledger.outcome is not None:
            self.check_clean_up(ledger.outcome, mine)
        else:
            self.check_replicas()
            self.check_all_restarts_are_shown()

    def check_all_restarts_are_shown(self) -> None:
        """A live job at rest has made every restart that it decided on, unless something called it off."""
        world = self.world
        if self.disturbed or self.foreign or any(part.is_autosized or part.awaits_running for part in world.job.roles):
            return
        for part in world.job.roles:
            entry = attempts.find_entry(world.look().status.ledger, part.name)
            assert entry.pending == ()
            if part.restart.scope is RestartScope.POD and part.barrier_scope is RestartScope.POD and not part.gate:
                assert entry.hidden == {}

    def remove_foreign_objects(self) -> None:
        """What is refused is asked for again and again, so there would be no rest while they stay."""
        for service in self.foreign_services:
            address = ("Service", service.metadata.name)
            if self.world.truth.get(address) is service:
                self.world.put(address, None)
        self.foreign_services.clear()
        for pod in [pod for pod in self.foreign if KIND not in (pod.metadata.labels or {})]:
            self.foreign.remove(pod)
            self.world.put(("Pod", pod.metadata.name), None)

    def lingering_pods(self, mine: list[Pod]) -> list[str]:
        """No pod of a live job that should run lingers for ever, not even on a node that is lost."""
        if self.world.job.ledger.outcome is not None:
            return []
        going = [pod for pod in mine if pod.metadata.deletion_timestamp is not None]
        return [pod.metadata.name for pod in going if pod.status.phase != "Succeeded"]

    def clean_up_level(self, outcome: Outcome) -> CleanPods:
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

    def check_clean_up(self, outcome: Outcome, mine: list[Pod]) -> None:
        level = self.clean_up_level(outcome)
        assert not any(awaits_restart(pod) for pod in mine), "a pod is restarted although its job has ended"
        services = [child for child in self.world.truth.values() if isinstance(child, Service)]
        services = [service for service in services if service not in self.foreign_services]
        if level is CleanPods.ALL:
            assert not mine
            assert not services
        if level is CleanPods.UNFINISHED:
            assert all(pod.status.phase in ("Succeeded", "Failed") for pod in mine)

    def final_size(self, part: Role, held: bool) -> int:
        """What a role comes to once there is room for all; it stays as it is if some have ended or cannot be made."""
        if part.elastic is None:
            return part.replicas
        ceiling = attempts.find_entry(self.world.job.ledger, part.name).ceiling
        wanted = min(max(part.replicas, part.elastic.least), part.elastic.most)
        if ceiling is None or not held or not part.elastic.auto or ceiling.most < 0:
            return wanted
        return max(min(wanted, ceiling.most), part.elastic.least)

    def check_replicas(self) -> None:
        """A live job at rest: each replica has its pod, or has finished, or cannot be made."""
        world = self.world
        blocked = {pod.metadata.name for pod in self.foreign}
        groups = world.look().status.roles
        for part, group in zip(world.job.roles, groups, strict=True):
            restarted = groups if part.resize is RestartScope.JOB else (group,)
            held = any(seen.final for one in restarted for seen in one.replicas) or bool(self.foreign)
            assert len(group.replicas) == self.final_size(part, held)
            for seen in group.replicas:
                name = f"job-{part.name.lower()}-{seen.index}"
                assert seen.pod is not None or seen.final or name in blocked or part.awaits_running
        if world.job.kind == PADDLEJOB.singular and not blocked:
            self.check_paddle_peers()

    def check_paddle_peers(self) -> None:
        """At rest nobody waits for peers, and whoever runs has read of those that are there, and of no others."""
        world = self.world
        for _ in range(3):
            self.start_pending("node-9")
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
