# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan: it patches, then deletes, then creates objects. After a failed write it begins no new write.

The executor puts the response of each write into the cache at once. It creates children concurrently, but in three
steps: the first child, then the first child of each other kind and role, then the other children. An API server that
refuses one child usually refuses similar children too, so these steps keep the number of refused requests small.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from trainwright.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    QuotaError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.model.child import Refusal
from trainwright.model.event import ChildEvent, EventReason, Notice
from trainwright.model.job import Body, Job
from trainwright.model.meta import JOB_UID, KIND, PREFIX, ROLE, Key, Meta
from trainwright.model.plan import Create, Delete, Patch, Plan
from trainwright.runtime.cache import Cache, ClusterCache
from trainwright.runtime.job_state import ChildGroup, ChildKey, JobState
from trainwright.runtime.ports import Cluster, Resource
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import JobCounter, LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
Effect = TypeVar("Effect", Create, Delete, Patch)
#: If another object still has the name of a child, the executor tries to create the child again after this time. No
#: watch reports the end of the other object if that object is not one of ours.
_NAME_TAKEN_RETRY_SECONDS = 1.0
#: If a child of an older job keeps a name for longer than this, the user is told: perhaps the child's node is lost.
_NAME_TAKEN_REPORT_AFTER = timedelta(seconds=90)


