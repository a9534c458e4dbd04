# SPDX-License-Identifier: Apache-2.0
"""Writing without waiting: order is kept, a slow reader stops nobody, a reader that is gone is noticed."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trainwright.cli.show.writer import BackgroundWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


def test_everything_is_written_in_order(pipe: tuple[int, int]) -> None:
    writer = BackgroundWriter(pipe[1])
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()

    assert os.read(pipe[0], 9999).decode().split() == [str(number) for number in range(100)]
    assert writer.idle


def test_a_slow_reader_stops_nobody(pipe: tuple[int, int]) -> None:
    writer = BackgroundWriter(pipe[1])
    before = time.monotonic()
    for _ in range(64):
        writer.write("x" * 10_000)

    assert time.monotonic() - before < 30  # nobody reads meanwhile, so one that waited would wait for ever
    assert writer.busy
    writer.close(0.05)  # not for ever
    got = 0
    while got < 640_000:
        got += len(os.read(pipe[0], 1 << 20))
    writer.close()
    assert not writer.busy


def test_a_reader_that_is_gone(pipe: tuple[int, int]) -> None:
    writer = BackgroundWriter(pipe[1])
    os.close(pipe[0])
    writer.write("lost")
    writer.close()

    assert isinstance(writer.error, BrokenPipeError)
    writer.write("lost too")
    assert writer.idle


def test_a_full_disk_is_no_reader_that_is_gone() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = BackgroundWriter(full)
    writer.write("lost")
    writer.close()
    os.close(full)

    assert isinstance(writer.error, OSError)
    assert not isinstance(writer.error, BrokenPipeError)


def test_what_an_encoding_cannot_write_is_escaped(pipe: tuple[int, int]) -> None:
    writer = BackgroundWriter(pipe[1], "latin-1")
    writer.write("é 職")
    writer.close()

    assert os.read(pipe[0], 99) == b"\xe9 \\u8077"


def test_its_thread_ends(pipe: tuple[int, int]) -> None:
    before = set(threading.enumerate())
    writer = BackgroundWriter(pipe[1])
    (thread,) = set(threading.enumerate()) - before
    writer.close()

    assert not thread.is_alive()
