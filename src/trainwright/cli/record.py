# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run, in its folder: `status.yaml`, `events.jsonl`, `replicas.jsonl` and `run.json`.

Until there is a `status.yaml`, `manifest.yaml` has the jobs as they were submitted; if the run is killed, it stays.

`session` writes here as things happen; `get` and `logs` read it, also long after. A full disk ends no job: what cannot
be kept is left out and `trouble` says so once. Room for the final status is set aside before the logs can take it.

How many restarts of a job people are shown: one number for the table of `run`, its verdict, and `get`.

A restart counts once the pod that follows exists, and a restart inside a pod once the kubelet reports it. Decisions
that still wait for their back-off are not restarts yet (`core.counting`).
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.cli.show.news import JobVerdict
from trainwright.core import attempts
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger, RoleLedger
from trainwright.model.meta import Key

STATUS = "status.yaml"
EVENTS = "events.jsonl"
REPLICAS = "replicas.jsonl"
RUN = "run.json"
MANIFEST = "manifest.yaml"
_ROOM = ".room"
_ROOM_SIZE = 128 * 1024


class RecordedPod(Struct, frozen=True, omit_defaults=True):
    """One line of `replicas.jsonl`: a pod that was seen, and how to find its logs."""

    job: str
    replica: str
    pod: str
    uid: str
    containers: tuple[str, ...]
    attempt: int = 0
    node: str = ""


class RunInfo(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`run.json`: what a run is about, and how it ended once it has."""

    jobs: tuple[str, ...]
    pid: int
    started: str
    runtime: str = ""
    ended: str = ""
    endings: tuple[JobVerdict, ...] = ()


class RunRecord:
    """Writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The first thing that could not be kept, and why.
        self.trouble = ""
        self._lines: dict[str, list[Any]] = {EVENTS: [], REPLICAS: []}
        self._reserve()

    def note(self, file: str, item: Any) -> None:
        """A line for `events.jsonl` or `replicas.jsonl`; it is written with the next `flush`."""
        self._lines[file].append(item)

    def flush(self) -> None:
        """Write the lines that wait."""
        for file, items in self._lines.items():
            if items:
                self._lines[file] = []
                text = b"".join(msgspec.json.encode(item) + b"\n" for item in items)
                self._write(file, text, os.O_APPEND)

    def facts(self, facts: RunInfo) -> None:
        """Write `run.json` anew."""
        self._write(RUN, msgspec.json.encode(facts) + b"\n", os.O_TRUNC)

    def submitted(self, jobs: Sequence[Body]) -> None:
        """Write the jobs as they are submitted."""
        self._write(MANIFEST, as_yaml(jobs).encode(), os.O_TRUNC)

    def close(self, jobs: Sequence[Body], facts: RunInfo) -> None:
        """Write the final status of all jobs, into the room that was kept for it."""
        with suppress(OSError):
            (self.folder / _ROOM).unlink()
        self._write(STATUS, as_yaml(jobs).encode(), os.O_TRUNC)
        with suppress(OSError):
            (self.folder / MANIFEST).unlink()
        self.facts(facts)
        self.flush()

    def tidy(self, *, keep: bool) -> None:
        """Remove what only a live run needs: the nodes' own files, and the pods' unless they are to be kept."""
        for part in ("nodes",) if keep else ("nodes", "pods"):
            shutil.rmtree(self.folder / part, ignore_errors=True)

    def _reserve(self) -> None:
        """Take the room. Where it cannot be had the disk is full already, which `facts` will find out."""
        with suppress(OSError):
            room = os.open(self.folder / _ROOM, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(room, 0, _ROOM_SIZE)
            finally:
                os.close(room)

    def _write(self, file: str, data: bytes, how: int) -> None:
        path = self.folder / file
        try:
            place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(place, view) :]
            finally:
                os.close(place)
        except OSError as error:
            self.trouble = self.trouble or f"{path} could not be written: {error.strerror or error}"


def as_yaml(bodies: Iterable[Body]) -> str:
    """Objects as YAML documents."""
    import yaml  # noqa: PLC0415 - a third of a command's start-up time

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump_all(bodies, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def pods(folder: Path) -> list[RecordedPod]:
    """The pods that a run has had, oldest first; a line that was cut off by a full disk is left out."""
    found = []
    with suppress(OSError):
        for line in (folder / REPLICAS).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=RecordedPod))
    return found


def facts_of(folder: Path) -> RunInfo | None:
    """What a run was about."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=RunInfo)
    except (OSError, msgspec.DecodeError):
        return None


def status_of(folder: Path, key: Key) -> Body:
    """The job as a run left it; of a run that was killed, as it was submitted, if even that is there."""
    nothing: Body = {"metadata": {"namespace": key.namespace, "name": key.name}}
    return _body(folder / STATUS, key) or _body(folder / MANIFEST, key) or nothing


def _body(path: Path, key: Key) -> Body | None:
    import yaml  # noqa: PLC0415 - as above

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with suppress(OSError, yaml.YAMLError), path.open("rb") as file:
        for body in yaml.load_all(file, Loader=loader):
            meta = body["metadata"] if isinstance(body, dict) else {}
            if (meta.get("namespace"), meta.get("name")) == (key.namespace, key.name):
                return dict(body)
    return None


def events(folder: Path) -> list[Body]:
    """What happened, oldest first; a line that was cut off is left out."""
    found: list[Body] = []
    with suppress(OSError):
        for line in (folder / EVENTS).read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line))
    return found


class PodCount(Struct, frozen=True, gc=False):
    """A pod that exists or existed: which replica it is, of which attempt, and how often its containers restarted."""

    role: str
    index: int
    attempt: int
    inside: int = 0


def shown(ledger: Ledger, pods: Iterable[PodCount] = ()) -> int:
    """Restarts that have happened, as far as the ledger and these pods tell."""
    by_role: dict[str, list[PodCount]] = {}
    for pod in pods:
        by_role.setdefault(pod.role, []).append(pod)
    return sum(_of_role(book, by_role.get(book.name, []), ledger) for book in ledger.roles)


def _of_role(book: RoleLedger, pods: list[PodCount], ledger: Ledger) -> int:
    current = [pod for pod in pods if pod.attempt >= attempts.current_attempt(book, pod.index)]
    book = attempts.note_happened(book, frozenset(pod.index for pod in current)) if book.pending else book
    # The ledger keeps what was restarted inside a pod once that is replaced, and of all pods when the job ends.
    inside = sum(pod.inside for pod in current) if ledger.outcome is None else 0
    return book.made() + book.inside + inside
