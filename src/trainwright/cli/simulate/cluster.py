# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster of `trainwright simulate`: a scheduler and kubelets with timers in virtual time.

A pod gets the ready node with the fewest pods, starts after the start time, and succeeds after the duration of its
role. A kubelet restarts containers inside a pod if the pod's restart policy says so, with the usual back-off. A pod
that is being deleted ends at once. If a node does not answer, the operator sees what happens on it only after the node
answers again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace

from msgspec import Struct

from trainwright.cli.simulate.faults import ReplicaId, Scenario, node_name
from trainwright.cli.simulate.timeline import AttemptBar, AttemptResult
from trainwright.cli.steps import site_for
from trainwright.core.quarantine import HOSTNAME
from trainwright.core.render import PREFERRED, REQUIRED
from trainwright.kinds.base import Kind, load
from trainwright.model.child import ObjectCondition, Pod
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, INDEX, ROLE, SPARE
from trainwright.model.plan import Plan
from trainwright.node.settings import AgentDelays
from trainwright.testing.document_world import DocumentWorld

#: Upper bound of passes at one point in time; only a defect needs more.
_MAX_PASSES = 400
#: After this many seconds the operator looks again at a pod that the scheduler could not place.
_REPORT_SECONDS = 1.0
_DELAYS = AgentDelays()
_ENDED = ("Succeeded", "Failed")
_CREATIONS = ("created", "replaced", "unplaced")
_EVICTION = "The node was low on resource: memory."


class PodRun(Struct):
    """One run of a replica while the simulation goes on. `AttemptBar` is its final form."""

    role: str
    index: int
    attempt: int
    pod: str
    uid: str
    created: float
    restart: int = 0
    node: str = ""
    started: float | None = None
    ended: float | None = None
    result: AttemptResult = AttemptResult.PENDING
    detail: str = ""
    #: Seconds that the kubelet waits before the next restart inside the pod.
    back_off: float = 0.0

    @property
    def replica(self) -> ReplicaId:
        """Role and index."""
        return self.role, self.index

    def bar(self) -> AttemptBar:
        """The run as a value."""
        return AttemptBar(*(getattr(self, name) for name in AttemptBar.__struct_fields__))


