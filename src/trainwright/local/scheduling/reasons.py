# SPDX-License-Identifier: Apache-2.0
"""The free resources of the nodes during one pass of the scheduler, and the reasons why pods wait. Pure.

Each pod adds a hundredth to the used share of its node, so that pods without requests are also spread over nodes. A
reason becomes the message of the pod's condition PodScheduled. The message tells people whether the pod can start later
and, if not, which number to change. If the pod can never start, its reason begins with `NEVER`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trainwright.local.scheduling.affinity import NodeTerms, refusal
from trainwright.local.scheduling.cache import Leased, NodeInfo, PodInfo
from trainwright.node.devices.inventory import holders
from trainwright.node.requests import PODS, Amounts, free_of, needed, present, total

Requests = tuple[tuple[str, int], ...]
NEVER = "can never fit: "
#: Each pod adds 0.01 to the used share of its node. Amounts are in thousandths, so one pod has the amount 1000.
_POD_SHARE = 0.01 / 1000


class FreeRoom:
    """The free resources of each node, and the nodes that accept pods with given terms."""

    def __init__(self, nodes: Iterable[NodeInfo], used: Mapping[str, Amounts], leased: Leased | None = None) -> None:
        self.nodes = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        #: The devices that other runs have leased.
        self.leased = leased or {}
        self.free: dict[str, Amounts] = {}
        #: The used share of each node: the mean of the used parts of CPU, memory and devices, plus 0.01 per pod.
        self.used_share: dict[str, float] = {}
        self._accepting_nodes: dict[NodeTerms, tuple[str, ...]] = {}
        self._counted_resources = {name: _counted_resources(node.total) for name, node in self.nodes.items()}
        for name, node in self.nodes.items():
            taken = used.get(name, {})
            self.free[name] = {resource: amount - taken.get(resource, 0) for resource, amount in node.total.items()}
            for resource, devices in self.leased.get(name, {}).items():
                self.free[name][resource] = self.free[name].get(resource, 0) - devices.amount
            self._update_share(name)

    def accepting(self, terms: NodeTerms) -> tuple[str, ...]:
        """The nodes that accept a pod with these terms, even if the pod does not fit on them."""
        names = self._accepting_nodes.get(terms)
        if names is None:
            nodes = {} if terms.unsupported else self.nodes
            names = tuple(name for name, node in nodes.items() if not refusal(terms, node.traits))
            self._accepting_nodes[terms] = names
        return names

    def fits(self, requests: Requests, name: str) -> bool:
        """Whether the node has enough free resources."""
        free = self.free[name]
        for one, amount in requests:  # noqa: SIM110 - the innermost loop of a pass; a generator would double its cost
            if amount and free.get(one, 0) < amount:
                return False
        return True

    def take(self, requests: Requests, name: str) -> None:
        """Subtract requests from the free resources of a node."""
        free = self.free[name]
        for resource, amount in requests:
            free[resource] = free.get(resource, 0) - amount
        self._update_share(name)

    def release(self, requests: Requests, name: str) -> None:
        """Add requests to the free resources of a node again."""
        self.take(tuple([(resource, -amount) for resource, amount in requests]), name)

    def _update_share(self, name: str) -> None:
        free, total = self.free[name], self.nodes[name].total
        used = [1 - free[resource] / total[resource] for resource in self._counted_resources[name]]
        shares = sum(used) / len(used) if used else 0.0
        self.used_share[name] = shares + (total.get(PODS, 0) - free.get(PODS, 0)) * _POD_SHARE


def _counted_resources(total: Amounts) -> tuple[str, ...]:
    """The resources that count for the used share: CPU, memory and devices (names with a domain)."""
    return tuple(name for name, amount in total.items() if amount and (name in ("cpu", "memory") or "/" in name))


def pod_reason(pod: PodInfo, room: FreeRoom) -> str:
    """The reason why this pod fits on no node now."""
    if not room.nodes:
        return "0/0 nodes are available: no node has reported yet"
    if pod.terms.unsupported:
        return f"{pod.terms.unsupported} is not supported here"
    never = never_fits(pod.requests, {name: node.total for name, node in room.nodes.items()})
    if never:
        return NEVER + never
    return f"0/{len(room.nodes)} nodes are available: {_current_reason(pod, room)}"


def never_fits(requests: Requests, nodes: Mapping[str, Amounts]) -> str:
    """If every node is too small even without pods: what is missing on the nearest node (`_distance`). Else empty."""
    missing = {name: _missing(requests, has) for name, has in nodes.items()}
    if not missing or not all(missing.values()):
        return ""
    name = min(missing, key=lambda one: (_distance(missing[one], nodes[one]), one))
    text = "; ".join(_total_text(one, amount, nodes[name].get(one, 0)) for one, amount in missing[name])
    return f"{'nearest is ' if len(nodes) > 1 else ''}{name}: {text}"


def _current_reason(pod: PodInfo, room: FreeRoom) -> str:
    """Why no node can take the pod now. With several nodes: the number of nodes per reason, then the nearest node."""
    missing = {name: _missing(pod.requests, room.free[name]) for name in room.accepting(pod.terms)}
    refusals = {name: refusal(pod.terms, node.traits) for name, node in room.nodes.items() if name not in missing}
    nearest = ""
    if missing:
        name = min(missing, key=lambda one: (_distance(missing[one], room.free[one]), one))
        free, capacity = room.free[name], room.nodes[name].total
        parts = (
            _free_text(one, amount, free.get(one, 0), capacity.get(one, 0)) + _holders(one, (name,), room)
            for one, amount in missing[name]
        )
        nearest = f"{name}: {'; '.join(parts)}"
    if len(room.nodes) == 1:
        return nearest or "".join(f"{name}: {why}" for name, why in refusals.items())
    counts = Counter(refusals.values())
    counts.update(f"too little {resource}" for resources in missing.values() for resource, _ in resources)
    listed = ", ".join(f"{count} {why}" for why, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
    return f"{listed}; nearest is {nearest}" if nearest else listed


def gang_reason(min_members: int, placed: int, waiting: Sequence[PodInfo], room: FreeRoom) -> str:
    """The reason why all pods of a gang wait. `placed` is the number of members that have a node or have succeeded."""
    head = f"gang needs {min_members} pod{'s' * (min_members != 1)} at once: "
    existing = placed + len(waiting)
    if existing < min_members:
        return f"{head}{existing} of them exist{'s' * (existing == 1)}"
    if not room.nodes:
        return f"{head}no node has reported yet"
    for pod in waiting:
        if never_fits(pod.requests, {name: node.total for name, node in room.nodes.items()}):
            return NEVER + head + pod_reason(pod, room).removeprefix(NEVER)
        if not room.accepting(pod.terms):
            return head + pod_reason(pod, room)
    return _together(head, waiting[: min_members - placed], room)


def _together(head: str, waiting: Sequence[PodInfo], room: FreeRoom) -> str:
    """Why the waiting members do not fit together: the resources of which all nodes together have too little."""
    requests = tuple(sorted(total(dict(pod.requests) for pod in waiting).items()))
    has = total(node.total for node in room.nodes.values())
    never = shortage(requests, has)
    if never:
        return NEVER + head + never
    accepting = {name for pod in waiting for name in room.accepting(pod.terms)}
    free = total({one: max(0, amount) for one, amount in room.free[name].items()} for name in sorted(accepting))
    parts = (
        f"{resource}: needs {needed(resource, n)} together, {free_of(resource, free.get(resource, 0), has[resource])}"
        f"{_holders(resource, sorted(accepting), room)}"
        for resource, n in _missing(requests, free)
    )
    return head + ("; ".join(parts) or "the free resources are enough in total, but not on single nodes")


def _holders(resource: str, nodes: Iterable[str], room: FreeRoom) -> str:
    leased = (room.leased.get(name, {}).get(resource) for name in nodes)
    return holders(one for one in leased if one is not None)


def shortage(requests: Requests, has: Mapping[str, int]) -> str:
    """The resources of which all nodes together have too little; empty text if they have enough."""
    return "; ".join(
        f"{one}: needs {needed(one, amount)} together, all nodes have {present(one, has.get(one, 0))}"
        for one, amount in _missing(requests, has)
    )


def _missing(requests: Requests, has: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(resource, amount) for resource, amount in requests if amount and has.get(resource, 0) < amount]


def _distance(missing: Iterable[tuple[str, int]], has: Mapping[str, int]) -> float:
    """How far a node is from enough resources: each scarce resource adds 1 plus the missing fraction of the request."""
    return sum(1 + (amount - has.get(resource, 0)) / amount for resource, amount in missing)


def _free_text(resource: str, amount: int, free: int, capacity: int) -> str:
    if capacity < amount:
        return _total_text(resource, amount, capacity)
    return f"{resource}: needs {needed(resource, amount)}, {free_of(resource, max(0, free), capacity)}"


def _total_text(resource: str, amount: int, capacity: int) -> str:
    has = f"has {present(resource, capacity)}" if capacity else "has none"
    return f"{resource}: needs {needed(resource, amount)}, this node {has}"
