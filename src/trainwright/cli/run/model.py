# SPDX-License-Identifier: Apache-2.0
"""The current state of a run's jobs and replicas, and the news about them.

The model processes every change of every pod. To save time, it drops changes that are not visible as early as possible.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import nsmallest
from operator import attrgetter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.condition import condition
from trainwright.cli.record import PodCount, count_restarts
from trainwright.cli.show.news import OVER, EventNews, JobNews, ReplicaNews
from trainwright.core import attempts
from trainwright.core.autosize import within_bounds
from trainwright.kinds.base import Kind, load
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, Phase
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, ROLE, Key, is_replica

#: If there is not enough space for all replicas, replicas in phases with lower numbers here are shown first.
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

#: The visible fields of a job. If only other fields change, this is not news.
_VISIBLE = attrgetter("phase", "step", "over", "total")
#: Identifies a replica: job, role and index.
ReplicaKey = tuple[Key, str, int]


class JobRow(Struct):
    """One job in its current state."""

    key: Key
    kind: Kind
    body: Body
    roles: dict[str, int]
    order: int
    ledger: Ledger = Ledger()
    deleted: bool = False
    last_news: JobNews | None = None
    #: By the model's clock: the time at which the model first saw the job, and first saw its outcome or deletion.
    started: float | None = None
    ended: float | None = None

    def took(self, now: float) -> float:
        """The seconds from the start of this job to its end, or to `now` if the job has not ended."""
        return 0.0 if self.started is None else (now if self.ended is None else self.ended) - self.started


class RunModel:
    """All jobs and replicas of a run. `clock` returns seconds."""

    def __init__(self, jobs: Iterable[tuple[Kind, Body]], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: dict[Key, JobRow] = {}
        self._by_uid: dict[str, JobRow] = {}
        #: Jobs that have no outcome and are not deleted.
        self._open: set[Key] = set()
        for kind, body in jobs:
            meta = body["metadata"]
            key = Key(meta.get("namespace") or "default", meta["name"])
            self._rows[key] = JobRow(key, kind, body, _roles(kind, body), len(self._rows))
        self._open |= set(self._rows)
        self._namespace_count = len({key.namespace for key in self._rows})
        self._replicas: dict[ReplicaKey, ReplicaNews] = {}
        self._pods: dict[Key, ReplicaKey] = {}
        #: By replica: the number of resumes of the job and of size changes of the role when the last attempt was seen;
        #: and the part of the replica's attempt number that is not from restarts.
        self._attempt_starts: dict[ReplicaKey, tuple[tuple[int, int], int]] = {}
        #: By role: its size in the ledger (the number that its pods were given), and how often this size has changed.
        self._sizes: dict[tuple[Key, str], tuple[int, int]] = {}
        #: The last pod of a replica, with the number of restarts of containers inside this pod.
        self._inside: dict[ReplicaKey, PodCount] = {}
        #: Replicas whose state is no longer updated (`freeze`). The value says whether the pod still runs.
        self._frozen: dict[ReplicaKey, bool] = {}
        self._counts: dict[Key, Counter[str]] = {key: Counter() for key in self._rows}
        for row in self._rows.values():
            self._add_replicas(row)

    # -- updates -----------------------------------------------------------------------------------------------------

    def update_job(self, body: Body, *, deleted: bool = False) -> JobNews | None:
        """Process a change of a job; return the news if the change is visible."""
        meta = body["metadata"]
        row = self._rows.get(Key(meta.get("namespace", ""), meta["name"]))
        if row is None:
            return None
        self._by_uid[meta["uid"]] = row
        known = row.body["metadata"].get("generation", meta.get("generation"))  # the manifest has no generation
        ledger = msgspec.convert((body.get("status") or {}).get("trainwright") or {}, Ledger)
        if meta.get("generation") != known or _size_caps(ledger) != _size_caps(row.ledger):
            row.roles = _roles(row.kind, body)
            self._add_replicas(row)
        row.body, row.deleted, row.ledger = body, deleted, ledger
        self._note_sizes(row)
        row.started = self._clock() if row.started is None else row.started
        if deleted or row.ledger.outcome is not None:
            row.ended = self._clock() if row.ended is None else row.ended
            self._open.discard(row.key)
        return self._news(row)

    def update_pod(self, pod: Body, *, deleted: bool = False) -> ReplicaNews | None:
        """Process a change of a pod; return the news of its replica if the change is visible."""
        meta = pod["metadata"]
        replica_key = self._replica_key(meta)
        if replica_key is None:
            return None
        before = self._replicas.get(replica_key)
        attempt = attempt_of(pod)
        if before is not None and before.uid not in ("", meta["uid"]) and (deleted or attempt < before.attempt):
            return None  # this is an older pod of the same replica
        if replica_key in self._frozen:
            self._frozen[replica_key] = not deleted and condition(pod).phase not in OVER
            return None
        if deleted:
            return self._pod_deleted(replica_key, before)
        new = self._from_pod(pod, replica_key, before, attempt)
        if new == before:
            return None
        self._put(replica_key, before, new)
        self._pods[Key(replica_key[0].namespace, new.pod)] = replica_key
        return new

    def freeze(self, one: ReplicaNews) -> None:
        """Keep the current state of a replica although the run ends its pod: on a cluster, the pod would still run."""
        self._frozen[one.job, one.role, one.index] = True

    def event_news(self, event: Body) -> EventNews | None:
        """The news of an event; None if the event is not about a job of this run or its pods."""
        about = event.get("involvedObject") or {}
        key = Key(about.get("namespace", ""), about.get("name", ""))
        replica = self._replicas.get(self._pods[key]) if about.get("kind") == "Pod" and key in self._pods else None
        key = replica.job if replica is not None else key
        if key not in self._rows:
            return None
        label = replica.label if replica is not None else key.name
        warning = event.get("type") == "Warning"
        return EventNews(key, label, event.get("reason", ""), event.get("message", ""), warning)

    # -- queries -----------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobNews, ...]:
        """All jobs in the order of the input."""
        return tuple(self._job_news(row) for row in self._rows.values())

    def row(self, key: Key) -> JobRow:
        """The state of one job."""
        return self._rows[key]

    def restart_counts(self, key: Key) -> list[PodCount]:
        """The pods of a job that have restarts which the ledger of the job does not count yet."""
        pending = [(book.name, i) for book in self._rows[key].ledger.roles for i in attempts.pending_replicas(book)]
        known = [(self._replicas.get((key, *one)), one) for one in pending]
        replaced = [PodCount(*one, replica.attempt) for replica, one in known if replica is not None and replica.pod]
        return replaced + [count for replica_key, count in self._inside.items() if replica_key[0] == key]

    def took(self, key: Key) -> float:
        """The seconds from the start of one job to its end, or until now if it has not ended."""
        return self._rows[key].took(self._clock())

    def replicas(self, key: Key) -> list[ReplicaNews]:
        """The replicas of one job."""
        return [one for one in self._replicas.values() if one.job == key]

    def replica_of(self, pod: Body) -> ReplicaNews | None:
        """The current state of the replica of a pod."""
        replica_key = self._replica_key(pod["metadata"])
        return self._replicas.get(replica_key) if replica_key is not None else None

    def pick(self, most: int) -> tuple[ReplicaNews, ...]:
        """At most `most` replicas, in order. If there are more, prefer failed replicas, then unfinished replicas."""
        replicas = list(self._replicas.values())
        if len(replicas) > most:
            replicas = nsmallest(most, replicas, key=lambda one: (_URGENCY.get(one.phase, 5), one.index))
        return tuple(sorted(replicas, key=self._sort_key))

    def count(self) -> int:
        """The number of all replicas."""
        return len(self._replicas)

    def alive(self) -> list[ReplicaNews]:
        """Replicas with a pod that has not ended."""
        with_pod = [(replica_key, one) for replica_key, one in self._replicas.items() if one.pod and not one.removed]
        return [one for replica_key, one in with_pod if one.phase not in OVER and self._frozen.get(replica_key, True)]

    @property
    def over(self) -> bool:
        """Whether every job has an outcome or is deleted."""
        return not self._open

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _replica_key(self, meta: Body) -> ReplicaKey | None:
        """The replica of a pod with this metadata; None for a spare pod or a pod that belongs to no job of this run."""
        labels = meta.get("labels") or {}
        row = self._by_uid.get(labels.get(JOB_UID, ""))
        if row is None:  # the watch of pods can report a pod before the watch of jobs reports its job
            names = [one.get("name", "") for one in meta.get("ownerReferences") or () if one.get("controller")]
            row = self._rows.get(Key(meta.get("namespace", ""), names[0])) if names else None
        return (row.key, labels[ROLE], int(labels[INDEX])) if row is not None and is_replica(labels) else None

    def _add_replicas(self, row: JobRow) -> None:
        """Add a replica for every index of each role. Remove replicas with higher indexes if they have no pod."""
        for role, total in row.roles.items():
            for index in range(total):
                replica_key = (row.key, role, index)
                if replica_key not in self._replicas:
                    self._put(replica_key, None, ReplicaNews(row.key, role, index, self._label(row, role, index)))
        for replica_key, one in list(self._replicas.items()):
            is_extra = one.job == row.key and one.index >= row.roles.get(one.role, 0)
            if is_extra and (not one.pod or one.removed):
                self._remove(replica_key)

    def _label(self, row: JobRow, role: str, index: int) -> str:
        name = f"{role}-{index}"
        if len(self._rows) == 1:
            return name
        return f"{row.key.name if self._namespace_count == 1 else row.key}/{name}"

    def _from_pod(self, pod: Body, replica_key: ReplicaKey, before: ReplicaNews | None, attempt: int) -> ReplicaNews:
        meta, state = pod["metadata"], condition(pod)
        phase = state.phase
        if state.restarts or replica_key in self._inside:
            self._inside[replica_key] = PodCount(replica_key[1], replica_key[2], attempt, state.restarts)
        had_failed = before is not None and (before.uid, before.phase) == (meta["uid"], "Failed")
        if phase == "Failed" and meta.get("deletionTimestamp") and not had_failed:
            phase = "Stopped"  # the pod ended because it was deleted
        return ReplicaNews(
            *replica_key,
            self._label(self._rows[replica_key[0]], replica_key[1], replica_key[2]),
            phase,
            meta["name"],
            meta["uid"],
            attempt,
            pod["spec"].get("nodeName", ""),
            attempt - self._not_restarts(replica_key, attempt, before) + state.restarts,
            state.reason,
            (pod.get("status") or {}).get("startTime") or meta.get("creationTimestamp", ""),
        )

    def _note_sizes(self, row: JobRow) -> None:
        for book in row.ledger.roles:
            size, changes = self._sizes.get((row.key, book.name), (-1, -1))
            if book.size != size:
                self._sizes[row.key, book.name] = (book.size, changes + 1)

    def _not_restarts(self, replica_key: ReplicaKey, attempt: int, before: ReplicaNews | None) -> int:
        """The number of attempts that were not restarts: a resume or a change of size also begins a new attempt.

        A restart of a whole role can raise the attempt of a replica by more than 1, but it counts as one restart.
        """
        now = (self._rows[replica_key[0]].ledger.resumes, self._sizes.get(replica_key[:2], (-1, 0))[1])
        since, skipped = self._attempt_starts.get(replica_key, ((0, 0), 0))
        older = before.attempt if before is not None else 0
        if attempt > older:
            real = 0 if now != since else 1 if before is not None and before.pod else attempt - older
            skipped += attempt - older - real
            self._attempt_starts[replica_key] = (now, skipped)
        return skipped

    def _pod_deleted(self, replica_key: ReplicaKey, before: ReplicaNews | None) -> ReplicaNews | None:
        """Process the deletion of a pod. The deletion is news only if the pod had not ended before."""
        if before is None:
            return None
        if before.index >= self._rows[before.job].roles.get(before.role, 0):
            self._remove(replica_key)
            return None
        if before.phase in OVER:
            self._put(replica_key, before, replace(before, removed=True))
            return None
        row = self._rows[before.job]
        ending = row.ledger.outcome is not None or bool(row.body["metadata"].get("deletionTimestamp"))
        phase, reason = ("Stopped", "") if ending else ("Waiting", "its pod was deleted")
        new = replace(before, phase=phase, node="", reason=reason, since="", removed=True)
        self._put(replica_key, before, new)
        return new

    def _put(self, replica_key: ReplicaKey, before: ReplicaNews | None, new: ReplicaNews) -> None:
        counts = self._counts[replica_key[0]]
        if before is not None:
            counts[before.phase] -= 1
        counts[new.phase] += 1
        self._replicas[replica_key] = new

    def _remove(self, replica_key: ReplicaKey) -> None:
        self._counts[replica_key[0]][self._replicas.pop(replica_key).phase] -= 1

    def _news(self, row: JobRow) -> JobNews | None:
        news = self._job_news(row)
        before, row.last_news = row.last_news, news
        return None if before is not None and _VISIBLE(before) == _VISIBLE(news) else news

    def _job_news(self, row: JobRow) -> JobNews:
        status = row.body.get("status") or {}
        ledger = row.ledger
        return JobNews(
            row.key,
            row.kind.title,
            row.kind.phase_of(status) or "Pending",
            ledger.phase or Phase.PENDING,
            sum(row.roles.values()),
            {phase: number for phase, number in self._counts[row.key].items() if number},
            count_restarts(ledger, self.restart_counts(row.key)),
            ledger.outcome,
            row.deleted,
            row.took(self._clock()),
        )

    def _sort_key(self, one: ReplicaNews) -> tuple[int, int, int]:
        row = self._rows[one.job]
        return row.order, list(row.roles).index(one.role) if one.role in row.roles else 99, one.index


def attempt_of(pod: Body) -> int:
    """The attempt of a pod."""
    return int((pod["metadata"].get("labels") or {}).get(ATTEMPT) or 0)


def _roles(kind: Kind, body: Body) -> dict[str, int]:
    return {role.name: role.replicas for role in within_bounds(load(kind, body).job).roles}


def _size_caps(ledger: Ledger) -> list[int]:
    """The current upper bounds on the sizes of roles that were shrunk automatically."""
    return [book.ceiling.most for book in ledger.roles if book.ceiling is not None]
