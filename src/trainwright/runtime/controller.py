# SPDX-License-Identifier: Apache-2.0
"""THE LOOP: key → view → kind → reconcile → executor → status. One controller drives jobs of all kinds.

Informers keep the `ClusterCache` in step and queue jobs; `_pass` looks at one. It decides nothing: what should
happen is in the plan that `core.reconcile` returns. Engines make a controller and `run` it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from time import thread_time

from trainwright.core import ports
from trainwright.core.reconcile import reconcile
from trainwright.errors import ApiError, ConflictError, NotFoundError
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body, Job
from trainwright.model.meta import Key
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.runtime.executor import Executor
from trainwright.runtime.informer import ClusterCache, Which
from trainwright.runtime.job_metrics import JobMetrics
from trainwright.runtime.job_state import ElasticSizePublisher, HostPortIndex, JobState
from trainwright.runtime.orphans import OrphanCollector
from trainwright.runtime.ports import Clock, Cluster, Registry
from trainwright.runtime.publisher import Publisher
from trainwright.runtime.queue import Queue
from trainwright.runtime.recorder import Recorder
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
#: After a conflict the watch should wake us; if it lags, this does.
_LATE = 1.0
#: The more there is to look at, the larger the bursts: so many times as long as deciding took, more events are awaited.
_REST = 15.0
#: And the more jobs wait for their turn: so many seconds for each, up to so many. Every pass that is saved is theirs.
_CROWD, _CROWDED = 0.01, 1.0
#: How often it is seen whether the last passes have ended.
_BLINK = 0.01


class Controller:
    """Everything that one process needs to look after all jobs of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        site: Callable[[Job], Site],
        settings: ControllerSettings | None = None,
        telemetry: Telemetry | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.telemetry = telemetry or Telemetry()
        #: Everything has been listed once, and jobs are looked at.
        self.synced = False
        self._ending = False
        self._parts: list[asyncio.Task[None]] = []
        self._census = JobMetrics(self.telemetry)
        self._settings = settings or ControllerSettings()
        self._clock = clock
        #: The site for a pass over one job. Whatever that pass needs is reserved by this call: `reconcile` only reads.
        self._site = site
        self._kinds = {kind.singular: kind for kind in KINDS}
        self._tracks: dict[Which, JobState] = {}
        # Of a thousand new jobs, those that have begun are not forgotten for the others.
        self._queue: Queue[Which] = Queue(self.telemetry, waits=lambda which: which not in self._tracks)
        self._uids: dict[str, Which] = {}
        self._view = ClusterCache(cluster, clock, self._settings, self.telemetry)
        self._holdings = HostPortIndex(self._view.jobs)
        self._executor = Executor(cluster, self._view, self._settings, self.telemetry)
        self._announcer = ElasticSizePublisher(registry, self._settings)
        self._sweeper = OrphanCollector(cluster, self._view, clock)
        self._recorder = Recorder(cluster, clock, self.telemetry)
        self._publisher = Publisher(self._executor, self._recorder, self._settings)

    async def run(self) -> None:
        """Until cancelled. Nothing is looked at before everything has been listed once."""
        informers = self._view.informers(self._queue.add, self._stir)
        async with asyncio.TaskGroup() as group:
            self._parts = [group.create_task(informer.run()) for informer in informers]
            for informer in informers:
                await informer.synced.wait()
            self._parts += [group.create_task(self._work()) for _ in range(self._settings.workers)]
            self._parts.append(group.create_task(self._recorder.run()))
            if self._settings.sweep:
                self._parts.append(group.create_task(self._sweeper.run(self._settings.sweep)))
            self.synced = True
            _LOG.info(LogMessage("everything is listed", **self._view.sizes()))

    @property
    def broken(self) -> bool:
        """A part of it has ended, though nobody asked for that."""
        return not self._ending and any(part.done() for part in self._parts)

    def cleaned_up(self, kind: str, key: Key) -> bool:
        """Whether a job that has ended is cleaned up, and the status that follows from that is stored; or it is gone.

        Later changes of pods that its clean-up policy keeps are looked at all the same.
        """
        track = self._tracks.get((kind, key))
        return track.cleaned_up if track is not None else self._view.job((kind, key)) is None

    async def drain(self, seconds: float) -> bool:
        """Begin no other pass and let those under way end, for so long; whether they have."""
        self._ending = True
        end = asyncio.get_running_loop().time() + seconds
        while self._queue.working and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_BLINK)
        return not self._queue.working

    def _stir(self, uids: set[str]) -> None:
        """Children of these jobs have changed; more will, so wait a moment."""
        for uid in uids:
            which = self._uids.get(uid)
            if which is not None:
                track = self._tracks[which]
                track.period = 0.0
                track.cleaned_up = False
                crowd = min(_CROWD * self.telemetry.depth, _CROWDED)
                self._queue.add(which, max(self._settings.coalesce, _REST * track.effort, crowd))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            which = await self._queue.get()
            if self._ending:
                self._queue.done(which)
                return
            began = loop.time()
            try:
                result = await self._attempt(which)
            finally:
                self._queue.done(which)
            self.telemetry.passes[result] += 1
            self.telemetry.took(loop.time() - began)

    async def _attempt(self, which: Which) -> str:
        """One pass, whatever comes of it; in a word."""
        try:
            await self._pass(which)
        except (ConflictError, NotFoundError) as error:
            # Of the job itself: what the pass was based on is out of date. If it stays so, that is no reason to hurry.
            pause = self._pause(which)
            self._repeat(which, max(pause, _LATE), error if pause > _LATE else None)
            return "conflict"
        except ApiError as error:
            self._repeat(which, max(self._pause(which), error.retry_after or 0.0), error)
            await self._complain(which, error)
            return "retry"
        except Exception:  # one job must not take the others along: it is counted, logged and tried again
            _LOG.exception(LogMessage("pass failed", **_about(which)))
            self._queue.add(which, self._pause(which))
            return "error"
        return "done"

    def _repeat(self, which: Which, seconds: float, error: ApiError | None) -> None:
        if error is not None and not self._ending:
            _LOG.warning(LogMessage("pass to be repeated", **_about(which), error=error))
        self._queue.add(which, seconds)

    async def _complain(self, which: Which, error: ApiError) -> None:
        """Passes are refused time and again: whoever made the job should know."""
        track, document = self._tracks.get(which), self._view.job(which)
        if track is not None and document is not None and track.pause >= self._settings.unanswered:
            await self._publisher.complain(track.load(document).job, track, error)

    def _pause(self, which: Which) -> float:
        track = self._tracks.get(which)
        if track is None:
            return self._settings.retry_most
        track.pause = min(max(track.pause * 2, self._settings.retry), self._settings.retry_most)
        return track.pause

    async def _pass(self, which: Which) -> None:
        """Look at one job: decide, then do, in the order of `model.plan`."""
        document = self._view.job(which)
        if document is None:
            self._forget(which)
            return
        now = self._clock.now()
        track = self._track(which, document)
        track.begin(now)
        track.cleaned_up = False
        loaded = track.load(document)
        if not loaded.job.unreadable:
            self._census.see(which, document, loaded.job.ledger)
        job = track.job(loaded)
        began = thread_time()
        site = self._site(job)
        held = self._holdings.others(job.uid) if ports.lacking(job, site) else frozenset[int]()
        plan = reconcile(job, self._view.observe(job, tuple(track.refusals.values()), held), site, now)
        self._holdings.note(job.uid, plan.status.ledger)
        self._census.leave(which, foreign=plan.untouched and bool(job.foreign))
        track.effort = thread_time() - began
        track.expire(now, {(create.body["kind"], create.name) for create in plan.creates})
        due = await self._publisher.store(document, loaded, plan, track, now)
        if track.pending is None and not job.unreadable:
            self._census.see(which, document, plan.status.ledger)
        await self._executor.carry_out(job, plan, track, now)
        await self._announcer.announce(job, plan.announces, track, now)
        self._publisher.notice(job, plan.status, track, now)
        await self._publisher.tell(job, track)
        track.went_well()
        done = plan.status.ledger.outcome is not None and not plan.acts and not plan.status.cleaning
        track.cleaned_up = done and due is None and track.again is None
        self._again(which, track, plan, due, now)

    def _track(self, which: Which, document: Body) -> JobState:
        """What is remembered of this very object; another of its name is another job."""
        uid: str = document["metadata"]["uid"]
        track = self._tracks.get(which)
        if track is None or track.uid != uid:
            self._forget(which)
            track = self._tracks[which] = JobState(self._kinds[which[0]], uid)
            self._uids[uid] = which
        return track

    def _forget(self, which: Which) -> None:
        track = self._tracks.pop(which, None)
        if track is not None:
            self._uids.pop(track.uid, None)
            self._holdings.forget(track.uid)
            self._census.drop(which)

    def _again(self, which: Which, track: JobState, plan: Plan, due: float | None, now: datetime) -> None:
        """When the plan says so, a count is due or something was met; while unfinished, now and then to be sure."""
        waits = [wait for wait in (due, track.again) if wait is not None]
        if plan.wake is not None:
            waits.append(max((plan.wake - now).total_seconds(), 0.0))
        settings = self._settings
        if settings.resync > 0 and (plan.status.ledger.outcome is None or not plan.empty):
            waits.append(track.next_check(now, settings.resync, settings.resync_most, changed=not plan.empty))
        if waits:
            self._queue.add(which, min(waits))
        else:
            track.rest()


def _about(which: Which) -> dict[str, str]:
    return {"job": str(which[1]), "kind": which[0]}
