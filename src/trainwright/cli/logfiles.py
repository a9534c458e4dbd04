# SPDX-License-Identifier: Apache-2.0
"""The log files of a run, found by what the run has noted of its pods (`record`). Called by `logs`.

RUN/logs/<pod>/<first 8 of uid>-<container>-<restarts>.log; what was rotated away has `.1`, `.2` … behind it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from trainwright.cli.record import Pod, pods

_INDEX = re.compile(r"(.*)-(\d+)")


class Wanted(Struct, frozen=True):
    """Whose logs: of which job, of which replicas and containers; nothing said means all."""

    job: str
    replicas: tuple[str, ...] = ()
    container: str = ""


class LogFile(Struct, frozen=True):
    """One log, with the name of its replica before it, as large as it was when it was found."""

    path: str
    label: str
    inode: int
    size: int

    def parts(self) -> Iterator[bytes]:
        """Its lines, those that were rotated away first."""
        older = [f"{self.path}.{number}" for number in range(15, 0, -1)]
        for path in older:
            if Path(path).exists():
                with Path(path).open("rb") as file:
                    yield from file
        with Path(self.path).open("rb") as file:
            left = self.size
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                yield line


def chosen(folder: Path, wanted: Wanted) -> list[Pod]:
    """The pods that are meant, replica by replica, oldest first; in any case, for so some kinds write their types."""
    words = {word.lower() for word in wanted.replicas}
    found = [
        one
        for one in pods(folder)
        if one.job == wanted.job
        and (not words or one.replica.lower() in words or one.pod in words)
        and (not wanted.container or wanted.container in one.containers)
    ]
    order = {one: place for place, one in enumerate(dict.fromkeys(_role(pod) for pod in found))}
    return sorted(found, key=lambda one: (order[_role(one)], _index(one), one.attempt))


def _role(pod: Pod) -> str:
    match = _INDEX.fullmatch(pod.replica)
    return match[1] if match is not None else pod.replica


def _index(pod: Pod) -> int:
    match = _INDEX.fullmatch(pod.replica)
    return int(match[2]) if match is not None else 0


def files(folder: Path, found: Iterable[Pod], container: str = "") -> list[LogFile]:
    """Their logs, in the order in which containers ran."""
    return [file for pod in found for file in _of(folder / "logs" / pod.pod, pod, container)]


def _of(place: Path, pod: Pod, container: str) -> Iterator[LogFile]:
    try:
        names = set(os.listdir(place))  # noqa: PTH208 - only names are needed
    except OSError:
        return
    for name in [name for name in pod.containers if container in ("", name)]:
        label = pod.replica if len(pod.containers) == 1 else f"{pod.replica}/{name}"
        pattern = re.compile(rf"{pod.uid[:8]}-{re.escape(name)}-(\d+)\.log")
        numbers = sorted(int(match[1]) for one in names if (match := pattern.fullmatch(one)))
        for number in numbers:
            path = place / f"{pod.uid[:8]}-{name}-{number}.log"
            stat = path.stat()
            yield LogFile(str(path), label, stat.st_ino, stat.st_size)
