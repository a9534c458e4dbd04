# SPDX-License-Identifier: Apache-2.0
"""Deletes children whose job no longer exists, because the garbage collector of a cluster can be blocked.

`core.removal` says which children may be deleted. The cache may be out of date, so before the collector deletes a
child, it asks the API server whether the job is gone.
"""

import asyncio
import logging
from collections.abc import Iterator

from trainwright.core.removal import orphan_owner
from trainwright.errors import ApiError, ConflictError, NotFoundError, TooManyRequestsError, UnavailableError
from trainwright.model.meta import Key, Meta, Owner
from trainwright.runtime.cache import Cache, ClusterCache
from trainwright.runtime.ports import Clock, Cluster, Selection
from trainwright.runtime.telemetry import LogMessage

_LOG = logging.getLogger(__name__)


class OrphanCollector:
    """Looks for orphans periodically."""

    def __init__(self, cluster: Cluster, cluster_cache: ClusterCache, clock: Clock) -> None:
        self._cluster, self._cluster_cache, self._clock = cluster, cluster_cache, clock
        resources = [cache.resource for cache in cluster_cache.jobs.values()]
        self._job_resources = {(resource.api_version, resource.kind): resource for resource in resources}

    async def run(self, period: float) -> None:
        """Collect orphans every `period` seconds until cancelled."""
        while True:
            await asyncio.sleep(period)
            try:
                await self.collect()
            except ApiError as error:
                _LOG.warning(LogMessage("the search for orphans failed and will be repeated", error=error))

    async def collect(self) -> None:
        """Find and delete orphans once."""
        gone: dict[str, bool] = {}
        for cache, meta, job in list(self._candidates()):
            try:
                if job.uid not in gone:
                    gone[job.uid] = await self._is_gone(meta.namespace, job)
                if gone[job.uid]:
                    await self._remove(cache, meta, job)
            except (UnavailableError, TooManyRequestsError):
                raise
            except ApiError as error:
                # If a request for one orphan fails, the collector must still delete the other orphans.
                _LOG.warning(LogMessage("orphan not removed", **_log_fields(meta, job), name=meta.name, error=error))

    def _candidates(self) -> Iterator[tuple[Cache, Meta, Owner]]:
        """Children that may be deleted if the API server confirms that their job is gone."""
        alive = {job["metadata"]["uid"] for cache in self._cluster_cache.jobs.values() for job in cache.items()}
        now = self._clock.now()
        for cache in self._cluster_cache.children.values():
            for job_owner in cache.owners():
                for child in cache.children_of(job_owner) if job_owner[1] not in alive else ():
                    meta: Meta = cache.resource.meta(child)
                    job = orphan_owner(meta, self._job_resources, now)
                    if job is not None:
                        yield cache, meta, job

    async def _is_gone(self, namespace: str, job: Owner) -> bool:
        """Whether the API server has no such job. Uses a list, because the operator has no permission to get a job."""
        resource = self._job_resources[job.api_version, job.kind]
        page = await self._cluster.list(resource, Selection(namespace, fields=f"metadata.name={job.name}"))
        return all(one["metadata"]["uid"] != job.uid for one in page.items)

    async def _remove(self, cache: Cache, meta: Meta, job: Owner) -> None:
        key, resource = Key(meta.namespace, meta.name), cache.resource
        try:
            await self._cluster.delete(resource, key, uid=meta.uid)
        except (NotFoundError, ConflictError):
            cache.remove_deleted(key, meta.uid)
            return
        _LOG.info(LogMessage("orphan removed", **_log_fields(meta, job), resource=resource.id, name=meta.name))


def _log_fields(meta: Meta, job: Owner) -> dict[str, str]:
    return {"job": f"{meta.namespace}/{job.name}", "kind": job.kind.lower(), "uid": job.uid}
