# SPDX-License-Identifier: Apache-2.0
"""A small cluster in memory: an API server, a kubelet that the test controls, and an operator that can be killed.

The caller changes the world (`start`, `exit`, `vanish`, `lose_node` …), runs one pass of the operator (`step`, or
`step(dies_after=n)`), and moves the `clock`. The operator uses the caches and the executor of `runtime`. A watch event
reaches the caches when the caller calls `deliver`; responses to the operator's writes reach the caches at once. The
stored ledger is encoded and decoded as JSON, as on a real server. With `defers`, the operator keeps a ledger in memory
if the ledger need not be stored at once. An operator that is killed loses this ledger.
"""

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from trainwright.core.reconcile import reconcile
from trainwright.kinds.registry import KINDS
from trainwright.model.child import (
    ContainerState,
    ContainerStatus,
    Extra,
    GroupStatus,
    Node,
    ObjectCondition,
    Observed,
    Pod,
    Refusal,
    Running,
    Terminated,
    Waiting,
)
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, SPARE
from trainwright.model.plan import Plan, Write
from trainwright.model.site import Site
from trainwright.runtime.cache import Cache, ClusterCache
from trainwright.runtime.executor import Executor
from trainwright.runtime.job_state import JobState
from trainwright.runtime.ports import Resource, WatchEvent, WatchEventType, autoscalers_of, groups_of
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import Telemetry
from trainwright.testing import factories
from trainwright.testing.apiserver import GRACE, Address, ApiServer, Child, DiedError, Note, selected

#: After the API server refused to create a child, the operator tries again after this many seconds.
REFUSED = 30
_EXTRAS = (*groups_of(KINDS), *autoscalers_of(KINDS))
_SETTINGS = ControllerSettings(writes=1, refused=REFUSED, refused_most=REFUSED, extras=_EXTRAS)


class StaleError(Exception):
    """The API server refused a write that was based on an old version."""


