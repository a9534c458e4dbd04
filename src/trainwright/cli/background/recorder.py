# SPDX-License-Identifier: Apache-2.0
"""Keeps the record of each job of the background engine: its pods, its events, and how it ended.

The record has the same files as the record of a private run, so that `get`, `logs`, `explain` and `history` work when
the job has ended and when no engine runs. After a restart, the recorder continues the records of unfinished jobs. It
also writes the final record of a job that ended while no engine could write it.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from trainwright.cli.background.place import make_private
from trainwright.cli.record import EVENTS, STATUS, RunInfo, RunRecord, read_events, read_job, read_pods, read_run_info
from trainwright.cli.run.ending import EndingInput, RunEnd, find_ending
from trainwright.cli.run.follow import Changes, RunFollower, watch
from trainwright.cli.run.model import RunModel
from trainwright.cli.show.news import Frame, JobEnding, Line, News, ReplicaNews
from trainwright.cli.state import job_folder, point_to, prune
from trainwright.cli.summary import summarize
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kinds.registry import find as find_kind
from trainwright.local.storage.retention import event_time
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import JOB_UID, RUN, Key
from trainwright.model.units import parse_time, rfc3339
from trainwright.node import submission
from trainwright.node.submission import run_of
from trainwright.runtime.ports import EVENTS as EVENT_OBJECTS
from trainwright.runtime.ports import PODS, Clock, Cluster, jobs_of

#: Seconds between two writes of new lines, and between two checks whether an ended job is cleaned up.
_FLUSH_SECONDS = 0.1
#: Seconds until the next try after an error, such as a full disk.
_RETRY_SECONDS = 2.0

#: Whether a job (its kind and key) has ended and its final status is stored.
CleanedUp = Callable[[str, Key], bool]


class _NoView:
    """A view that shows nothing: nobody watches the engine."""

    busy = gone = False

    def news(self, items: list[News]) -> None: ...
    def logs(self, lines: list[Line]) -> None: ...
    def notice(self, text: str) -> None: ...
    def tick(self, frame: Frame) -> None: ...
    def end(self, endings: list[JobEnding], folder: str) -> None: ...
    def close(self, timeout: float) -> bool:  # noqa: ARG002 - the signature of a view
        return True


class JobRecorder:
    """The record of one job. `ended` is the time at which the job had its outcome or was deleted."""

    def __init__(self, kind: Kind, body: Body, folder: Path, runtime: str) -> None:
        meta = body["metadata"]
        self.kind, self.key, self.uid = kind, Key(meta["namespace"], meta["name"]), str(meta["uid"])
        self.folder = folder
        self.deleted = False
        make_private(folder)
        self.record = RunRecord(folder, retry=True)
        self._model = RunModel([(kind, body)], time.time)
        self._follower = RunFollower(self._model, _NoView(), self.record, read_pods(folder), with_logs=False)
        self._runtime = runtime
        self._events = {_version(event) for event in read_events(folder)}
        #: The replicas at the time of the outcome: afterwards, the clean-up ends other replicas.
        self._last_replicas: list[ReplicaNews] | None = None
        info = read_run_info(folder)
        self._info = info or RunInfo((str(self.key),), os.getpid(), str(meta.get("creationTimestamp", "")), runtime)
        self._begun = info is not None
        self.job(body, deleted=False)
        self._created = parse_time(str(meta.get("creationTimestamp", "")))
        self._model.row(self.key).started = self._created.timestamp() if self._created is not None else time.time()

    def job(self, body: Body, *, deleted: bool) -> None:
        """Take a change of the job."""
        self._follower.jobs([(body, deleted)])
        self.deleted = self.deleted or deleted
        if self._last_replicas is None and self.decided:
            self._last_replicas = self._model.replicas(self.key)

    def pod(self, body: Body, *, deleted: bool) -> None:
        """Take a change of a pod."""
        self._follower.pods([(body, deleted)])

    def event(self, body: Body) -> None:
        """Take an event about the job or one of its pods, and ignore events of an earlier job of this name."""
        about = body.get("involvedObject") or {}
        if about.get("name") == self.key.name and about.get("kind") == self.kind.name:
            is_own = about.get("uid") in (None, "", self.uid)
        else:
            roles = self._model.row(self.key).roles
            is_own = any(_is_replica(str(about.get("name")), self.key.replica_prefix(role)) for role in roles)
        happened = event_time(body)
        is_new = happened is None or self._created is None or happened >= self._created
        if is_own and is_new and _version(body) not in self._events:
            self._events.add(_version(body))
            self.record.append(EVENTS, body)

    @property
    def decided(self) -> bool:
        """Whether the job has its outcome or is deleted."""
        return self.deleted or self._model.row(self.key).ledger.outcome is not None

    def flush(self) -> bool:
        """Write what is new. Return False if something could not be written, so that the caller tries again."""
        self.record.trouble = ""
        if not self._begun:
            self._begun = self.record.write_info(self._info) and self.record.write_manifest(
                [self._model.row(self.key).body]
            )
        self.record.flush()
        return not self.record.trouble

    def close(self, now: str) -> bool:
        """Write the final record and remove the variables of the user's shell. False: it could not be written."""
        row = self._model.row(self.key)
        context = EndingInput(
            end=RunEnd.DONE,
            runtime=self._runtime,
            took=self._model.took(self.key),
            replicas=self._last_replicas or [],
            last_lines=self._follower.last_lines,
            pods=tuple(self._model.restart_counts(self.key)),
        )
        ending = find_ending(row, context)
        summary = summarize(self.kind, row.body, row.ledger, ending.outcome)
        info = replace(self._info, runtime=self._runtime, ended=now, endings=(ending,), summary=summary)
        if not self.record.close([row.body], info):
            return False
        submission.remove(self.folder)
        return True


