# SPDX-License-Identifier: Apache-2.0
"""A small cluster in memory: an API server, a kubelet by hand, and an operator that can be stale or die.

Tests and `trainwright plan` drive it: change the world (`start`, `exit`, `vanish`, `lose_node` …), let the operator
look (`step`, or `step(dies_after=n)`), move the `clock`. The operator has the caches and the executor of `runtime`:
watch events reach the caches when `deliver` says so, the answers to its own writes at once. What it stores goes
through JSON, as on a real server. With `defers` it keeps what need not be stored at once to itself, and loses that when
it dies.
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
from trainwright.runtime.cache import Cache
from trainwright.runtime.executor import Executor
from trainwright.runtime.informer import ClusterCache
from trainwright.runtime.job_state import JobState
from trainwright.runtime.ports import Resource, WatchEvent, WatchEventType, groups_of
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import Telemetry
from trainwright.testing import factories
from trainwright.testing.apiserver import GRACE, Address, ApiServer, Child, DiedError, Note, selected

#: Seconds after which a refused create is tried again.
REFUSED = 30
_SETTINGS = ControllerSettings(writes=1, refused=REFUSED, refused_most=REFUSED, extras=groups_of(KINDS))


class StaleError(Exception):
    """A write was refused: what it was based on is no longer true."""


class World:
    """One job and its children. `truth` is what the API server has, `cache` what the operator has seen of it."""

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
        #: By UID: what pods read of a ConfigMap when they started.
        self.read: dict[str, dict[str, str]] = {}
        self.plans: list[Plan] = []
        self.server = ApiServer(self.now, lambda: self.job)
        self.server.finalized, self.server.removed = self._finalized, self._removed
        self._begin()

    def _begin(self) -> None:
        """A new operator: it has seen nothing yet."""
        telemetry = Telemetry()
        self._view = ClusterCache(self.server, self, _SETTINGS, telemetry)
        owner = self.job.owner
        group, _, version = owner.api_version.rpartition("/")
        kind = Resource(group, version, f"{owner.kind.lower()}s", owner.kind)
        self._view.jobs.setdefault(self.job.kind, Cache(kind))
        self._executor = Executor(self.server, self._view, _SETTINGS, telemetry)
        self._track = JobState(KINDS[0], self.job.uid)  # its kind is for reading documents, and the world has none

    def now(self) -> datetime:
        """The time; the world is the `Clock` of its operator."""
        return self.clock

    @property
    def truth(self) -> dict[Address, Child]:
        """What really exists."""
        return self.server.truth

    @property
    def notes(self) -> list[Note]:
        """The watch events that are not delivered yet."""
        return self.server.notes

    @property
    def writes(self) -> list[str]:
        """Everything that the operator has written."""
        return self.server.writes

    @property
    def refusals(self) -> dict[Address, Refusal]:
        """What the operator could not make."""
        return self._track.refusals

    # -- the operator --------------------------------------------------------------------------------------------

    def observed(self) -> Observed:
        """The job's children as the operator sees them."""
        seen = self._view.observe(self.seen_job, tuple(self.refusals.values()))
        return replace(seen, nodes=self.nodes)

    def look(self) -> Plan:
        """What the operator would do now."""
        return reconcile(self.seen_job, self.observed(), self.site, self.clock)

    def step(self, *, dies_after: int | None = None) -> Plan:
        """One pass, carried out in the order of `model.plan`; killed after so many writes if told so."""
        self._track.begin(self.clock)
        plan = self.look()
        self.plans.append(plan)
        self._track.expire(self.clock, {(create.body["kind"], create.name) for create in plan.creates})
        try:
            self.carry_out(plan, dies_after)
        except DiedError:
            self.restart_operator()
        except StaleError:
            self._see_job()
        return plan

    def carry_out(self, plan: Plan, dies_after: int | None = None) -> None:
        """Write after write."""
        self.server.dies_at = None if dies_after is None else len(self.writes) + dies_after
        if plan.write is Write.LATER and self.defers:
            self.pending = plan.status.ledger
            self.seen_job = replace(self.seen_job, ledger=self.pending)
        elif plan.write is not Write.NOT:
            self._store(plan.status.ledger)
        _finished(self._executor.carry_out(self.seen_job, plan, self._track, self.clock))

    def restart_operator(self) -> None:
        """A new operator lists everything."""
        self.notes.clear()
        self._begin()
        for cache in self._view.children.values():
            cache.replace(self.server.page(cache.resource))
        self.pending = None
        self._see_job()

    def deliver(self, position: int = 0) -> None:
        """One watch event arrives: the first by default; those of one resource come in their order."""
        if self.notes:
            chosen = self.notes[position % len(self.notes)]
            note = next(earlier for earlier in self.notes if earlier.address[0] == chosen.address[0])
            self.notes.remove(note)
            # A watch tells that an object is gone when it has lost the labels that informers select by.
            what = note.what if selected(note.child) else WatchEventType.DELETED
            api = note.child.api_version if isinstance(note.child, Extra) else "v1"
            self._view.children[api, note.address[0]].apply(WatchEvent(what, str(note.version), note.child))

    def catch_up(self) -> None:
        """Every watch event arrives, and so does the job."""
        while self.notes:
            self.deliver()
        self._see_job()

    def _see_job(self) -> None:
        """The job as it is stored, with what the operator has concluded since and may still write."""
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
        """Somebody edits the job's spec."""
        self.job = replace(self.job, generation=self.job.generation + 1, **changes)
        self.version += 1

    def _finalized(self, _: Body) -> None:
        self.job = self.seen_job = replace(self.job, finalizers=None)

    def _removed(self) -> None:
        self.gone = True

    def delete(self, address: Address, *, grace: int = GRACE) -> None:
        """Somebody deletes an object; a pod that a node holds lingers until its kubelet is done with it."""
        self.server.remove(address, grace)

    def put(self, address: Address, child: Child | None) -> None:
        """Somebody changes an object, or makes or removes one."""
        self.server.put(address, child)

    # -- the kubelet and other people ----------------------------------------------------------------------------

    def pods(self) -> dict[str, Pod]:
        """The pods that really exist."""
        return {name: child for (_, name), child in self.truth.items() if isinstance(child, Pod)}

    def _ours(self, pod: Pod) -> bool:
        owner = pod.metadata.controller
        return owner is not None and owner.uid == self.job.uid

    def _pod(self, name: str) -> Pod:
        """The pod of that name."""
        pod = self.truth["Pod", name]
        assert isinstance(pod, Pod)  # noqa: S101 - the address says so
        return pod

    def change(self, name: str, **status: Any) -> None:
        """A pod's status changes."""
        pod = self._pod(name)
        self.put(("Pod", name), replace(pod, status=replace(pod.status, **status)))

    def bind(self, name: str, node: str = "node-1") -> None:
        """The scheduler puts a pod on a node."""
        pod = self._pod(name)
        if not pod.spec.node_name:
            self.put(("Pod", name), replace(pod, spec=replace(pod.spec, node_name=node)))

    def unplace(self, name: str) -> None:
        """The scheduler finds no node for a pod, and says so; since when is not said again."""
        pod = self._pod(name)
        if not pod.spec.node_name and not pod.status.conditions:
            told = ObjectCondition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available", self.clock)
            self.change(name, conditions=(told,))

    def start(self, name: str, node: str = "node-1") -> None:
        """The pod runs, or has an address and waits for the ConfigMap that it needs, or only holds a place."""
        self.bind(name, node)
        if (self._pod(name).metadata.labels or {}).get(ATTEMPT) == SPARE:
            return
        address = self._pod(name).status.pod_ip or self._address()
        told = self._told(name)
        if isinstance(told, str):
            waiting = Waiting("CreateContainerConfigError", told)
            container = ContainerStatus(self.main, state=ContainerState(waiting=waiting))
            self.change(name, pod_ip=address, start_time=self.clock, container_statuses=(container,))
            return
        self.read[self._pod(name).metadata.uid] = told
        running = ContainerStatus(self.main, ready=True, state=ContainerState(running=Running(self.clock)))
        self.change(name, phase="Running", pod_ip=address, start_time=self.clock, container_statuses=(running,))

    def _address(self) -> str:
        self.addresses += 1
        return f"10.0.{self.addresses // 250}.{1 + self.addresses % 250}"

    def _told(self, name: str) -> dict[str, str] | str:
        """What a pod reads of its job's ConfigMap when it starts, or what a kubelet says if it cannot."""
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
        return None if child is None else self.server.bodies_of.get(_uid(child), {}).get("data", {})

    def exit(self, name: str, code: int = 0) -> None:
        """The pod's container ends."""
        end = Terminated(code, reason="Error" if code else "Completed", finished_at=self.clock)
        ended = ContainerStatus(self.main, state=ContainerState(terminated=end))
        self.change(name, phase="Failed" if code else "Succeeded", container_statuses=(ended,))

    def crash(self, name: str, code: int = 1) -> None:
        """The pod's container ends, and its kubelet will start it again: it waits out its back-off."""
        end = ContainerState(terminated=Terminated(code, reason="Error", finished_at=self.clock))
        waits = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 10s restarting failed container"))
        crashed = ContainerStatus(self.main, restart_count=self._restarts(name), state=waits, last_state=end)
        self.change(name, container_statuses=(crashed,))

    def restart(self, name: str) -> None:
        """Its kubelet starts the container again."""
        up = ContainerState(running=Running(self.clock))
        again = ContainerStatus(self.main, ready=True, restart_count=self._restarts(name) + 1, state=up)
        self.change(name, container_statuses=(again,))

    def _restarts(self, name: str) -> int:
        return sum(one.restart_count for one in self._pod(name).status.container_statuses or ())

    @property
    def main(self) -> str:
        """What the container that counts is called."""
        return next((name for role in self.job.roles for name in sorted(role.mains)), "main")

    def admit(self) -> None:
        """The gang's scheduler lets the pods of its groups be made, where it is one that is asked first."""
        gang = self.job.gang.at(self.site) if self.job.gang is not None else None
        for address, child in list(self.truth.items()):
            if gang is not None and gang.admits and isinstance(child, Extra) and child.status is None:
                self.put(address, replace(child, status=GroupStatus(min(gang.admits))))

    def evict(self, name: str) -> None:
        """Preempted or drained."""
        target = ObjectCondition("DisruptionTarget", "True", "PreemptionByScheduler")
        self.change(name, phase="Failed", conditions=(target,))

    def vanish(self, name: str) -> None:
        """The pod object is gone: collected, or deleted without grace."""
        self.put(("Pod", name), None)

    def reap(self) -> None:
        """Kubelets of live nodes finish pods that are being deleted."""
        for name, pod in self.pods().items():
            if pod.metadata.deletion_timestamp is not None and not self._dead(pod.spec.node_name):
                self.put(("Pod", name), None)

    def _dead(self, node: str) -> bool:
        if self.nodes is None or not node:
            return False
        known = self.nodes.get(node)
        # Pods of a node that does not exist are collected by the cluster itself.
        return known is not None and not known.ready

    def lose_node(self, name: str) -> None:
        """A node falls silent."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, ready=False, since=self.clock)}

    def sicken_node(self, name: str) -> None:
        """A detector says that the GPUs of a node have failed."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, since=self.clock, sick="XIDErrors")}

    def return_node(self, name: str) -> None:
        """It answers again."""
        if self.nodes is not None:
            self.nodes = self.nodes | {name: factories.node(name, since=self.clock)}

    def wait(self, seconds: float) -> None:
        """Time passes; or is set back."""
        self.clock += timedelta(seconds=seconds)

    # -- until nothing changes -----------------------------------------------------------------------------------

    def settle(self, rounds: int = 200, place: str = "") -> Plan:
        """Let the operator work, with a fair kubelet that only finishes what is being deleted, until it rests.

        With a place, there is room for all: whatever waits for a node is started there.
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
        raise AssertionError(f"no rest after {rounds} rounds: {self.plans[-3:]}")


def _uid(child: Child) -> str:
    return child.metadata.uid


def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing but the world, without an event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("the operator waits for something that is not of this world")
