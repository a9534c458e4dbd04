# SPDX-License-Identifier: Apache-2.0
"""What becomes of jobs, counted and logged once each: phases, restarts, ends, the time to running.

`controller` shows it every ledger that is known to be stored. Only what differs from the one before is news, so a pass
that is repeated counts nothing twice, and a write whose answer was lost is counted when it is seen. What was there when
a job was first seen is old: the operator before has told of it. Everything is dropped with the job.
"""

import logging

from msgspec import Struct

from trainwright.core.observe import FINAL_PHASES, TRANSITIONS
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Outcome, Phase
from trainwright.model.units import parse_time
from trainwright.runtime.informer import Which
from trainwright.runtime.telemetry import LONG, Histogram, LogMessage, Occupancy, Telemetry

_LOG = logging.getLogger(__name__)


class _Known(Struct, gc=False):
    """One job: its phase and since when it is counted there; the ledger that was last seen, while it is not final."""

    phase: Phase
    since: float
    ledger: Ledger | None


class JobMetrics:
    """All jobs that one controller knows."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._known: dict[Which, _Known] = {}
        #: Unfinished jobs that another controller looks after.
        self._foreign: set[Which] = set()

    def __len__(self) -> int:
        return len(self._known)

    def see(self, which: Which, document: Body, ledger: Ledger) -> None:
        """This is what is stored of a job now."""
        known = self._known.get(which)
        if known is None:
            known = self._known[which] = _Known(Phase.NEW, 0.0, ledger)
        elif known.ledger is None:
            known.ledger = ledger
        before = known.ledger
        if before is not ledger and before is not None:
            self._count(which, document, before, ledger)
            _tell(which, document, before, ledger)
        if known.phase is not ledger.phase:
            self._move(which[0], known, ledger.phase)
        # Thousands of finished jobs must not weigh on memory.
        known.ledger = None if ledger.phase in FINAL_PHASES else ledger

    def leave(self, which: Which, *, foreign: bool) -> None:
        """Whether a job is another controller's, and left alone."""
        if foreign != (which in self._foreign):
            self._foreign ^= {which}
            self._telemetry.foreign[which[0]] += 1 if foreign else -1

    def drop(self, which: Which) -> None:
        """The job is gone."""
        self.leave(which, foreign=False)
        known = self._known.pop(which, None)
        if known is not None:
            self._move(which[0], known, Phase.NEW)

    def _move(self, kind: str, known: _Known, phase: Phase) -> None:
        at, jobs = self._telemetry.time(), self._telemetry.jobs
        if known.phase is not Phase.NEW:
            jobs[kind, known.phase.value].leave(known.since, at)
        if phase is not Phase.NEW:
            jobs.setdefault((kind, phase.value), Occupancy()).enter(at)
        known.phase, known.since = phase, at

    def _count(self, which: Which, document: Body, before: Ledger, after: Ledger) -> None:
        told, kind = self._telemetry, which[0]
        for (_, cause), times in _restarts(before, after).items():
            told.restarts[kind, cause] += times
        if after.times.running is not None and before.times.running is None and not after.resumes:
            created = parse_time(document["metadata"].get("creationTimestamp") or "")
            if created is not None:
                seconds = (after.times.running - created).total_seconds()
                told.starts.setdefault(kind, Histogram(LONG)).observe(max(seconds, 0.0))
        if after.outcome is not None and before.outcome is None:
            told.outcomes[kind, after.outcome.result] += 1


def _restarts(before: Ledger, after: Ledger) -> dict[tuple[str, str], int]:
    """By role and cause, how many there are more."""
    old = {book.name: book.restarts for book in before.roles}
    found = {
        (book.name, cause): times - old.get(book.name, {}).get(cause, 0)
        for book in after.roles
        for cause, times in book.restarts.items()
    }
    return {key: times for key, times in found.items() if times > 0}


def _tell(which: Which, document: Body, before: Ledger, after: Ledger) -> None:
    """A line for every step of its life."""
    about = {"job": str(which[1]), "kind": which[0], "uid": document["metadata"].get("uid", "")}
    for (role, cause), times in _restarts(before, after).items():
        new = [one for one in after.failures if one.role == role and one not in before.failures]
        why = {"pod": new[-1].pod, "why": str(new[-1].cause)} if new else {}
        _LOG.info(LogMessage("restarting", **about, role=role, cause=cause, times=times, **why))
    if before.phase is not after.phase:
        ends = after.outcome if before.outcome is None else None
        why = _end(ends) if ends is not None else {"why": TRANSITIONS[before.phase].get(after.phase, "")}
        _LOG.info(LogMessage("phase", **about, before=before.phase.value or "New", now=after.phase.value, **why))


def _end(outcome: Outcome) -> dict[str, str]:
    return {"reason": outcome.reason.value, "why": outcome.message}
