# SPDX-License-Identifier: Apache-2.0
"""What is known of a run's jobs and replicas, and what is news about them. `session` feeds it what it watches.

Every pod of the run passes here several times, so what does not show is thrown away early. `condition` reads a pod.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import nsmallest

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.condition import condition
from trainwright.cli.record import PodCount, shown
from trainwright.cli.show.news import OVER, EventNews, JobNews, ReplicaNews
from trainwright.core import attempts
from trainwright.core.autosize import within_bounds
from trainwright.kinds.base import Kind, load
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, ROLE, SPARE, Key

_URGENCY = {
    "Failed": 0,
    "Unknown": 0,
    BACKING_OFF: 0,
    "Terminating": 1,
    "Pending": 2,
    "Starting": 2,
    "Waiting": 3,
    "Running": 4,
}


#: Which replica: job, role, index.
At = tuple[Key, str, int]


class JobRow(Struct):
    """One job, and the latest that was seen of it."""

    key: Key
    kind: Kind
    body: Body
    roles: dict[str, int]
    order: int
    ledger: Ledger = Ledger()
    deleted: bool = False
    said: JobNews | None = None
    #: By the board's clock: when the job was first seen, and when it was first seen decided or deleted.
    begun: float | None = None
    ended: float | None = None

    def took(self, now: float) -> float:
        """The job's own time in seconds, whatever other jobs of the run take."""
        return 0.0 if self.begun is None else (now if self.ended is None else self.ended) - self.begun


