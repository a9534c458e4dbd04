# SPDX-License-Identifier: Apache-2.0
"""The results file of `--compare`: JSON lines, first a header with the versions, then one line for each run.

A run is appended and synced at once. A process that is killed while it writes leaves an incomplete last line, which is
ignored and removed.
"""

import os
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

#: Fields of the header that may differ when a file is continued. The source is identified by its own hash.
_FREE = ("date", "commit")


class ResultsError(Exception):
    """A results file cannot be used: one line, which says how to go on."""


class Header(Struct, frozen=True, kw_only=True):
    """What was measured, and where."""

    date: str
    commit: str
    #: A hash of the files that influence a measurement.
    source: str
    trainwright: str
    peer: str
    kubernetes: str
    python: str
    aiohttp: str
    msgspec: str
    kernel: str
    processor: str
    processors: int
    quick: bool = False


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run. Times in seconds, memory in MiB, sizes in bytes.

    CPU seconds are by process: operator, apiserver, etcd, kubelet, driver.
    """

    case: str
    round: int
    who: str
    mode: str
    jobs: int
    pods: int
    date: str
    #: The duration of the whole run with its start-up.
    took: float
    #: From the first submission until the last job has succeeded.
    wall: float
    #: From the submission of a job to its last pod.
    p50: float = 0.0
    p99: float = 0.0
    #: Until the last job has succeeded.
    cpu: dict[str, float]
    #: Until the operator was idle and made no more writes: late events are work, too.
    cpu_quiet: dict[str, float]
    #: Seconds from the last job's end until then, and whether the operator did become idle in the time it was given.
    tail: float
    is_quiet: bool = True
    #: Of the operator: its peak, and at the end.
    peak: float = 0.0
    memory: float = 0.0
    #: Requests of the operator until it was idle: "create pods" and so on.
    writes: dict[str, int] = {}
    conflicts: int = 0
    reads: int = 0
    #: Bytes that etcd received, and bytes of request bodies of all clients by verb and resource.
    etcd_bytes: int = 0
    body_bytes: dict[str, int] = {}
    #: The share of jobs whose terminal event was stored, and that were seen in phase Running.
    events: float = 0.0
    running: float = 0.0
    #: The share of the machine that other programs used.
    others: float = 0.0
    #: The number of jobs that existed before, and the share of a CPU that each process used at rest.
    present: int = 0
    rest: dict[str, float] = {}

    @property
    def key(self) -> tuple[str, int, str]:
        """Return what identifies the run."""
        return (self.case, self.round, self.who)


class ResultsFile:
    """A results file that is open for more runs."""

    def __init__(self, path: Path, header: Header, runs: list[Run]) -> None:
        self._path = path
        self.header = header
        self.runs = runs

    @classmethod
    def open(cls, path: Path, header: Header, *, fresh: bool = False) -> Self:
        """Continue a file, or create it; ResultsError if the file is about other versions."""
        if fresh:
            path.unlink(missing_ok=True)
        if not path.exists() or not (complete := _complete(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(header) + b"\n")
            return cls(path, header, [])
        found, runs = load(path)
        _check_same(path, found, header)
        os.truncate(path, len(complete))
        return cls(path, found, runs)

    def append(self, run: Run) -> None:
        """Store a run, so that it survives a crash."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.runs.append(run)


def load(path: Path) -> tuple[Header, list[Run]]:
    """Return the header and the runs of a file, without an incomplete last line."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist; measure first, with `python bench/operator --compare`")
    lines = _complete(path).splitlines()
    if not lines:
        raise ResultsError(f"{path} is empty; measure first, with `python bench/operator --compare`")
    try:
        header = msgspec.json.decode(lines[0], type=Header)
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{path}, line 1: not a header of results: {error}; start anew with --fresh") from None
    return header, [_run(path, number, line) for number, line in enumerate(lines[1:], 2)]


def _run(path: Path, number: int, line: bytes) -> Run:
    try:
        return msgspec.json.decode(line, type=Run)
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{path}, line {number}: not a result: {error}; remove the line to go on") from None


def _complete(path: Path) -> bytes:
    text = path.read_bytes()
    return text[: text.rfind(b"\n") + 1]


def _check_same(path: Path, found: Header, ours: Header) -> None:
    one, other = msgspec.structs.asdict(found), msgspec.structs.asdict(ours)
    differ = [
        f"{name} {one[name]} (now {other[name]})" for name in one if name not in _FREE and one[name] != other[name]
    ]
    if differ:
        raise ResultsError(
            f"{path} has results of {', '.join(differ)}; use --fresh to start anew, or another --results"
        )
