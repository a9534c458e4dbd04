# SPDX-License-Identifier: Apache-2.0
"""Which log files a pod has, from the pod itself. `session` follows them with `tail`; `logs` finds them again later.

LOGS/<pod>/<first 8 of uid>-<container>-<restarts>.log, one for each time that a container was started.

Watching a resource for as long as a run lasts, also across gaps. `session` runs one of these per resource.

Passes on what is watched: to the board, the view and the record, and the logs of whatever runs to the view.

`session` hands it the changes of jobs, pods and events, and lets it look at the logs now and then.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from trainwright.cli.record import EVENTS, REPLICAS, RecordedPod, RunRecord
from trainwright.cli.run.model import RunModel, attempt_of
from trainwright.cli.show.news import Line, LogSource, News, ReplicaNews, RunView
from trainwright.cli.tail import Tail
from trainwright.errors import ApiError, GoneError
from trainwright.model.job import Body
from trainwright.runtime.informer import ListWatch
from trainwright.runtime.ports import Cluster, ListPage, Resource, WatchEvent, WatchEventType


class FoundLog(Struct, frozen=True, gc=False):
    """A log file that is new, or one that will not grow any more."""

    path: str
    source: LogSource
    ended: bool


class LogSources:
    """What has been found so far."""

    def __init__(self, logs: str) -> None:
        self._logs = logs
        #: By pod and container: how often it was started, and whether its last log is finished.
        self._seen: dict[tuple[str, str], tuple[int, bool]] = {}

    def look(self, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        """What is new about a pod's logs."""
        status = pod.get("status") or {}
        for group in ("initContainerStatuses", "containerStatuses"):
            for one in status.get(group) or ():
                yield from self._container(one, pod, replica)

    def forget(self, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        """The pod is gone: none of its logs grows any more."""
        uid = pod["metadata"]["uid"]
        for at in [(uid, name) for name in containers(pod)]:
            times, ended = self._seen.pop(at, (0, True))
            if not ended:
                yield FoundLog(self.path(pod, at[1], times), _source(pod, replica, at[1]), ended=True)

    def path(self, pod: Body, container: str, times: int) -> str:
        """The file of one start of a container."""
        meta = pod["metadata"]
        return f"{self._logs}/{meta['name']}/{meta['uid'][:8]}-{container}-{times}.log"

    def _container(self, one: Body, pod: Body, replica: ReplicaNews) -> Iterator[FoundLog]:
        state = one.get("state") or {}
        running = bool(state.get("running"))
        if not running and not state.get("terminated") and not (one.get("lastState") or {}).get("terminated"):
            return
        at = (pod["metadata"]["uid"], one["name"])
        times, ended = self._seen.get(at, (-1, True))
        now = (one.get("restartCount", 0), not running)
        if now == (times, ended) or now[0] < times:
            return
        self._seen[at] = now
        source = _source(pod, replica, one["name"])
        if not ended and times < now[0]:
            yield FoundLog(self.path(pod, one["name"], times), source, ended=True)
        for number in range(times + 1, now[0]):
            yield FoundLog(self.path(pod, one["name"], number), source, ended=True)
        yield FoundLog(self.path(pod, one["name"], now[0]), source, ended=not running)


def containers(pod: Body) -> list[str]:
    """The names of a pod's containers, init containers first."""
    spec = pod["spec"]
    return [one["name"] for group in ("initContainers", "containers") for one in spec.get(group) or ()]


def _source(pod: Body, replica: ReplicaNews, container: str) -> LogSource:
    """The label names the container only where there are several."""
    alone = len(pod["spec"].get("containers") or ()) + len(pod["spec"].get("initContainers") or ()) == 1
    label = replica.label if alone else f"{replica.label}/{container}"
    return LogSource(replica.job, replica.name, replica.pod, container, label)


#: Objects as they now are, and whether they have just gone.
Seen = list[tuple[Body, bool]]


async def watch(cluster: Cluster, resource: Resource, act: Callable[[Seen], None]) -> None:
    """Hand over everything that is there, then everything that happens, for ever."""
    known: dict[str, Body] = {}

    def listed(page: ListPage) -> None:
        found = {item["metadata"]["uid"] for item in page.items}
        told([(item, True) for uid, item in known.items() if uid not in found] + [(item, False) for item in page.items])

    def told(seen: Seen) -> None:
        _keep(known, seen)
        act(seen)

    def changed(changes: tuple[WatchEvent, ...]) -> None:
        told([(one.item, one.what is WatchEventType.DELETED) for one in changes if one.item is not None])

    async def rest(error: ApiError | None) -> None:
        if error is not None and not isinstance(error, GoneError):
            raise error

    await ListWatch(cluster, resource).run(listed, changed, rest)


def _keep(known: dict[str, Body], seen: Seen) -> None:
    for item, gone in seen:
        if gone:
            known.pop(item["metadata"]["uid"], None)
        else:
            known[item["metadata"]["uid"]] = item


LOGS = "logs"
#: Lines of a failed replica that the verdict shows, and how far back they are looked for.
_LINES = 15
_REACH = 64 * 1024


class RunFollower:
    """Everything that is shown of a run passes here."""

    def __init__(self, board: RunModel, view: RunView, record: RunRecord) -> None:
        self._board = board
        self._view = view
        self._record = record
        self._logs = record.folder / LOGS
        self._sources = LogSources(str(self._logs))
        self._tail: Tail[LogSource] = Tail()
        self._noted: set[str] = set()
        self._uids: dict[tuple[str, int], str] = {}

    def jobs(self, seen: Seen) -> None:
        """Jobs have changed."""
        told = [self._board.job(body, deleted=gone) for body, gone in seen]
        self._tell([one for one in told if one is not None])

    def pods(self, seen: Seen) -> None:
        """Pods have changed. The last words of one come before the news of its end."""
        news: list[News] = []
        lines: list[Line] = []
        now = time.monotonic()
        for pod, gone in seen:
            told = self._board.pod(pod, deleted=gone)
            who = told or self._board.who(pod)
            if who is not None:
                self._enter(pod, who)
                lines += self._new_lines(pod, who, now, gone=gone)
            if told is not None:
                news.append(told)
        self._print(lines)
        self._tell(news)

    def events(self, seen: Seen) -> None:
        """Something was reported."""
        fresh = [body for body, gone in seen if not gone]
        for body in fresh:
            self._record.note(EVENTS, body)
        told = [self._board.event(body) for body in fresh]
        self._tell([one for one in told if one is not None])

    def look(self) -> bool:
        """Look at the logs. Whether there is more to read."""
        if not self._view.busy:
            self._print(self._tail.poll(time.monotonic()))
        self._view.tick(self._board)
        self._record.flush()
        return self._tail.behind and not self._view.busy

    def drain(self) -> None:
        """Nothing is written any more: read the rest of everything."""
        self._print(self._tail.drain(time.monotonic()))

    def words(self, pod: str, attempt: int, container: str) -> tuple[str, ...]:
        """The last lines of a container, or of the pod's last one if it is not known which."""
        uid = self._uids.get((pod, attempt), "")[:8]
        files = [file for file in (self._logs / pod).glob(f"{uid}-{container or '*'}-*.log") if file.stat().st_size]
        return last_lines(max(files, key=lambda file: file.stat().st_mtime_ns)) if uid and files else ()

    def _enter(self, pod: Body, who: ReplicaNews) -> None:
        """Note a pod that was not seen before: its logs are found by what is noted."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if uid in self._noted:
            return
        attempt = attempt_of(pod)
        self._noted.add(uid)
        self._uids[name, attempt] = uid
        node = pod["spec"].get("nodeName", "")
        self._record.note(
            REPLICAS, RecordedPod(str(who.job), who.name, name, uid, tuple(containers(pod)), attempt, node)
        )

    def _new_lines(self, pod: Body, who: ReplicaNews, now: float, *, gone: bool) -> list[Line]:
        lines: list[Line] = []
        for found in self._sources.forget(pod, who) if gone else self._sources.look(pod, who):
            self._tail.add(found.path, found.source)
            if found.ended:
                lines += self._tail.end(found.path, now)
        return lines

    def _print(self, lines: list[Line]) -> None:
        if lines:
            # The record is written first: if the run is killed after a line was shown, `logs` must find that line.
            self._record.flush()
            self._view.logs(lines)

    def _tell(self, news: list[News]) -> None:
        if news:
            self._view.news(news)


def last_lines(file: Path, most: int = _LINES) -> tuple[str, ...]:
    """The end of a file."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - _REACH, 0))
        lines = stream.read().decode(errors="replace").split("\n")
    whole = lines if size <= _REACH else lines[1:]
    kept = [line.removesuffix("\r") for line in whole if line.strip()]
    return tuple(kept[-most:])
