# SPDX-License-Identifier: Apache-2.0
"""The files that a run keeps in its folder: `status.yaml`, `events.jsonl`, `replicas.jsonl` and `run.json`.

`status.json` has the same content as `status.yaml`; commands read it, because YAML is slow to read.

`manifest.yaml` contains the submitted jobs until the run writes `status.yaml`; a killed run has no `status.yaml`. If
the disk is full, jobs continue: the record drops data that it cannot write, and `trouble` is the first error. At the
start, the record reserves disk space for the final status, so that the logs cannot use this space.

`count_restarts` returns the number of restarts to show. A restart counts as soon as the new pod exists; a restart of a
container inside a pod counts as soon as the kubelet reports it. During the back-off, a restart does not count yet.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trainwright.cli.output import as_yaml
from trainwright.cli.show.news import JobEnding
from trainwright.core import attempts
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import Key

Item = TypeVar("Item")

STATUS = "status.yaml"
#: The same as STATUS, for commands: JSON is read many times faster than YAML.
COMPACT = "status.json"
EVENTS = "events.jsonl"
REPLICAS = "replicas.jsonl"
RUN = "run.json"
MANIFEST = "manifest.yaml"
#: The file that reserves disk space for the final status.
_RESERVE = ".room"
_RESERVE_BYTES = 128 * 1024
#: The errors of `msgspec` about data that is not as expected: also bytes that are not UTF-8 are possible.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


class RecordedPod(Struct, frozen=True, omit_defaults=True):
    """One line of `replicas.jsonl`: a pod of the run. Its log paths contain `pod`, `uid` and one of `containers`."""

    job: str
    replica: str
    pod: str
    uid: str
    containers: tuple[str, ...]
    attempt: int = 0
    node: str = ""
    #: How often the job had been resumed. A pod after a resume is no restart of the pod before it.
    resumes: int = 0


class JobSummary(Struct, frozen=True, rename="camel"):
    """What the table of `trainwright get -a` shows of a finished job: see `summary`."""

    kind: str
    phase: str
    replicas: str
    created: str


class RunInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The content of `run.json`: the jobs and the process of a run; after the end of the run also the endings."""

    jobs: tuple[str, ...]
    pid: int
    started: str
    runtime: str = ""
    ended: str = ""
    endings: tuple[JobEnding, ...] = ()
    #: Only in the record of a job of the background engine.
    summary: JobSummary | None = None


class RunRecord:
    """Writes the files of a run."""

    def __init__(self, folder: Path, *, retry: bool = False) -> None:
        self.folder = folder
        #: Whether lines that cannot be written are kept for the next `flush`; otherwise they are dropped.
        self._retry = retry
        #: The text of the first write error; empty if all writes succeeded.
        self.trouble = ""
        self._lines: dict[str, list[Any]] = {EVENTS: [], REPLICAS: []}
        self._reserve()

    def append(self, file: str, item: Any) -> None:
        """Add a line to `events.jsonl` or `replicas.jsonl`; the next `flush` writes it."""
        self._lines[file].append(item)

    def flush(self) -> None:
        """Write the added lines."""
        for file, items in self._lines.items():
            if items:
                self._lines[file] = []
                text = b"".join(msgspec.json.encode(item) + b"\n" for item in items)
                if not self._append(file, text) and self._retry:
                    self._lines[file] = [*items, *self._lines[file]]

    def write_info(self, info: RunInfo) -> bool:
        """Replace `run.json`. Return whether this succeeded."""
        return self._replace(RUN, msgspec.json.encode(info) + b"\n")

    def write_manifest(self, jobs: Sequence[Body]) -> bool:
        """Write the submitted jobs. Return whether this succeeded."""
        return self._replace(MANIFEST, as_yaml(jobs).encode())

    def close(self, jobs: Sequence[Body], info: RunInfo) -> bool:
        """Write the final status of all jobs into the reserved disk space. Return whether this succeeded.

        `status.yaml` comes after `run.json`: if it exists, the record says how the jobs ended.
        """
        with suppress(OSError):
            (self.folder / _RESERVE).unlink()
        written = self.write_info(info)
        if written or not self._retry:
            written = self._replace(STATUS, as_yaml(jobs).encode()) and written
        if written:
            with suppress(OSError):
                (self.folder / MANIFEST).unlink()
        self.flush()
        # Last, because commands can do without this file: it must not use the space that the other files need.
        self._replace(COMPACT, msgspec.json.encode(jobs))
        return written

    def remove_working_files(self, *, keep_pods: bool) -> None:
        """Remove files that only a live run needs: files of the nodes, and files of the pods unless `keep_pods`."""
        for part in ("nodes",) if keep_pods else ("nodes", "pods"):
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def _reserve(self) -> None:
        """Reserve disk space. If the disk is already full, ignore the error, because `write_info` will report it."""
        with suppress(OSError):
            file = os.open(self.folder / _RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, _RESERVE_BYTES)
            finally:
                os.close(file)

    def _replace(self, name: str, data: bytes) -> bool:
        """Write a whole file; return whether this succeeded. Otherwise the earlier file stays as it is."""
        path, unfinished = self.folder / name, self.folder / f".{name}"
        try:
            self._write_all(unfinished, data, os.O_TRUNC)
            unfinished.replace(path)
        except OSError as error:
            self._note(path, error)
            with suppress(OSError):
                unfinished.unlink()  # the next file needs the space
            return False
        return True

    def _append(self, name: str, data: bytes) -> bool:
        path = self.folder / name
        try:
            self._write_all(path, data, os.O_APPEND)
        except OSError as error:
            self._note(path, error)
            return False
        return True

    def _note(self, path: Path, error: OSError) -> None:
        self.trouble = self.trouble or f"{path} could not be written: {error.strerror or error}"

    @staticmethod
    def _write_all(path: Path, data: bytes, mode: int) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)


