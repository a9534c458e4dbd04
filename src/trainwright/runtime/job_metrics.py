# SPDX-License-Identifier: Apache-2.0
"""Counts and logs what happens to each job: phases, restarts, outcomes, the time until the job runs.

The controller calls `observe` with every ledger that is certainly stored. Only differences from the previous ledger
are counted, so a repeated pass counts nothing twice. If the response of a write was lost, the change is counted when
the watch reports it. The restarts and the outcome in the first ledger that we see of a job are not counted: the
controller that wrote this ledger has counted them.
"""

import logging

from msgspec import Struct

from trainwright.core.observe import FINAL_PHASES, TRANSITIONS
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.rule import Result
from trainwright.model.units import parse_time
from trainwright.runtime.cache import JobKey
from trainwright.runtime.telemetry import LONG, Histogram, JobCounter, LogMessage, Occupancy, Telemetry

_LOG = logging.getLogger(__name__)


class _Known(Struct, gc=False):
    """One job: its phase, the time at which it entered the phase, and its last ledger (None after the job's end)."""

    phase: Phase
    since: float
    ledger: Ledger | None


class JobMetrics:
    """The metrics of all jobs of one controller."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._known: dict[JobKey, _Known] = {}
        #: Unfinished jobs that another controller manages.
        self._foreign: set[JobKey] = set()

    def __len__(self) -> int:
        return len(self._known)

    def observe(self, job_key: JobKey, document: Body, ledger: Ledger) -> None:
        """Count and log the differences between the previous ledger of a job and this ledger, which is stored now."""
        known = self._known.get(job_key)
        if known is None:
            known = self._known[job_key] = _Known(Phase.NEW, 0.0, ledger)
        elif known.ledger is None:
            known.ledger = ledger
        before = known.ledger
        if before is not ledger and before is not None:
            self._count(job_key, document, before, ledger)
            _log(job_key, document, before, ledger)
        if known.phase is not ledger.phase:
            self._move(job_key[0], known, ledger.phase)
        # Drop the ledger of a finished job: the ledgers of thousands of finished jobs would use too much memory.
        known.ledger = None if ledger.phase in FINAL_PHASES else ledger

    def set_foreign(self, job_key: JobKey, *, foreign: bool) -> None:
        """Set whether another controller manages this job."""
        if foreign != (job_key in self._foreign):
            self._foreign ^= {job_key}
            self._telemetry.foreign[job_key[0]] += 1 if foreign else -1

    def forget(self, job_key: JobKey) -> None:
        """Drop a job that was deleted."""
        self.set_foreign(job_key, foreign=False)
        known = self._known.pop(job_key, None)
        if known is not None:
            self._move(job_key[0], known, Phase.NEW)

    def _move(self, kind: str, known: _Known, phase: Phase) -> None:
        at, jobs = self._telemetry.time(), self._telemetry.jobs
        if known.phase is not Phase.NEW:
            jobs[kind, known.phase.value].leave(known.since, at)
        if phase is not Phase.NEW:
            jobs.setdefault((kind, phase.value), Occupancy()).enter(at)
        known.phase, known.since = phase, at

    def _count(self, job_key: JobKey, document: Body, before: Ledger, after: Ledger) -> None:
        telemetry, kind, namespace = self._telemetry, job_key[0], job_key[1].namespace
        if before.phase is Phase.NEW and after.phase is not Phase.NEW:
            telemetry.count_job(JobCounter.CREATED, kind, namespace)
        for (_, cause), times in _new_restarts(before, after).items():
            telemetry.restarts[kind, cause] += times
            telemetry.count_job(JobCounter.RESTARTED, kind, namespace, times)
        if after.times.running is not None and before.times.running is None and not after.resumes:
            created = parse_time(document["metadata"].get("creationTimestamp") or "")
            if created is not None:
                seconds = (after.times.running - created).total_seconds()
                telemetry.time_to_running.setdefault(kind, Histogram(LONG)).observe(max(seconds, 0.0))
        if after.outcome is not None and before.outcome is None:
            telemetry.outcomes[kind, after.outcome.result] += 1
            succeeded = after.outcome.result is Result.SUCCEEDED
            telemetry.count_job(JobCounter.SUCCESSFUL if succeeded else JobCounter.FAILED, kind, namespace)


def _new_restarts(before: Ledger, after: Ledger) -> dict[tuple[str, str], int]:
    """The number of restarts between two ledgers, by role and cause."""
    old = {book.name: book.restarts for book in before.roles}
    found = {
        (book.name, cause): times - old.get(book.name, {}).get(cause, 0)
        for book in after.roles
        for cause, times in book.restarts.items()
    }
    return {key: times for key, times in found.items() if times > 0}


def _log(job_key: JobKey, document: Body, before: Ledger, after: Ledger) -> None:
    """Log each restart and each change of the phase."""
    fields = {"job": str(job_key[1]), "kind": job_key[0], "uid": document["metadata"].get("uid", "")}
    for (role, cause), times in _new_restarts(before, after).items():
        new = [one for one in after.failures if one.role == role and one not in before.failures]
        why = {"pod": new[-1].pod, "why": str(new[-1].cause)} if new else {}
        _LOG.info(LogMessage("restarting", **fields, role=role, cause=cause, times=times, **why))
    if before.phase is not after.phase:
        outcome = after.outcome if before.outcome is None else None
        if outcome is not None:
            why = {"reason": outcome.reason.value, "why": outcome.message}
        else:
            why = {"why": TRANSITIONS[before.phase].get(after.phase, "")}
        _LOG.info(LogMessage("phase", **fields, before=before.phase.value or "New", now=after.phase.value, **why))
