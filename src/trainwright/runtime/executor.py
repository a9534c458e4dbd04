# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out, in the order that `model.plan` demands, and nothing more once a write is out of date.

status → patches → deletes → creates → events. `controller` calls it; each answer enters the caches at once. Children
are made several at a time, the first one alone, then the first of each kind and role: what refuses one mostly refuses
its like.
"""

import asyncio
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
from trainwright.runtime.informer import ClusterCache
from trainwright.runtime.job_state import JobState, Like, Place
from trainwright.runtime.ports import Cluster, Propagation, Resource
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
Did = TypeVar("Did", Create, Delete, Patch)
#: A name that is still taken is tried again so soon: nobody tells us when somebody else's object has gone.
_TAKEN = 1.0
#: One of an older job that takes longer to go than this is told of: its node may never answer again.
_LONG = timedelta(seconds=90)
#: What was made changes counts, which can wait; a pod that starts says so itself.
_MADE = 1.0


class Executor:
    """Writes on behalf of the controller."""

    def __init__(
        self, cluster: Cluster, view: ClusterCache, settings: ControllerSettings, telemetry: Telemetry
    ) -> None:
        self._cluster = cluster
        #: By API and kind of child, and by kind of job.
        self._caches = view.children
        self._jobs = view.jobs
        self._settings = settings
        self._telemetry = telemetry

    async def carry_out(self, job: Job, plan: Plan, track: JobState, now: datetime) -> None:
        """Everything of a plan but its status and events."""
        await self._each(plan.patches, lambda patch: self._patch(job, patch, track))
        await self._each(plan.deletes, lambda delete: self._delete(job, delete, track))
        await self._create_all(job, plan.creates, track, now)
        if plan.remove_job:
            await self._remove(job, track)

    async def store(self, job: Job, version: str, status: Body) -> None:
        """The status, unless the job has changed since it was read."""
        cache = self._jobs[job.kind]
        written = self._cluster.patch(
            cache.resource, job.key, {"status": status}, uid=job.uid, version=version, status=True
        )
        cache.learn(await self._counted("patch", cache.resource, written, job, job.key.name))

    # ------------------------------------------------------------------------------------------------------------

    async def _remove(self, job: Job, track: JobState) -> None:
        """The job itself; its children go with it. Told once: nothing else says where it has gone."""
        cache = self._jobs[job.kind]
        gone = self._cluster.delete(cache.resource, job.key, uid=job.uid, propagation=Propagation.BACKGROUND)
        try:
            left = await self._counted("delete", cache.resource, gone, job, job.key.name)
        except NotFoundError:
            left = None
        else:
            track.untold += (Notice(EventReason.REMOVED, f"Deleted job: {job.key.name}", warning=False),)
        if left is None:
            cache.bury(job.key, job.uid)
        else:
            cache.learn(left)

    async def _create_all(self, job: Job, creates: Sequence[Create], track: JobState, now: datetime) -> None:
        """Every child but those whose like was refused; what was refused is kept, to be told and tried again later."""
        firsts: dict[Like, Create] = {}
        rest = [create for create in creates if firsts.setdefault(_like(create), create) is not create]

        async def make(create: Create) -> None:
            if _like(create) not in track.barred:
                await self._create(job, create, track, now)

        scouts = list(firsts.values())
        for some in (scouts[:1], scouts[1:], rest):
            await self._each(some, make)

    def _saw(self, track: JobState, touched: set[str]) -> None:
        """What we did ourselves is news as well, and the watch will not tell it again."""
        if touched:
            track.look_again(self._settings.coalesce)

    async def _patch(self, job: Job, patch: Patch, track: JobState) -> None:
        cache, version = self._caches.get((patch.api, patch.kind)), ""
        if cache is None:
            # The job itself: what we write of it replaces a list, so nobody else may have changed that meanwhile.
            cache = self._jobs[job.kind]
            there = cache.get(job.key)
            version = cache.resource.meta(there).resource_version if there is not None else ""
        key = Key(job.key.namespace, patch.name)
        made = self._cluster.patch(cache.resource, key, patch.body, uid=patch.uid, version=version)
        try:
            self._saw(track, cache.learn(await self._counted("patch", cache.resource, made, job, patch.name)))
        except NotFoundError:
            self._saw(track, cache.bury(key, patch.uid))

    async def _delete(self, job: Job, delete: Delete, track: JobState) -> None:
        cache = self._caches[delete.api, delete.kind]
        key = Key(job.key.namespace, delete.name)
        grace = 0 if delete.force else None
        gone = self._cluster.delete(cache.resource, key, uid=delete.uid, grace=grace)
        try:
            left = await self._counted("delete", cache.resource, gone, job, delete.name)
        except (NotFoundError, ConflictError):
            # It is gone, or another object bears its name: either way this one is no more.
            left = None
        else:
            self._mention(track, ChildEvent(EventReason.DELETED, delete.kind, delete.name, delete.why))
        self._saw(track, cache.bury(key, delete.uid) if left is None else cache.learn(left))

    async def _create(self, job: Job, create: Create, track: JobState, now: datetime) -> None:
        """Make one child."""
        cache = self._caches[create.body["apiVersion"], create.body["kind"]]
        there = cache.get(Key(job.key.namespace, create.name))
        meta = cache.resource.meta(there) if there is not None else None
        if meta is not None and (meta.deletion_timestamp is not None or _of_predecessor(meta, job)):
            # Not this job's, or it would not be asked for: one of an older job of the same name.
            self._await(create, track, now)
            return
        request = self._cluster.create(cache.resource, create.body)
        try:
            made = await self._counted("create", cache.resource, request, job, create.name)
            if cache.learn(made):
                track.look_again(_MADE)
        except AlreadyExistsError as error:
            await self._taken(job, create, track, now, error)
        except (TooManyRequestsError, ConflictError):
            raise
        except UnavailableError as error:
            # Mostly nobody is answered then. If only this is not, time and again, a webhook hangs: people must be told.
            if track.pause < self._settings.unanswered and _place(create) not in track.refusals:
                raise
            track.barred[_like(create)] = self._refuse(create, track, now, error)
        except ApiError as error:
            track.barred[_like(create)] = self._refuse(create, track, now, error)
        else:
            track.refusals.pop(_place(create), None)
            self._mention(track, ChildEvent(EventReason.CREATED, *_place(create)))

    async def _taken(self, job: Job, create: Create, track: JobState, now: datetime, error: ApiError) -> None:
        """Something has its name: ours enters the cache, one on its way out is waited for, a foreign one is told of."""
        cache = self._caches[create.body["apiVersion"], create.body["kind"]]
        try:
            found = await self._cluster.get(cache.resource, Key(job.key.namespace, create.name))
        except NotFoundError:
            self._await(create, track, now)
            return
        meta: Meta = cache.resource.meta(found)
        labels = meta.labels or {}
        # Without these two no informer would ever tell of it.
        labelled = KIND in labels and labels.get(JOB_UID) == job.uid
        if labelled and meta.controller is not None and meta.controller.uid == job.uid:
            self._saw(track, cache.learn(found))
            track.refusals.pop(_place(create), None)
        elif meta.deletion_timestamp is not None or _of_predecessor(meta, job):
            self._await(create, track, now)
        elif job.handed_over and _made_elsewhere(meta, job):
            await self._replace(job, create, cache.resource, meta.uid)
            self._await(create, track, now)
        else:
            foreign = AlreadyExistsError(f"{error}, and is not this job's: {_whose(meta, job)}")
            self._refuse(create, track, now, foreign)

    async def _replace(self, job: Job, create: Create, resource: Resource, uid: str) -> None:
        """Remove a child that another controller made for a job that was handed over: its name is needed."""
        gone = self._cluster.delete(resource, Key(job.key.namespace, create.name), uid=uid)
        with suppress(NotFoundError, ConflictError):
            await self._counted("delete", resource, gone, job, create.name)

    def _await(self, create: Create, track: JobState, now: datetime) -> None:
        """Its name will be free soon, or people must be told that it is not."""
        kind, name = place = _place(create)
        if now - track.awaits.setdefault(place, now) > _LONG:
            text = f"a {kind.lower()} {name} of an older job is still there; its node may not answer"
            self._refuse(create, track, now, AlreadyExistsError(text))
            return
        track.refusals.pop(place, None)
        track.look_again(_TAKEN)

    def _refuse(self, create: Create, track: JobState, now: datetime, error: ApiError) -> datetime:
        """Remember a refusal, and have it told at once if it says something new; when to try again."""
        kind, name = place = _place(create)
        wait = 2 * max(track.waits.get(place, 0.0), track.pause) or self._settings.refused
        wait = min(wait, self._settings.refused_most)
        track.waits[place] = wait
        again = now + timedelta(seconds=max(wait, error.retry_after or 0.0))
        before = track.refusals.get(place)
        track.complain(_like(create), ChildEvent(EventReason.REFUSED, kind, name, f"{error.reason}: {error}"))
        known = before is not None and (before.reason, before.message) == (error.reason, str(error))
        track.look_again((again - now).total_seconds() if known else 0.0)
        since = before.since if before is not None else now
        track.refusals[place] = Refusal(
            name, error.reason, str(error), again, kind, since, quota=isinstance(error, QuotaError)
        )
        return again

    def _mention(self, track: JobState, event: ChildEvent) -> None:
        """Have people told of one child, if they want to know."""
        if self._settings.child_events:
            track.untold += (event,)

    async def _counted(self, verb: str, resource: Resource, request: Awaitable[Any], job: Job, name: str) -> Any:
        result = "cancelled"
        try:
            answer = await request
            result = "done"
            return answer
        except ApiError as error:
            result = error.reason
            raise
        finally:
            self._telemetry.writes[verb, resource.id, result] += 1
            if _LOG.isEnabledFor(logging.DEBUG):
                about = {"job": str(job.key), "kind": job.kind, "verb": verb, "resource": resource.id}
                _LOG.debug(LogMessage("write", **about, name=name, result=result))

    async def _each(self, effects: Sequence[Did], do: Callable[[Did], Awaitable[None]]) -> None:
        """Several at a time. Once one has failed none begins, and those under way are waited for: they may be done."""
        pending = iter(effects)

        async def work() -> None:
            for effect in pending:
                try:
                    await do(effect)
                except BaseException:
                    for _ in pending:
                        pass
                    raise

        many = min(self._settings.writes, len(effects))
        if many <= 1:
            await work()
            return
        ends = await asyncio.gather(*[work() for _ in range(many)], return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end


def _place(create: Create) -> Place:
    return create.body["kind"], create.name


def _like(create: Create) -> Like:
    """What it shares with others that will fare as it does: its kind and role."""
    return create.body["kind"], create.body["metadata"].get("labels", {}).get(ROLE, "")


def _of_predecessor(meta: Meta, job: Job) -> bool:
    """It belongs to an older job of the same name, so it will be collected."""
    one = meta.controller
    return one is not None and (one.kind, one.name) == (job.owner.kind, job.owner.name) and one.uid != job.uid


def _made_elsewhere(meta: Meta, job: Job) -> bool:
    """Another controller made it for this very job: it bears none of our labels."""
    one = meta.controller
    labels = meta.labels or {}
    return one is not None and one.uid == job.uid and not any(key.startswith(f"{PREFIX}/") for key in labels)


def _whose(meta: Meta, job: Job) -> str:
    """Whose an object is that bears a name we need, and what can be done about it."""
    one = meta.controller
    if one is None:
        return "nobody controls it; remove it, or give the job another name"
    if one.uid == job.uid:
        why = "another controller made it, or somebody took our labels away"
        return f"it is this job's, but {why}; remove it, and it is made anew"
    return f"{one.kind} {one.name} controls it; give the job another name"
