# SPDX-License-Identifier: Apache-2.0
"""Removes children whose job is gone, where nobody else does. `controller` runs it beside its passes.

`core.orphans` says what may go. That a job is gone is not believed of a cache: it is asked for once more.
"""

import asyncio
import logging
from collections.abc import Iterator

from trainwright.core.removal import orphan_owner
from trainwright.errors import ApiError, ConflictError, NotFoundError, TooManyRequestsError, UnavailableError
from trainwright.model.meta import Key, Meta, Owner
from trainwright.runtime.cache import Cache
from trainwright.runtime.informer import ClusterCache
from trainwright.runtime.ports import Clock, Cluster, Selection
from trainwright.runtime.telemetry import LogMessage

_LOG = logging.getLogger(__name__)


class OrphanCollector:
    """Looks now and then."""

    def __init__(self, cluster: Cluster, view: ClusterCache, clock: Clock) -> None:
        self._cluster, self._view, self._clock = cluster, view, clock
        self._owners = {(cache.resource.api_version, cache.resource.kind): cache for cache in view.jobs.values()}

    async def run(self, period: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(period)
            try:
                await self.sweep()
            except ApiError as error:
                _LOG.warning(LogMessage("orphans are looked for again later", error=error))

    async def sweep(self) -> None:
        """Once."""
        gone: dict[str, bool] = {}
        for cache, meta, job in list(self._found()):
            try:
                if job.uid not in gone:
                    gone[job.uid] = await self._gone(meta.namespace, job)
                if gone[job.uid]:
                    await self._remove(cache, meta, job)
            except (UnavailableError, TooManyRequestsError):
                raise
            except ApiError as error:
                # One that must not be removed, or asked about, does not keep the others.
                about = {"job": f"{meta.namespace}/{job.name}", "kind": job.kind.lower(), "uid": job.uid}
                _LOG.warning(LogMessage("orphan not removed", **about, name=meta.name, error=error))

    def _found(self) -> Iterator[tuple[Cache, Meta, Owner]]:
        """Children that may go if their job is really gone."""
        alive = {job["metadata"]["uid"] for cache in self._view.jobs.values() for job in cache.items()}
        now = self._clock.now()
        for cache in self._view.children.values():
            for whose in cache.jobs():
                for child in cache.of(whose) if whose[1] not in alive else ():
                    meta: Meta = cache.resource.meta(child)
                    job = orphan_owner(meta, self._owners, now)
                    if job is not None:
                        yield cache, meta, job

    async def _gone(self, namespace: str, job: Owner) -> bool:
        """Whether the API server does not have it either. A list is what an operator may ask for."""
        resource = self._owners[job.api_version, job.kind].resource
        page = await self._cluster.list(resource, Selection(namespace, fields=f"metadata.name={job.name}"))
        return all(one["metadata"]["uid"] != job.uid for one in page.items)

    async def _remove(self, cache: Cache, meta: Meta, job: Owner) -> None:
        key, resource = Key(meta.namespace, meta.name), cache.resource
        try:
            await self._cluster.delete(resource, key, uid=meta.uid)
        except (NotFoundError, ConflictError):
            cache.bury(key, meta.uid)
            return
        about = {"job": f"{meta.namespace}/{job.name}", "kind": job.kind.lower(), "uid": job.uid}
        _LOG.info(LogMessage("orphan removed", **about, resource=resource.id, name=meta.name))
