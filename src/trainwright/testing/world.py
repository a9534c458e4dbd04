# SPDX-License-Identifier: Apache-2.0
"""A small cluster in memory: an API server's manners, a kubelet by hand, and an operator that can be stale or die.

Tests and `trainwright plan` drive it: change the world (`start`, `exit`, `vanish`, `lose_node` …), let the operator
look (`step`, or `step(dies_after=n)`), move the `clock`. The operator reads only its cache; watch events reach that
when `deliver` says so, its own writes at once. What it stores goes through JSON, as on a real server. With `defers` it
keeps what need not be stored at once to itself, and loses that when it dies.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.core.reconcile import reconcile
from trainwright.model.action import Create, Delete, Patch, Plan, Write
from trainwright.model.child import (
    Condition,
    Container,
    ContainerState,
    Extra,
    GroupStatus,
    Node,
    Observed,
    Pod,
    Refusal,
    Running,
    Service,
    Terminated,
    Waiting,
)
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import ATTEMPT, SPARE
from trainwright.model.site import Site
from trainwright.testing import factories

GRACE = 30
#: How long a refused create is not tried again.
REFUSED = 30
Child = Pod | Service | Extra
Address = tuple[str, str]


class DiedError(Exception):
    """The operator was killed between two writes."""


class StaleError(Exception):
    """A write was refused: what it was based on is no longer true."""


class Note(Struct, frozen=True):
    """A watch event that has not been delivered yet; no child means that it is gone."""

    address: Address
    child: Child | None


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
        self.truth: dict[Address, Child] = {}
        self.cache: dict[Address, Child] = {}
        self.notes: list[Note] = []
        self.tombstones: set[str] = set()
        self.refusals: dict[Address, Refusal] = {}
        self.job, self.version = job, 1
        self.seen_job, self.seen_version = job, 1
        self.gone = False
        self.made = self.addresses = 0
        #: By UID: what pods and ConfigMaps were made from, and what pods read of a ConfigMap when they started.
        self.bodies_of: dict[str, Body] = {}
        self.read: dict[str, dict[str, str]] = {}
        self.writes: list[str] = []
        self.plans: list[Plan] = []

    # -- the operator --------------------------------------------------------------------------------------------

    def observed(self) -> Observed:
        """The job's children as the operator sees them."""
        children = [self.cache[address] for address in sorted(self.cache)]
        return Observed(
            pods=tuple(child for child in children if isinstance(child, Pod)),
            services=tuple(child for child in children if isinstance(child, Service)),
            extras=tuple(child for child in children if isinstance(child, Extra)),
            nodes=self.nodes,
            refusals=tuple(self.refusals.values()),
        )

    def look(self) -> Plan:
        """What the operator would do now."""
        return reconcile(self.seen_job, self.observed(), self.site, self.clock)

    def step(self, *, dies_after: int | None = None) -> Plan:
        """One pass, carried out in the order of `model.action`; killed after so many writes if told so."""
        plan = self.look()
        self.plans.append(plan)
        try:
            self.carry_out(plan, dies_after)
        except DiedError:
            self.restart_operator()
        except StaleError:
            self._see_job()
        return plan

    def carry_out(self, plan: Plan, dies_after: int | None = None) -> None:
        """Write after write."""
        left = len(self.writes) + dies_after if dies_after is not None else None
        for write in self._writes(plan):
            if left is not None and len(self.writes) >= left:
                raise DiedError
            write()

    def _writes(self, plan: Plan) -> list[Callable[[], None]]:
        writes: list[Callable[[], None]] = []
        if plan.write is Write.LATER and self.defers:
            self.pending = plan.status.ledger
            self.seen_job = replace(self.seen_job, ledger=self.pending)
        elif plan.write is not Write.NOT:
            writes.append(partial(self._store, plan.status.ledger))
        writes += [partial(self._patch, patch) for patch in plan.patches]
        writes += [partial(self._delete, delete) for delete in plan.deletes]
        writes += [partial(self._create, create) for create in plan.creates]
        return writes + ([self._remove_job] if plan.remove_job else [])

    def restart_operator(self) -> None:
        """A new operator lists everything."""
        self.cache = dict(self.truth)
        self.notes.clear()
        self.pending = None
        self._see_job()
        self.refusals.clear()

    def deliver(self, position: int = 0) -> None:
        """One watch event arrives: the first by default; never an older one for an object after a newer."""
        if self.notes:
            note = self.notes[position % len(self.notes)]
            note = next(earlier for earlier in self.notes if earlier.address == note.address)
            self.notes.remove(note)
            self._see(note.address, note.child)

    def catch_up(self) -> None:
        """Every watch event arrives, and so does the job."""
        while self.notes:
            self.deliver()
        self._see_job()

    def _see_job(self) -> None:
        """The job as it is stored, with what the operator has concluded since and may still write."""
        self.seen_job = self.job if self.pending is None else replace(self.job, ledger=self.pending)
        self.seen_version = self.version

    def _see(self, address: Address, child: Child | None) -> None:
        """Into the cache; an object that our own delete has removed is not revived by an older event."""
        if child is None:
            self.cache.pop(address, None)
        elif _uid(child) not in self.tombstones:
            self.cache[address] = child

    # -- the API server ------------------------------------------------------------------------------------------

    def _store(self, ledger: Ledger) -> None:
        if self.seen_version != self.version:
            raise StaleError
        self.writes.append("status")
        ledger = msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger)
        self.job, self.version = replace(self.job, ledger=ledger), self.version + 1
        self.pending = None
        self._see_job()

    def edit(self, **changes: Any) -> None:
        """Somebody edits the job's spec."""
        self.job = replace(self.job, generation=self.job.generation + 1, **changes)
        self.version += 1

    def _create(self, create: Create) -> None:
        kind, name = address = (create.body["kind"], create.name)
        self.writes.append(f"create {kind} {name}")
        existing = self.truth.get(address)
        if existing is not None:
            self._taken(address, existing)
            return
        self.made += 1
        self.refusals.pop(address, None)
        self.bodies_of[f"uid-{self.made}"] = dict(create.body)
        self._set(address, self._born(create, f"uid-{self.made}"), ours=True)

    def _taken(self, address: Address, existing: Child) -> None:
        """409: one GET tells whose it is. A foreign object is reported; ours, or one on its way out, is now seen."""
        owner = existing.metadata.controller
        if (owner is None or owner.uid != self.job.uid) and existing.metadata.deletion_timestamp is None:
            until = self.clock + timedelta(seconds=REFUSED)
            said = "somebody else's has its name"
            self.refusals[address] = Refusal(address[1], "AlreadyExists", said, until, address[0])
        self.cache[address] = existing

    def _born(self, create: Create, uid: str) -> Child:
        """The narrow slice of a new object."""
        body = create.body
        meta = {**body["metadata"], "uid": uid, "creationTimestamp": self.clock.isoformat()}
        whole: dict[str, Any] = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": meta}
        if body["kind"] == "Pod":
            return msgspec.convert(whole | {"spec": body["spec"]}, Pod)
        if body["kind"] == "Service":
            return msgspec.convert(whole, Service)
        return msgspec.convert(whole, Extra)

    def _delete(self, delete: Delete) -> None:
        address = (delete.kind, delete.name)
        self.writes.append(f"delete {delete.kind} {delete.name}")
        child = self.truth.get(address)
        if child is None or _uid(child) != delete.uid:
            self._set(address, child, ours=True)
            return
        self.delete(address, grace=0 if delete.force else GRACE, ours=True)

    def delete(self, address: Address, *, grace: int = GRACE, ours: bool = False) -> None:
        """Somebody deletes an object; a pod that a node holds lingers until its kubelet is done with it."""
        child = self.truth[address]
        if isinstance(child, Pod) and grace and child.spec.node_name:
            if child.metadata.deletion_timestamp is not None:
                return
            when = self.clock + timedelta(seconds=grace)
            meta = replace(child.metadata, deletion_timestamp=when, deletion_grace_period_seconds=grace)
            self._set(address, replace(child, metadata=meta), ours=ours)
        else:
            self._set(address, None, ours=ours)

    def _patch(self, patch: Patch) -> None:
        address = (patch.kind, patch.name)
        self.writes.append(f"patch {patch.kind} {patch.name}")
        if patch.uid == self.job.uid:
            self.job = self.seen_job = replace(self.job, finalizers=None)
            return
        child = self.truth.get(address)
        if child is not None and _uid(child) == patch.uid:
            made = self.bodies_of.get(patch.uid)
            if made is not None and "data" in made:
                made["data"] = made["data"] | patch.body.get("data", {})
            body = msgspec.to_builtins(child)
            body["metadata"] |= patch.body.get("metadata", {})
            self._set(address, msgspec.convert(body, type(child)), ours=True)

    def _remove_job(self) -> None:
        self.writes.append("delete job")
        self.gone = True
        for address in list(self.truth):
            self._set(address, None, ours=True)

    def _set(self, address: Address, child: Child | None, *, ours: bool = False) -> None:
        """The truth changes; the operator learns of its own writes at once, of others' when the watch says so."""
        before = self.truth.pop(address, None)
        if child is not None:
            self.truth[address] = child
        elif ours and before is not None:
            self.tombstones.add(_uid(before))
        if ours:
            self.notes = [note for note in self.notes if note.address != address]
            self._see(address, child)
        else:
            self.notes.append(Note(address, child))

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
        self._set(("Pod", name), replace(pod, status=replace(pod.status, **status)))

    def bind(self, name: str, node: str = "node-1") -> None:
        """The scheduler puts a pod on a node."""
        pod = self._pod(name)
        if not pod.spec.node_name:
            self._set(("Pod", name), replace(pod, spec=replace(pod.spec, node_name=node)))

    def unplace(self, name: str) -> None:
        """The scheduler finds no node for a pod, and says so; since when is not said again."""
        pod = self._pod(name)
        if not pod.spec.node_name and not pod.status.conditions:
            told = Condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available", self.clock)
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
            container = Container(self.main, state=ContainerState(waiting=waiting))
            self.change(name, pod_ip=address, start_time=self.clock, container_statuses=(container,))
            return
        self.read[self._pod(name).metadata.uid] = told
        running = Container(self.main, ready=True, state=ContainerState(running=Running(self.clock)))
        self.change(name, phase="Running", pod_ip=address, start_time=self.clock, container_statuses=(running,))

    def _address(self) -> str:
        self.addresses += 1
        return f"10.0.{self.addresses // 250}.{1 + self.addresses % 250}"

    def _told(self, name: str) -> dict[str, str] | str:
        """What a pod reads of its job's ConfigMap when it starts, or what a kubelet says if it cannot."""
        found: dict[str, str] = {}
        gates = {role.gate for role in self.job.roles if role.gate}
        body = self.bodies_of.get(self._pod(name).metadata.uid, {}) if gates else {}
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
        return None if child is None else self.bodies_of.get(_uid(child), {}).get("data", {})

    def exit(self, name: str, code: int = 0) -> None:
        """The pod's container ends."""
        end = Terminated(code, reason="Error" if code else "Completed", finished_at=self.clock)
        ended = Container(self.main, state=ContainerState(terminated=end))
        self.change(name, phase="Failed" if code else "Succeeded", container_statuses=(ended,))

    def crash(self, name: str, code: int = 1) -> None:
        """The pod's container ends, and its kubelet will start it again: it waits out its back-off."""
        end = ContainerState(terminated=Terminated(code, reason="Error", finished_at=self.clock))
        waits = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 10s restarting failed container"))
        crashed = Container(self.main, restart_count=self._restarts(name), state=waits, last_state=end)
        self.change(name, container_statuses=(crashed,))

    def restart(self, name: str) -> None:
        """Its kubelet starts the container again."""
        up = ContainerState(running=Running(self.clock))
        again = Container(self.main, ready=True, restart_count=self._restarts(name) + 1, state=up)
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
                self._set(address, replace(child, status=GroupStatus(min(gang.admits))))

    def evict(self, name: str) -> None:
        """Preempted or drained."""
        target = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
        self.change(name, phase="Failed", conditions=(target,))

    def vanish(self, name: str) -> None:
        """The pod object is gone: collected, or deleted without grace."""
        self._set(("Pod", name), None)

    def reap(self) -> None:
        """Kubelets of live nodes finish pods that are being deleted."""
        for name, pod in self.pods().items():
            if pod.metadata.deletion_timestamp is not None and not self._dead(pod.spec.node_name):
                self._set(("Pod", name), None)

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
