# SPDX-License-Identifier: Apache-2.0
"""Passes on what is watched: to the board, the view and the record, and the logs of whatever runs to the view.

`session` hands it the changes of jobs, pods and events, and lets it look at the logs now and then.
"""

import time
from pathlib import Path

from trainwright.cli.record import EVENTS, REPLICAS, Pod, Record
from trainwright.cli.run.board import Board, attempt_of
from trainwright.cli.run.sources import Sources, containers
from trainwright.cli.run.watch import Seen
from trainwright.cli.show.news import Line, News, Replica, Source, View
from trainwright.cli.tail import Tail
from trainwright.model.job import Body

LOGS = "logs"
#: Lines of a failed replica that the verdict shows, and how far back they are looked for.
_LINES = 15
_REACH = 64 * 1024


class Follower:
    """Everything that is shown of a run passes here."""

    def __init__(self, board: Board, view: View, record: Record) -> None:
        self._board = board
        self._view = view
        self._record = record
        self._logs = record.folder / LOGS
        self._sources = Sources(str(self._logs))
        self._tail: Tail[Source] = Tail()
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

    def _enter(self, pod: Body, who: Replica) -> None:
        """Note a pod that was not seen before: its logs are found by what is noted."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if uid in self._noted:
            return
        attempt = attempt_of(pod)
        self._noted.add(uid)
        self._uids[name, attempt] = uid
        node = pod["spec"].get("nodeName", "")
        self._record.note(REPLICAS, Pod(str(who.job), who.name, name, uid, tuple(containers(pod)), attempt, node))

    def _new_lines(self, pod: Body, who: Replica, now: float, *, gone: bool) -> list[Line]:
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
