# SPDX-License-Identifier: Apache-2.0
"""Decompression of layers and archives. The first bytes tell the format: media types and file names are often wrong."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

#: Small enough that the output of one call fits in memory: zlib expands to at most 1,032 times as many bytes.
_CHUNK_BYTES = 1 << 16
_PLAIN_CHUNK_BYTES = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")
_GZIP_WINDOW = 31  # of zlib: a gzip header, and the largest window


class LayerError(Exception):
    """A layer or an archive is damaged, hostile, or in a format that this machine cannot read."""


class Decompressor(Protocol):
    """The part that the decompressors of the standard library have in common."""

    @property
    def eof(self) -> bool:
        """Whether the end of the compressed stream has been reached."""

    @property
    def unused_data(self) -> bytes:
        """The bytes behind that end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Return what these bytes expand to."""


class Readable(Protocol):
    """A source of bytes."""

    def read(self, number: int, /) -> bytes:
        """Return at most so many bytes; none at the end."""


class Slice:
    """The bytes of one blob: a whole file, or a part of an archive. `report` gets the number of bytes read so far."""

    def __init__(self, file: IO[bytes], offset: int, size: int, report: Callable[[int], None] | None = None) -> None:
        self._file, self._size, self._left, self._report = file, size, size, report
        file.seek(offset)

    def read(self, number: int) -> bytes:
        """Return at most so many bytes; none at the end of the slice."""
        data = self._file.read(min(number, self._left))
        self._left -= len(data)
        if self._report is not None:
            self._report(self._size - self._left)
        return data


def compression_of(head: bytes) -> str:
    """The format of a file with this beginning; empty if it is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def plain_chunks(source: Readable) -> Iterator[bytes]:
    """The decompressed bytes. Raises LayerError."""
    head = source.read(_CHUNK_BYTES)
    name = compression_of(head)
    if not name:
        return _uncompressed(head, source)
    if name == "zstd" and _zstd_module() is None:
        return _by_program("zstd", head, source)
    return _expanded(name, head, source)


def _uncompressed(head: bytes, source: Readable) -> Iterator[bytes]:
    data = head
    while data:
        yield data
        data = source.read(_PLAIN_CHUNK_BYTES)


def _expanded(name: str, head: bytes, source: Readable) -> Iterator[bytes]:
    """Decompress all members: `pigz`, `pzstd` and some registries write several, one after the other."""
    data, stream = head, _decompressor(name)
    while data:
        try:
            if out := stream.decompress(data):
                yield out
        except Exception as error:  # each module has its own exception
            raise LayerError(f"the {name} data is damaged: {error}") from None
        if stream.eof:
            data = stream.unused_data or source.read(_CHUNK_BYTES)
            if not data.strip(b"\0"):  # padding behind the last member
                return
            stream = _decompressor(name)
        else:
            data = source.read(_CHUNK_BYTES)
    raise LayerError(f"the {name} data ends too early")


def _decompressor(name: str) -> Decompressor:
    if name == "gzip":
        return zlib.decompressobj(_GZIP_WINDOW)
    if name == "bzip2":
        import bz2  # noqa: PLC0415 - layers are never in this format

        return bz2.BZ2Decompressor()
    if name == "xz":
        import lzma  # noqa: PLC0415 - the same

        return lzma.LZMADecompressor()
    made: Decompressor = _zstd_module().ZstdDecompressor()
    return made


def _zstd_module() -> Any:
    """Python 3.14 has a module for zstd; before it, a package of that module can be installed."""
    for name in _ZSTD_MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _by_program(name: str, head: bytes, source: Readable) -> Iterator[bytes]:
    """Decompress with a program of this machine."""
    program = shutil.which(name)
    if program is None:
        raise LayerError(
            "the data is compressed with zstd, and nothing here can read it: expected Python 3.14, "
            "the Python package backports.zstd, or the program zstd"
        )
    command = [program, "-d", "-c", "-q"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:  # noqa: S603 - a fixed command
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
        feeder = threading.Thread(target=_feed, args=(process.stdin, head, source), daemon=True)
        feeder.start()
        try:
            while data := process.stdout.read(_PLAIN_CHUNK_BYTES):
                yield data
            feeder.join()
            said = process.stderr.read().decode(errors="replace").strip()
            if process.wait():
                raise LayerError(f"the {name} data is damaged: {said}")
        finally:
            process.kill()


def _feed(pipe: IO[bytes], head: bytes, source: Readable) -> None:
    try:
        with pipe:
            for data in _uncompressed(head, source):
                pipe.write(data)
    except OSError:
        return  # the program has ended; its exit code says why
