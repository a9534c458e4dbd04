# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs` on logs with times: merged, since, matching, the last ones, previous attempts, all runs."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainwright.cli.logs import LogSelection, chosen, files
from trainwright.cli.main import run
from trainwright.cli.record import REPLICAS, RecordedPod, RunRecord
from trainwright.cli.state import NameLocks
from trainwright.model.meta import Key
from trainwright.node import log_segments
from trainwright.node.supervisor.logs import ContainerLog

#: The minute in which all lines of these tests were written.
MINUTE = datetime(2026, 11, 15, 20, 0, 0, tzinfo=UTC)
DEMO = Key("default", "demo")


class Writer:
    """A run whose containers write at the seconds that the test gives, as the supervisor does."""

    def __init__(self, state: Path, clock: Callable[[float], None], days: int = 0) -> None:
        with NameLocks(state, [DEMO], MINUTE + timedelta(days=days)) as claim:
            self.folder = claim.folder
        self.record = RunRecord(self.folder)
        self.clock = clock
        self.logs: dict[tuple[str, int, int], ContainerLog] = {}
        self.rotation = (10_000_000, 5)

    def pod(self, replica: str, attempt: int = 0) -> None:
        pod = RecordedPod(str(DEMO), replica, f"demo-{replica}", f"{attempt:08d}-{replica}", ("main",), attempt)
        self.record.append(REPLICAS, pod)
        self.record.flush()

    def write(self, second: float, replica: str, text: str | bytes, attempt: int = 0, restarts: int = 0) -> None:
        key = (replica, attempt, restarts)
        if key not in self.logs:
            if not restarts:
                self.pod(replica, attempt)
            self.logs[key] = ContainerLog(str(self.path(replica, attempt, restarts)), self.rotation, pytest.fail)
        self.clock(second)
        self.logs[key].write(text if isinstance(text, bytes) else f"{text}\n".encode())

    def path(self, replica: str, attempt: int = 0, restarts: int = 0) -> Path:
        return self.folder / "logs" / f"demo-{replica}" / f"{attempt:08d}-main-{restarts}.log"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def go(second: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: int((MINUTE.timestamp() + second) * 1_000_000_000))

    return go


@pytest.fixture
def writer(state: Path, clock: Callable[[float], None]) -> Writer:
    return Writer(state, clock)


