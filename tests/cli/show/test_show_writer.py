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
    pen = BackgroundWriter(pipe[1])
    for number in range(100):
        pen.write(f"{number}\n")
    pen.close()

    assert os.read(pipe[0], 9999).decode().split() == [str(number) for number in range(100)]
    assert pen.idle


def test_a_slow_reader_stops_nobody(pipe: tuple[int, int]) -> None:
    pen = BackgroundWriter(pipe[1])
    before = time.monotonic()
    for _ in range(64):
        pen.write("x" * 10_000)

    assert time.monotonic() - before < 30  # nobody reads meanwhile, so one that waited would wait for ever
    assert pen.busy
    pen.close(0.05)  # not for ever
    got = 0
    while got < 640_000:
        got += len(os.read(pipe[0], 1 << 20))
    pen.close()
    assert not pen.busy


def test_a_reader_that_is_gone(pipe: tuple[int, int]) -> None:
    pen = BackgroundWriter(pipe[1])
    os.close(pipe[0])
    pen.write("lost")
    pen.close()

    assert isinstance(pen.error, BrokenPipeError)
    pen.write("lost too")
    assert pen.idle


def test_a_full_disk_is_no_reader_that_is_gone() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    pen = BackgroundWriter(full)
    pen.write("lost")
    pen.close()
    os.close(full)

    assert isinstance(pen.error, OSError)
    assert not isinstance(pen.error, BrokenPipeError)


def test_what_an_encoding_cannot_write_is_escaped(pipe: tuple[int, int]) -> None:
    pen = BackgroundWriter(pipe[1], "latin-1")
    pen.write("é 職")
    pen.close()

    assert os.read(pipe[0], 99) == b"\xe9 \\u8077"


def test_its_thread_ends(pipe: tuple[int, int]) -> None:
    pen = BackgroundWriter(pipe[1])
    pen.close()

    assert "pen" not in [thread.name for thread in threading.enumerate()]
