# SPDX-License-Identifier: Apache-2.0
"""List, then watch from there. The one loop for everything that follows a resource.

Keeps a `Cache` in step with a resource and says what has changed.

`controller` runs one per resource. A watch that the server has forgotten (410) begins with a new list, never older than
our own writes or than what was told before; a server that does not answer is asked again, ever more rarely, with some
jitter.

The nodes, as `core` wants to see them: one that is not there any more stays, as not ready since then.

Everything the controller knows of its cluster: one cache and one informer per resource, and whom to wake.

`controller` asks it for a job and for what that job has in the world; the informers call back when something changes.
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
from trainwright.model.child import GONE, Extra, Node, ObjectCondition, Observed, Refusal
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


class ListWatch:
    """Follows one resource: `listed` gets everything there is, `changed` each batch of changes after that.

    After an interruption the watch goes on from the last version that it saw. Where the server has forgotten that
    version (410), everything is listed again.
    """

    def __init__(self, cluster: Cluster, resource: Resource, scope: Selection = EVERYTHING) -> None:
        self._cluster = cluster
        self._resource = resource
        self._scope = scope
        self._version = ""

    def relist(self) -> None:
        """List again instead of going on with the watch."""
        self._version = ""

    async def run(
        self,
        listed: Callable[[ListPage], None],
        changed: Callable[[tuple[WatchEvent, ...]], None],
        rest: Callable[[ApiError | None], Awaitable[None]],
        newest: Callable[[], str] = lambda: "",
    ) -> None:
        """Until cancelled, or until `rest` raises: it waits between two tries and gets the error that ended the last.

        A list is never older than the version that `newest` returns.
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


#: Called with the UIDs of jobs and the keys of objects that changed.
Listener = Callable[[set[str], set[Key]], None]
_LOG = logging.getLogger(__name__)
_FIRST, _MOST = 0.2, 30.0


class Informer:
    """One resource, watched."""

    def __init__(
        self, cluster: Cluster, cache: Cache, scope: Selection, listener: Listener, telemetry: Telemetry
    ) -> None:
        self.cache = cache
        self.synced = asyncio.Event()
        self._feed = ListWatch(cluster, cache.resource, scope)
        self._telemetry = telemetry
        self._listener = listener
        self._pause = _FIRST
        self._began = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        self._began = asyncio.get_running_loop().time()
        await self._feed.run(self._listed, self._take, self._rest, lambda: str(self.cache.newest or ""))

    async def _rest(self, error: ApiError | None) -> None:
        """Even a server that ends every watch at once is not asked without pause."""
        loop = asyncio.get_running_loop()
        if error is not None and not isinstance(error, GoneError):
            _LOG.warning(LogMessage("watch interrupted", resource=self.cache.resource.id, error=error))
        if loop.time() - self._began > self._pause:
            self._pause = _FIRST
        await asyncio.sleep(self._pause * (0.5 + random()))  # noqa: S311 - jitter, not a secret
        self._pause = min(self._pause * 2, _MOST)
        self._began = loop.time()

    def _listed(self, page: ListPage) -> None:
        self._telemetry.lists[self.cache.resource.id] += 1
        before = dict(zip(self.cache.keys(), self.cache.items(), strict=True))
        jobs = self.cache.replace(page)
        self.synced.set()
        keys = before.keys() | set(self.cache.keys())
        self._listener(jobs, {key for key in keys if self.cache.get(key) is not before.get(key)})

    def _take(self, changes: tuple[WatchEvent, ...]) -> None:
        jobs: set[str] = set()
        keys: set[Key] = set()
        for change in changes:
            if change.what is not WatchEventType.BOOKMARK:
                meta = self.cache.resource.meta(change.item)
                key = Key(meta.namespace, meta.name)
                before = self.cache.get(key)
                jobs |= self.cache.apply(change)
                # Our own writes come back here: they are no news.
                if self.cache.get(key) is not before:
                    keys.add(key)
        self._pause = _FIRST
        self._telemetry.changes[self.cache.resource.id] += len(changes)
        if jobs or keys:
            self._listener(jobs, keys)


#: So many removed nodes are remembered; their pods are given up long before.
_GONE = 1024


class NodeIndex:
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
        condition = ObjectCondition("Ready", "False", GONE, "the node was removed", self._clock.now())
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


#: Which job: the kind's lower-case name, namespace and name.
Which = tuple[str, Key]


class ClusterCache:
    """The caches. `look` is called for jobs that changed themselves, `stir` for jobs whose children did."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: ControllerSettings, telemetry: Telemetry) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._place = Selection(namespace=settings.namespace)
        kinds = [kind for kind in KINDS if settings.kinds is None or kind.singular in settings.kinds]
        self.jobs = {kind.singular: Cache(jobs_of(kind)) for kind in kinds}
        self._pods, self._services = Cache(PODS), Cache(SERVICES)
        self._extras = [Cache(replace(one, type=Extra)) for one in (CONFIG_MAPS, *settings.extras)]
        self._nodes = NodeIndex(Cache(NODES), clock)
        caches = (self._pods, self._services, *self._extras)
        #: By API and kind: several gang schedulers have a PodGroup.
        self.children = {(cache.resource.api_version, cache.resource.kind): cache for cache in caches}

    def informers(self, look: Callable[[Which], None], stir: Callable[[set[str]], None]) -> list[Informer]:
        """What keeps all this in step."""
        place, children = self._place, replace(self._place, labels=KIND)
        return [
            *(self._informer(cache, place, partial(_jobs, look, kind)) for kind, cache in self.jobs.items()),
            *(self._informer(cache, children, lambda uids, _: stir(uids)) for cache in self.children.values()),
            self._informer(self._nodes.cache, EVERYTHING, lambda _, keys: stir(self._shaken(keys))),
        ]

    def _informer(self, cache: Cache, scope: Selection, listener: Callable[[set[str], set[Key]], None]) -> Informer:
        return Informer(self._cluster, cache, scope, listener, self._telemetry)

    def _shaken(self, keys: set[Key]) -> set[str]:
        """Nodes have changed: the jobs with pods on one that fell silent, went or came back."""
        nodes = self._nodes.update(keys)
        pods = [pod for pod in self._pods.items() if pod.spec.node_name in nodes] if nodes else []
        return {uid for pod in pods if (uid := (pod.metadata.labels or {}).get(JOB_UID))}

    def sizes(self) -> dict[str, int]:
        """How many there are of everything, by the plural of its name."""
        sizes: Counter[str] = Counter()
        for cache in (*self.jobs.values(), *self.children.values(), self._nodes.cache):
            sizes[cache.resource.plural] += len(cache)
        return sizes

    def job(self, which: Which) -> Body | None:
        """The job's document, as last seen."""
        found: Body | None = self.jobs[which[0]].get(which[1])
        return found

    def observe(self, job: Job, refusals: tuple[Refusal, ...], ports: frozenset[int] = frozenset()) -> Observed:
        """What one job has in the world; `ports` are those that others have."""
        whose = (job.key.namespace, job.uid)
        pods = self._pods.of(whose)
        self._nodes.miss({pod.spec.node_name for pod in pods})
        return Observed(
            pods=pods,
            services=self._services.of(whose),
            extras=tuple([extra for cache in self._extras for extra in cache.of(whose)]),
            nodes=self._nodes.known,
            refusals=refusals,
            ports=ports,
        )


def _jobs(look: Callable[[Which], None], kind: str, _uids: set[str], keys: set[Key]) -> None:
    for key in keys:
        look((kind, key))
