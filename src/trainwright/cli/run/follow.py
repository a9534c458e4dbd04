# SPDX-License-Identifier: Apache-2.0
"""Follow the jobs, pods, events and logs of a run, and send them to the model, the view and the record.

Each start of a container has its own log file: LOGS/<pod>/<first 8 characters of the uid>-<container>-<restarts>.log.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from trainwright.cli.record import EVENTS, REPLICAS, RecordedPod
from trainwright.cli.run.model import RunModel, attempt_of
from trainwright.cli.show.news import Line, LogSource, News, ReplicaNews, RunView
from trainwright.cli.tail import Tail
from trainwright.errors import ApiError, GoneError
from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.runtime.informer import ListWatch
from trainwright.runtime.ports import EVERYTHING, Cluster, ListPage, Resource, Selection, WatchEvent, WatchEventType


class FoundLog(Struct, frozen=True, gc=False):
    """A new log file, or (if `ended` is true) a log file that no longer grows."""

    path: str
    source: LogSource
    ended: bool


class LogSources:
    """Computes the paths of the log files of pods from the statuses of their containers."""

    def __init__(self, logs: str) -> None:
        self._logs = logs
        #: By UID of the pod and name of the container: the number of restarts, and whether the newest log has ended.
        self._seen: dict[tuple[str, str], tuple[int, bool]] = {}

    def look(self, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        """The log files of a pod that are new or have ended since the last call."""
        status = pod.get("status") or {}
        for group in ("initContainerStatuses", "containerStatuses"):
            for one in status.get(group) or ():
                yield from self._container(one, pod, replica)

    def forget(self, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        """Report the log files of a pod that no longer exists as ended."""
        uid = pod["metadata"]["uid"]
        for name in containers(pod):
            restarts, ended = self._seen.pop((uid, name), (0, True))
            if not ended:
                yield FoundLog(self.path(pod, name, restarts), _source(pod, replica, name), ended=True)

    def path(self, pod: Body, container: str, restarts: int) -> str:
        """The log file of a container after this many restarts."""
        meta = pod["metadata"]
        return f"{self._logs}/{meta['name']}/{meta['uid'][:8]}-{container}-{restarts}.log"

    def _container(self, one: Body, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        state = one.get("state") or {}
        running = bool(state.get("running"))
        restarts = one.get("restartCount", 0)
        waiting = state.get("waiting") or {}
        if not running and not state.get("terminated") and waiting.get("reason") != BACKING_OFF:
            restarts -= 1  # the restart is counted already, but it has no log yet
        if restarts < 0:
            return
        key = (pod["metadata"]["uid"], one["name"])
        known, ended = self._seen.get(key, (-1, True))
        if (restarts, not running) == (known, ended) or restarts < known:
            return
        self._seen[key] = (restarts, not running)
        source = _source(pod, replica, one["name"])
        if not ended and known < restarts:
            yield FoundLog(self.path(pod, one["name"], known), source, ended=True)
        for number in range(known + 1, restarts):
            yield FoundLog(self.path(pod, one["name"], number), source, ended=True)
        yield FoundLog(self.path(pod, one["name"], restarts), source, ended=not running)


def containers(pod: Body) -> list[str]:
    """The names of a pod's containers, init containers first."""
    spec = pod["spec"]
    return [one["name"] for group in ("initContainers", "containers") for one in spec.get(group) or ()]


def _source(pod: Body, replica: ReplicaNews, container: str) -> LogSource:
    """The source of log lines. Its label contains the container's name only if the pod has several containers."""
    alone = len(pod["spec"].get("containers") or ()) + len(pod["spec"].get("initContainers") or ()) == 1
    label = replica.label if alone else f"{replica.label}/{container}"
    return LogSource(replica.job, replica.name, replica.pod, container, label)


#: Pairs of an object in its current state and a flag; the flag is true if the object was deleted.
Changes = list[tuple[Body, bool]]


async def raise_error(error: ApiError) -> None:
    """End the watch with the error."""
    raise error


async def watch(
    cluster: Cluster,
    resource: Resource,
    handle: Callable[[Changes], None],
    scope: Selection = EVERYTHING,
    on_error: Callable[[ApiError], Awaitable[None]] = raise_error,
) -> None:
    """Call `handle` with all existing objects, and then with each change, until cancelled.

    After a gap in the watch, all objects are listed again, and `handle` gets missing objects as deleted. `on_error`
    raises the error, or waits until the engine answers again.
    """
    known: dict[str, Body] = {}

    def listed(page: ListPage) -> None:
        found = {item["metadata"]["uid"] for item in page.items}
        gone = [(item, True) for uid, item in known.items() if uid not in found]
        pass_on(gone + [(item, False) for item in page.items])

    def pass_on(changes: Changes) -> None:
        for item, deleted in changes:
            if deleted:
                known.pop(item["metadata"]["uid"], None)
            else:
                known[item["metadata"]["uid"]] = item
        handle(changes)

    def changed(events: tuple[WatchEvent, ...]) -> None:
        pass_on([(one.item, one.what is WatchEventType.DELETED) for one in events if one.item is not None])

    async def ended(error: ApiError | None) -> None:
        if error is not None and not isinstance(error, GoneError):
            await on_error(error)

    await ListWatch(cluster, resource, scope).run(listed, changed, ended)


LOGS = "logs"
#: The ending shows at most `_LAST_LINES` lines from the last `_LAST_BYTES` bytes of a failed replica's log.
_LAST_LINES = 15
_LAST_BYTES = 64 * 1024


