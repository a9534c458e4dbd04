# SPDX-License-Identifier: Apache-2.0
"""The main loop: one controller reconciles the jobs of all kinds.

Informers keep the caches up to date and put jobs into the work queue. `_pass` handles one job: it reads the caches,
calls `core.reconcile`, which decides, and carries out the plan. The controller itself decides nothing about a job.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from time import thread_time

from trainwright.core import ports
from trainwright.core.reconcile import reconcile
from trainwright.errors import ApiError, ConflictError, NotFoundError
from trainwright.kinds.base import Loaded
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body, Job
from trainwright.model.meta import Key
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.runtime.cache import ClusterCache, JobKey
from trainwright.runtime.executor import Executor
from trainwright.runtime.informer import informers
from trainwright.runtime.job_metrics import JobMetrics
from trainwright.runtime.job_state import STUCK_TOPIC, ElasticSizePublisher, HostPortIndex, JobState
from trainwright.runtime.orphans import OrphanCollector
from trainwright.runtime.ports import Clock, Cluster, Registry
from trainwright.runtime.publisher import Publisher
from trainwright.runtime.queue import Queue
from trainwright.runtime.recorder import Recorder
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import LogMessage, Telemetry

_LOG = logging.getLogger(__name__)
#: After a conflict the watch normally requeues the job. If the watch is late, the job is requeued after this delay.
_CONFLICT_RETRY_SECONDS = 1.0
#: Large jobs get many events in a short time, so the controller delays a pass to handle many events together. The delay
#: is the CPU time of the job's last decision, multiplied by this factor.
_COALESCE_PER_DECISION_SECOND = 15.0
#: If the queue is long or the API server is slow, passes are delayed too, so that each job needs fewer passes: by this
#: time per queued job, or by this multiple of the duration of a write, up to the maximum. The longest delay applies.
_COALESCE_PER_QUEUED_JOB_SECONDS, _COALESCE_PER_LATENCY_SECOND, _MAX_LOAD_COALESCE_SECONDS = 0.01, 6.0, 1.0
_DRAIN_POLL_SECONDS = 0.01


class Controller:
    """Reconciles all jobs of a cluster."""

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
        #: True once all resources have been listed and the workers have started.
        self.synced = False
        self._ending = False
        self._cluster = cluster
        self._tasks: list[asyncio.Task[None]] = []
        self._job_metrics = JobMetrics(self.telemetry)
        self._settings = settings or ControllerSettings()
        self._clock = clock
        #: A function that returns the site of a job. If names of pods do not resolve, the function also reserves
        #: addresses and ports for the job, because `reconcile` does no I/O and cannot reserve them.
        self._site = site
        self._kinds = {kind.id: kind for kind in KINDS}
        self._states: dict[JobKey, JobState] = {}
        # Jobs with an entry in `_states` are reconciled before jobs that this controller does not know yet.
        self._queue: Queue[JobKey] = Queue(self.telemetry, is_low_priority=lambda job_key: job_key not in self._states)
        self._uids: dict[str, JobKey] = {}
        self._cache = ClusterCache(clock, self._settings)
        self._host_ports = HostPortIndex(self._cache.jobs)
        self._executor = Executor(cluster, self._cache, self._settings, self.telemetry)
        self._elastic_sizes = ElasticSizePublisher(registry, self._settings)
        self._orphan_collector = OrphanCollector(cluster, self._cache, clock)
        self._recorder = Recorder(cluster, clock, self.telemetry)
        self._publisher = Publisher(self._executor, self._recorder, self._settings, self.telemetry)

    async def run(self) -> None:
        """Reconcile jobs until cancelled. The first pass begins after all resources have been listed."""
        running = informers(
            self._cluster,
            self._cache,
            self.telemetry,
            self._job_changed,
            self._requeue_owners,
            lambda uids: self._requeue_owners(uids, least=self.telemetry.minor_delay),
        )
        async with asyncio.TaskGroup() as group:
            self._tasks = [group.create_task(informer.run()) for informer in running]
            for informer in running:
                await informer.synced.wait()
            self._tasks += [group.create_task(self._work()) for _ in range(self._settings.workers)]
            self._tasks.append(group.create_task(self._recorder.run()))
            if self._settings.orphan_period:
                self._tasks.append(group.create_task(self._orphan_collector.run(self._settings.orphan_period)))
            self.synced = True
            _LOG.info(LogMessage("all resources are listed", **self._cache.sizes()))

    @property
    def broken(self) -> bool:
        """Whether one of the controller's tasks has ended although `drain` was not called."""
        return not self._ending and any(task.done() for task in self._tasks)

    def cleaned_up(self, kind: str, key: Key) -> bool:
        """Whether a job has ended, its clean-up is over and its final status is stored; also true if the job is gone.

        If its clean-up policy keeps pods, later changes of these pods still lead to passes.
        """
        state = self._states.get((kind, key))
        return state.cleaned_up if state is not None else self._cache.job((kind, key)) is None

    async def drain(self, seconds: float) -> bool:
        """Begin no new pass. Wait up to `seconds` for running passes and return whether all of these have ended."""
        self._ending = True
        end = asyncio.get_running_loop().time() + seconds
        while self._queue.working and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        return not self._queue.working

    def _job_changed(self, job_key: JobKey) -> None:
        """Queue a job that has changed. A watch may report our own write before the API server answers the request."""
        state = self._states.get(job_key)
        if state is not None and state.is_storing:
            state.changed_while_storing = True  # `_store_status` finds out whether this was our own write
        else:
            self._queue.add(job_key)

    def _requeue_owners(self, uids: set[str], least: float = 0.0) -> None:
        """Queue the jobs whose children changed, after at least `least` seconds, so that more events can arrive."""
        for uid in uids:
            job_key = self._uids.get(uid)
            if job_key is not None:
                state = self._states[job_key]
                state.resync_seconds = 0.0
                state.cleaned_up = False
                load_delay = max(
                    _COALESCE_PER_QUEUED_JOB_SECONDS * self.telemetry.queue_depth,
                    _COALESCE_PER_LATENCY_SECOND * self.telemetry.write_seconds,
                )
                delay = max(
                    least,
                    self._settings.coalesce,
                    _COALESCE_PER_DECISION_SECOND * state.decision_seconds,
                    min(load_delay, _MAX_LOAD_COALESCE_SECONDS),
                )
                self._queue.add(job_key, delay)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            job_key = await self._queue.get()
            if self._ending:
                self._queue.done(job_key)
                return
            began = loop.time()
            try:
                result = await self._try_pass(job_key)
            finally:
                self._queue.done(job_key)
            self.telemetry.passes[result] += 1
            self.telemetry.pass_seconds.observe(loop.time() - began)

    async def _try_pass(self, job_key: JobKey) -> str:
        """Reconcile one job and return the result label for metrics."""
        try:
            await self._pass(job_key)
        except (ConflictError, NotFoundError) as error:
            # The pass used an outdated version of the job. The first conflicts are normal and are not logged.
            pause = self._next_retry_pause(job_key)
            repeated = pause > _CONFLICT_RETRY_SECONDS
            self._retry(job_key, max(pause, _CONFLICT_RETRY_SECONDS), error if repeated else None)
            return "conflict"
        except ApiError as error:
            self._retry(job_key, max(self._next_retry_pause(job_key), error.retry_after or 0.0), error)
            await self._report_stuck(job_key, error)
            return "retry"
        except Exception:  # a bug in the pass of one job must not stop the other jobs
            _LOG.exception(LogMessage("reconcile failed", **_log_fields(job_key)))
            self._queue.add(job_key, self._next_retry_pause(job_key))
            return "error"
        return "done"

    def _retry(self, job_key: JobKey, seconds: float, error: ApiError | None) -> None:
        if error is not None and not self._ending:
            _LOG.warning(LogMessage("reconcile will be retried", **_log_fields(job_key), error=error))
        self._queue.add(job_key, seconds)

    async def _report_stuck(self, job_key: JobKey, error: ApiError) -> None:
        """Send an event if several passes in a row have failed, so that the job's author learns of the problem."""
        state, document = self._states.get(job_key), self._cache.job(job_key)
        if state is not None and document is not None and state.retry_pause >= self._settings.unanswered:
            await self._publisher.report_stuck(state.load(document).job, state, error)

    def _next_retry_pause(self, job_key: JobKey) -> float:
        """Seconds until the next try. The pause doubles with each failure."""
        state = self._states.get(job_key)
        if state is None:
            return self._settings.retry_most
        state.retry_pause = min(max(state.retry_pause * 2, self._settings.retry), self._settings.retry_most)
        return state.retry_pause

    async def _pass(self, job_key: JobKey) -> None:
        """Reconcile one job: decide, then write in the order that `model.plan` requires."""
        document = self._cache.job(job_key)
        if document is None:
            self._forget(job_key)
            return
        now = self._clock.now()
        state = self._state(job_key, document)
        state.begin_pass(now)
        state.cleaned_up = False
        loaded = state.load(document)
        if not loaded.job.unreadable:
            self._job_metrics.observe(job_key, document, loaded.job.ledger)
        job = state.current_job(loaded)
        began = thread_time()
        site = self._site(job)
        taken_ports = self._host_ports.others(job.uid) if ports.needs_ports(job, site) else frozenset[int]()
        observed = self._cache.observe(job, tuple(state.refusals.values()), taken_ports)
        plan = reconcile(job, observed, site, now)
        self._host_ports.note(job.uid, plan.status.ledger)
        self._job_metrics.set_foreign(job_key, foreign=plan.untouched and bool(job.foreign))
        state.decision_seconds = thread_time() - began
        state.expire(now, {(create.body["kind"], create.name) for create in plan.creates})
        status_delay = await self._store_status(document, loaded, plan, state, now)
        if state.pending is None and not job.unreadable:
            self._job_metrics.observe(job_key, document, plan.status.ledger)
        await self._executor.carry_out(job, plan, state, now)
        await self._elastic_sizes.publish(job, plan.announces, state, now)
        self._publisher.add_wait_events(job, plan.status, state, now)
        await self._publisher.send_events(job, state)
        state.retry_pause = 0.0
        state.warnings.pop(STUCK_TOPIC, None)
        done = plan.status.ledger.outcome is not None and not plan.changes_objects and not plan.status.cleaning
        state.cleaned_up = done and status_delay is None and state.requeue_seconds is None
        self._schedule_next(job_key, state, plan, status_delay, now)

    async def _store_status(
        self, document: Body, loaded: Loaded, plan: Plan, state: JobState, now: datetime
    ) -> float | None:
        """Store the status, and queue the job if it has another change than ours afterwards."""
        state.is_storing = True
        try:
            return await self._publisher.store(document, loaded, plan, state, now)
        finally:
            state.is_storing = False
            if state.changed_while_storing:
                state.changed_while_storing = False
                job_key = (loaded.job.kind, loaded.job.key)
                cached = self._cache.job(job_key)
                if cached is None or cached["metadata"]["resourceVersion"] != state.stored_version:
                    self._queue.add(job_key)

    def _state(self, job_key: JobKey, document: Body) -> JobState:
        """The state of this job. A job with the same name and another UID is a new job."""
        uid: str = document["metadata"]["uid"]
        state = self._states.get(job_key)
        if state is None or state.uid != uid:
            self._forget(job_key)
            state = self._states[job_key] = JobState(self._kinds[job_key[0]], uid)
            self._uids[uid] = job_key
        return state

    def _forget(self, job_key: JobKey) -> None:
        state = self._states.pop(job_key, None)
        if state is not None:
            self._uids.pop(state.uid, None)
            self._host_ports.forget(state.uid)
            self._job_metrics.forget(job_key)

    def _schedule_next(
        self, job_key: JobKey, state: JobState, plan: Plan, status_delay: float | None, now: datetime
    ) -> None:
        """Queue the next pass at the earliest of these: plan's wake-up, delayed status, retry, periodic resync."""
        delays = [delay for delay in (status_delay, state.requeue_seconds) if delay is not None]
        if plan.wake is not None:
            delays.append(max((plan.wake - now).total_seconds(), 0.0))
        settings = self._settings
        if settings.resync > 0 and (plan.status.ledger.outcome is None or not plan.empty):
            delays.append(state.next_resync(now, settings.resync, settings.resync_most, changed=not plan.empty))
        if delays:
            self._queue.add(job_key, min(delays))
        else:
            state.release_memory()


def _log_fields(job_key: JobKey) -> dict[str, str]:
    return {"job": str(job_key[1]), "kind": job_key[0]}
