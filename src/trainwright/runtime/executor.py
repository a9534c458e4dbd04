# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out, in the order that `model.action` demands, and nothing more once a write is out of date.

status → patches → deletes → creates → events. `controller` calls it; each answer enters the caches at once. Children
are made several at a time, the first one alone: what refuses one mostly refuses all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from trainwright.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from trainwright.model.action import Create, Delete, Patch, Plan
from trainwright.model.child import Refusal
from trainwright.model.job import Body, Job
from trainwright.model.meta import Key, Meta
from trainwright.runtime.ports import Cluster, Propagation, Resource
from trainwright.runtime.settings import Settings
from trainwright.runtime.telemetry import Telemetry
from trainwright.runtime.track import Track
from trainwright.runtime.view import View

Did = TypeVar("Did", Create, Delete, Patch)


class Executor:
    """Writes on behalf of the controller."""

    def __init__(self, cluster: Cluster, view: View, settings: Settings, telemetry: Telemetry) -> None:
        self._cluster = cluster
        #: By kind of child, and by kind of job.
        self._caches = view.children
        self._jobs = view.jobs
        self._settings = settings
        self._telemetry = telemetry

    async def carry_out(self, job: Job, plan: Plan, track: Track, now: datetime) -> None:
        """Everything of a plan but its status and events."""
        await self._each(plan.patches, lambda patch: self._patch(job, patch))
        await self._each(plan.deletes, lambda delete: self._delete(job, delete))
        await self._create_all(job, plan.creates, track, now)
        if plan.remove_job:
            await self._remove(job)

    async def store(self, job: Job, version: str, status: Body) -> None:
        """The status, unless the job has changed since it was read."""
        cache = self._jobs[job.kind]
        written = self._cluster.patch(
            cache.resource, job.key, {"status": status}, uid=job.uid, version=version, status=True
        )
        cache.learn(await self._counted("patch", cache.resource, written))

    # ------------------------------------------------------------------------------------------------------------

    async def _remove(self, job: Job) -> None:
        """The job itself; its children go with it."""
        cache = self._jobs[job.kind]
        gone = self._cluster.delete(cache.resource, job.key, uid=job.uid, propagation=Propagation.BACKGROUND)
        try:
            await self._counted("delete", cache.resource, gone)
        except NotFoundError:
            return

    async def _create_all(self, job: Job, creates: Sequence[Create], track: Track, now: datetime) -> None:
        """Every child, until one is refused; what was refused is kept, to be told and tried again later."""
        pending = iter(creates)

        async def some(most: int | None = None) -> None:
            for create in islice(pending, most):
                if not await self._create(job, create, track, now):
                    for _ in pending:  # what refuses one mostly refuses all
                        pass

        await some(1)
        await _together(some, min(self._settings.writes, len(creates) - 1))

    async def _patch(self, job: Job, patch: Patch) -> None:
        cache = self._caches[patch.kind]
        key = Key(job.key.namespace, patch.name)
        made = self._cluster.patch(cache.resource, key, patch.body, uid=patch.uid)
        try:
            cache.learn(await self._counted("patch", cache.resource, made))
        except NotFoundError:
            cache.bury(key, patch.uid)

    async def _delete(self, job: Job, delete: Delete) -> None:
        cache = self._caches[delete.kind]
        key = Key(job.key.namespace, delete.name)
        grace = 0 if delete.force else None
        gone = self._cluster.delete(cache.resource, key, uid=delete.uid, grace=grace)
        try:
            left = await self._counted("delete", cache.resource, gone)
        except (NotFoundError, ConflictError):
            # It is gone, or another object bears its name: either way this one is no more.
            left = None
        if left is None:
            cache.bury(key, delete.uid)
        else:
            cache.learn(left)

    async def _create(self, job: Job, create: Create, track: Track, now: datetime) -> bool:
        """Make one child; whether it may be followed by others."""
        kind: str = create.body["kind"]
        cache = self._caches[kind]
        try:
            cache.learn(
                await self._counted("create", cache.resource, self._cluster.create(cache.resource, create.body))
            )
        except AlreadyExistsError as error:
            return await self._taken(job, create, track, now, error)
        except (UnavailableError, ConflictError):
            raise
        except ApiError as error:
            self._refuse(create, track, now, error)
            return False
        track.refusals.pop((kind, create.name), None)
        return True

    async def _taken(self, job: Job, create: Create, track: Track, now: datetime, error: ApiError) -> bool:
        """Something has its name: ours enters the cache, one on its way out is waited for, a foreign one is told of."""
        cache = self._caches[create.body["kind"]]
        try:
            found = await self._cluster.get(cache.resource, Key(job.key.namespace, create.name))
        except NotFoundError:
            return True
        meta: Meta = cache.resource.meta(found)
        ours = meta.controller is not None and meta.controller.uid == job.uid
        if ours:
            cache.learn(found)
        if ours or meta.deletion_timestamp is not None:
            return True
        self._refuse(create, track, now, error)
        return True

    def _refuse(self, create: Create, track: Track, now: datetime, error: ApiError) -> None:
        kind: str = create.body["kind"]
        after = max(self._settings.refused, error.retry_after or 0.0)
        again = now + timedelta(seconds=after)
        track.refusals[kind, create.name] = Refusal(create.name, error.reason, str(error), again, kind)

    async def _counted(self, verb: str, resource: Resource, request: Awaitable[Any]) -> Any:
        try:
            answer = await request
        except ApiError as error:
            self._telemetry.writes[verb, resource.id, error.reason] += 1
            raise
        self._telemetry.writes[verb, resource.id, "done"] += 1
        return answer

    async def _each(self, effects: Sequence[Did], do: Callable[[Did], Awaitable[None]]) -> None:
        pending = iter(effects)

        async def work() -> None:
            for effect in pending:
                await do(effect)

        await _together(work, min(self._settings.writes, len(effects)))


async def _together(work: Callable[[], Coroutine[Any, Any, None]], most: int) -> None:
    """So many workers on one iterator; the first that fails ends them all."""
    tasks = [asyncio.ensure_future(work()) for _ in range(most)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
