# SPDX-License-Identifier: Apache-2.0
"""Parts of a log: the end, since a time, with times, cut off, over several files, and as it is written."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from node_agent import settle

from patience import PATIENCE
from trainwright.node.logs import LogLines, read
from trainwright.node.supervisor.logs import ContainerLog
from trainwright.runtime.ports import LogPart

STAMPS = [f"2026-11-16T09:30:0{number}.123456789Z" for number in range(4)]
WORDS = ["one", "two", "three", "four"]
WHOLE = "".join(f"{stamp} {word}\n" for stamp, word in zip(STAMPS, WORDS, strict=True))


async def shown(path: Path, part: LogPart) -> str:
    pieces = [piece async for piece in read(str(path), part, lambda: False)]
    return b"".join(pieces).decode()


def written(folder: Path, files: int) -> Path:
    """The log, in so many files; the newest has no number."""
    lines, path = WHOLE.splitlines(keepends=True), folder / "a.log"
    size = len(lines) // files
    for number in range(files):
        name = path if number == files - 1 else folder / f"a.log.{files - 1 - number}"
        name.write_text("".join(lines[number * size : (number + 1) * size]))
    return path


@pytest.mark.parametrize("files", [1, 2, 4])
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (LogPart(), "one\ntwo\nthree\nfour\n"),
        (LogPart(tail=0), ""),
        (LogPart(tail=1), "four\n"),
        (LogPart(tail=3), "two\nthree\nfour\n"),
        (LogPart(tail=9), "one\ntwo\nthree\nfour\n"),
        (LogPart(limit=6), "one\ntw"),
        (LogPart(since=datetime(2026, 11, 16, 9, 30, 2, tzinfo=UTC)), "three\nfour\n"),
        (LogPart(since=datetime(2026, 11, 17, tzinfo=UTC)), ""),
        (LogPart(timestamps=True, tail=1), f"{STAMPS[3]} four\n"),
        (LogPart(tail=3, limit=4), "two\n"),
    ],
    ids=["all", "none", "last", "three", "more", "bytes", "since", "too late", "times", "both"],
)
async def test_a_part(tmp_path: Path, part: LogPart, expected: str, files: int) -> None:
    assert await shown(written(tmp_path, files), part) == expected


async def test_a_line_without_an_end_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{STAMPS[0]} one\n{STAMPS[1]} tw")

    assert await shown(path, LogPart(tail=1)) == "tw"
    assert await shown(path, LogPart()) == "one\ntw"


async def test_a_log_that_is_not_there_is_missed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await shown(tmp_path / "a.log", LogPart())


@pytest.mark.parametrize("size", [1, 7, 31, 1000])
def test_lines_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    lines, data = LogLines(LogPart()), WHOLE.encode()
    out = [lines.feed(data[agent_rig : agent_rig + size]) for agent_rig in range(0, len(data), size)]

    assert b"".join(out) + lines.end() == b"one\ntwo\nthree\nfour\n"


async def test_a_log_is_followed_over_rotations_until_its_container_ends(tmp_path: Path) -> None:
    path, alive, found = tmp_path / "a.log", [True], bytearray()
    log = ContainerLog(str(path), (200, 5), lambda _: None, stamps=True)
    log.write(b"first\nsec")

    async def follow() -> None:
        async for piece in read(str(path), LogPart(follow=True), lambda: bool(alive)):
            found.extend(piece)

    following = asyncio.create_task(follow())
    await settle(lambda: bytes(found) == b"first\nsec")
    log.write(b"ond\n")
    await settle(lambda: bytes(found).endswith(b"second\n"))
    for number in range(12):
        log.write(f"line {number}\n".encode())
        await settle(lambda number=number: f"line {number}\n".encode() in found)  # type: ignore[misc]
    log.write(b"last\n")
    alive.clear()
    await asyncio.wait_for(following, PATIENCE)
    log.close()

    expected = "first\nsecond\n" + "".join(f"line {number}\n" for number in range(12)) + "last\n"
    assert found.decode() == expected
    assert (tmp_path / "a.log.1").exists()
