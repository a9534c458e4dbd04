# SPDX-License-Identifier: Apache-2.0
"""The pods, nodes and pod groups that the scheduler knows. Each event updates them. Pure.

An event only adds to the totals or subtracts from them, so it takes the same time with ten bound pods or ten thousand.
After a bind, the scheduler puts the answer into the cache at once. The watch reports the same version of the pod later;
this event changes nothing, because the cached version is not older.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainwright.kinds import gangs
from trainwright.local.scheduling.affinity import NodeTerms, NodeTraits, terms, traits
from trainwright.local.storage.metadata import key_of
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.node.devices.inventory import LeasedDevices
from trainwright.node.requests import Amounts, amounts, asks

#: If a node does not report this resource, the resource counts as unlimited: 2^63 bytes. Amounts are in thousandths.
_UNMETERED = {"ephemeral-storage": 2**63 * 1000}
_ENDED_PHASES = ("Succeeded", "Failed")


class PodInfo(Struct, frozen=True):
    """A pod: its identity, its order in the queue, and the resources that it requests."""

    key: Key
    uid: str
    requests: tuple[tuple[str, int], ...]
    terms: NodeTerms
    #: The names of the pod's scheduling gates. The pod is placed only after its gates are removed.
    gates: str = ""
    priority: int | None = None
    created: str = ""
    group: Key | None = None
    #: Whether the pod is a member of a gang, even if its group does not exist yet.
    ganged: bool = False


class NodeInfo(Struct, frozen=True):
    """A node: its total resources, and the traits that a pod can select."""

    traits: NodeTraits
    total: Amounts

    @property
    def name(self) -> str:
        """The node's name."""
        return self.traits.name


class GroupInfo(Struct, frozen=True):
    """A pod group: the minimum number of pods to place together, and their priority."""

    min_members: int
    priority: int = 0


#: The devices that other runs have leased, by node and resource name.
Leased = Mapping[str, Mapping[str, LeasedDevices]]


class NodeUsage:
    """The resources that pods use on each node, and the members of each gang that have a node or have succeeded."""

    def __init__(self) -> None:
        self.used: dict[str, Amounts] = {}
        self.members: dict[Key, set[str]] = {}

    def take(self, pod: PodInfo, node: str) -> None:
        """Add the requests of a pod to its node."""
        used = self.used.setdefault(node, {})
        for name, amount in pod.requests:
            used[name] = used.get(name, 0) + amount

    def release(self, pod: PodInfo, node: str) -> None:
        """Subtract the requests of a pod from its node."""
        for name, amount in pod.requests:
            self.used[node][name] -= amount

    def join(self, pod: PodInfo) -> None:
        """Count a member of a gang."""
        if pod.group is not None:
            self.members.setdefault(pod.group, set()).add(pod.key.name)

    def leave(self, pod: PodInfo) -> None:
        """No longer count a member of a gang."""
        if pod.group is not None:
            members = self.members.get(pod.group, set())
            members.discard(pod.key.name)
            if not members:
                self.members.pop(pod.group, None)


def pod_info(pod: Body) -> PodInfo:
    """The scheduler's view of a pod. A pod whose spec cannot be read gets no node, and does not stop the scheduler."""
    try:
        return _pod_info(pod)
    except (AttributeError, TypeError, ValueError, KeyError):
        meta = pod["metadata"]
        unreadable = NodeTerms(unsupported="a spec that cannot be read")
        return PodInfo(Key(meta.get("namespace", ""), meta["name"]), meta.get("uid", ""), (), unreadable)


def _pod_info(pod: Body) -> PodInfo:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    namespace = meta.get("namespace", "")
    group = (meta.get("labels") or {}).get(gangs.T9K_GROUP_LABEL)
    gates = spec.get("schedulingGates")
    return PodInfo(
        Key(namespace, meta["name"]),
        meta.get("uid", ""),
        tuple(sorted(asks(spec).items())),
        terms(spec),
        ", ".join(str(gate.get("name")) for gate in gates) if gates else "",
        spec.get("priority"),
        meta.get("creationTimestamp") or "",
        Key(namespace, group) if group else None,
        # A group can be created after its pods, so a pod whose group does not exist yet waits for the group.
        bool(group) and spec.get("schedulerName") == gangs.T9K.scheduler,
    )


def node_info(node: Body) -> NodeInfo:
    """The scheduler's view of a node."""
    status = node.get("status") or {}
    return NodeInfo(traits(node), _UNMETERED | amounts(status.get("allocatable") or status.get("capacity")))


def group_info(body: Body) -> GroupInfo:
    """The scheduler's view of a pod group."""
    spec = body.get("spec") or {}
    return GroupInfo(spec.get("minMember") or 1, spec.get("priority") or 0)


def finished(pod: Body) -> bool:
    """Whether the pod has ended and uses no resources."""
    return (pod.get("status") or {}).get("phase") in _ENDED_PHASES


def terminating(pod: Body) -> bool:
    """Whether the pod is being deleted."""
    return pod["metadata"].get("deletionTimestamp") is not None