class World:
    """One job and its children. `truth`: objects in the API server; `observed()`: objects in the operator's caches."""

    def __init__(
        self, job: Job, *, site: Site | None = None, nodes: tuple[str, ...] = (), defers: bool = False
    ) -> None:
        self.defers = defers
        self.pending: Ledger | None = None
        self.site = site or Site()
        self.clock = factories.NOW
        self.nodes: dict[str, Node] | None = {name: factories.node(name) for name in nodes} or None
        self.job, self.version = job, 1
        self.seen_job, self.seen_version = job, 1
        self.gone = False
        self.addresses = 0
        #: The ConfigMap data that each pod read at its start, by UID of the pod.
        self.read: dict[str, dict[str, str]] = {}
        self.plans: list[Plan] = []
        self.server = ApiServer(self.now, lambda: self.job)
        self.server.finalized, self.server.removed = self._finalized, self._removed
        self._start_operator()

    def _start_operator(self) -> None:
        """Start an operator with empty caches."""
        telemetry = Telemetry()
        self._cluster_cache = ClusterCache(self, _SETTINGS)
        owner = self.job.owner
        group, _, version = owner.api_version.rpartition("/")
        kind = Resource(group, version, f"{owner.kind.lower()}s", owner.kind)
        self._cluster_cache.jobs.setdefault(self.job.kind, Cache(kind))
        self._executor = Executor(self.server, self._cluster_cache, _SETTINGS, telemetry)
        self._state = JobState(KINDS[0], self.job.uid)  # only `load` uses the kind; the world never calls `load`

    def now(self) -> datetime:
        """The current time: the world is the `Clock` of its operator."""
        return self.clock

    @property
    def truth(self) -> dict[Address, Child]:
        """The objects of the API server."""
        return self.server.truth

    @property
    def notes(self) -> list[Note]:
        """The watch events that are not delivered yet, in order."""
        return self.server.notes

    @property
    def writes(self) -> list[str]:
        """All writes of the operator."""
        return self.server.writes

    @property
    def refusals(self) -> dict[Address, Refusal]:
        """The children that the API server refused to create."""
        return self._state.refusals

    # -- the operator --------------------------------------------------------------------------------------------

    def observed(self) -> Observed:
        """The children of the job in the operator's caches."""
        observed = self._cluster_cache.observe(self.seen_job, tuple(self.refusals.values()))
        return replace(observed, nodes=self.nodes)

    def look(self) -> Plan:
        """The plan that the operator would make now."""
        return reconcile(self.seen_job, self.observed(), self.site, self.clock)

    def step(self, *, dies_after: int | None = None) -> Plan:
        """Run one pass. With `dies_after`, the operator is killed after this number of writes and starts again."""
        self._state.begin_pass(self.clock)
        plan = self.look()
        self.plans.append(plan)
        self._state.expire(self.clock, {(create.body["kind"], create.name) for create in plan.creates})
        try:
            self.carry_out(plan, dies_after)
        except DiedError:
            self.restart_operator()
        except StaleError:
            self._see_job()
        return plan

    def carry_out(self, plan: Plan, dies_after: int | None = None) -> None:
        """Carry out a plan as the operator does."""
        self.server.dies_at = None if dies_after is None else len(self.writes) + dies_after
        if plan.write in (Write.LATER, Write.ACCEPTED) and self.defers:
            self.pending = plan.status.ledger
            self.seen_job = replace(self.seen_job, ledger=self.pending)
        elif plan.write is not Write.NOT:
            self._store(plan.status.ledger)
        _run(self._executor.carry_out(self.seen_job, plan, self._state, self.clock))

    def restart_operator(self) -> None:
        """Start a new operator, which lists all objects."""
        self.notes.clear()
        self._start_operator()
        for cache in self._cluster_cache.children.values():
            cache.replace(self.server.page(cache.resource))
        self.pending = None
        self._see_job()

    def deliver(self, position: int = 0) -> None:
        """Deliver one watch event, by default the first. The events of one resource stay in order."""
        if self.notes:
            chosen = self.notes[position % len(self.notes)]
            note = next(earlier for earlier in self.notes if earlier.address[0] == chosen.address[0])
            self.notes.remove(note)
            # If an object loses the labels that a watch selects, the watch reports the object as deleted.
            what = note.what if selected(note.child) else WatchEventType.DELETED
            api = note.child.api_version if isinstance(note.child, Extra) else "v1"
            self._cluster_cache.children[api, note.address[0]].apply(WatchEvent(what, str(note.version), note.child))

    def catch_up(self) -> None:
        """Deliver all watch events and the stored job to the operator."""
        while self.notes:
            self.deliver()
        self._see_job()

    def _see_job(self) -> None:
        """Give the operator the stored job. A pending ledger in the operator's memory replaces the stored ledger."""
        self.seen_job = self.job if self.pending is None else replace(self.job, ledger=self.pending)
        self.seen_version = self.version

    # -- the API server ------------------------------------------------------------------------------------------

    def _store(self, ledger: Ledger) -> None:
        if self.seen_version != self.version:
            raise StaleError
        self.server.note_write("status")
        ledger = msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger)
        self.job, self.version = replace(self.job, ledger=ledger), self.version + 1
        self.pending = None
        self._see_job()

    def edit(self, **changes: Any) -> None:
        """A user edits the spec of the job."""
        self.job = replace(self.job, generation=self.job.generation + 1, **changes)
        self.version += 1

    def _finalized(self, _: Body) -> None:
        self.job = self.seen_job = replace(self.job, finalizers=None)

    def _removed(self) -> None:
        self.gone = True

    def delete(self, address: Address, *, grace: int = GRACE) -> None:
        """A user deletes an object. A pod on a node stays until its kubelet has stopped it."""
        self.server.remove(address, grace)

    def put(self, address: Address, child: Child | None) -> None:
        """A user creates, changes or (with None) removes an object."""
        self.server.put(address, child)

    # -- kubelets, scheduler and users ---------------------------------------------------------------------------

    def pods(self) -> dict[str, Pod]:
        """The pods of the API server, by name."""
        return {name: child for (_, name), child in self.truth.items() if isinstance(child, Pod)}

    def _ours(self, pod: Pod) -> bool:
        owner = pod.metadata.controller
        return owner is not None and owner.uid == self.job.uid

    def _pod(self, name: str) -> Pod:
        pod = self.truth["Pod", name]
        assert isinstance(pod, Pod)  # noqa: S101 - for the type checker
        return pod

    def change(self, name: str, **status: Any) -> None:
        """Change the status of a pod."""
        pod = self._pod(name)
        self.put(("Pod", name), replace(pod, status=replace(pod.status, **status)))

    def bind(self, name: str, node: str = "node-1") -> None:
        """The scheduler assigns a pod to a node."""
        pod = self._pod(name)
        if not pod.spec.node_name:
            self.put(("Pod", name), replace(pod, spec=replace(pod.spec, node_name=node)))

    def unplace(self, name: str, message: str = "0/2 nodes are available") -> None:
        """The scheduler reports that no node fits a pod. A second report keeps the time of the first."""
        pod = self._pod(name)
        if not pod.spec.node_name and not pod.status.conditions:
            condition = ObjectCondition("PodScheduled", "False", "Unschedulable", message, self.clock)
            self.change(name, conditions=(condition,))

    def start(self, name: str, node: str = "node-1") -> None:
        """Start a pod. It runs, or it waits for a ConfigMap that it needs. A spare pod is only bound to its node."""
        self.bind(name, node)
        if (self._pod(name).metadata.labels or {}).get(ATTEMPT) == SPARE:
            return
        address = self._pod(name).status.pod_ip or self._address()
        config = self._config(name)
        if isinstance(config, str):
            waiting = Waiting("CreateContainerConfigError", config)
            container = ContainerStatus(self.main_of(name), state=ContainerState(waiting=waiting))
            self.change(name, pod_ip=address, start_time=self.clock, container_statuses=(container,))
            return
        self.read[self._pod(name).metadata.uid] = config
        running = ContainerStatus(self.main_of(name), ready=True, state=ContainerState(running=Running(self.clock)))
        self.change(name, phase="Running", pod_ip=address, start_time=self.clock, container_statuses=(running,))

    def _address(self) -> str:
        self.addresses += 1
        return f"10.0.{self.addresses // 250}.{1 + self.addresses % 250}"

    def _config(self, name: str) -> dict[str, str] | str:
        """The ConfigMap data that a starting pod reads, or the kubelet's error message if the ConfigMap is missing."""
        found: dict[str, str] = {}
        gates = {role.gate for role in self.job.roles if role.gate}
        body = self.server.bodies_of.get(self._pod(name).metadata.uid, {}) if gates else {}
        for container in (body.get("spec") or {}).get("containers") or ():
            for source in container.get("envFrom") or ():
                needed = (source.get("configMapRef") or {}).get("name")
                if needed in gates:
                    data = self._data(needed)
                    if data is None:
                        return f'configmap "{needed}" not found'
                    found |= data
            for entry in container.get("env") or ():
                ref = (entry.get("valueFrom") or {}).get("configMapKeyRef") or {}
                if ref.get("name") in gates and ref["key"] not in (self._data(ref["name"]) or {}):
                    return f"couldn't find key {ref['key']} in ConfigMap {self.job.key.namespace}/{ref['name']}"
        return found

    def _data(self, name: str) -> dict[str, str] | None:
        child = self.truth.get(("ConfigMap", name))
        return None if child is None else self.server.bodies_of.get(child.metadata.uid, {}).get("data", {})

    def exit(self, name: str, code: int = 0, reason: str = "") -> None:
        """The container of a pod ends."""
        end = self._terminated(code, reason)
        ended = ContainerStatus(self.main_of(name), state=ContainerState(terminated=end))
        self.change(name, phase="Failed" if code else "Succeeded", container_statuses=(ended,))

    def _terminated(self, code: int, reason: str) -> Terminated:
        return Terminated(code, reason=reason or ("Error" if code else "Completed"), finished_at=self.clock)

    def crash(self, name: str, code: int = 1, reason: str = "") -> None:
        """The container of a pod ends, and its kubelet waits for the back-off before the restart."""
        end = ContainerState(terminated=self._terminated(code, reason))
        waits = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 10s restarting failed container"))
        crashed = ContainerStatus(self.main_of(name), restart_count=self._restarts(name), state=waits, last_state=end)
        self.change(name, container_statuses=(crashed,))

    def restart(self, name: str) -> None:
        """The kubelet restarts the container of a pod."""
        up = ContainerState(running=Running(self.clock))
        before = next((one.last_state for one in self._pod(name).status.container_statuses or ()), None)
        count = self._restarts(name) + 1
        again = ContainerStatus(self.main_of(name), ready=True, restart_count=count, state=up, last_state=before)
        self.change(name, container_statuses=(again,))

    def _restarts(self, name: str) -> int:
        return sum(one.restart_count for one in self._pod(name).status.container_statuses or ())

    def main_of(self, _name: str) -> str:
        """The name of the main container of a pod. In this world, all pods have the same one."""
        return self.main

    @property
    def main(self) -> str:
        """The name of the first main container of the job."""
        return next((name for role in self.job.roles for name in sorted(role.main_containers)), "main")

    def admit(self) -> None:
        """The gang scheduler admits all pod groups. No effect if it admits groups only after their pods exist."""
        gang = self.job.gang.at(self.site) if self.job.gang is not None else None
        for address, child in list(self.truth.items()):
            if gang is not None and gang.admitting_phases and isinstance(child, Extra) and child.status is None:
                self.put(address, replace(child, status=GroupStatus(min(gang.admitting_phases))))

    def evict(self, name: str) -> None:
        """The scheduler preempts a pod."""
        target = ObjectCondition("DisruptionTarget", "True", "PreemptionByScheduler")
        self.change(name, phase="Failed", conditions=(target,))

    def vanish(self, name: str) -> None:
        """Remove a pod without a grace period."""
        self.put(("Pod", name), None)

    def reap(self) -> None:
        """Kubelets remove the pods that are being deleted, except pods on nodes that are not ready."""
        for name, pod in self.pods().items():
            if pod.metadata.deletion_timestamp is not None and not self._is_dead(pod.spec.node_name):
                self.put(("Pod", name), None)

    def _is_dead(self, node: str) -> bool:
        if self.nodes is None or not node:
            return False
        known = self.nodes.get(node)
        # If the node does not exist, it does not count as dead: the pod garbage collector removes its pods.
        return known is not None and not known.ready

    def lose_node(self, name: str) -> None:
        """A node stops answering."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, ready=False, since=self.clock)}

    def sicken_node(self, name: str) -> None:
        """A detector reports that the GPUs of a node have failed."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, since=self.clock, sick="XIDErrors")}

    def return_node(self, name: str) -> None:
        """A node answers again."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, since=self.clock)}

    def wait(self, seconds: float) -> None:
        """Set the clock forward by this many seconds; a negative number sets the clock back."""
        self.clock += timedelta(seconds=seconds)

    # -- until nothing changes -----------------------------------------------------------------------------------

    def settle(self, rounds: int = 200, place: str = "") -> Plan:
        """Run passes until the operator has nothing more to do. It calls `reap` before each pass.

        With `place`, all pods that wait for a node are started on the node of this name.
        """
        for _ in range(rounds):
            self.reap()
            for name, pod in self.pods().items():
                if place and pod.status.phase == "Pending" and self._ours(pod) and not pod.spec.node_name:
                    self.start(name, place)
            self.catch_up()
            plan = self.step()
            if self.gone or (plan.empty and plan.wake is None and not self.notes):
                return plan
            if plan.empty and plan.wake is not None:
                self.clock = max(self.clock, plan.wake)
        raise AssertionError(f"the operator still acts after {rounds} rounds: {self.plans[-3:]}")


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, without an event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("the operator waits for something outside of the simulated world")