class Executor:
    """Carries out plans and stores statuses."""

    def __init__(
        self, cluster: Cluster, cluster_cache: ClusterCache, settings: ControllerSettings, telemetry: Telemetry
    ) -> None:
        self._cluster = cluster
        #: Caches of children by API and kind, and caches of jobs by kind.
        self._caches = cluster_cache.children
        self._jobs = cluster_cache.jobs
        self._settings = settings
        self._telemetry = telemetry

    async def carry_out(self, job: Job, plan: Plan, state: JobState, now: datetime) -> None:
        """Carry out a plan, except its status and its events."""
        await self._each(plan.patches, lambda patch: self._patch(job, patch, state))
        await self._each(plan.deletes, lambda delete: self._delete(job, delete, state))
        await self._create_all(job, plan.creates, state, now)
        if plan.remove_job:
            await self._remove_job(job, state)

    async def store(self, job: Job, document: Body, status: Body) -> Body:
        """Replace the status of a job; return the job as it is stored. Raises ConflictError if it has changed since."""
        cache = self._jobs[job.kind]
        request = self._cluster.replace_status(cache.resource, {**document, "status": status})
        stored: Body = await self._counted("update", cache.resource, request, job, job.key.name)
        cache.add_written(stored)
        return stored

    # ------------------------------------------------------------------------------------------------------------

    async def _remove_job(self, job: Job, state: JobState) -> None:
        """Delete the job; the garbage collector removes its children. Afterwards only the event shows the removal."""
        cache = self._jobs[job.kind]
        request = self._cluster.delete(cache.resource, job.key, uid=job.uid)
        remaining = None
        with suppress(NotFoundError):
            remaining = await self._counted("delete", cache.resource, request, job, job.key.name)
            state.unsent_events += (Notice(EventReason.REMOVED, f"Deleted job: {job.key.name}", warning=False),)
        _take_over(cache, job.key, job.uid, remaining)

    async def _create_all(self, job: Job, creates: Sequence[Create], state: JobState, now: datetime) -> None:
        """Create all children. After the server refuses a child, create no more children of the same kind and role."""
        firsts: dict[ChildGroup, Create] = {}
        rest = [create for create in creates if firsts.setdefault(_group(create), create) is not create]

        async def create_unblocked(create: Create) -> None:
            if _group(create) not in state.blocked_until:
                await self._create(job, create, state, now)

        first_of_groups = list(firsts.values())
        for batch in (first_of_groups[:1], first_of_groups[1:], rest):
            await self._each(batch, create_unblocked)

    def _requeue_if_changed(self, state: JobState, changed_jobs: set[str]) -> None:
        """Request another pass after our own change: the cache has it already, so no watch event requests a pass."""
        if changed_jobs:
            state.requeue_in(self._settings.coalesce)

    async def _patch(self, job: Job, patch: Patch, state: JobState) -> None:
        cache, version = self._caches.get((patch.api, patch.kind)), ""
        if cache is None:
            # This patch is for the job itself. It replaces the whole list of finalizers, so it contains the version
            # of the cached job: the server refuses the patch if the job has changed since.
            cache = self._jobs[job.kind]
            cached = cache.get(job.key)
            version = cache.resource.meta(cached).resource_version if cached is not None else ""
        key = Key(job.key.namespace, patch.name)
        request = self._cluster.patch(cache.resource, key, patch.body, uid=patch.uid, version=version)
        try:
            patched = await self._counted("patch", cache.resource, request, job, patch.name)
            self._requeue_if_changed(state, cache.add_written(patched))
        except NotFoundError:
            self._requeue_if_changed(state, cache.remove_deleted(key, patch.uid))

    async def _delete(self, job: Job, delete: Delete, state: JobState) -> None:
        cache = self._caches[delete.api, delete.kind]
        key = Key(job.key.namespace, delete.name)
        request = self._cluster.delete(cache.resource, key, uid=delete.uid, grace=0 if delete.force else None)
        remaining = None
        # If the object is gone, or another object has its name now, the object to delete no longer exists.
        with suppress(NotFoundError, ConflictError):
            remaining = await self._counted("delete", cache.resource, request, job, delete.name)
            self._add_child_event(state, ChildEvent(EventReason.DELETED, delete.kind, delete.name, delete.why))
        self._requeue_if_changed(state, _take_over(cache, key, delete.uid, remaining))

    async def _create(self, job: Job, create: Create, state: JobState, now: datetime) -> None:
        cache = self._caches[create.body["apiVersion"], create.body["kind"]]
        cached = cache.get(Key(job.key.namespace, create.name))
        meta = cache.resource.meta(cached) if cached is not None else None
        if meta is not None and (meta.deletion_timestamp is not None or _belongs_to_predecessor(meta, job)):
            # The name is not free yet: the cached object is being deleted, or it belongs to an older job of this name.
            self._wait_for_name(create, state, now)
            return
        request = self._cluster.create(cache.resource, create.body)
        try:
            created = await self._counted("create", cache.resource, request, job, create.name)
            if cache.add_written(created):
                # This pass only updates counts in the status. If a pod starts earlier, its event causes a pass.
                state.requeue_in(self._telemetry.minor_delay)
        except AlreadyExistsError as error:
            await self._resolve_taken_name(job, create, state, now, error)
        except (TooManyRequestsError, ConflictError):
            raise
        except UnavailableError as error:
            # Usually the whole API server is unavailable. If only this request fails again and again, an admission
            # webhook does not answer, and the user must learn of it.
            if state.retry_pause < self._settings.unanswered and _child_key(create) not in state.refusals:
                raise
            state.blocked_until[_group(create)] = self._refuse(create, state, now, error)
        except ApiError as error:
            state.blocked_until[_group(create)] = self._refuse(create, state, now, error)
        else:
            state.refusals.pop(_child_key(create), None)
            self._add_child_event(state, ChildEvent(EventReason.CREATED, *_child_key(create)))

    async def _resolve_taken_name(
        self, job: Job, create: Create, state: JobState, now: datetime, error: ApiError
    ) -> None:
        """Put an object of this job into the cache, wait for a terminating object, or report a foreign object."""
        cache = self._caches[create.body["apiVersion"], create.body["kind"]]
        try:
            found = await self._cluster.get(cache.resource, Key(job.key.namespace, create.name))
        except NotFoundError:
            self._wait_for_name(create, state, now)
            return
        meta: Meta = cache.resource.meta(found)
        labels = meta.labels or {}
        # Informers need the labels KIND and JOB_UID: without these labels, a change of the object causes no pass.
        labelled = KIND in labels and labels.get(JOB_UID) == job.uid
        if labelled and meta.controller is not None and meta.controller.uid == job.uid:
            self._requeue_if_changed(state, cache.add_written(found))
            state.refusals.pop(_child_key(create), None)
        elif meta.deletion_timestamp is not None or _belongs_to_predecessor(meta, job):
            self._wait_for_name(create, state, now)
        elif job.handed_over and _made_by_other_controller(meta, job):
            # Another controller managed this job before us and created this object. Our child needs its name.
            request = self._cluster.delete(cache.resource, Key(job.key.namespace, create.name), uid=meta.uid)
            with suppress(NotFoundError, ConflictError):
                await self._counted("delete", cache.resource, request, job, create.name)
            self._wait_for_name(create, state, now)
        else:
            foreign = AlreadyExistsError(f"{error}, and is not this job's: {_describe_owner(meta, job)}")
            self._refuse(create, state, now, foreign)

    def _wait_for_name(self, create: Create, state: JobState, now: datetime) -> None:
        """Retry soon, because the name of the child will be free. After a long wait, report that it is still taken."""
        kind, name = child_key = _child_key(create)
        if now - state.name_taken_since.setdefault(child_key, now) > _NAME_TAKEN_REPORT_AFTER:
            text = f"a {kind.lower()} {name} of an older job still exists; its node may not answer"
            self._refuse(create, state, now, AlreadyExistsError(text))
            return
        state.refusals.pop(child_key, None)
        state.requeue_in(_NAME_TAKEN_RETRY_SECONDS)

    def _refuse(self, create: Create, state: JobState, now: datetime, error: ApiError) -> datetime:
        """Remember a refusal and report it at once if it is new. Returns the time of the next try."""
        kind, name = child_key = _child_key(create)
        wait = 2 * max(state.refusal_waits.get(child_key, 0.0), state.retry_pause) or self._settings.refused
        wait = min(wait, self._settings.refused_most)
        state.refusal_waits[child_key] = wait
        retry_at = now + timedelta(seconds=max(wait, error.retry_after or 0.0))
        before = state.refusals.get(child_key)
        state.warn(_group(create), ChildEvent(EventReason.REFUSED, kind, name, f"{error.reason}: {error}"))
        known = before is not None and (before.reason, before.message) == (error.reason, str(error))
        state.requeue_in((retry_at - now).total_seconds() if known else 0.0)
        since = before.since if before is not None else now
        state.refusals[child_key] = Refusal(
            name, error.reason, str(error), retry_at, kind, since, quota=isinstance(error, QuotaError)
        )
        return retry_at

    def _add_child_event(self, state: JobState, event: ChildEvent) -> None:
        if self._settings.child_events:
            state.unsent_events += (event,)

    async def _counted(self, verb: str, resource: Resource, request: Awaitable[Any], job: Job, name: str) -> Any:
        """Await a request, count its result and log it."""
        result = "cancelled"
        try:
            response = await request
            result = "done"
            return response
        except ApiError as error:
            result = error.reason
            raise
        finally:
            self._telemetry.writes[verb, resource.id, result] += 1
            if verb == "delete" and resource.kind == job.owner.kind and result == "done":
                self._telemetry.count_job(JobCounter.DELETED, job.kind, job.key.namespace)
            if _LOG.isEnabledFor(logging.DEBUG):
                fields = {"job": str(job.key), "kind": job.kind, "verb": verb, "resource": resource.id}
                _LOG.debug(LogMessage("write", **fields, name=name, result=result))

    async def _each(self, effects: Sequence[Effect], do: Callable[[Effect], Awaitable[None]]) -> None:
        """Call `do` for each effect (create, delete or patch), several at a time. After a failure, begin no new call.

        Still wait for the running calls: the server may have stored their changes, so the cache needs the responses.
        """
        pending = iter(effects)

        async def work() -> None:
            for effect in pending:
                try:
                    await do(effect)
                except BaseException:
                    for _ in pending:
                        pass
                    raise

        workers = min(self._settings.writes, len(effects))
        if workers <= 1:
            await work()
            return
        import asyncio  # noqa: PLC0415 - the import takes 24 ms, and `trainwright plan` has one worker

        results = await asyncio.gather(*[work() for _ in range(workers)], return_exceptions=True)
        for error in results:
            if error is not None:
                raise error


