# SPDX-License-Identifier: Apache-2.0
"""Everything the controller knows of its cluster: one cache and one informer per resource, and whom to wake.

`controller` asks it for a job and for what that job has in the world; the informers call back when something changes.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from trainwright.kinds.registry import KINDS
from trainwright.model.child import Extra, Observed, Refusal
from trainwright.model.job import Body, Job
from trainwright.model.meta import JOB_UID, KIND, Key
from trainwright.runtime.cache import Cache
from trainwright.runtime.informer import Informer
from trainwright.runtime.nodes import Nodes
from trainwright.runtime.ports import EVERYTHING, Clock, Cluster, Scope
from trainwright.runtime.resources import CONFIG_MAPS, NODES, PODS, SERVICES, jobs_of
from trainwright.runtime.settings import Settings
from trainwright.runtime.telemetry import Telemetry

#: Which job: the kind's lower-case name, namespace and name.
Which = tuple[str, Key]


class View:
    """The caches. `look` is called for jobs that changed themselves, `stir` for jobs whose children did."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: Settings, telemetry: Telemetry) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._place = Scope(namespace=settings.namespace)
        kinds = [kind for kind in KINDS if settings.kinds is None or kind.singular in settings.kinds]
        self.jobs = {kind.singular: Cache(jobs_of(kind)) for kind in kinds}
        self._pods, self._services = Cache(PODS), Cache(SERVICES)
        self._extras = [Cache(replace(one, type=Extra)) for one in (CONFIG_MAPS, *settings.extras)]
        self._nodes = Nodes(Cache(NODES), clock)
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

    def _informer(self, cache: Cache, scope: Scope, listener: Callable[[set[str], set[Key]], None]) -> Informer:
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
