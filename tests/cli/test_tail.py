# SPDX-License-Identifier: Apache-2.0
"""Following log files: growth, rotation, endless lines, bytes that are no text, and what silence costs."""

import os
from pathlib import Path

import pytest

from trainwright.cli import tail as module
from trainwright.cli.tail import CHUNK_BYTES, MAX_LINE_BYTES, UNFINISHED_LINE_SECONDS, Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "w.log"


def followed(*paths: Path) -> Tail[str]:
    tail: Tail[str] = Tail()
    for path in paths:
        tail.add(str(path), path.name)
    return tail


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def texts(found: list[tuple[str, str]]) -> list[str]:
    return [text for _, text in found]


def test_lines_come_as_they_are_written(log: Path) -> None:
    tail = followed(log)
    assert tail.poll(0) == []

    append(log, "one\ntw")
    assert tail.poll(0) == [("w.log", "one")]
    append(log, "o\nthree\n")
    assert texts(tail.poll(0.1)) == ["two", "three"]
    assert tail.poll(0.2) == []


def test_files_are_told_apart(tmp_path: Path) -> None:
    tail = followed(tmp_path / "a", tmp_path / "b")
    append(tmp_path / "b", "from b\n")
    append(tmp_path / "a", "from a\n")

    assert tail.poll(0) == [("a", "from a"), ("b", "from b")]


def test_a_line_without_an_end_is_shown_when_it_has_been_quiet(log: Path) -> None:
    tail = followed(log)
    append(log, "Password: ")
    assert tail.poll(0) == []
    assert tail.poll(UNFINISHED_LINE_SECONDS / 2) == []
    assert texts(tail.poll(UNFINISHED_LINE_SECONDS)) == ["Password: "]
    assert tail.poll(9) == []


def test_a_finished_file_is_read_to_its_end_and_forgotten(log: Path) -> None:
    tail = followed(log)
    append(log, "one\nlast words")

    assert texts(tail.end(str(log), 0)) == ["one", "last words"]
    assert len(tail) == 0


def test_a_finished_file_that_never_was(log: Path) -> None:
    tail = followed(log)

    assert tail.end(str(log), 0) == tail.end("never heard of", 0) == []
    assert len(tail) == 0


def test_the_rest_of_a_flood_that_has_ended_is_read_in_turns(log: Path) -> None:
    tail = followed(log)
    append(log, b"line of the flood\n" * (2 * CHUNK_BYTES // 18) + b"last words")

    found = tail.end(str(log), 0)
    assert (tail.behind, len(tail)) == (True, 1)
    while len(tail):
        found += tail.poll(0)
    assert len(found) == 1 + 2 * CHUNK_BYTES // 18
    assert texts(found)[-1] == "last words"


def test_what_is_followed_twice_is_read_once(log: Path) -> None:
    tail = followed(log)
    append(log, "one\n")
    tail.poll(0)
    tail.add(str(log), "again")

    assert tail.poll(0) == []


def test_a_flood_is_read_in_turns(tmp_path: Path) -> None:
    tail = followed(tmp_path / "flood", tmp_path / "trickle")
    append(tmp_path / "flood", b"x" * 99 + b"\n" + b"line of the flood\n" * (2 * CHUNK_BYTES // 18))
    append(tmp_path / "trickle", "drop\n")

    first = tail.poll(0)
    assert tail.behind
    assert ("trickle", "drop") in first
    rest = tail.drain(0)
    assert len(first) + len(rest) == 2 + 2 * CHUNK_BYTES // 18
    assert [tail.behind, len(tail)] == [False, 0]


@pytest.mark.parametrize("end", ["", "\n"], ids=["unfinished", "finished"])
def test_a_line_that_is_too_long_comes_in_pieces_and_no_character_is_cut(log: Path, end: str) -> None:
    tail = followed(log)
    text = "a" + "é" * MAX_LINE_BYTES
    append(log, text + end)

    found = texts(tail.drain(0))
    assert len(found) == 3
    assert "".join(found) == text


def test_bytes_that_are_no_text(log: Path) -> None:
    tail = followed(log)
    append(log, b"\xff\xfe ok\r\n")

    assert texts(tail.poll(0)) == ["�� ok"]


def rotate(log: Path) -> None:
    for number in range(8, 0, -1):
        if (old := Path(f"{log}.{number}")).exists():
            old.rename(f"{log}.{number + 1}")
    log.rename(f"{log}.1")
    log.touch()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_rotation_loses_nothing(log: Path, times: int) -> None:
    tail = followed(log)
    append(log, "read\nnot read")
    tail.poll(0)
    append(log, " yet\n")
    for number in range(times):
        rotate(log)
        append(log, f"after {number}\n")

    found = texts(tail.poll(0.1))
    while tail.behind:
        found += texts(tail.poll(0.1))
    assert found == ["not read yet", *(f"after {number}" for number in range(times))]
    append(log, "more\n")
    assert texts(tail.poll(0.2)) == ["more"]


def test_rotation_onto_an_empty_file(log: Path) -> None:
    tail = followed(log)
    append(log, "one\n")
    tail.poll(0)
    append(log, "two\n")
    rotate(log)

    assert texts(tail.poll(0.1)) == ["two"]
    append(log, "three\n")
    assert texts(tail.poll(0.2)) == ["three"]


def test_what_was_rotated_away_is_said_to_be_missing(log: Path) -> None:
    tail = followed(log)
    append(log, "one\n")
    tail.poll(0)
    rotate(log)
    append(log, "new\n")
    Path(f"{log}.1").unlink()

    first, second = texts(tail.poll(0.1))
    assert "lines are missing here" in first
    assert second == "new"


def test_a_file_that_is_cut_short_is_read_anew(log: Path) -> None:
    tail = followed(log)
    append(log, "a long line\n")
    tail.poll(0)
    log.write_bytes(b"new\n")

    assert texts(tail.poll(0.1)) == ["new"]


def test_silent_files_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(50)]
    for path in paths:
        path.touch()
    tail = followed(*paths)
    monkeypatch.setattr(module, "open", lambda *_, **__: pytest.fail("opened"), raising=False)

    assert tail.poll(0) == []
    assert tail.drain(0) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(log: Path) -> None:  # pragma: no cover - tests often run as root
    append(log, "secret\n")
    log.chmod(0)

    assert followed(log).drain(0) == []


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    assert followed(tmp_path / "folder").drain(0) == []
