# SPDX-License-Identifier: Apache-2.0
"""Lists and watches: the list-watch loop, informers that keep caches up to date, and the cache of the whole cluster.

If the API server has forgotten the version from which a watch continues (410 Gone), the loop lists again. This list
is never older than our own writes or than the events already seen. If the server does not answer, an informer retries
with increasing pauses and jitter.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from random import random

from msgspec.structs import replace

from trainwright.errors import ApiError, GoneError
from trainwright.kinds.registry import KINDS
from trainwright.model.child import NODE_GONE, Extra, Node, ObjectCondition, Observed, Refusal
from trainwright.model.job import Body, Job
from trainwright.model.meta import JOB_UID, KIND, Key, Meta
from trainwright.runtime.cache import Cache
from trainwright.runtime.ports import (
    CONFIG_MAPS,
    EVERYTHING,
    NODES,
    PODS,
    SERVICES,
    Clock,
    Cluster,
    ListPage,
    Resource,
    Selection,
    WatchEvent,
    WatchEventType,
    jobs_of,
)
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
#: The pause after a watch ends doubles from the first to the second value.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
#: Upper bound on removed nodes that are remembered. The pods of older ones have been replaced long before.
_MAX_REMOVED_NODES = 1024
#: Identifies a job: the lower-case name of its kind, and its namespace and name.
JobKey = tuple[str, Key]
#: Called with the UIDs of jobs whose objects changed and with the keys of the changed objects.
Listener = Callable[[set[str], set[Key]], None]


class ListWatch:
    """Follows one resource: `listed` gets all objects, `changed` gets each later batch of watch events.

    After an interruption the watch continues from the last version that it saw. If the server has forgotten that
    version (410), everything is listed again.
    """

    def __init__(self, cluster: Cluster, resource: Resource, scope: Selection = EVERYTHING) -> None:
        self._cluster = cluster
        self._resource = resource
        self._scope = scope
        self._version = ""

    def relist(self) -> None:
        """List again instead of continuing the watch."""
        self._version = ""

    async def run(
        self,
        listed: Callable[[ListPage], None],
        changed: Callable[[tuple[WatchEvent, ...]], None],
        rest: Callable[[ApiError | None], Awaitable[None]],
        newest: Callable[[], str] = lambda: "",
    ) -> None:
        """Run until cancelled or until `rest` raises.

        `rest` waits between two tries; its argument is the error that ended the last try. A list is never older than
        the version that `newest` returns.
        """
        while True:
            ended: ApiError | None = None
            try:
                if not self._version:
                    page = await self._cluster.list(self._resource, self._scope, not_older_than=newest())
                    listed(page)
                    self._version = page.version
                watch = self._cluster.watch(self._resource, self._scope, since=self._version)
                async with aclosing(watch) as batches:
                    async for changes in batches:
                        changed(changes)
                        self._version = changes[-1].version
            except GoneError as error:
                ended, self._version = error, ""
            except ApiError as error:
                ended = error
            await rest(ended)


class Informer:
    """Keeps the cache of one resource up to date and calls the listener for each change."""

    def __init__(
        self, cluster: Cluster, cache: Cache, scope: Selection, listener: Listener, telemetry: Telemetry
    ) -> None:
        self.cache = cache
        self.synced = asyncio.Event()
        self._list_watch = ListWatch(cluster, cache.resource, scope)
        self._telemetry = telemetry
        self._listener = listener
        self._pause = _FIRST_PAUSE_SECONDS
        self._began = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        self._began = asyncio.get_running_loop().time()
        await self._list_watch.run(
            self._listed, self._changed, self._rest, lambda: str(self.cache.newest_version or "")
        )

    async def _rest(self, error: ApiError | None) -> None:
        """Wait before the next try, also if the server ends every watch at once without an error."""
        loop = asyncio.get_running_loop()
        if error is not None and not isinstance(error, GoneError):
            _LOG.warning(LogMessage("watch interrupted", resource=self.cache.resource.id, error=error))
        if loop.time() - self._began > self._pause:
            self._pause = _FIRST_PAUSE_SECONDS
        await asyncio.sleep(self._pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, _MAX_PAUSE_SECONDS)
        self._began = loop.time()

    def _listed(self, page: ListPage) -> None:
        self._telemetry.lists[self.cache.resource.id] += 1
        before = dict(zip(self.cache.keys(), self.cache.items(), strict=True))
        jobs = self.cache.replace(page)
        self.synced.set()
        keys = before.keys() | set(self.cache.keys())
        self._listener(jobs, {key for key in keys if self.cache.get(key) is not before.get(key)})

    def _changed(self, changes: tuple[WatchEvent, ...]) -> None:
        jobs: set[str] = set()
        keys: set[Key] = set()
        for change in changes:
            if change.what is not WatchEventType.BOOKMARK:
                meta = self.cache.resource.meta(change.item)
                key = Key(meta.namespace, meta.name)
                before = self.cache.get(key)
                jobs |= self.cache.apply(change)
                # The watch also reports our own writes. They are in the cache already and change nothing.
                if self.cache.get(key) is not before:
                    keys.add(key)
        self._pause = _FIRST_PAUSE_SECONDS
        self._telemetry.watch_events[self.cache.resource.id] += len(changes)
        if jobs or keys:
            self._listener(jobs, keys)


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
        """Take over changed nodes from the cache. Returns the names of nodes whose pods must be checked again."""
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
        # Whether a node that does not answer counts as lost depends on how many other nodes answer.
        return changed | {name for name, node in self._known.items() if not node.ready} if changed else changed

    def add_missing(self, names: Iterable[str]) -> None:
        """Mark nodes as removed from now on if pods name them and no list has them."""
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
    """The parts of a node that decisions depend on: conditions without heartbeats, spec, and allocatable devices."""
    conditions: tuple[tuple[str, str, datetime | None], ...] = tuple(
        [(one.type, one.status, one.last_transition_time) for one in node.status.conditions or ()]
    )
    devices = [pair for pair in (node.status.allocatable or {}).items() if "/" in pair[0]]
    return conditions, node.spec, devices


class ClusterCache:
    """The caches of all resources that the controller reads."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: ControllerSettings, telemetry: Telemetry) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._scope = Selection(namespace=settings.namespace)
        kinds = [kind for kind in KINDS if settings.kinds is None or kind.singular in settings.kinds]
        self.jobs = {kind.singular: Cache(jobs_of(kind)) for kind in kinds}
        self._pods, self._services = Cache(PODS), Cache(SERVICES)
        self._extras = [Cache(replace(one, type=Extra)) for one in (CONFIG_MAPS, *settings.extras)]
        self._nodes = NodeIndex(Cache(NODES), clock)
        caches = (self._pods, self._services, *self._extras)
        #: By API and kind, because several gang schedulers have a kind named PodGroup.
        self.children = {(cache.resource.api_version, cache.resource.kind): cache for cache in caches}

    def informers(
        self, job_changed: Callable[[JobKey], None], children_changed: Callable[[set[str]], None]
    ) -> list[Informer]:
        """One informer for each cache. `children_changed` is called with the UIDs of the jobs that own the children."""
        child_scope = replace(self._scope, labels=KIND)
        followed: list[tuple[Cache, Selection, Listener]] = [
            *((cache, self._scope, partial(_each, job_changed, kind)) for kind, cache in self.jobs.items()),
            *((cache, child_scope, lambda uids, _: children_changed(uids)) for cache in self.children.values()),
            (self._nodes.cache, EVERYTHING, lambda _, keys: children_changed(self._affected_jobs(keys))),
        ]
        return [Informer(self._cluster, *one, self._telemetry) for one in followed]

    def _affected_jobs(self, keys: set[Key]) -> set[str]:
        """The UIDs of jobs with pods on one of these nodes, if the state of the node has changed."""
        nodes = self._nodes.update(keys)
        pods = [pod for pod in self._pods.items() if pod.spec.node_name in nodes] if nodes else []
        return {uid for pod in pods if (uid := (pod.metadata.labels or {}).get(JOB_UID))}

    def sizes(self) -> dict[str, int]:
        """The number of cached objects by plural name."""
        sizes: Counter[str] = Counter()
        for cache in (*self.jobs.values(), *self.children.values(), self._nodes.cache):
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
        self._nodes.add_missing({pod.spec.node_name for pod in pods})
        return Observed(
            pods=pods,
            services=self._services.children_of(owner),
            extras=tuple([extra for cache in self._extras for extra in cache.children_of(owner)]),
            nodes=self._nodes.known,
            refusals=refusals,
            ports=ports,
        )


def _each(job_changed: Callable[[JobKey], None], kind: str, _uids: set[str], keys: set[Key]) -> None:
    for key in keys:
        job_changed((kind, key))