def _take_over(cache: Cache, key: Key, uid: str, remaining: Any) -> set[str]:
    """Update the cache after a delete request. `remaining` is the object if it still exists, otherwise None."""
    return cache.remove_deleted(key, uid) if remaining is None else cache.add_written(remaining)


def _child_key(create: Create) -> ChildKey:
    return create.body["kind"], create.name


def _group(create: Create) -> ChildGroup:
    return create.body["kind"], create.body["metadata"].get("labels", {}).get(ROLE, "")


def _belongs_to_predecessor(meta: Meta, job: Job) -> bool:
    """Whether an older job of the same name owns the object, so that the garbage collector will remove it."""
    owner = meta.controller
    if owner is None or owner.uid == job.uid:
        return False
    group, own_group = (one.api_version.partition("/")[0] for one in (owner, job.owner))
    return (group, owner.kind, owner.name) == (own_group, job.owner.kind, job.owner.name)


def _made_by_other_controller(meta: Meta, job: Job) -> bool:
    """Whether another controller created the object for this job: the job owns it, but it has none of our labels."""
    owner = meta.controller
    labels = meta.labels or {}
    return owner is not None and owner.uid == job.uid and not any(key.startswith(f"{PREFIX}/") for key in labels)


def _describe_owner(meta: Meta, job: Job) -> str:
    """A text that says who controls an object whose name we need, and what the user can do."""
    owner = meta.controller
    if owner is None:
        return "no controller owns it; remove it, or give the job another name"
    if owner.uid == job.uid:
        cause = "another controller made it, or somebody removed our labels"
        return f"it is this job's, but {cause}; remove it, and the operator makes a new one"
    return f"{owner.kind} {owner.name} controls it; give the job another name"