class JobRecords:
    """The records of all jobs. `state` is the state folder of the user, `folder` the folder of the engine."""

    def __init__(self, cluster: Cluster, clock: Clock, state: Path, folder: Path, cleaned_up: CleanedUp) -> None:
        self._cluster, self._clock, self._state, self._folder = cluster, clock, state, folder
        self._cleaned_up = cleaned_up
        self.runtime = ""
        #: The open records by the UID and by the key of the job.
        self._open: dict[str, JobRecorder] = {}
        self._by_key: dict[Key, JobRecorder] = {}
        #: The UIDs of jobs whose final record exists, and by UID of the job: pods that arrived before their job.
        self._closed: set[str] = set()
        self._early_pods: dict[str, list[Body]] = {}
        #: The records that have something to write, and an event for the first of them.
        self._dirty: set[JobRecorder] = set()
        self._changed = asyncio.Event()
        #: Jobs whose record could not be begun, because the disk is full: tried again at the next flush.
        self._late: dict[str, tuple[Kind, Body]] = {}
        self._trouble = ""

    async def run(self) -> None:
        """Keep the records until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in KINDS:
                group.create_task(watch(self._cluster, jobs_of(kind), partial(self._jobs, kind)))
            group.create_task(watch(self._cluster, PODS.whole(), self._pods))
            group.create_task(watch(self._cluster, EVENT_OBJECTS.whole(), self._events))
            group.create_task(self._flush_always())

    @property
    def trouble(self) -> str:
        """An error that a record has now; empty if there is none."""
        return self._trouble or next((one.record.trouble for one in self._dirty if one.record.trouble), "")

    def settle(self, store: Store) -> None:
        """Finish the records of jobs that were deleted just before the last engine was killed.

        A folder without a record belongs to a job that was never stored: it is removed.
        """
        stored = {
            run_of(body["metadata"].get("annotations"), RUN) for kind in KINDS for body in store.list(jobs_of(kind))[0]
        }
        for folder in sorted((self._folder / submission.JOBS).glob("*")):
            if folder.name in stored or (folder / STATUS).exists():
                continue
            try:
                self._settle(folder)
            except OSError as error:
                self._trouble = f"{folder}: {error.strerror or error}"

    def _settle(self, folder: Path) -> None:
        info = read_run_info(folder)
        namespace, _, name = info.jobs[0].partition("/") if info is not None and info.jobs else ("", "", "")
        body = read_job(folder, Key(namespace, name))
        kind = find_kind(str(body.get("apiVersion", "")), str(body.get("kind", "")))
        if kind is None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        one = JobRecorder(kind, body, folder, info.runtime if info is not None else "")
        one.job(body, deleted=True)
        one.close(rfc3339(self._clock.now()))

    def flush(self) -> None:
        """Write new lines, and the final records of jobs that are cleaned up."""
        late, self._late, self._trouble = self._late, {}, ""
        for kind, body in late.values():
            self._begin(kind, body)
        dirty, self._dirty = self._dirty, set()
        for one in dirty:
            written = one.flush()
            is_due = one.decided and (one.deleted or self._cleaned_up(one.kind.id, one.key))
            if not written or (one.decided and not is_due):
                self._mark(one)  # try again later; the clean-up of a job causes no change of the job
            elif is_due and not one.close(rfc3339(self._clock.now())):
                self._mark(one)
            elif is_due:
                del self._open[one.uid]
                if not one.deleted:
                    self._closed.add(one.uid)
                if self._by_key.get(one.key) is one:
                    del self._by_key[one.key]

    async def _flush_always(self) -> None:
        while True:
            await self._changed.wait()
            # More changes may come, which become one write. After an error, the disk gets more time.
            await asyncio.sleep(_RETRY_SECONDS if self.trouble else _FLUSH_SECONDS)
            self._changed.clear()
            self.flush()

    def _mark(self, one: JobRecorder) -> None:
        self._dirty.add(one)
        self._changed.set()

    def _jobs(self, kind: Kind, changes: Changes) -> None:
        for body, deleted in changes:
            known = self._open.get(body["metadata"]["uid"])
            if known is not None:
                known.job(body, deleted=deleted)
                self._mark(known)
            elif deleted:
                self._closed.discard(body["metadata"]["uid"])
                self._late.pop(body["metadata"]["uid"], None)
            else:
                self._begin(kind, body)

    def _begin(self, kind: Kind, body: Body) -> None:
        """Begin or continue the record of a job, unless its final record exists."""
        meta = body["metadata"]
        run = run_of(meta.get("annotations"), RUN)
        folder = Path(submission.job_folder(str(self._folder), run))
        if meta["uid"] in self._closed:
            return
        if not run or (folder / STATUS).exists():
            self._closed.add(meta["uid"])
            self._early_pods.pop(meta["uid"], None)
            return
        try:
            one = JobRecorder(kind, body, folder, self.runtime)
            link(self._state, one.key, folder)
        except OSError as error:
            self._trouble = f"{folder}: {error.strerror or error}"
            self._late[meta["uid"]] = kind, body
            self._changed.set()
            return
        self._open[one.uid] = self._by_key[one.key] = one
        for pod in self._early_pods.pop(one.uid, ()):
            one.pod(pod, deleted=False)
        self._mark(one)

    def _pods(self, changes: Changes) -> None:
        for body, deleted in changes:
            uid = (body["metadata"].get("labels") or {}).get(JOB_UID, "")
            if uid in self._open:
                self._open[uid].pod(body, deleted=deleted)
                self._mark(self._open[uid])
            elif not deleted and uid and uid not in self._closed:
                self._early_pods.setdefault(uid, []).append(body)
            else:
                self._early_pods.pop(uid, None)

    def _events(self, changes: Changes) -> None:
        for body, deleted in changes:
            about = body.get("involvedObject") or {}
            one = None if deleted else self._find(str(about.get("namespace", "")), str(about.get("name", "")))
            if one is not None:
                one.event(body)
                self._mark(one)

    def _find(self, namespace: str, name: str) -> JobRecorder | None:
        """The open record of the job with this name, or of the job whose replica has this name."""
        while name:
            found = self._by_key.get(Key(namespace, name))
            if found is not None:
                return found
            name = name.rpartition("-")[0]
        return None


def link(state: Path, key: Key, folder: Path) -> None:
    """Make the folder of a job the latest run of this name."""
    names = job_folder(state, key)
    make_private(names)
    if not (names / folder.name).is_symlink():
        (names / folder.name).symlink_to(folder)
    point_to(names, folder.name)
    prune(names)


def _is_replica(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].isdecimal()


def _version(event: Body) -> tuple[str, str]:
    meta = event.get("metadata") or {}
    return str(meta.get("name", "")), str(meta.get("resourceVersion", ""))