class LineRecord(Protocol):
    """The record of a run, as far as the follower uses it."""

    @property
    def folder(self) -> Path:
        """The folder of the run."""

    def append(self, file: str, item: Any) -> None:
        """Add a line to a file of the record."""

    def flush(self) -> None:
        """Write the added lines."""


class RunFollower:
    """Sends changes to the model and the record, and news and log lines to the view.

    `recorded` are the pods that the record has already. Without `with_logs`, the follower does not read the logs.
    """

    def __init__(
        self,
        model: RunModel,
        view: RunView,
        record: LineRecord,
        recorded: Iterable[RecordedPod] = (),
        *,
        with_logs: bool = True,
    ) -> None:
        self._model = model
        self._view = view
        self._record = record
        self._with_logs = with_logs
        #: If it is a number, new log files are read only from their last so many lines on.
        self.last_lines_only: int | None = None
        self._logs = record.folder / LOGS
        self._sources = LogSources(str(self._logs))
        self._tail: Tail[LogSource] = Tail()
        known = tuple(recorded)
        self._recorded: dict[str, str] = {pod.uid: pod.node for pod in known}
        #: The uid of a pod by its name and attempt.
        self._uids: dict[tuple[str, int], str] = {(pod.pod, pod.attempt): pod.uid for pod in known}

    def jobs(self, changes: Changes) -> None:
        """Handle changes of jobs."""
        news = [self._model.update_job(body, deleted=deleted) for body, deleted in changes]
        self._show([one for one in news if one is not None])

    def pods(self, changes: Changes) -> None:
        """Handle changes of pods. The view gets the last log lines of a pod before the news that the pod has ended."""
        news: list[News] = []
        lines: list[Line] = []
        now = time.monotonic()
        for pod, deleted in changes:
            changed = self._model.update_pod(pod, deleted=deleted)
            replica = changed or self._model.replica_of(pod)
            if replica is not None:
                self._record_pod(pod, replica)
                if self._with_logs:
                    lines += self._new_lines(pod, replica, now, deleted=deleted)
            if changed is not None:
                news.append(changed)
        self._print(lines)
        self._show(news)

    def events(self, changes: Changes) -> None:
        """Handle new events."""
        new = [body for body, deleted in changes if not deleted]
        for body in new:
            self._record.append(EVENTS, body)
        news = [self._model.event_news(body) for body in new]
        self._show([one for one in news if one is not None])

    def poll_logs(self) -> bool:
        """Read the logs, update the view, and write the record. Return whether there is more to read."""
        if not self._view.busy:
            self._print(self._tail.poll(time.monotonic()))
        self._view.tick(self._model)
        self._record.flush()
        return self._tail.behind and not self._view.busy

    def drain(self) -> None:
        """Read the rest of all logs, after all containers have ended."""
        self._print(self._tail.drain(time.monotonic()))

    def last_lines(self, pod: str, attempt: int, container: str) -> tuple[str, ...]:
        """The last log lines of a container. If `container` is empty, the last lines of the newest log of the pod."""
        uid = self._uids.get((pod, attempt), "")[:8]
        found = []
        for file in (self._logs / pod).glob(f"{uid}-{container or '*'}-*.log") if uid else ():
            with suppress(OSError):  # old logs may be removed at any time
                stat = file.stat()
                found += [(stat.st_mtime_ns, file)] if stat.st_size else []
        with suppress(OSError):
            return last_lines(max(found)[1]) if found else ()
        return ()

    def _record_pod(self, pod: Body, replica: ReplicaNews) -> None:
        """Record a new pod, so that `trainwright logs` can find its logs; and again, as soon as it has a node."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        node = pod["spec"].get("nodeName", "")
        if self._recorded.get(uid) == node:
            return
        attempt = attempt_of(pod)
        self._recorded[uid] = node
        self._uids[name, attempt] = uid
        names, resumes = tuple(containers(pod)), self._model.row(replica.job).ledger.resumes
        one = RecordedPod(str(replica.job), replica.name, name, uid, names, attempt, node, resumes)
        self._record.append(REPLICAS, one)

    def _new_lines(self, pod: Body, replica: ReplicaNews, now: float, *, deleted: bool) -> list[Line]:
        lines: list[Line] = []
        for found in self._sources.forget(pod, replica) if deleted else self._sources.look(pod, replica):
            most = self.last_lines_only
            inode, offset = (0, 0) if most is None else _end_position(found.path, 0 if found.ended else most)
            self._tail.add(found.path, found.source, inode=inode, offset=offset)
            if found.ended:
                lines += self._tail.end(found.path, now)
        return lines

    def _print(self, lines: list[Line]) -> None:
        if lines:
            # Write the record before the view shows the lines: `trainwright logs` finds them even after a kill.
            self._record.flush()
            self._view.logs(lines)

    def _show(self, news: list[News]) -> None:
        if news:
            self._view.news(news)


def _end_position(path: str, most: int) -> tuple[int, int]:
    """The inode of a file and the position of its last `most` lines. The lines can be fewer if they are long."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - a Path doubles the cost
            size = stream.seek(0, 2)
            start = max(size - _LAST_BYTES, 0)
            stream.seek(start)
            data = stream.read(size - start)
            inode = os.fstat(stream.fileno()).st_ino
    except OSError:
        return 0, 0
    lines = data.splitlines(keepends=True)
    return inode, size - sum(map(len, lines[-most:])) if most else size


def last_lines(file: Path, most: int = _LAST_LINES) -> tuple[str, ...]:
    """The last lines of a file, without empty lines."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - _LAST_BYTES, 0))
        lines = stream.read().decode(errors="replace").split("\n")
    complete = lines if size <= _LAST_BYTES else lines[1:]
    kept = [line.removesuffix("\r") for line in complete if line.strip()]
    return tuple(kept[-most:])