class CachedPod(Struct, frozen=True):
    """The last known state of a pod, and whether the totals include it."""

    body: Body
    info: PodInfo
    version: int
    #: The name of the pod's node; empty if the pod has none.
    node: str
    #: Whether the used resources of the node include the requests of the pod.
    uses_node: bool
    #: Whether the pod counts as a member of its gang.
    in_gang: bool


class SchedulerCache:
    """The pods to place, the nodes, the groups, and the resources in use."""

    def __init__(self) -> None:
        self.pending: dict[Key, PodInfo] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.groups: dict[Key, GroupInfo] = {}
        self.usage = NodeUsage()
        #: Counts the changes that can lead to another decision: new pods, freed resources, changed nodes or groups.
        self.revision = 0
        self._pods: dict[Key, CachedPod] = {}

    def cached(self, key: Key) -> CachedPod | None:
        """The last known state of a pod."""
        return self._pods.get(key)

    def bound(self) -> list[CachedPod]:
        """The pods that use resources of a node."""
        return [cached for cached in self._pods.values() if cached.uses_node]

    # -- pods -----------------------------------------------------------------------------------------------------

    def update_pod(self, body: Body) -> None:
        """Add a pod, or replace the cached pod if this version is newer."""
        key, version = key_of(body), int(body["metadata"].get("resourceVersion") or 0)
        before = self._pods.get(key)
        if before is not None and before.info.uid != body["metadata"]["uid"]:
            self._remove(key, before)
            before = None
        if before is not None and version <= before.version:
            return
        spec = body["spec"]
        node = spec.get("nodeName") or ""
        # The requests of a pod never change, and its gates change only before the pod has a node.
        known = before.info if before is not None and (node or before.body["spec"] is spec) else pod_info(body)
        ended, deleted = finished(body), terminating(body)
        self._replace(
            key, before, CachedPod(body, known, version, node, bool(node) and not ended, bool(node) and not deleted)
        )
        if node or ended or deleted:
            self.pending.pop(key, None)
        elif self.pending.get(key) is not known:
            self.pending[key] = known
            self.revision += 1

    def _replace(self, key: Key, before: CachedPod | None, after: CachedPod) -> None:
        counted_on_node = before is not None and before.uses_node
        if before is not None and counted_on_node and not (after.uses_node and after.node == before.node):
            self.usage.release(before.info, before.node)
            self.revision += 1
            counted_on_node = False
        if after.uses_node and not counted_on_node:
            self.usage.take(after.info, after.node)
        counted_in_gang = before is not None and before.in_gang
        if after.in_gang != counted_in_gang:
            (self.usage.join if after.in_gang else self.usage.leave)(after.info)
        self._pods[key] = after

    def remove_pod(self, body: Body) -> None:
        """Remove a deleted pod."""
        key = key_of(body)
        before = self._pods.get(key)
        if before is None or before.info.uid != body["metadata"]["uid"]:
            return
        # A succeeded member is not created again, so it must still count, or its gang would wait for it.
        succeeded = (body.get("status") or {}).get("phase") == "Succeeded" and before.info.group in self.groups
        self._remove(key, before, keep_in_gang=succeeded)

    def _remove(self, key: Key, cached: CachedPod, *, keep_in_gang: bool = False) -> None:
        if cached.uses_node:
            self.usage.release(cached.info, cached.node)
        (self.usage.join if keep_in_gang else self.usage.leave)(cached.info)
        self.pending.pop(key, None)
        del self._pods[key]
        self.revision += 1

    def replace_pods(self, bodies: Iterable[Body]) -> None:
        """Replace all pods."""
        listed = {key_of(body): body for body in bodies}
        for key in [key for key in self._pods if key not in listed]:
            self._remove(key, self._pods[key])
        for body in listed.values():
            self.update_pod(body)

    # -- nodes and groups -----------------------------------------------------------------------------------------

    def update_node(self, body: Body) -> None:
        """Add or replace a node."""
        name = body["metadata"]["name"]
        info = node_info(body)
        if self.nodes.get(name) != info:
            self.nodes[name] = info
            self.revision += 1

    def remove_node(self, body: Body) -> None:
        """Remove a deleted node. Pods on this node still count until they are deleted."""
        self.nodes.pop(body["metadata"]["name"], None)
        self.revision += 1

    def replace_nodes(self, bodies: Iterable[Body]) -> None:
        """Replace all nodes."""
        self.nodes.clear()
        self.revision += 1
        for body in bodies:
            self.update_node(body)

    def update_group(self, body: Body) -> None:
        """Add or replace a pod group."""
        self.groups[key_of(body)] = group_info(body)
        self.revision += 1

    def remove_group(self, body: Body) -> None:
        """Remove a deleted pod group. Also forget those succeeded members of the group whose pods are deleted."""
        self._forget(key_of(body))

    def replace_groups(self, bodies: Iterable[Body]) -> None:
        """Replace all pod groups."""
        listed = {key_of(body): group_info(body) for body in bodies}
        for key in [key for key in self.groups if key not in listed]:
            self._forget(key)
        self.groups.update(listed)
        self.revision += 1

    def _forget(self, key: Key) -> None:
        self.groups.pop(key, None)
        self.revision += 1
        for name in self.usage.members.pop(key, set()):
            cached = self._pods.get(Key(key.namespace, name))
            if cached is not None and cached.in_gang:
                self.usage.join(cached.info)
