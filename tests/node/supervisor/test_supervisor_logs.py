# SPDX-License-Identifier: Apache-2.0
"""Logs: complete, in order, of bounded size. A full disk loses lines of a log and never ends a container."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import Supervised, alive, supervised

from trainwright.node.supervisor import journal
from trainwright.node.supervisor.logs import ContainerLog

_LINES = "i=0; while [ $i -lt {count} ]; do echo line $i; echo error $i >&2; i=$((i+1)); done"


def _files(log: Path) -> list[Path]:
    """Oldest first."""
    older = sorted(log.parent.glob(f"{log.name}.*"), key=lambda file: -int(file.suffix[1:]))
    return [*older, log]


def test_output_and_errors_are_in_their_order(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell(_LINES.format(count=500))
        one.ended(name)
        said = one.log(name).read_text().splitlines()
    assert said == [f"{kind} {number}" for number in range(500) for kind in ("line", "error")]


def test_a_silent_container_has_an_empty_log(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.start("true", log=str(tmp_path / "deep" / "down" / "x.log"))
        one.ended(name)
        assert (tmp_path / "deep" / "down" / "x.log").read_bytes() == b""


def test_a_log_is_rotated_at_line_ends_and_the_oldest_goes(tmp_path: Path) -> None:
    with supervised(tmp_path, rotate=[1000, 3]) as one:
        name = one.shell(_LINES.format(count=400))
        one.ended(name)
        files = _files(one.log(name))
    assert [file.suffix for file in files] == [".2", ".1", ".log"]
    assert all(file.stat().st_size <= 1000 for file in files)
    texts = [file.read_text() for file in files]
    assert all(text.endswith("\n") for text in texts)
    assert "".join(texts).splitlines()[-1] == "error 399"
    whole = [f"{kind} {number}" for number in range(400) for kind in ("line", "error")]
    said = "".join(texts).splitlines()
    assert said == whole[-len(said) :]
    assert len(said) > 100


@pytest.mark.parametrize(
    ("pieces", "rotate", "texts"),
    [
        ([b"abc\n", b"def\n"], (100, 3), [b"abc\ndef\n"]),
        ([b"abc\ndef\nghi\n"], (8, 3), [b"abc\ndef\n", b"ghi\n"]),
        ([b"abcdefghij"], (4, 9), [b"abcd", b"efgh", b"ij"]),
        ([b"ab\n", b"cdefgh\n"], (4, 9), [b"ab\n", b"cdef", b"gh\n"]),
        ([b"abc\n", b"def\n", b"ghi\n"], (4, 1), [b"ghi\n"]),
    ],
    ids=["fits", "at a line's end", "a line too long", "a new file for a long line", "one file only"],
)
def test_rotation(tmp_path: Path, pieces: list[bytes], rotate: tuple[int, int], texts: list[bytes]) -> None:
    troubles: list[str] = []
    log = ContainerLog(str(tmp_path / "x.log"), rotate, troubles.append)
    for piece in pieces:
        log.write(piece)
    log.close()
    assert [file.read_bytes() for file in _files(tmp_path / "x.log")] == texts
    assert troubles == []


def test_an_end_does_not_wait_for_whoever_keeps_the_pipe_open(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("yes & echo last words; exit 2")
        assert one.ended(name)["code"] == 2
        assert "last words" in one.log(name).read_text()


def test_all_that_was_written_before_the_end_is_in_the_log_at_the_end(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("head -c 3000000 /dev/zero; echo end")
        one.ended(name)
        assert one.log(name).stat().st_size == 3000004


_BURST = """
import fcntl, os, time
fcntl.fcntl(1, 1031, 1 << 20)  # F_SETPIPE_SZ
while not os.path.exists("go"): time.sleep(0.01)
os.write(1, b"x" * 900000 + b"end")
"""


def test_last_words_that_are_still_in_the_pipe_at_the_end_are_not_lost(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.start(sys.executable, "-c", _BURST, cwd=str(tmp_path))
        (pid,) = one.children()
        one.process.send_signal(signal.SIGSTOP)
        try:
            (tmp_path / "go").touch()
            one.eventually(lambda: not alive(pid))
        finally:
            one.process.send_signal(signal.SIGCONT)
        assert one.ended(name)["code"] == 0
        assert one.log(name).stat().st_size == 900003


def test_a_chatty_container_does_not_starve_others(tmp_path: Path) -> None:
    with supervised(tmp_path, rotate=[100000, 2]) as one:
        noisy = one.start("yes")
        one.eventually(one.log(noisy).with_suffix(".log.1").exists)
        assert one.ended(one.shell("echo hello; exit 1"))["code"] == 1  # the other container never ends


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = ["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["/bin/umount", "-l", str(disk)], check=True)


def _chatty(one: Supervised, disk: Path, count: int, then: str) -> str:
    go = f"head -c {count} /dev/zero | tr '\\0' x; echo; "
    return one.shell(go + then, log=str(disk / "pod" / "x.log"))


def test_a_full_disk_cuts_the_log_and_nothing_else(tmp_path: Path, small: Path) -> None:
    with supervised(tmp_path / "s") as one:
        name = _chatty(one, small, 200000, "echo more; exit 5")
        assert one.ended(name)["code"] == 5
        notices = [event["text"] for event in one.events if event["event"] == "notice"]
        assert notices == [f"the log of {name} is incomplete: no space left on device ({small}/pod/x.log)"]
        assert 0 < (small / "pod" / "x.log").stat().st_size <= 65536


def test_a_log_goes_on_when_there_is_room_again(tmp_path: Path, small: Path) -> None:
    with supervised(tmp_path / "s") as one:
        (small / "ballast").write_bytes(b"x" * 40000)
        name = _chatty(one, small, 50000, f"while [ -e {small}/ballast ]; do sleep 0.01; done; echo after all; exit 5")
        one.event("notice")
        (small / "ballast").unlink()
        assert one.ended(name)["code"] == 5
        said = (small / "pod" / "x.log").read_text()
    lost = 50001 - len(re.sub(r"\n\[.*\]\n", "", said).removesuffix("after all\n"))
    assert lost > 0
    assert f"\n[trainwright: {lost} bytes of the log could not be written and are missing here]\n" in said
    assert said.endswith("after all\n")


def test_a_full_disk_does_not_cost_the_supervisor_an_end(tmp_path: Path, small: Path) -> None:
    with supervised(small) as one:
        (small / "ballast").write_bytes(b"x" * 4096 * 15)
        name = one.shell("exit 9", log=str(small / "x.log"))
        assert one.ended(name)["code"] == 9
        (entry,) = one.call("list")["containers"]
        assert entry["ended"]["code"] == 9


def test_a_full_disk_cuts_a_line_of_the_journal_and_spoils_no_other(small: Path) -> None:
    one = journal.Journal(str(small / "journal"))
    (small / "ballast").write_bytes(b"x" * 4096 * 14)  # one page is free
    for number in range(300):
        one.started(f"lost{number}", "p", 1)
    (small / "ballast").unlink()
    one.started("found", "p", 2)
    one.close()
    entries = journal.read(str(small / "journal"))
    assert entries["found"]["pid"] == 2
    assert 10 < len(entries) < 300
