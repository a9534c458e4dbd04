# SPDX-License-Identifier: Apache-2.0
"""What the controller knows of the cluster: a cache of the objects of each resource, by key and by owning job.

The watch and our own writes update a cache. A cache guarantees read-your-writes: it stores the response of a write at
once, and an old watch event cannot restore an object that we deleted. Sometimes the watch reports a write before the
response arrives. Then the cache ignores the response, because the object may have been changed or deleted since. So a
late watch can delay an action but cannot cause the same action twice, and the controller needs no list of expected
changes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from trainwright.kinds.registry import KINDS
from trainwright.model.child import NODE_GONE, Extra, Node, ObjectCondition, Observed, Refusal
from trainwright.model.job import Body, Job
from trainwright.model.meta import JOB_UID, Key, Meta
from trainwright.runtime.ports import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    Clock,
    ListPage,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
    jobs_of,
)
from trainwright.runtime.settings import ControllerSettings

#: Namespace and UID of a job. An object in another namespace is not a child, even if its label contains the job's UID.
OwnerKey = tuple[str, str]
#: Identifies a job: the lower-case name of its kind, and its namespace and name.
JobKey = tuple[str, Key]
#: `NodeIndex` keeps at most this many removed nodes. It drops the oldest ones: their pods have been replaced already.
_MAX_REMOVED_NODES = 1024


class Cache:
    """The objects of one resource. Methods that change the cache return the UIDs of jobs whose children changed."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.synced = False
        #: The newest version that a list or the watch reported, and the newest version in a response to our writes.
        self._watched_version = self._written_version = 0
        self._items: dict[Key, tuple[Meta, Any]] = {}
        self._by_job: dict[OwnerKey, dict[Key, Any]] = {}
        self._sorted: dict[OwnerKey, tuple[Any, ...]] = {}
        #: UID and last known version of each object that we deleted and whose deletion the watch has not reported yet.
        self._tombstones: dict[Key, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def newest_version(self) -> int:
        """The newest version that this cache knows. A new list must not be older than this version."""
        return max(self._watched_version, self._written_version)

    def get(self, key: Key) -> Any:
        """The object, or None."""
        found = self._items.get(key)
        return found[1] if found is not None else None

    def children_of(self, owner: OwnerKey) -> tuple[Any, ...]:
        """The children of a job, sorted by name."""
        found = self._sorted.get(owner)
        if found is None:
            children = self._by_job.get(owner)
            if not children:
                return ()
            found = self._sorted[owner] = tuple([children[key] for key in sorted(children)])
        return found

    def siblings(self, child: Any) -> Collection[Any]:
        """The children of the same job as this child, in any order and not sorted; none if `child` is None."""
        meta = self.resource.meta(child) if child is not None else None
        return self._by_job.get((meta.namespace, _job_uid(meta)), {}).values() if meta is not None else ()

    def owners(self) -> tuple[OwnerKey, ...]:
        """The jobs that have children in this cache."""
        return tuple(self._by_job)

    def keys(self) -> tuple[Key, ...]:
        """The keys of all objects."""
        return tuple(self._items)

    def items(self) -> tuple[Any, ...]:
        """All objects."""
        return tuple(item for _, item in self._items.values())

    # -- from the watch ------------------------------------------------------------------------------------------

    def replace(self, page: ListPage) -> set[str]:
        """Store the objects of a list. Remove objects that are not in the list, unless we wrote them after the list."""
        changed_jobs: set[str] = set()
        listed, uids = set(), set()
        for item in page.items:
            meta = self.resource.meta(item)
            listed.add(_key(meta))
            uids.add(meta.uid)
            changed_jobs |= self._store(meta, item)
        list_version = int(page.version or 0)
        for key in [key for key in self._items if key not in listed]:
            meta, _ = self._items[key]
            if int(meta.resource_version or 0) <= list_version:
                changed_jobs |= self._remove(key)
        # The list may be older than our deletions. If the list contains an object that we deleted, keep its tombstone:
        # the watch has not reported the deletion of this object yet. The other tombstones are no longer needed.
        self._tombstones = {key: tombstone for key, tombstone in self._tombstones.items() if tombstone[0] in uids}
        self._watched_version = max(self._watched_version, list_version)
        self.synced = True
        return changed_jobs

    def apply(self, change: WatchEvent) -> set[str]:
        """Apply one watch event. Events arrive in order, so an event with a version already seen is a repetition."""
        version = int(change.version)
        if version <= self._watched_version:
            return set()
        self._watched_version = version
        meta = self.resource.meta(change.item)
        if change.what is not WatchEventType.DELETED:
            return self._store(meta, change.item)
        key = _key(meta)
        if key in self._tombstones and self._tombstones[key][0] == meta.uid:
            del self._tombstones[key]
        known = self._items.get(key)
        return self._remove(key) if known is not None and known[0].uid == meta.uid else set()

    # -- from our own writes -------------------------------------------------------------------------------------

    def add_written(self, item: Any) -> set[str]:
        """Store the object that the API server returned for one of our writes, unless the watch is already newer."""
        meta = self.resource.meta(item)
        version = int(meta.resource_version or 0)
        self._written_version = max(self._written_version, version)
        return self._store(meta, item) if version > self._watched_version else set()

    def remove_deleted(self, key: Key, uid: str) -> set[str]:
        """Remove an object that we deleted. If it is not cached, the watch has reported its deletion already."""
        known = self._items.get(key)
        if known is None or known[0].uid != uid:
            return set()
        self._tombstones[key] = (uid, int(known[0].resource_version or 0))
        return self._remove(key)

    # ------------------------------------------------------------------------------------------------------------

    def _store(self, meta: Meta, item: Any) -> set[str]:
        key, version = _key(meta), int(meta.resource_version or 0)
        tombstone = self._tombstones.get(key)
        if tombstone is not None and (tombstone[0] == meta.uid or version <= tombstone[1]):
            return set()
        known = self._items.get(key)
        if known is not None and int(known[0].resource_version or 0) >= version:
            return set()
        uid_before = _job_uid(known[0]) if known is not None else ""
        self._items[key] = (meta, item)
        uid = _job_uid(meta)
        if uid_before and uid_before != uid:
            self._unlink((key.namespace, uid_before), key)
        if uid:
            owner = (key.namespace, uid)
            self._by_job.setdefault(owner, {})[key] = item
            self._sorted.pop(owner, None)
        return {one for one in (uid_before, uid) if one}

    def _remove(self, key: Key) -> set[str]:
        meta, _ = self._items.pop(key)
        uid = _job_uid(meta)
        if not uid:
            return set()
        self._unlink((key.namespace, uid), key)
        return {uid}

    def _unlink(self, owner: OwnerKey, key: Key) -> None:
        children = self._by_job[owner]
        del children[key]
        self._sorted.pop(owner, None)
        if not children:
            del self._by_job[owner]


def _key(meta: Meta) -> Key:
    return Key(meta.namespace, meta.name)


def _job_uid(meta: Meta) -> str:
    return (meta.labels or {}).get(JOB_UID, "")


class NodeIndex:
    """All nodes by name. A removed node stays in the index and counts as not ready since its removal."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self.cache = cache
        self._clock = clock
        self._known: dict[str, Node] = {}
        self._removed: dict[str, Node] = {}

    @property
    def known(self) -> Mapping[str, Node] | None:
        """All nodes; None before the first list, so that no pod is judged by an incomplete index."""
        return self._known if self.cache.synced else None

    def update(self, keys: set[Key]) -> set[str]:
        """Copy changed nodes from the cache. Returns the names of nodes whose pods must be checked again."""
        changed = set()
        for key in keys:
            node, before = self.cache.get(key), self._known.get(key.name)
            if node is not None:
                self._removed.pop(key.name, None)
            elif before is not None:
                node = self._removed.get(key.name) or self._mark_removed(key.name, before)
            if node is not None:
                self._known[key.name] = node
                if before is None or _relevant_state(before) != _relevant_state(node):
                    changed.add(key.name)
        # Also check the pods of all unready nodes: the number of ready nodes decides if an unready node counts as lost.
        return changed | {name for name, node in self._known.items() if not node.ready} if changed else changed

    def add_missing(self, names: Iterable[str]) -> None:
        """Add unknown nodes as removed nodes: pods are on these nodes, but the API server has no such nodes."""
        if not self.cache.synced:
            return
        for name in names:
            if name and name not in self._known:
                self._known[name] = self._mark_removed(name, Node(Meta(name)))

    def _mark_removed(self, name: str, before: Node) -> Node:
        condition = ObjectCondition("Ready", "False", NODE_GONE, "the node was removed", self._clock.now())
        node = replace(before, status=replace(before.status, conditions=(condition,)))
        self._removed[name] = node
        while len(self._removed) > _MAX_REMOVED_NODES:
            oldest = next(iter(self._removed))
            del self._removed[oldest]
            self._known.pop(oldest, None)
        return node


def _relevant_state(node: Node) -> tuple[object, ...]:
    """The parts of a node that decisions use: its conditions (not their heartbeat times), spec, allocatable devices."""
    conditions: tuple[tuple[str, str, datetime | None], ...] = tuple(
        [(one.type, one.status, one.last_transition_time) for one in node.status.conditions or ()]
    )
    devices = [pair for pair in (node.status.allocatable or {}).items() if "/" in pair[0]]
    return conditions, node.spec, devices


class ClusterCache:
    """The caches of all resources that the controller reads."""

    def __init__(self, clock: Clock, settings: ControllerSettings) -> None:
        self.scope = Selection(namespace=settings.namespace)
        kinds = [kind for kind in KINDS if settings.kinds is None or kind.id in settings.kinds]
        self.jobs = {kind.id: Cache(jobs_of(kind)) for kind in kinds}
        self._pods, self._services = Cache(PODS), Cache(SERVICES)
        self._extras = [Cache(replace(one, type=Extra)) for one in (CONFIG_MAPS, *settings.extras)]
        self.nodes = NodeIndex(Cache(NODES), clock)
        caches = (self._pods, self._services, *self._extras)
        #: The caches of children by API and kind, because several gang schedulers have a kind named PodGroup.
        self.children = {(cache.resource.api_version, cache.resource.kind): cache for cache in caches}

    def affected_jobs(self, keys: set[Key]) -> set[str]:
        """The UIDs of the jobs to check after these nodes changed: jobs with pods on changed or unready nodes."""
        nodes = self.nodes.update(keys)
        pods = [pod for pod in self._pods.items() if pod.spec.node_name in nodes] if nodes else []
        return {uid for pod in pods if (uid := (pod.metadata.labels or {}).get(JOB_UID))}

    def sizes(self) -> dict[str, int]:
        """The number of cached objects by plural name."""
        sizes: Counter[str] = Counter()
        for cache in (*self.jobs.values(), *self.children.values(), self.nodes.cache):
            sizes[cache.resource.plural] += len(cache)
        return sizes

    def job(self, job_key: JobKey) -> Body | None:
        """The document of a job, or None."""
        found: Body | None = self.jobs[job_key[0]].get(job_key[1])
        return found

    def observe(self, job: Job, refusals: tuple[Refusal, ...], ports: frozenset[int] = frozenset()) -> Observed:
        """The children of a job and the nodes. `ports` are the host ports that other jobs use."""
        owner = (job.key.namespace, job.uid)
        pods = self._pods.children_of(owner)
        self.nodes.add_missing({pod.spec.node_name for pod in pods})
        return Observed(
            pods=pods,
            services=self._services.children_of(owner),
            extras=tuple([extra for cache in self._extras for extra in cache.children_of(owner)]),
            nodes=self.nodes.known,
            refusals=refusals,
            ports=ports,
        )