def read_pods(folder: Path) -> list[RecordedPod]:
    """The pods of a run, oldest first. An incomplete line (after a full disk) is ignored.

    A pod has a second line as soon as it has a node; the last line of a pod counts.
    """
    return list({pod.uid: pod for pod in _read_lines(folder / REPLICAS, RecordedPod)}.values())


def read_run_info(folder: Path) -> RunInfo | None:
    """`run.json`; None if the file cannot be read."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=RunInfo)
    except (OSError, *_UNREADABLE):
        return None


def read_job(folder: Path, key: Key) -> Body:
    """The job with its final status; after a killed run, the submitted job; if no file exists, only the metadata."""
    bare: Body = {"metadata": {"namespace": key.namespace, "name": key.name}}
    return _compact(folder, key) or _body(folder / STATUS, key) or _body(folder / MANIFEST, key) or bare


def _compact(folder: Path, key: Key) -> Body | None:
    """The job from `status.json`. Folders of older versions do not have this file."""
    with suppress(OSError, *_UNREADABLE):
        for body in msgspec.json.decode((folder / COMPACT).read_bytes(), type=list[Body]):
            if _is_job(body, key):
                return body
    return None


def _body(path: Path, key: Key) -> Body | None:
    import yaml  # noqa: PLC0415 - its import takes a third of the start-up time of a command

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with suppress(OSError, ValueError, yaml.YAMLError), path.open("rb") as file:
        for body in yaml.load_all(file, Loader=loader):
            if _is_job(body, key):
                return dict(body)
    return None


def _is_job(body: Any, key: Key) -> bool:
    """Whether it is the job of this key. Files that were cut off or edited can contain anything."""
    meta = body.get("metadata") if isinstance(body, dict) else None
    return isinstance(meta, dict) and (meta.get("namespace"), meta.get("name")) == (key.namespace, key.name)


def read_events(folder: Path) -> list[Body]:
    """The events of a run, oldest first. An incomplete line is ignored."""
    return _read_lines(folder / EVENTS, dict)


def _read_lines(path: Path, type_: type[Item]) -> list[Item]:
    found: list[Item] = []
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(*_UNREADABLE):
                found.append(msgspec.json.decode(line, type=type_))
    return found


class PodCount(Struct, frozen=True, gc=False):
    """A pod that exists or existed: its replica, its attempt, and how often its containers were restarted inside it."""

    role: str
    index: int
    attempt: int
    inside: int = 0


def count_restarts(ledger: Ledger, pods: Iterable[PodCount] = ()) -> int:
    """The number of restarts that have happened, from the ledger and these pods."""
    by_role: dict[str, list[PodCount]] = {}
    for pod in pods:
        by_role.setdefault(pod.role, []).append(pod)
    return sum(_of_role(book, by_role.get(book.name, []), ledger) for book in ledger.roles)


def _of_role(book: RoleLedger, pods: list[PodCount], ledger: Ledger) -> int:
    current = [pod for pod in pods if pod.attempt >= attempts.current_attempt(book, pod.index)]
    book = attempts.note_happened(book, frozenset(pod.index for pod in current)) if book.pending else book
    # While the job runs, the ledger counts restarts inside replaced pods only, so add those inside the current pods.
    # After the job's end, the ledger counts the restarts inside all pods.
    inside = sum(pod.inside for pod in current) if ledger.outcome is None else 0
    return book.made() + book.inside + inside


def earlier_attempts(ledger: Ledger, role: str, attempt: int) -> int:
    """The number of restarts of a replica, computed from its attempt.

    Each role has an epoch. An attempt is the epoch plus the replica's restarts in this epoch. A resume, a change of
    size or a restart of a whole role begins a higher epoch, so an attempt can be higher than the number of restarts.
    If the job was never resumed, the result is the attempt, but at most the number of restarts of the whole job.
    If the job was resumed, the result is only the number of restarts in the current epoch.
    """
    if not ledger.resumes:
        return min(attempt, sum(number for entry in ledger.roles for number in entry.restarts.values()))
    epoch = next((entry.epoch for entry in ledger.roles if entry.name == role), 0)
    return max(attempt - epoch, 0)
