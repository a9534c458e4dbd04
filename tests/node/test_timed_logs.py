# SPDX-License-Identifier: Apache-2.0
"""Logs whose times are beside them, written as the supervisor writes them, and read with options of `kubectl logs`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from trainwright.node import timed_logs
from trainwright.node.supervisor.logs import ContainerLog
from trainwright.runtime.ports import LogPart

BEGIN = datetime(2026, 11, 15, 20, 0, 0, tzinfo=UTC)


class Writer:
    """The log of a container that writes at the seconds that the test gives."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._monkeypatch = path, monkeypatch
        self.live = True
        self.log = self._open((10_000_000, 5))

    def rotated(self, size: int, files: int = 5) -> None:
        self.log.close()
        self.log = self._open((size, files))

    def _open(self, rotation: tuple[int, int]) -> ContainerLog:
        return ContainerLog(str(self.path), rotation, pytest.fail)

    def write(self, second: float, text: str) -> None:
        at = int((BEGIN.timestamp() + second) * 1_000_000_000)
        self._monkeypatch.setattr(time, "time_ns", lambda: at)
        self.log.write(text.encode())

    async def is_live(self) -> bool:
        return self.live

    def read(self, **part: Any) -> AsyncGenerator[bytes, None]:
        return timed_logs.read(str(self.path), LogPart(**part), self.is_live)

    async def text(self, **part: Any) -> str:
        return b"".join([chunk async for chunk in self.read(**part)]).decode()


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(tmp_path / "c.log", monkeypatch)


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({}, "a\nb\nc\nd"),
        ({"tail": 0}, ""),
        ({"tail": 1}, "d"),
        ({"tail": 2}, "c\nd"),
        ({"tail": 4}, "a\nb\nc\nd"),
        ({"tail": 10**18}, "a\nb\nc\nd"),
        ({"since": at(1)}, "b\nc\nd"),
        ({"since": at(1.5)}, "c\nd"),
        ({"since": at(99)}, ""),
        ({"tail": 3, "since": at(2)}, "c\nd"),
        ({"tail": 1, "since": at(0)}, "d"),
        ({"limit": 3}, "a\nb"),
        ({"limit": 1, "tail": 2}, "c"),
        ({"timestamps": True, "tail": 1}, "2026-11-15T20:00:03.000000000Z d"),
        (
            {"timestamps": True, "since": at(1.5)},
            "2026-11-15T20:00:02.000000000Z c\n2026-11-15T20:00:03.000000000Z d",
        ),
        ({"timestamps": True, "limit": 33}, "2026-11-15T20:00:00.000000000Z a\n"),
    ],
)
@pytest.mark.parametrize("size", [10_000_000, 4, 2, 1])
async def test_options(writer: Writer, part: dict[str, Any], expected: str, size: int) -> None:
    writer.rotated(size, files=16)
    for second, text in enumerate(["a\n", "b\n", "c\n", "d"]):
        writer.write(second, text)
    assert await writer.text(**part) == expected
    writer.live = False
    assert await writer.text(follow=True, **part) == expected


async def test_lines_of_one_write_have_one_time_and_a_line_that_is_continued_has_its_first(writer: Writer) -> None:
    writer.write(1, "a\nb\n")
    writer.write(2, "loss ")
    writer.write(3, "0.5\nc\n")
    stamps = [f"2026-11-15T20:00:0{second}.000000000Z" for second in (1, 1, 2, 3)]
    lines = [f"{stamp} {text}\n" for stamp, text in zip(stamps, ("a", "b", "loss 0.5", "c"), strict=True)]
    assert await writer.text(timestamps=True) == "".join(lines)
    assert await writer.text(since=at(3)) == "c\n"


async def test_a_log_without_times_has_the_time_of_its_last_write(tmp_path: Path) -> None:
    path = tmp_path / "old.log"
    path.write_text("a\nb\n")

    async def ended() -> bool:
        return False

    part = LogPart(timestamps=True)
    found = b"".join([chunk async for chunk in timed_logs.read(str(path), part, ended)]).decode()
    assert [line.partition(" ")[2] for line in found.splitlines()] == ["a", "b"]


async def test_a_log_that_does_not_exist(writer: Writer) -> None:
    writer.path.unlink()
    with pytest.raises(FileNotFoundError):
        await writer.text()


class Follower:
    """Collects what a followed log sends."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.found = b""
        self.task = asyncio.get_running_loop().create_task(self._collect(chunks))

    async def _collect(self, chunks: AsyncGenerator[bytes, None]) -> None:
        async for chunk in chunks:
            self.found += chunk

    async def until(self, test: Callable[[bytes], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not test(self.found):
                assert not self.task.done(), self.found
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [10_000_000, 40, 9])
async def test_a_followed_log_ends_with_the_container(writer: Writer, size: int) -> None:
    writer.rotated(size)
    writer.write(0, "first\n")
    follower = Follower(writer.read(follow=True, tail=1, timestamps=True))
    expected = "2026-11-15T20:00:00.000000000Z first\n"
    await follower.until(lambda found: found.decode() == expected)
    for second in range(1, 10):
        writer.write(second, f"step {second}")
        expected += f"2026-11-15T20:00:{second:02}.000000000Z step {second}"
        await follower.until(lambda found: found.decode() == expected)  # noqa: B023 - awaited at once; no newline yet
        writer.write(second + 20, " done\n")
        expected += " done\n"
        await follower.until(lambda found: found.decode() == expected)  # noqa: B023 - awaited at once
    writer.write(50, "last\n")
    writer.live = False
    await asyncio.wait_for(follower.task, PATIENCE)
    assert follower.found.decode() == expected + "2026-11-15T20:00:50.000000000Z last\n"


async def test_a_follower_that_is_too_slow_learns_that_lines_are_missing(writer: Writer) -> None:
    writer.rotated(10, files=2)
    writer.write(0, "zero\n")
    chunks = writer.read(follow=True)
    assert await anext(chunks) == b"zero\n"
    for number in range(1, 20):
        writer.write(number, f"{number:02} is\n")
    writer.live = False
    rest = b"".join([chunk async for chunk in chunks]).decode()
    assert rest.startswith("… lines are missing here")
    assert rest.endswith("19 is\n")


async def test_a_large_log_comes_in_pieces(writer: Writer) -> None:
    line = "x" * 99 + "\n"
    writer.write(0, line * 20_000)
    chunks = [chunk async for chunk in writer.read(timestamps=True)]
    assert b"".join(chunks).decode() == ("2026-11-15T20:00:00.000000000Z " + line) * 20_000
    assert max(map(len, chunks)) < 1_000_000
