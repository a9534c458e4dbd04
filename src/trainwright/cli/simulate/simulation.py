# SPDX-License-Identifier: Apache-2.0
"""Drives a job through a scenario and records what happens, and how the real `reconcile` reacts to it.

Nothing here decides about a job. Restarts, budgets, times and the verdict are read from the ledger.
"""

from collections.abc import Callable, Iterable

from trainwright.cli import policy_text
from trainwright.cli.plan import FAKE_UID, UNMANAGED
from trainwright.cli.simulate.cluster import PodRun, SimulatedCluster
from trainwright.cli.simulate.faults import Fault, FaultKind, ReplicaId, Scenario
from trainwright.cli.simulate.timeline import (
    Entry,
    EntryKind,
    JobEnd,
    PhaseSpan,
    RoleAssumption,
    Timeline,
    TimeSummary,
)
from trainwright.cli.simulate.words import (
    CONTAINER,
    are,
    budgets_text,
    clock,
    extent,
    names,
    restart_cause,
    restart_scope,
    spent_text,
)
from trainwright.core import attempts, history
from trainwright.core.autosize import at_largest_size
from trainwright.core.budget_report import BudgetOwner, BudgetState, budget_states
from trainwright.core.report import exit_events
from trainwright.kinds.base import Kind
from trainwright.local.storage.metadata import merge
from trainwright.model.job import Body, RestartScope
from trainwright.model.ledger import Ledger, Phase, Reason
from trainwright.model.plan import Plan, State, Status
from trainwright.model.rule import Result
from trainwright.model.units import format_indexes
from trainwright.model.verdict import FailureClass

_VERBS = {
    "created": ("is created", "are created"),
    "replaced": ("is created again; it uses no budget", "are created again; they use no budget"),
    "unplaced": ("finds no node with room", "find no node with room"),
    "running": ("runs", "run"),
    "restarted": ("is restarted by the kubelet in the same pod", "are restarted by the kubelet in the same pods"),
    "succeeded": ("succeeds", "succeed"),
}


def new_document(document: Body) -> Body:
    """The manifest as a new object: one that was read from a cluster has a status and a uid."""
    metadata = {**document["metadata"], "uid": FAKE_UID, "generation": 1}
    for key in ("resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields"):
        metadata.pop(key, None)
    return {**{key: part for key, part in document.items() if key != "status"}, "metadata": metadata}