class Command:
    """Runs `trainwright logs`."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *args: str) -> list[str]:
        assert run(["logs", "demo", *args]) == 0
        out, err = self._capfd.readouterr()
        assert err == ""
        return out.splitlines()

    def refused(self, *args: str) -> str:
        assert run(["logs", "demo", *args]) == 2
        out, err = self._capfd.readouterr()
        assert out == ""
        return err

    def silent(self, *args: str) -> str:
        assert run(["logs", "demo", *args]) == 0
        out, err = self._capfd.readouterr()
        assert out == ""
        return err


@pytest.fixture
def logs(capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(capfd)


def at(second: float) -> str:
    return (MINUTE + timedelta(seconds=second)).isoformat()


@pytest.fixture
def restarted(writer: Writer) -> Writer:
    """worker-0 was restarted inside its pod and then got a new pod; worker-1 was never restarted."""
    writer.write(1, "worker-0", "a")
    writer.write(2, "worker-1", "b")
    writer.write(3, "worker-0", "c", restarts=1)
    writer.write(4, "worker-1", "d")
    writer.write(5, "worker-0", "e", attempt=1)
    return writer


@pytest.mark.usefixtures("restarted")
def test_all_attempts_of_all_replicas_come_in_the_order_of_time(logs: Command) -> None:
    assert logs() == ["worker-0 | a", "worker-1 | b", "worker-0#1 | c", "worker-1 | d", "worker-0#2 | e"]


@pytest.mark.usefixtures("restarted")
def test_one_replica_comes_byte_for_byte(logs: Command) -> None:
    assert logs("worker-0") == ["a", "c", "e"]


@pytest.mark.usefixtures("restarted")
def test_more_last_lines_than_a_machine_can_count(logs: Command) -> None:
    assert logs("--tail", "99999999999999999999", "worker-0") == ["a", "c", "e"]


@pytest.mark.usefixtures("restarted")
def test_the_previous_attempt(logs: Command) -> None:
    assert logs("--previous") == ["worker-0#1 | c"]
    assert logs("-p", "worker-0") == ["c"]


def test_the_attempt_before_one_without_a_log(restarted: Writer, logs: Command) -> None:
    restarted.pod("worker-0", 2)
    assert logs("-p", "worker-0") == ["e"]
    restarted.write(9, "worker-0", "f", attempt=3)
    assert logs("worker-0", "worker-1", "--tail", "1") == ["worker-1 | d", "worker-0#4 | f"]


@pytest.mark.usefixtures("restarted")
def test_no_previous_attempt(logs: Command) -> None:
    expected = "default/demo has no previous attempt: none of these replicas was restarted in any of its kept runs"
    assert expected in logs.refused("-p", "worker-1")


def test_a_previous_attempt_of_an_earlier_run_is_named(
    restarted: Writer, state: Path, clock: Callable[[float], None], logs: Command
) -> None:
    Writer(state, clock, days=1).write(0, "worker-0", "z")
    expected = (
        f"no previous attempt in this run, but worker-0 has one in another run: "
        f"`trainwright logs --previous --run {restarted.folder.name} demo worker-0`"
    )
    assert expected in logs.refused("-p", "worker-0")
    assert logs("-p", "--all-runs") == [f"==> run {restarted.folder.name} <==", "worker-0#1 | c"]


@pytest.mark.usefixtures("restarted")
def test_since(logs: Command) -> None:
    assert logs("--since", at(3)) == ["worker-0#1 | c", "worker-1 | d", "worker-0#2 | e"]
    assert logs("--since", at(3.5)) == ["worker-1 | d", "worker-0#2 | e"]
    assert logs("--since", "2026-11-15T21:00:04.5+01:00") == ["worker-0#2 | e"]
    assert logs("--since", at(2), "--tail", "1") == ["worker-1 | d", "worker-0#2 | e"]


def test_since_a_duration(restarted: Writer, logs: Command) -> None:
    restarted.clock(10)
    assert logs("--since", "6s") == ["worker-1 | d", "worker-0#2 | e"]
    assert logs("--since", "1m") == logs()
    assert logs.silent("--since", "2s") == "no line of default/demo was written since the time of --since\n"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--since", "soon"), "'soon' is neither a duration (10m, 2h30m) nor a time (2026-11-17T09:30:00Z)"),
        (("--since", "99999d"), "'99999d' is neither a duration"),
        (("--since", "2999-01-01T00:00:00Z"), "'2999-01-01T00:00:00Z' is in the future"),
        (("--grep", "(a"), "'(a' is not a regular expression: missing ), unterminated subpattern at position 0"),
        (("--run", "x", "--all-runs"), "--run and --all-runs exclude each other"),
        (("-p", "-f"), "--previous and --follow exclude each other"),
        (("--tail", "-1"), "expected a whole number of at least 0, found -1"),
        (("worker-7", "--all-runs"), "default/demo has no replica 'worker-7'; it has worker-0 and worker-1"),
    ],
)
@pytest.mark.usefixtures("restarted")
def test_wrong_options(args: tuple[str, ...], text: str, logs: Command) -> None:
    assert text in logs.refused(*args)


def test_grep(writer: Writer, logs: Command) -> None:
    for second in range(6):
        writer.write(second, f"worker-{second % 2}", f"step {second}\n\x1b[31mloss\x1b[0m: {second}")
    assert logs("--grep", "^loss: [35]") == ["worker-1 | loss: 3", "worker-1 | loss: 5"]
    assert logs("--grep", "(?i)STEP", "--tail", "1") == ["worker-0 | step 4", "worker-1 | step 5"]
    assert logs("--grep", "step", "--since", at(4), "worker-0") == ["step 4"]
    assert logs.silent("--grep", "nan") == "no line of default/demo matches 'nan'\n"
    writer.clock(10)
    expected = "no line of default/demo matches 'loss' and was written since the time of --since\n"
    assert logs.silent("--grep", "loss", "--since", at(5.5)) == expected


@pytest.mark.usefixtures("restarted")
def test_timestamps(logs: Command) -> None:
    assert logs("--timestamps", "--tail", "1") == [
        "worker-1 | 2026-11-15T20:00:04.000Z d",
        "worker-0#2 | 2026-11-15T20:00:05.000Z e",
    ]
    assert logs("--timestamps", "worker-1") == ["2026-11-15T20:00:02.000Z b", "2026-11-15T20:00:04.000Z d"]


def test_all_runs(restarted: Writer, state: Path, clock: Callable[[float], None], logs: Command) -> None:
    second = Writer(state, clock, days=1)
    second.write(7, "worker-0", "again")
    assert logs("--all-runs", "worker-0") == [
        f"==> run {restarted.folder.name} <==",
        "worker-0 | a",
        "worker-0#1 | c",
        "worker-0#2 | e",
        f"==> run {second.folder.name} <==",
        "worker-0 | again",
    ]
    assert logs("--all-runs", "worker-1")[1:] == ["worker-1 | b", "worker-1 | d"]
    assert logs("--all-runs", "--grep", "again") == [f"==> run {second.folder.name} <==", "worker-0 | again"]


def test_a_line_has_the_time_of_its_first_byte(writer: Writer, logs: Command) -> None:
    writer.write(1, "worker-0", b"be")
    writer.write(2, "worker-1", "between")
    writer.write(3, "worker-0", b"gin\nend")
    writer.write(4, "worker-0", b"ing\nlast\nunfinished")
    assert logs() == [
        "worker-0 | begin",
        "worker-1 | between",
        "worker-0 | ending",
        "worker-0 | last",
        "worker-0 | unfinished",
    ]
    assert logs("--since", at(2), "worker-0") == ["ending", "last", "unfinished"]
    assert logs("--since", at(4), "worker-0") == ["last", "unfinished"]
    assert logs("--tail", "2", "--timestamps", "worker-0") == [
        "2026-11-15T20:00:04.000Z last",
        "2026-11-15T20:00:04.000Z unfinished",
    ]


def test_rotated_logs(writer: Writer, logs: Command) -> None:
    writer.rotation = (40, 5)
    for second in range(30):
        writer.write(second, f"worker-{second % 3}", f"line {second}")
    lines = [f"worker-{second % 3} | line {second}" for second in range(30)]
    assert len(list(writer.path("worker-0").parent.glob("*.log.*"))) == 1
    assert logs() == lines
    for second in (0, 7, 13, 29):
        assert logs("--since", at(second)) == lines[second:]
    for count in range(11):
        assert logs("--tail", str(count)) == lines[len(lines) - count * 3 :]


def test_a_line_that_a_rotation_has_split(writer: Writer, logs: Command) -> None:
    writer.rotation = (8, 9)
    for second, text in enumerate((b"one\ntw", b"o\nthree", b"-more\nfour", b"\nfive\nsix")):
        writer.write(second, "worker-0", text)
    writer.write(1.5, "worker-1", "between")
    files = sorted(writer.path("worker-0").parent.glob("*.log*"), key=lambda path: path.suffix.replace("log", "0"))
    parts = [path.read_bytes() for path in reversed(files)]
    assert parts == [b"one\ntwo\n", b"three", b"-more\n", b"four\n", b"five\nsix"]
    lines = ["one", "two", "three-more", "four", "five", "six"]
    named = [f"worker-0 | {line}" for line in lines]
    assert logs() == [*named[:3], "worker-1 | between", *named[3:]]
    assert logs("worker-0") == lines
    for count in range(7):
        assert logs("--tail", str(count), "worker-0") == lines[6 - count :]
    writer.clock(10)
    assert logs("--since", at(1), "worker-0") == lines[2:]
    assert logs("--since", at(2), "worker-0") == lines[3:]


def test_logs_whose_newest_file_was_not_begun_when_the_run_was_killed(writer: Writer, logs: Command) -> None:
    writer.write(1, "worker-0", "one")
    writer.write(2, "worker-1", "two")
    path = writer.path("worker-0")
    path.rename(f"{path}.1")
    assert logs() == ["worker-1 | two", "worker-0 | one"]  # the time of the last write: today
    path.with_suffix(".times").rename(path.with_suffix(".times.1"))
    assert logs() == ["worker-0 | one", "worker-1 | two"]


@pytest.mark.parametrize("end", [b"", b"\0" * 5, b"\xff" * 16], ids=["none", "cut", "after the end"])
def test_marks_as_a_killed_run_leaves_them(writer: Writer, logs: Command, end: bytes) -> None:
    writer.write(1, "worker-0", "one")
    writer.write(2, "worker-1", "two")
    writer.write(3, "worker-0", "three")
    with writer.path("worker-0").with_suffix(".times").open("ab") as file:
        file.write(end)
    assert logs() == ["worker-0 | one", "worker-1 | two", "worker-0 | three"]
    assert logs("--since", at(3), "worker-0") == ["three"]
    assert logs("--tail", "1", "worker-0") == ["three"]


def test_logs_without_times_come_replica_by_replica(restarted: Writer, capfd: pytest.CaptureFixture[str]) -> None:
    for path in restarted.folder.glob("logs/*/*.times"):
        path.unlink()
    for number, path in enumerate(sorted(restarted.folder.glob("logs/*/*.log"))):
        os.utime(path, (MINUTE.timestamp() + number,) * 2)
    note = f"an earlier version wrote the logs of run {restarted.folder.name}, without the times of lines"

    assert run(["logs", "demo"]) == 0
    expected = "worker-0 | a\nworker-0#1 | c\nworker-0#2 | e\nworker-1 | b\nworker-1 | d\n"
    assert capfd.readouterr() == (expected, "")
    assert run(["logs", "demo", "--since", at(1)]) == 0
    whole = "; files that were written to after the time of --since are printed as a whole"
    expected = "worker-0#1 | c\nworker-0#2 | e\nworker-1 | b\nworker-1 | d\n"
    assert capfd.readouterr() == (expected, f"{note}{whole}\n")
    assert run(["logs", "demo", "--timestamps", "worker-1"]) == 0
    assert capfd.readouterr() == ("- b\n- d\n", f"{note}\n")


def test_the_clock_went_back(writer: Writer, logs: Command) -> None:
    for second, text in ((5, "a"), (3, "b"), (6, "c")):
        writer.write(second, "worker-0", text)
    writer.write(4, "worker-1", "x")
    assert logs("worker-0") == ["a", "b", "c"]
    assert sorted(logs()) == ["worker-0 | a", "worker-0 | b", "worker-0 | c", "worker-1 | x"]
    writer.clock(9)
    assert logs("--since", at(4), "worker-0") == ["a", "c"]


@pytest.mark.parametrize(("rotations", "lost"), [(1, False), (3, False), (9, True)])
def test_a_log_that_is_rotated_while_it_is_read(writer: Writer, rotations: int, *, lost: bool) -> None:
    writer.rotation = (40, 5)
    for second in range(10):
        writer.write(second, "worker-0", f"line {second}")
    (log,) = files(writer.folder, chosen(writer.folder, LogSelection(str(DEMO))))
    found: list[tuple[int, bytes]] = []
    for segment in log_segments.parts(log.path, log.inode, log.size):
        for piece in segment.pieces(block=8):
            if not found:
                for number in range(rotations * 5):
                    writer.write(10 + number, "worker-0", f"more {number}")
            found += [(piece.time // 1_000_000_000 - int(MINUTE.timestamp()), line) for line in piece.lines()]
    if lost:
        assert any("… lines are missing here" in line.decode() for _, line in found)
    else:
        assert found == [(second, f"line {second}\n".encode()) for second in range(10)]


def test_a_rotated_file_that_disappears_costs_the_next_one_nothing(writer: Writer) -> None:
    writer.rotation = (40, 5)
    for second in range(10):
        writer.write(second, "worker-0", f"line {second}")
    (log,) = files(writer.folder, chosen(writer.folder, LogSelection(str(DEMO))))
    oldest, following, *_ = log_segments.parts(log.path, log.inode, log.size)
    known = b"".join(piece.data for piece in following.pieces())
    for path in Path(log.path).parent.iterdir():
        if path.stat().st_ino == oldest.inode:
            path.unlink()

    assert known
    assert b"".join(piece.data for piece in following.pieces()) == known
