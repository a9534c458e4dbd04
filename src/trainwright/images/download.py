# SPDX-License-Identifier: Apache-2.0
"""Downloads of blobs: several at a time, resumed after an interruption, and verified.

A download is `HASH.part` until it is complete and its digest is right. The process that downloads holds a lock on this
file; another process that needs the same blob waits, and then finds it there.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

from trainwright.errors import ImageError, RegistryUnreachableError
from trainwright.images.manifests import Descriptor
from trainwright.images.registry import RegistryClient
from trainwright.images.store import storage_error

CONCURRENT_DOWNLOADS = 3
_CHUNK_BYTES = 1 << 18
#: Attempts that give no byte, one after the other, before a download fails.
_FRUITLESS_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_RANGE_NOT_SATISFIABLE = 416

Report = Callable[[int], None]


class DownloadStoppedError(Exception):
    """The pull has ended, so that nobody needs this blob any more."""


class Downloads:
    """Downloads blobs in threads, the first blobs first. The threads do not delay the end of the process."""

    def __init__(self, client: RegistryClient, folder: Path, blobs: Sequence[Descriptor], report: Report) -> None:
        self._client, self._folder, self._report = client, folder, report
        self._stop = Event()
        unique = {blob.digest: blob for blob in blobs}
        self._futures: dict[str, Future[Path]] = {digest: Future() for digest in unique}
        self._waiting: SimpleQueue[Descriptor] = SimpleQueue()
        for blob in unique.values():
            self._waiting.put(blob)
        for _ in range(min(CONCURRENT_DOWNLOADS, len(unique))):
            Thread(target=self._work, daemon=True).start()

    def wait(self, blob: Descriptor) -> Path:
        """Wait for one blob and return its file. Raises ImageError."""
        return self._futures[blob.digest].result()

    def stop(self) -> None:
        """Start no further download, and end those that run at their next byte."""
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                blob = self._waiting.get_nowait()
            except Empty:
                return
            future = self._futures[blob.digest]
            try:
                future.set_result(download(self._client, blob, self._folder, self._report, self._stop))
            except BaseException as error:  # raised again by `wait`
                future.set_exception(error)


def download(client: RegistryClient, blob: Descriptor, folder: Path, report: Report, stop: Event) -> Path:
    """Download a blob, or go on with an earlier download, and return its file. Raises ImageError."""
    final = folder / blob.digest.partition(":")[2]
    part = _lock_part(final, stop)
    if part is None:
        report(blob.size)
        return final
    try:
        # A wrong digest can come from a damaged part of an earlier download, so the second attempt has no such part.
        for _ in range(2):
            if _fill(client, blob, part, report, stop) == blob.digest:
                final.with_suffix(".part").rename(final)
                return final
            report(-os.fstat(part).st_size)
            os.ftruncate(part, 0)
    except OSError as error:
        raise storage_error(folder, error.errno, error.strerror or str(error)) from None
    finally:
        os.close(part)
    raise ImageError(f"the registry sent other bytes than the digest {blob.digest} says, twice")


def _lock_part(final: Path, stop: Event) -> int | None:
    """Open and lock the partial download; None if the blob is already complete."""
    path = final.with_suffix(".part")
    while not stop.is_set():
        if final.exists():
            return None
        part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(part, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(part), path.stat()):
                return part
        except FileNotFoundError:
            pass
        os.close(part)  # another process has completed it while we waited
    raise DownloadStoppedError


def _fill(client: RegistryClient, blob: Descriptor, part: int, report: Report, stop: Event) -> str:
    """Download what is missing and return the digest of the whole file."""
    if os.fstat(part).st_size > blob.size:
        os.ftruncate(part, 0)
    done, checksum = _checksum(part)
    report(done)
    pause, fruitless = _FIRST_PAUSE_SECONDS, 0
    while done < blob.size:
        before, problem = done, "the connection ended"
        try:
            done, checksum = _receive(client, blob, part, (done, checksum), report, stop)
        except _ConnectionLostError as lost:
            done, checksum = lost.state
            problem = str(lost)
        if done >= blob.size:
            break
        fruitless = fruitless + 1 if done <= before else 0
        if fruitless >= _FRUITLESS_ATTEMPTS:
            raise RegistryUnreachableError(
                f"the download of {blob.digest} stopped at {done} of {blob.size} bytes: {problem}; "
                "the next pull goes on from there"
            )
        if fruitless:
            time.sleep(pause)
            pause *= 2
    return f"sha256:{checksum.hexdigest()}"


_State = tuple[int, "hashlib._Hash"]


class _ConnectionLostError(Exception):
    """The connection failed; `state` has the bytes that are in the file, and their checksum."""

    def __init__(self, problem: OSError, state: _State) -> None:
        super().__init__(problem.strerror or str(problem) or type(problem).__name__)
        self.state = state


def _receive(client: RegistryClient, blob: Descriptor, part: int, state: _State, report: Report, stop: Event) -> _State:
    """Receive one answer, and write it to the file from where it begins."""
    done, checksum = state
    try:
        answer = client.blob(blob.digest, done)
    except OSError as error:
        raise _ConnectionLostError(error, state) from None
    if done and answer.status != 206:  # the registry cannot resume, or does not know our part: start again
        report(-done)
        done, checksum = 0, hashlib.sha256()
        os.ftruncate(part, 0)
        if answer.status == _RANGE_NOT_SATISFIABLE:
            answer.close()
            return done, checksum
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        while done < blob.size:
            if stop.is_set():
                raise DownloadStoppedError
            try:
                number = answer.readinto(buffer[: min(_CHUNK_BYTES, blob.size - done)])
            except OSError as error:
                raise _ConnectionLostError(error, (done, checksum)) from None
            if not number:
                break
            _write_all(part, buffer[:number], done)
            checksum.update(buffer[:number])
            done += number
            report(number)
    finally:
        answer.close()
    return done, checksum


def _checksum(part: int) -> _State:
    checksum, done = hashlib.sha256(), 0
    while data := os.pread(part, _CHUNK_BYTES, done):
        checksum.update(data)
        done += len(data)
    return done, checksum


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        number = os.pwrite(fd, data, offset)
        data, offset = data[number:], offset + number
