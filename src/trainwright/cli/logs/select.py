# SPDX-License-Identifier: Apache-2.0
"""Find the log files of a run, from the record of its pods. This needs no engine.

The files are RUN/logs/<pod>/<first 8 characters of the uid>-<container>-<restarts>.log; rotated files have `.1`, `.2` …
at the end. Every start of a container has its own log.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from trainwright.cli.record import RecordedPod, read_pods
from trainwright.cli.runs import Run, near_replica
from trainwright.model.problem import nearest
from trainwright.node import log_segments


class LogSelection(Struct, frozen=True):
    """The logs that the user wants. Without replicas, it means all replicas; without a container, all containers."""

    job: str
    replicas: tuple[str, ...] = ()
    container: str = ""


class LogFile(Struct, frozen=True):
    """One log: its path, the label to print before its lines, and its size in bytes when it was found."""

    path: str
    label: str
    inode: int
    size: int
    #: How often the container was restarted before it wrote this log, in this pod and in earlier pods of the replica.
    attempt: int = 0
    #: The uid of the pod.
    uid: str = ""

    @property
    def name(self) -> str:
        """The label with the attempt, for example `worker-0#1` after the first restart, and `worker-0` before it."""
        return f"{self.label}#{self.attempt}" if self.attempt else self.label

    def lines(self) -> Iterator[bytes]:
        """All lines, oldest first: the lines of rotated files, then the lines of the file itself."""
        for part in log_segments.parts(self.path, self.inode, self.size):
            for piece in part.pieces():
                yield from piece.lines()


def chosen(folder: Path, wanted: LogSelection) -> list[RecordedPod]:
    """The selected pods, replica by replica, oldest first. The case of letters in names of replicas is ignored."""
    words = {word.lower() for word in wanted.replicas}
    found = [
        one
        for one in read_pods(folder)
        if one.job == wanted.job
        and (not words or one.replica.lower() in words or one.pod in words)
        and (not wanted.container or wanted.container in one.containers)
    ]
    roles = {role: place for place, role in enumerate(dict.fromkeys(one.replica.rpartition("-")[0] for one in found))}

    def place(one: RecordedPod) -> tuple[int, int, int]:
        role, _, index = one.replica.rpartition("-")
        return roles[role], int(index), one.attempt

    return sorted(found, key=place)


def files(folder: Path, found: Iterable[RecordedPod], container: str = "") -> list[LogFile]:
    """The log files of these pods, in the order in which the containers ran."""
    attempts: dict[str, int] = {}
    return [file for pod in found for file in _files_of(folder / "logs" / pod.pod, pod, container, attempts)]


def highest_restarts(folder: Path, found: Iterable[RecordedPod]) -> dict[str, int]:
    """How often containers were restarted inside each of these pods, by the UID of the pod.

    The names of the log files contain these numbers. A pod without logs is left out.
    """
    restarts: dict[str, int] = {}
    for pod in found:
        names = _names(folder / "logs" / pod.pod)
        numbers = [one for container in pod.containers if (one := _numbers(names, pod, container))]
        if numbers:
            restarts[pod.uid] = sum(max(one) for one in numbers)
    return restarts


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))  # noqa: PTH208 - only names are needed
    except OSError:
        return set()


def _numbers(names: set[str], pod: RecordedPod, container: str) -> list[int]:
    """The numbers of the logs of a container: 0 for its first run in the pod, then one for each restart."""
    # If SIGKILL ended the run during a rotation, then there can be rotated files only.
    pattern = re.compile(rf"{pod.uid[:8]}-{re.escape(container)}-(\d+)\.log(\.\d+)?")
    return sorted({int(match[1]) for one in names if (match := pattern.fullmatch(one))})


def _files_of(directory: Path, pod: RecordedPod, container: str, attempts: dict[str, int]) -> Iterator[LogFile]:
    """The log files of one pod. `attempts` has the number of the next attempt of each label."""
    names = _names(directory)
    for name in [name for name in pod.containers if container in ("", name)]:
        label = pod.replica if len(pod.containers) == 1 else f"{pod.replica}/{name}"
        numbers = _numbers(names, pod, name)
        first = max(attempts.get(label, 0), pod.attempt)
        for number in numbers:
            path = f"{directory}/{pod.uid[:8]}-{name}-{number}.log"
            inode, size = _inode_and_size(path)
            yield LogFile(path, label, inode, size, first + number, pod.uid)
        attempts[label] = first + max(numbers, default=0) + 1


def _inode_and_size(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)  # noqa: PTH116 - a Path doubles the cost, and there can be thousands of files
    except OSError:
        return 0, 0
    return stat.st_ino, stat.st_size


def previous(logs: Iterable[LogFile], pods: Iterable[RecordedPod]) -> list[LogFile]:
    """For each container, the log of the attempt before the current one. The current attempt may have no log yet."""
    newest = {pod.replica: pod.uid for pod in pods}
    by_label: dict[str, list[LogFile]] = {}
    for one in logs:
        by_label.setdefault(one.label, []).append(one)
    found = []
    for label, own in by_label.items():
        ended = own[:-1] if own[-1].uid == newest[label.partition("/")[0]] else own
        found += ended[-1:]
    return found


def nothing_found(run: Run, wanted: LogSelection) -> str:
    """The error text if no pod of the run is selected."""
    every = chosen(run.folder, LogSelection(wanted.job))
    if not every:
        return f"{run.key} has no logs yet: none of its replicas was started"
    known = {one.replica for one in every} | {one.pod for one in every}
    for word in wanted.replicas:
        if word.lower() not in {name.lower() for name in known}:
            hint = near_replica(word, known) or f"it has {', '.join(sorted({o.replica for o in every})[:8])}"
            return f"{run.key} has no replica {word!r}; {hint}"
    names = sorted({name for one in every for name in one.containers})
    meant = nearest(wanted.container, names)
    hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(names)}"
    return f"{run.key} has no container {wanted.container!r} in these replicas; {hint}"