class Simulation:
    """One job in one scenario."""

    def __init__(self, file: str, kind: Kind, document: Body, scenario: Scenario) -> None:
        self._file, self._kind, self._scenario = file, kind, scenario
        self._entries: list[Entry] = []
        self._phases: list[PhaseSpan] = []
        self._notes: list[str] = []
        #: The replicas that have failed for good, with their attempts.
        self._final: dict[ReplicaId, int] = {}
        self._budgets: tuple[BudgetState, ...] = ()
        self._cluster = SimulatedCluster(kind, new_document(document), scenario, self._after_pass)

    @property
    def _ledger(self) -> Ledger:
        return self._cluster.ledger

    def run(self) -> Timeline:
        """Simulate until the job has ended and is removed, nothing more happens, or `--until` is reached."""
        cluster = self._cluster
        left = list(self._scenario.faults)
        for fault in left:
            cluster.at(fault.at, self._fault_action(fault, left))
        job = cluster.job
        self._add(EntryKind.SUBMITTED, f"{self._kind.name} {job.key} is submitted")
        self._settle()
        while (then := cluster.next_time) is not None and not cluster.gone:
            if then > self._scenario.until:
                break
            cluster.advance()
            self._settle()
            if self._ledger.outcome is not None:
                cluster.only_wakes()
        self._add_notes(left, then)
        return self._timeline()

    def _settle(self) -> None:
        self._flush_news()
        self._cluster.operate()
        self._flush_news()

    def _add(self, what: EntryKind, text: str, who: Iterable[ReplicaId] = (), **more: object) -> None:
        ranks: dict[str, list[int]] = {}
        for role, index in who:
            ranks.setdefault(role, []).append(index)
        replicas = {role: format_indexes(indexes) for role, indexes in ranks.items()}
        self._entries.append(Entry(self._cluster.elapsed, what, text, replicas, **more))  # type: ignore[arg-type]

    def _flush_news(self, *, creations: bool = True) -> None:
        """Add one line for all replicas with the same news."""
        groups: dict[tuple[str, bool], list[PodRun]] = {}
        for verb, run in self._cluster.take_news(creations=creations):
            groups.setdefault((verb, bool(run.attempt)), []).append(run)
        for (verb, _), runs in groups.items():
            who = {run.replica: run for run in runs}
            tries = sorted({run.attempt for run in runs})
            note = f" (attempt {tries[0]})" if len(tries) == 1 and tries[0] and verb == "created" else ""
            verbs = _VERBS[verb]
            text = f"{names(who)} {verbs[len(who) > 1]}{note}"
            if verb == "restarted":
                self._add(EntryKind.RESTART, text, who, scope=CONTAINER)
            elif verb == "replaced":
                cause = str(FailureClass.DELETED)
                self._add(EntryKind.RESTART, text, who, scope=RestartScope.POD, cause=cause)
            else:
                self._add(EntryKind.PODS, text, who)

    # -- faults --------------------------------------------------------------------------------------------------

    def _fault_action(self, fault: Fault, left: list[Fault]) -> Callable[[], None]:
        def apply() -> None:
            left.remove(fault)
            if self._ledger.outcome is None:
                self._apply(fault)
            else:
                left.append(fault)

        return apply

    def _apply(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind is FaultKind.SUSPEND:
            self._suspend(fault.option, on=True)
            if fault.lasts is not None:
                cluster.at(fault.at + fault.lasts, lambda: self._suspend(fault.option, on=False))
        elif fault.kind is FaultKind.LOSE_NODE:
            self._lose_node(fault)
            if fault.lasts is not None:
                cluster.at(fault.at + fault.lasts, lambda: self._return_node(fault))
        else:
            self._hit(fault)

    def _hit(self, fault: Fault) -> None:
        """Apply a fault to its replicas. It has no effect on a replica that does not run."""
        cluster = self._cluster
        runs = {who: run for who in fault.replicas if (run := cluster.run_of(*who)) is not None}
        if fault.kind is not FaultKind.DELETE:
            runs = {who: run for who, run in runs.items() if run.started is not None}
        missed = [who for who in fault.replicas if who not in runs]
        silent = [who for who, run in runs.items() if fault.kind is FaultKind.EVICT and cluster.is_silent(run.node)]
        runs = {who: run for who, run in runs.items() if who not in silent}
        if runs:
            verbs = {
                FaultKind.FAIL: ("runs", "run")[len(runs) > 1] + " out of memory (exit code 137)"
                if fault.out_of_memory
                else f"{('exits', 'exit')[len(runs) > 1]} with code {fault.code}",
                FaultKind.EVICT: f"{are(runs)} evicted by the kubelet",
                FaultKind.PREEMPT: f"{are(runs)} preempted by the scheduler",
                FaultKind.DELETE: f"{are(runs)} deleted by a user",
            }
            self._add(EntryKind.FAULT, f"{names(runs)} {verbs[fault.kind]}", runs, option=fault.option)
        if missed:
            text = f"{names(dict.fromkeys(missed))} {are(missed)} not running: no effect"
            self._add(EntryKind.FAULT, text, missed, option=fault.option)
        if silent:
            text = f"no kubelet can evict {names(silent)}: the node does not answer"
            self._add(EntryKind.FAULT, text, silent, option=fault.option)
        for run in runs.values():
            if fault.kind is FaultKind.FAIL:
                cluster.finish(run, fault.code, "OOMKilled" if fault.out_of_memory else "")
            elif fault.kind is FaultKind.DELETE:
                cluster.delete_run(run)
            else:
                cluster.evict_run(run, preempted=fault.kind is FaultKind.PREEMPT)

    def _lose_node(self, fault: Fault) -> None:
        cluster, node = self._cluster, fault.node
        if cluster.is_silent(node):
            self._add(EntryKind.FAULT, f"{node} already does not answer: no effect", option=fault.option)
            return
        runs = {run.replica: run for run in cluster.runs if run.node == node and run.ended is None}
        hit = f", with {names(runs)}" if runs else ", which has no replica"
        self._add(EntryKind.FAULT, f"{node} stops answering{hit}", runs, option=fault.option)
        cluster.lose_node(node)

    def _return_node(self, fault: Fault) -> None:
        no_effect = "" if self._cluster.is_silent(fault.node) else " already: no effect"
        self._add(EntryKind.FAULT, f"{fault.node} answers again{no_effect}", option=fault.option)
        if not no_effect:
            self._cluster.node_returns(fault.node)

    def _suspend(self, option: str, *, on: bool) -> None:
        """A user suspends the job or resumes it."""
        cluster = self._cluster
        no_effect = f"; it is {'already' if on else 'not'} suspended: no effect"
        text = f"a user {'suspends' if on else 'resumes'} the job"
        self._add(EntryKind.FAULT, text + no_effect * (cluster.job.lifecycle.suspended is on), option=option)
        cluster.document = merge(cluster.document, self._kind.suspend(cluster.document, on))
        cluster.document["metadata"] = cluster.document["metadata"] | {
            "generation": cluster.document["metadata"]["generation"] + 1
        }

    # -- the operator's reaction ---------------------------------------------------------------------------------

    def _after_pass(self, before: Ledger, plan: Plan) -> None:
        """Record what one pass decided. The pods that the pass created come later in the timeline than the decision."""
        self._flush_news(creations=False)
        after = plan.status.ledger
        self._record_restarts(before, after, plan)
        self._record_final(plan)
        self._record_phase()
        self._record_events(before, plan)
        if after.outcome is not None and before.outcome is None:
            end = self._end()
            if end is not None:
                text = f"the job has {end.result.lower()}: " + "; ".join(end.reasons)
                self._add(EntryKind.END, text, phase=end.phase, cause=str(end.verdict.failure_class))
        if plan.remove_job:
            self._add(EntryKind.REMOVED, "the job itself is removed: its time to live is over")

    def _record_restarts(self, before: Ledger, after: Ledger, plan: Plan) -> None:
        """Add a line for the replicas with a new attempt, and for the budgets that were used."""
        job, now = at_largest_size(self._cluster.job), self._cluster.clock
        budgets = budget_states(job, plan.status, now)
        # Since the last pass, productive time may have refilled a budget, so its use then is computed again for now.
        refilled = [one for one in budget_states(job, Status(before, plan.status.roles), now) if one.window]
        known = {(one.owner, one.name): one.used for one in (*self._budgets, *refilled)}
        used = tuple(one for one in budgets if one.used > known.get((one.owner, one.name), 0))
        ended = after.outcome is not None
        # At the end of the job the ledger keeps only the charges of the replica that decided it.
        kept = tuple(one for one in self._budgets if ended and one.owner is BudgetOwner.REPLICA)
        self._budgets = kept + tuple(one for one in budgets if not (ended and one.owner is BudgetOwner.REPLICA))
        raised = {} if ended or after.phase is Phase.SUSPENDED else self._raised(before, plan)
        if raised:
            verdict = after.verdict if after.verdict != before.verdict else None
            scope = restart_scope(before, after, verdict)
            cause = restart_cause(before, after, verdict)
            text = f"{extent(scope, raised)} restarted ({cause}){spent_text(self._cluster.job, used)}"
            self._add(EntryKind.RESTART, text, raised, scope=scope, cause=cause, budgets=used)
        elif used and not ended:
            in_place = "restarts inside pods count: " if self._cluster.job.lifecycle.counts_in_place else ""
            self._add(EntryKind.BUDGET, in_place + budgets_text(used), budgets=used)

    def _record_final(self, plan: Plan) -> None:
        """Add a line for the replicas that have failed for good while the job goes on."""
        if plan.status.ledger.outcome is not None:
            return
        found = {
            (role.name, one.index): one.attempt
            for role in plan.status.roles
            if not role.all_running
            for one in role.replicas
            if one.final and one.state is State.FAILED
        }
        new = [who for who, attempt in found.items() if self._final.get(who) != attempt]
        if new:
            self._add(EntryKind.PODS, f"{names(new)} {are(new)} not restarted, and the job goes on", new)
        self._final = found

    def _raised(self, before: Ledger, plan: Plan) -> dict[ReplicaId, None]:
        """The replicas that had a pod and have a higher attempt now."""
        if before.roles == plan.status.ledger.roles:
            return {}
        seen = {run.replica for run in self._cluster.runs}
        found: dict[ReplicaId, None] = {}
        for role in plan.status.roles:
            entry = attempts.find_entry(before, role.name)
            for replica in role.replicas:
                who = role.name, replica.index
                if who in seen and replica.attempt > attempts.current_attempt(entry, replica.index):
                    found[who] = None
        return found

    def _record_phase(self) -> None:
        cluster = self._cluster
        phase = self._kind.phase_of(cluster.rendered) or str(self._ledger.phase)
        if not phase or (self._phases and self._phases[-1].phase == phase):
            return
        if self._phases:
            self._phases[-1] = PhaseSpan(self._phases[-1].phase, self._phases[-1].start, cluster.elapsed)
        self._phases.append(PhaseSpan(phase, cluster.elapsed))
        self._add(EntryKind.PHASE, phase, phase=phase)

    def _record_events(self, before: Ledger, plan: Plan) -> None:
        """Add the events in the words of the kind."""
        cluster = self._cluster
        emits = [emit for emit in cluster.events if self._kind.reports(emit.event_reason)]
        if self._kind.reports_pods:
            exits = exit_events(cluster.job, before, plan.status.ledger, every=False)
            emits = [*(self._kind.event(cluster.job, plan.status, one) for one in exits), *emits]
        for emit in emits:
            reason = emit.reason or str(emit.event_reason)
            self._add(EntryKind.EVENT, f"{reason}: {emit.message}", reason=reason)

    # -- the result ----------------------------------------------------------------------------------------------

    def _add_notes(self, left: list[Fault], then: float | None) -> None:
        cluster = self._cluster
        if self._ledger.outcome is None:
            phase = self._phases[-1].phase if self._phases else "new"
            if then is None:
                self._notes.append(f"Nothing more happens after {clock(cluster.elapsed)}: the job stays {phase}.")
            else:
                cluster.wait(self._scenario.until - cluster.elapsed)
                self._notes.append(
                    f"The job has not ended after {clock(self._scenario.until)} (--until): it is {phase}."
                )
            suspends = any(fault.kind is FaultKind.SUSPEND for fault in self._scenario.faults)
            if cluster.job.unmanaged:
                self._notes.append(UNMANAGED)
            if cluster.job.lifecycle.suspended and not suspends:
                self._notes.append("The job is suspended. --suspend 0s+10s resumes it after 10 seconds.")
        for fault in left:
            ended = "the job had ended before" if self._ledger.outcome is not None else "the simulation ends before"
            self._notes.append(f"{fault.option}: no effect, because {ended}.")

    def _end(self) -> JobEnd | None:
        cluster, outcome, verdict = self._cluster, self._ledger.outcome, self._ledger.verdict
        if outcome is None or verdict is None:
            return None
        because = policy_text.because(cluster.job, outcome)
        verb = "succeeds" if outcome.result is Result.SUCCEEDED else "fails"
        return JobEnd(
            result=str(outcome.result),
            phase=self._kind.phase_of(cluster.rendered) or str(self._ledger.phase),
            at=round((outcome.at - cluster.begun).total_seconds(), 3),
            because=f"it {verb} when {because}" if outcome.reason is Reason.RULE and not outcome.rule else because,
            verdict=verdict,
        )

    def _timeline(self) -> Timeline:
        cluster, scenario = self._cluster, self._scenario
        job, shares = cluster.job, history.time_shares(self._ledger, cluster.clock)
        sizes = at_largest_size(cluster.load().job).roles
        return Timeline(
            file=self._file,
            kind=self._kind.name,
            namespace=job.key.namespace,
            name=job.key.name,
            roles=tuple(RoleAssumption(one.name, one.replicas, scenario.durations.get(one.name)) for one in sizes),
            nodes=scenario.nodes,
            start_time=scenario.start_time,
            begun=cluster.begun,
            simulated=cluster.elapsed,
            timeline=tuple(self._entries),
            phases=tuple(self._phases),
            attempts=tuple(run.bar() for run in cluster.runs),
            budgets=self._budgets,
            time=TimeSummary(shares.wall, shares.productive, shares.lost, shares.goodput),
            end=self._end(),
            notes=tuple(self._notes),
        )