class RunModel:
    """The picture of a run. `clock` tells seconds."""

    def __init__(self, jobs: Iterable[tuple[Kind, Body]], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sheets: dict[Key, JobRow] = {}
        self._by_uid: dict[str, JobRow] = {}
        #: Jobs of which more is to come.
        self._open: set[Key] = set()
        for kind, body in jobs:
            meta = body["metadata"]
            key = Key(meta.get("namespace") or "default", meta["name"])
            self._sheets[key] = JobRow(key, kind, body, _roles(kind, body), len(self._sheets))
        self._open |= set(self._sheets)
        self._spaces = len({key.namespace for key in self._sheets})
        self._replicas: dict[At, ReplicaNews] = {}
        self._pods: dict[Key, At] = {}
        #: The last attempt's resumption of the job and change of the role's size; how many were no restarts.
        self._begun: dict[At, tuple[tuple[int, int], int]] = {}
        #: The sizes of roles, where replicas are told, and how often they changed.
        self._sizes: dict[tuple[Key, str], tuple[int, int]] = {}
        #: Replicas whose last pod had containers restarted inside it: that pod's attempt, and how many.
        self._inside: dict[At, PodCount] = {}
        #: Replicas that are shown as they were when the run began to terminate their pods; whether the pod still lives.
        self._kept: dict[At, bool] = {}
        self._counts: dict[Key, Counter[str]] = {key: Counter() for key in self._sheets}
        for sheet in self._sheets.values():
            self._fill(sheet)

    # -- what is fed to it -------------------------------------------------------------------------------------------

    def job(self, body: Body, *, deleted: bool = False) -> JobNews | None:
        """A job has changed; what is to be told of it."""
        meta = body["metadata"]
        sheet = self._sheets.get(Key(meta.get("namespace", ""), meta["name"]))
        if sheet is None:
            return None
        self._by_uid[meta["uid"]] = sheet
        known = sheet.body["metadata"].get("generation", meta.get("generation"))  # none yet in what was submitted
        ledger = msgspec.convert((body.get("status") or {}).get("trainwright") or {}, Ledger)
        if meta.get("generation") != known or _ceilings(ledger) != _ceilings(sheet.ledger):
            sheet.roles = _roles(sheet.kind, body)
            self._fill(sheet)
        sheet.body, sheet.deleted, sheet.ledger = body, deleted, ledger
        self._resized(sheet)
        sheet.begun = self._clock() if sheet.begun is None else sheet.begun
        if deleted or sheet.ledger.outcome is not None:
            sheet.ended = self._clock() if sheet.ended is None else sheet.ended
            self._open.discard(sheet.key)
        return self._told(sheet)

    def pod(self, pod: Body, *, deleted: bool = False) -> ReplicaNews | None:
        """A pod has changed; what is to be told of its replica."""
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        sheet = self._by_uid.get(labels.get(JOB_UID, "")) or self._owner(meta)
        if sheet is None or labels.get(ATTEMPT) == SPARE:
            return None
        at = (sheet.key, labels[ROLE], int(labels[INDEX]))
        before = self._replicas.get(at)
        attempt = attempt_of(pod)
        if before is not None and before.uid not in ("", meta["uid"]) and (deleted or attempt < before.attempt):
            return None  # a predecessor on its way out
        if at in self._kept:
            self._kept[at] = not deleted and condition(pod).phase not in OVER
            return None
        if deleted:
            return self._gone(at, before)
        new = self._read(pod, at, before, attempt)
        if new == before:
            return None
        self._put(at, before, new)
        self._pods[Key(sheet.key.namespace, new.pod)] = at
        return new

    def keep(self, one: ReplicaNews) -> None:
        """Show this replica as it now is, whatever becomes of its pod: a clean-up policy keeps it, the run does not."""
        self._kept[one.job, one.role, one.index] = True

    def event(self, event: Body) -> EventNews | None:
        """Something was reported; whose it is, and what to tell."""
        about = event.get("involvedObject") or {}
        key = Key(about.get("namespace", ""), about.get("name", ""))
        replica = self._replicas.get(self._pods[key]) if about.get("kind") == "Pod" and key in self._pods else None
        key = replica.job if replica is not None else key
        if key not in self._sheets:
            return None
        label = replica.label if replica is not None else key.name
        warning = event.get("type") == "Warning"
        return EventNews(key, label, event.get("reason", ""), event.get("message", ""), warning)

    # -- what is asked of it -----------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobNews, ...]:
        """All jobs, in the order they were given."""
        return tuple(self._state(sheet) for sheet in self._sheets.values())

    def sheet(self, key: Key) -> JobRow:
        """All of one job."""
        return self._sheets[key]

    def counted(self, key: Key) -> list[PodCount]:
        """The pods of a job that tell of restarts beyond what its ledger says."""
        pending = [(book.name, i) for book in self._sheets[key].ledger.roles for i in attempts.pending_replicas(book)]
        known = [(self._replicas.get((key, *one)), one) for one in pending]
        made = [PodCount(*one, replica.attempt) for replica, one in known if replica is not None and replica.pod]
        return made + [count for at, count in self._inside.items() if at[0] == key]

    def took(self, key: Key) -> float:
        """Seconds that one job has taken."""
        return self._sheets[key].took(self._clock())

    def replicas(self, key: Key) -> list[ReplicaNews]:
        """The replicas of one job."""
        return [one for one in self._replicas.values() if one.job == key]

    def who(self, pod: Body) -> ReplicaNews | None:
        """The replica that a pod is of, as it now is."""
        labels = pod["metadata"].get("labels") or {}
        if labels.get(ATTEMPT) == SPARE:
            return None
        sheet = self._by_uid.get(labels.get(JOB_UID, "")) or self._owner(pod["metadata"])
        return self._replicas.get((sheet.key, labels[ROLE], int(labels[INDEX]))) if sheet is not None else None

    def pick(self, most: int) -> tuple[ReplicaNews, ...]:
        """At most that many replicas: those in trouble first, then what is not over; listed in order."""
        every = list(self._replicas.values())
        chosen = every if len(every) <= most else nsmallest(most, every, key=_urgency)
        return tuple(sorted(chosen, key=self._place))

    def count(self) -> int:
        """How many replicas there are in all."""
        return len(self._replicas)

    def alive(self) -> list[ReplicaNews]:
        """Replicas that have a pod which is not over."""
        there = [(at, one) for at, one in self._replicas.items() if one.pod and not one.removed]
        return [one for at, one in there if one.phase not in OVER and self._kept.get(at, True)]

    @property
    def over(self) -> bool:
        """Nothing more is to come of any job."""
        return not self._open

    # -- within ------------------------------------------------------------------------------------------------------

    def _owner(self, meta: Body) -> JobRow | None:
        """Whose a pod is that was seen before its job: the two are watched apart."""
        names = [one.get("name", "") for one in meta.get("ownerReferences") or () if one.get("controller")]
        return self._sheets.get(Key(meta.get("namespace", ""), names[0])) if names else None

    def _fill(self, sheet: JobRow) -> None:
        """A replica for every index that should be; those beyond stay only while they have a pod."""
        for role, total in sheet.roles.items():
            for index in range(total):
                at = (sheet.key, role, index)
                if at not in self._replicas:
                    self._put(at, None, ReplicaNews(sheet.key, role, index, self._label(sheet, role, index)))
        for at in [at for at in self._replicas if at[0] == sheet.key and at[2] >= sheet.roles.get(at[1], 0)]:
            if not self._replicas[at].pod or self._replicas[at].removed:
                self._drop(at)

    def _label(self, sheet: JobRow, role: str, index: int) -> str:
        name = f"{role}-{index}"
        if len(self._sheets) == 1:
            return name
        return f"{sheet.key.name if self._spaces == 1 else sheet.key}/{name}"

    def _read(self, pod: Body, at: At, before: ReplicaNews | None, attempt: int) -> ReplicaNews:
        meta, seen = pod["metadata"], condition(pod)
        phase = seen.phase
        if seen.restarts or at in self._inside:
            self._inside[at] = PodCount(at[1], at[2], attempt, seen.restarts)
        if phase == "Failed" and meta.get("deletionTimestamp") and not _failed(before, meta["uid"]):
            phase = "Stopped"  # it was asked to end, and did
        return ReplicaNews(
            *at,
            self._label(self._sheets[at[0]], at[1], at[2]),
            phase,
            meta["name"],
            meta["uid"],
            attempt,
            pod["spec"].get("nodeName", ""),
            attempt - self._skipped(at, attempt, before) + seen.restarts,
            seen.reason,
            (pod.get("status") or {}).get("startTime") or meta.get("creationTimestamp", ""),
        )

    def _resized(self, sheet: JobRow) -> None:
        for book in sheet.ledger.roles:
            size, changes = self._sizes.get((sheet.key, book.name), (-1, -1))
            if book.size != size:
                self._sizes[sheet.key, book.name] = (book.size, changes + 1)

    def _skipped(self, at: At, attempt: int, before: ReplicaNews | None) -> int:
        """Attempts that were no restarts: a job goes on with new ones after a suspension, or at another size.

        A restart of a whole role begins above the attempts of all its replicas: for each of them it is one restart.
        """
        now = (self._sheets[at[0]].ledger.resumes, self._sizes.get(at[:2], (-1, 0))[1])
        since, skipped = self._begun.get(at, ((0, 0), 0))
        older = before.attempt if before is not None else 0
        if attempt > older:
            real = 0 if now != since else 1 if before is not None and before.pod else attempt - older
            skipped += attempt - older - real
            self._begun[at] = (now, skipped)
        return skipped

    def _gone(self, at: At, before: ReplicaNews | None) -> ReplicaNews | None:
        """Its pod is gone. That is news only where more was to come of it."""
        if before is None:
            return None
        if before.index >= self._sheets[before.job].roles.get(before.role, 0):
            self._drop(at)
            return None
        if before.phase in OVER:
            self._put(at, before, replace(before, removed=True))
            return None
        sheet = self._sheets[before.job]
        ending = sheet.ledger.outcome is not None or bool(sheet.body["metadata"].get("deletionTimestamp"))
        phase, reason = ("Stopped", "") if ending else ("Waiting", "its pod is gone")
        new = replace(before, phase=phase, node="", reason=reason, since="", removed=True)
        self._put(at, before, new)
        return new

    def _put(self, at: At, before: ReplicaNews | None, new: ReplicaNews) -> None:
        counts = self._counts[at[0]]
        if before is not None:
            counts[before.phase] -= 1
        counts[new.phase] += 1
        self._replicas[at] = new

    def _drop(self, at: At) -> None:
        self._counts[at[0]][self._replicas.pop(at).phase] -= 1

    def _told(self, sheet: JobRow) -> JobNews | None:
        state = self._state(sheet)
        before, sheet.said = sheet.said, state
        if before is None:
            return state
        same = (before.phase, before.step, before.over, before.total) == (
            state.phase,
            state.step,
            state.over,
            state.total,
        )
        return None if same else state

    def _state(self, sheet: JobRow) -> JobNews:
        status = sheet.body.get("status") or {}
        ledger = sheet.ledger
        return JobNews(
            sheet.key,
            sheet.kind.name,
            sheet.kind.phase_of(status) or "Pending",
            ledger.phase or Phase.PENDING,
            sum(sheet.roles.values()),
            {phase: number for phase, number in self._counts[sheet.key].items() if number},
            shown(ledger, self.counted(sheet.key)),
            ledger.outcome,
            sheet.deleted,
            sheet.took(self._clock()),
        )

    def _place(self, one: ReplicaNews) -> tuple[int, int, int]:
        sheet = self._sheets[one.job]
        return sheet.order, list(sheet.roles).index(one.role) if one.role in sheet.roles else 99, one.index


def attempt_of(pod: Body) -> int:
    """Which try at its replica a pod is."""
    return int((pod["metadata"].get("labels") or {}).get(ATTEMPT) or 0)


def _failed(before: ReplicaNews | None, uid: str) -> bool:
    return before is not None and before.uid == uid and before.phase == "Failed"


def _urgency(one: ReplicaNews) -> tuple[int, int]:
    return _URGENCY.get(one.phase, 5), one.index


def _roles(kind: Kind, body: Body) -> dict[str, int]:
    return {role.name: role.replicas for role in within_bounds(load(kind, body).job).roles}


def _ceilings(ledger: Ledger) -> list[int]:
    """What roles that resize themselves are held to."""
    return [book.ceiling.most for book in ledger.roles if book.ceiling is not None]