class SimulatedCluster(DocumentWorld):
    """One job of any kind, its pods, and its nodes. `on_pass` gets the ledger before each pass, and the plan."""

    def __init__(self, kind: Kind, document: Body, scenario: Scenario, on_pass: Callable[[Ledger, Plan], None]) -> None:
        self.kind = kind
        self.scenario = scenario
        self._on_pass = on_pass
        names = tuple(node_name(number) for number in range(1, scenario.nodes + 1))
        super().__init__(document, site=site_for(load(kind, document).job), nodes=names)
        self.begun = self.clock
        #: The ledger after the last pass.
        self.ledger = Ledger()
        #: All runs of all replicas, in the order of their creation.
        self.runs: list[PodRun] = []
        #: What happened to replicas since the last call of `take_news`: the verb, and the run.
        self._news: list[tuple[str, PodRun]] = []
        #: Role, index and attempt of every pod so far.
        self._seen: set[tuple[str, int, int]] = set()
        self._current: dict[str, PodRun] = {}
        self._timers: list[tuple[datetime, int, Callable[[], object], PodRun | None]] = []
        self._count = 0
        self._wakes: set[datetime] = set()
        #: Pods that wait for a ConfigMap.
        self._gated: list[PodRun] = []
        #: What happens on nodes that do not answer: (node, action). The actions are done when the node answers again.
        self._unseen: list[tuple[str, Callable[[], object]]] = []

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the job was submitted."""
        return round((self.clock - self.begun).total_seconds(), 3)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` when this many seconds have passed since the job was submitted."""
        self._push(self.begun + timedelta(seconds=seconds), action)

    def _in(self, seconds: float, action: Callable[[], object], run: PodRun | None = None) -> None:
        self._push(self.clock + timedelta(seconds=seconds), action, run)

    def _push(self, when: datetime, action: Callable[[], object], run: PodRun | None = None) -> None:
        self._count += 1
        heappush(self._timers, (when, self._count, action, run))

    @property
    def next_time(self) -> float | None:
        """Seconds from the submission to the next timer; None: nothing more happens."""
        while self._timers and (run := self._timers[0][3]) is not None and not self._is_current(run):
            heappop(self._timers)  # the timer of a run that has ended
        return round((self._timers[0][0] - self.begun).total_seconds(), 3) if self._timers else None

    def advance(self) -> None:
        """Move the clock to the next timer and do everything that is due then, without a pass of the operator."""
        self.clock = max(self.clock, self._timers[0][0])
        due = []
        while self._timers and self._timers[0][0] <= self.clock:
            due.append(heappop(self._timers)[2])
        for action in due:
            action()

    def only_wakes(self) -> None:
        """Remove all timers except the wake-ups that the operator requested. Useful after the end of the job."""
        self._timers = [(when, 0, _nothing, None) for when in sorted(self._wakes) if when > self.clock]

    # -- the operator --------------------------------------------------------------------------------------------

    def operate(self) -> None:
        """Run passes of the operator until a pass changes nothing. Virtual time does not pass."""
        for _ in range(_MAX_PASSES):
            self.reap()
            self.admit()
            self._track()
            self._schedule()
            self._start_gated()
            self.catch_up()
            before, status = self.ledger, self.document.get("status")
            plan = self.step()
            self.ledger = plan.status.ledger
            self._track({delete.name: delete.why for delete in plan.deletes if delete.kind == "Pod"})
            self._on_pass(before, plan)
            if plan.wake is not None and plan.wake not in self._wakes:
                self._wakes.add(plan.wake)
                self._push(plan.wake, _nothing)
            if self.gone or (plan.empty and not self.notes and self.document.get("status") == status):
                return
        raise AssertionError(f"the operator still acts after {_MAX_PASSES} passes: {self.plans[-2:]}")

    def take_news(self, *, creations: bool = True) -> list[tuple[str, PodRun]]:
        """The changes of replicas since the last call. If `creations` is false, the next call returns the new pods."""
        news = [one for one in self._news if creations or one[0] not in _CREATIONS]
        self._news = [one for one in self._news if not creations and one[0] in _CREATIONS]
        return news

    def _track(self, reasons: dict[str, str] | None = None) -> None:
        """Begin a run for each new pod, and end the runs of pods that are gone. `reasons` say why, by pod."""
        present: set[str] = set()
        for name, pod in self.pods().items():
            present.add(pod.metadata.uid)
            labels = pod.metadata.labels or {}
            if pod.metadata.uid not in self._current and labels.get(ATTEMPT) != SPARE:
                key = labels[ROLE], int(labels[INDEX]), int(labels[ATTEMPT])
                run = PodRun(*key, name, pod.metadata.uid, self.elapsed)
                self._current[pod.metadata.uid] = run
                self.runs.append(run)
                # A pod that a user deleted is replaced by one of the same attempt.
                self._news.append(("replaced" if key in self._seen else "created", run))
                self._seen.add(key)
            elif reasons and name in reasons:
                doomed = self._current.get(pod.metadata.uid)
                if doomed is not None and doomed.ended is None:  # a kubelet removes it next
                    doomed.detail = doomed.detail or reasons[name]
        for uid in [uid for uid in self._current if uid not in present]:
            run = self._current.pop(uid)
            why = (reasons or {}).get(run.pod, "")
            self._close(run, AttemptResult.LOST if self._is_dead(run.node) else AttemptResult.STOPPED, why)

    def _close(self, run: PodRun, result: AttemptResult, detail: str = "") -> None:
        if run.ended is None:
            run.ended, run.result = self.elapsed, result
            run.detail = detail or run.detail

    # -- the scheduler -------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Place every pod that has no node: on the node with the fewest pods that has room."""
        pods = self.pods()
        waiting = [(name, pod) for name, pod in pods.items() if not pod.spec.node_name and _is_live(pod)]
        if not waiting:
            return
        load = Counter(pod.spec.node_name for pod in pods.values() if pod.spec.node_name and _is_live(pod))
        queues: dict[tuple[frozenset[str], frozenset[str]], list[tuple[bool, int, int, str]]] = {}
        for name, pod in waiting:
            terms = self._avoided(pod)
            if terms not in queues:
                queues[terms] = self._queue(load, *terms)
            node = self._pick(queues[terms], load)
            if not node:
                if not pod.status.conditions:
                    self.unplace(name, f"0/{self.scenario.nodes} nodes are available")
                    if pod.metadata.uid in self._current:
                        self._news.append(("unplaced", self._current[pod.metadata.uid]))
                    # The operator counts the waiting time only from a report in the past, so another pass must follow.
                    self._in(_REPORT_SECONDS, _nothing)
                continue
            load[node] += 1
            self.bind(name, node)
            run = self._current.get(pod.metadata.uid)
            if run is not None:  # otherwise it is a spare, which never starts
                run.node = node
                self._in(self.scenario.start_time, partial(self._start, run), run)

    def _avoided(self, pod: Pod) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes that a pod must avoid and those that it should avoid, because pods of its job failed there."""
        if not self.ledger.avoided:
            return frozenset(), frozenset()
        spec: Body = self.server.bodies_of.get(pod.metadata.uid, {}).get("spec") or {}
        affinity: Body = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
        preferred = [one.get("preference") or {} for one in affinity.get(PREFERRED) or ()]
        return frozenset(_excluded(required)), frozenset(_excluded(preferred))

    def _queue(
        self, load: Counter[str], banned: frozenset[str], disliked: frozenset[str]
    ) -> list[tuple[bool, int, int, str]]:
        nodes = self.nodes or {}
        ready = [name for name, node in nodes.items() if node.ready and name not in banned]
        queue = [(name in disliked, load[name], place, name) for place, name in enumerate(ready)]
        heapify(queue)
        return queue

    def _pick(self, queue: list[tuple[bool, int, int, str]], load: Counter[str]) -> str:
        most = self.scenario.replicas_per_node
        while queue:
            disliked, count, place, name = queue[0]
            if most and load[name] >= most:
                heappop(queue)
            elif count != load[name]:
                heapreplace(queue, (disliked, load[name], place, name))
            else:
                return name
        return ""

    # -- the kubelets --------------------------------------------------------------------------------------------

    def main_of(self, name: str) -> str:
        """The name of the main container, whose exit code decides whether the pod succeeds."""
        labels = self._pod(name).metadata.labels or {}
        role = next((one for one in self.job.roles if one.name == labels.get(ROLE)), None)
        mains = sorted(role.main_containers) if role is not None else []
        body: Body = self.server.bodies_of.get(self._pod(name).metadata.uid, {})
        containers = (body.get("spec") or {}).get("containers") or [{}]
        return mains[0] if mains else containers[0].get("name", self.main)

    def run_of(self, role: str, index: int) -> PodRun | None:
        """The current run of a replica; None if it has none or has ended."""
        name = self.job.key.replica_name(role, index)
        pod = self.truth.get(("Pod", name))
        run = self._current.get(pod.metadata.uid) if isinstance(pod, Pod) and _is_live(pod) else None
        return run if run is not None and run.ended is None else None

    def _is_current(self, run: PodRun) -> bool:
        return run.ended is None and self.run_of(run.role, run.index) is run

    def _start(self, run: PodRun) -> None:
        if not self._is_current(run):
            return
        if self._is_dead(run.node):
            self._unseen.append((run.node, lambda: self._start(run)))
            return
        self.start(run.pod, run.node)
        if self._pod(run.pod).status.phase == "Running":
            self._runs(run)
        else:
            self._gated.append(run)

    def _start_gated(self) -> None:
        """Start the pods whose ConfigMap exists now."""
        for run in [run for run in self._gated if not self._is_current(run) or not self._lacks_config(run)]:
            self._gated.remove(run)
            self._start(run)

    def _lacks_config(self, run: PodRun) -> bool:
        return isinstance(self._config(run.pod), str)

    def _runs(self, run: PodRun) -> None:
        run.started, run.result = self.elapsed, AttemptResult.RUNNING
        self._news.append(("restarted" if run.restart else "running", run))
        duration = self.scenario.durations.get(run.role)
        if duration is not None:
            self._in(duration, lambda: self.finish(run, 0), run)

    def finish(self, run: PodRun, code: int, reason: str = "") -> None:
        """The program of a replica ends, unless it is not running any more."""
        if not self._is_current(run) or run.started is None:
            return
        if self._is_dead(run.node):
            self._unseen.append((run.node, lambda: self.finish(run, code, reason)))
            return
        policy = self._pod(run.pod).spec.restart_policy
        detail = reason or (f"exit code {code}" if code else "")
        self._close(run, AttemptResult.FAILED if code else AttemptResult.SUCCEEDED, detail)
        if not code:
            self._news.append(("succeeded", run))
        if policy == "Always" or (policy == "OnFailure" and code):
            self._restart_in_place(run, code, reason)
        else:
            self.exit(run.pod, code, reason)

    def _restart_in_place(self, run: PodRun, code: int, reason: str) -> None:
        """The kubelet restarts a container: the first time at once, then after a back-off that doubles."""
        self.crash(run.pod, code, reason)
        ran = self.elapsed - (run.started or 0.0)
        delay = 0.0 if ran >= _DELAYS.backoff_reset else run.back_off
        longer = min(2 * delay, _DELAYS.max_restart_backoff) if delay else _DELAYS.restart_backoff
        key = run.role, run.index, run.attempt, run.pod, run.uid
        again = PodRun(*key, self.elapsed, run.restart + 1, run.node, back_off=longer)
        self._current[run.uid] = again
        self.runs.append(again)
        self._in(delay, lambda: self._restarted(again), again)

    def _restarted(self, run: PodRun) -> None:
        if not self._is_current(run):
            return
        if self._is_dead(run.node):
            self._unseen.append((run.node, lambda: self._restarted(run)))
            return
        self.restart(run.pod)
        self._runs(run)

    # -- faults --------------------------------------------------------------------------------------------------

    def evict_run(self, run: PodRun, *, preempted: bool) -> None:
        """A kubelet evicts a pod because its node has too little memory, or the scheduler preempts it."""
        self._close(run, AttemptResult.PREEMPTED if preempted else AttemptResult.EVICTED)
        if preempted:
            self.evict(run.pod)
            return
        # Kubelets set this condition together with the reason.
        target = ObjectCondition("DisruptionTarget", "True", "TerminationByKubelet", _EVICTION, self.clock)
        self.change(run.pod, phase="Failed", reason="Evicted", message=_EVICTION, conditions=(target,))

    def delete_run(self, run: PodRun) -> None:
        """A user deletes a pod."""
        if not self._is_dead(run.node):
            self._close(run, AttemptResult.DELETED)
        self.delete(("Pod", run.pod))

    def is_silent(self, node: str) -> bool:
        """Whether a node does not answer."""
        return self._is_dead(node)

    def node_returns(self, name: str) -> None:
        """A node answers again, and reports what has happened on it."""
        self.return_node(name)
        seen = [action for node, action in self._unseen if node == name]
        self._unseen = [(node, action) for node, action in self._unseen if node != name]
        for action in seen:
            action()


def _is_live(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in _ENDED


def _excluded(terms: object) -> Iterator[str]:
    for term in terms if isinstance(terms, list | tuple) else ():
        for one in term.get("matchExpressions") or ():
            if one.get("key") == HOSTNAME and one.get("operator") == "NotIn":
                yield from one.get("values") or ()


def _nothing() -> None:
    """The action of a timer that only wakes the operator."""
