# SPDX-License-Identifier: Apache-2.0
"""The nodes, as `core` wants to see them: one that is not there any more stays, as not ready since. `view` feeds it."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from trainwright.model.child import GONE, Condition, Node
from trainwright.model.meta import Key, Meta
from trainwright.runtime.cache import Cache
from trainwright.runtime.ports import Clock

#: So many removed nodes are remembered; their pods are given up long before.
_GONE = 1024


class Nodes:
    """All nodes by name."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self.cache = cache
        self._clock = clock
        self._known: dict[str, Node] = {}
        self._gone: dict[str, Node] = {}

    @property
    def known(self) -> Mapping[str, Node] | None:
        """None before they have been listed: then nobody is judged by them."""
        return self._known if self.cache.synced else None

    def update(self, keys: set[Key]) -> set[str]:
        """The informer says that these have changed; the names of those about which there may be another word now."""
        changed = set()
        for key in keys:
            node, before = self.cache.get(key), self._known.get(key.name)
            if node is None:
                node = self._removed(key.name, before)
            else:
                self._gone.pop(key.name, None)
            if node is not None:
                self._known[key.name] = node
                if before is None or _standing(before) != _standing(node):
                    changed.add(key.name)
        # Whether a silent one counts as lost depends on how many others answer.
        return changed | {name for name, node in self._known.items() if not node.ready} if changed else changed

    def miss(self, names: Iterable[str]) -> None:
        """Pods are on these. One that is in no list was removed while nobody looked: it is gone since now."""
        if not self.cache.synced:
            return
        for name in names:
            if name and name not in self._known:
                self._known[name] = self._bury(name, Node(Meta(name)))

    def _removed(self, name: str, before: Node | None) -> Node | None:
        if before is None or name in self._gone:
            return self._gone.get(name)
        return self._bury(name, before)

    def _bury(self, name: str, before: Node) -> Node:
        condition = Condition("Ready", "False", GONE, "the node was removed", self._clock.now())
        node = replace(before, status=replace(before.status, conditions=(condition,)))
        self._gone[name] = node
        while len(self._gone) > _GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._known.pop(oldest, None)
        return node


def _standing(node: Node) -> tuple[object, ...]:
    """What passes depend on; heartbeats are not part of it, and of what it has to give only devices are."""
    conditions: tuple[tuple[str, str, datetime | None], ...] = tuple(
        [(one.type, one.status, one.last_transition_time) for one in node.status.conditions or ()]
    )
    devices = [pair for pair in (node.status.allocatable or {}).items() if "/" in pair[0]]
    return conditions, node.spec, devices
