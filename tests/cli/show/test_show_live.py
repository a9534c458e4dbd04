# SPDX-License-Identifier: Apache-2.0
"""The live view on a real pseudo-terminal: what a person sees, how often it is painted, and what never happens."""

import fcntl
import os
import re
import struct
import termios
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from run_objects import container, job, pod, role, status

from trainwright.cli.run.model import RunModel
from trainwright.cli.show.live import LiveView, TableInput
from trainwright.cli.show.news import JobVerdict, LogSource
from trainwright.cli.show.text import prefix
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body
from trainwright.model.meta import Key

NOW = datetime(2026, 11, 15, 20, 0, 30, tzinfo=UTC)
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """As much of a terminal as the view uses: text, returns, cursor up, erase below. Anything else is a failure."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        self.row = 0

    def feed(self, text: str) -> None:
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
            if match := SEQUENCE.fullmatch(part):
                self._control(match[1], match[2])
            elif part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part and part != "\r":
                assert "\x1b" not in part
                self.lines[self.row] += part

    def _control(self, number: str, letter: str) -> None:
        if letter == "A":
            self.row -= int(number)
            assert self.row >= 0
        elif letter == "J":
            del self.lines[self.row + 1 :]
            self.lines[self.row] = ""
        else:
            assert letter == "m", f"unexpected control {letter}"


class Stage:
    """A live view on a pseudo-terminal, and a clock to turn."""

    def __init__(self, *, width: int = 80, height: int = 24, **options: bool) -> None:
        self.ours, self.theirs = os.openpty()
        attributes = termios.tcgetattr(self.theirs)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(self.theirs, termios.TCSANOW, attributes)
        os.set_blocking(self.ours, False)
        self.resize(width, height)
        self.screen = Screen(width)
        self.elapsed = 0.0
        self.pen = BackgroundWriter(self.theirs)
        self.view = LiveView(self.pen, self.theirs, self.moment, **options)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def moment(self) -> TableInput:
        return TableInput(NOW, self.elapsed, "sandbox")

    def tick(self, board: RunModel, after: float = 0.2) -> str:
        """Let time pass; what was written for it."""
        self.elapsed += after
        self.view.tick(board)
        return self.shown()

    def shown(self) -> str:
        while not self.pen.idle:
            pass
        try:
            text = os.read(self.ours, 1 << 20).decode()
        except BlockingIOError:
            return ""
        self.screen.feed(text)
        return text

    def close(self) -> None:
        self.pen.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def board(body: Body | None = None, clock: Callable[[], float] = lambda: 0.0) -> RunModel:
    whole = body or job(status=status("Running"))
    made = RunModel([(GENERICJOB, whole)], clock)
    made.update_job(whole)
    return made


def said(label: str, text: str) -> tuple[LogSource, str]:
    return LogSource(Key("default", "demo"), label, f"demo-{label}", "main", label), text


def test_a_row_per_replica_below_the_log(stage: Stage) -> None:
    one = board()
    one.update_pod(pod("worker-0", containers=[container("running")], attempt=1))
    one.update_pod(pod("worker-1", phase="Failed", reason="Evicted", message="too much"))
    stage.view.logs([said("worker-0", "step 1")])
    stage.view.notice("images are not used")
    stage.tick(one)

    log, notice, head, titles, first, second, _ = stage.screen.lines
    assert log == "worker-0 | step 1"
    assert notice == "· notice: images are not used"
    assert head == "demo  Running  1 of 2 running, 1 failed  0s  sandbox"
    assert titles.split() == ["REPLICA", "PHASE", "NODE", "RESTARTS", "AGE", "REASON"]
    assert first.split() == ["worker-0", "Running", "node-0", "1", "30s"]
    assert second.split(maxsplit=4) == ["worker-1", "Failed", "node-0", "0", "Evicted: too much"]


def test_the_log_scrolls_and_the_table_stays(stage: Stage) -> None:
    one = board()
    for number in range(3):
        stage.view.logs([said("worker-0", f"step {number}")])
        stage.tick(one)

    assert stage.screen.lines[:3] == [f"worker-0 | step {number}" for number in range(3)]
    assert [line.split()[0] for line in stage.screen.lines[3:7]] == ["demo", "REPLICA", "worker-0", "worker-1"]
    assert stage.screen.lines[7:] == [""]


def test_nothing_is_painted_when_nothing_changed(stage: Stage) -> None:
    one = board(clock=lambda: stage.elapsed)
    assert stage.tick(one) != ""
    assert stage.tick(one) == ""
    assert stage.tick(one, after=0.3) == ""

    assert stage.tick(one, after=0.5) != ""  # a second has passed
    one.update_pod(pod())
    stage.view.news([])
    assert stage.tick(one, after=0.01) == ""  # too soon
    assert stage.tick(one) != ""


def test_news_that_do_not_show_paint_nothing(stage: Stage) -> None:
    one = board()
    stage.tick(one)
    stage.view.news([])

    assert stage.tick(one, after=0.2) == ""


def test_logs_are_painted_in_one_piece(stage: Stage) -> None:
    stage.view.logs([said("worker-0", f"step {number}") for number in range(50)])
    text = stage.tick(board())

    assert text.count("\x1b[J") == 1
    assert len(stage.screen.lines) == 50 + 5


def test_of_many_only_as_many_as_fit(stage: Stage) -> None:
    one = board(job(roles=[role("worker", 500)], status=status("Running")))
    for index in range(400):
        one.update_pod(pod(f"worker-{index}", phase="Succeeded" if index < 300 else "Running"))
    one.update_pod(pod("worker-7", phase="Failed"))
    stage.tick(one)

    lines = stage.screen.lines
    assert len(lines) <= 13
    assert lines[2].startswith("worker-7 ")
    assert lines[-2] == "… and 492 more: 299 succeeded, 100 running, 93 waiting"


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 3), (200, 60), (1, 1)])
def test_no_line_is_wider_than_the_screen(width: int, height: int) -> None:
    stage = Stage(width=width, height=height)
    one = board()
    one.update_pod(pod("worker-0", phase="Failed", reason="Odd", message="职" * 200))
    stage.tick(one)
    stage.close()

    for line in stage.screen.lines:
        assert sum(2 if ord(char) > 0x2E80 else 1 for char in line) <= max(width - 1, 20)


def test_a_screen_that_becomes_narrower_has_broken_its_lines(stage: Stage) -> None:
    one = board()
    one.update_pod(pod("worker-0", phase="Failed", reason="Odd", message="x" * 200))
    stage.tick(one)
    rows = sum(max(-(-len(line) // 40), 1) for line in stage.screen.lines[:-1])
    stage.resize(40, 24)
    stage.screen.row = rows
    text = stage.tick(one, after=2)

    assert rows > 4
    assert text.startswith(f"\r\x1b[{rows}A\x1b[J")


def test_what_would_wreck_the_screen_is_dropped(stage: Stage) -> None:
    stage.view.logs([said("worker-0", "\x1b[2J\x1b[10A\x1b]0;mine\x07ok"), said("worker-0", "10%\r\x1b[32m90%")])
    text = stage.tick(board())

    assert stage.screen.lines[:2] == ["worker-0 | ok", "worker-0 | 90%"]
    assert "\x1b[32m90%\x1b[0m" in text


def test_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stage = Stage()
    one = board()
    one.update_pod(pod())
    stage.view.logs([said("worker-0", "\x1b[32mgreen")])
    text = stage.tick(one)
    stage.close()

    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)
    assert stage.screen.lines[0] == "worker-0 | green"


def test_colours_are_each_replicas_own() -> None:
    names = [f"worker-{index}" for index in range(10)]
    colours = [prefix(name, colour=True)[:5] for name in names]

    assert len(set(colours)) == 10
    assert colours == [prefix(name, colour=True)[:5] for name in names]
    assert prefix("worker-0/side", colour=True)[:5] == colours[0]


def test_the_summary_takes_the_place_of_the_table(stage: Stage) -> None:
    stage.tick(board())
    stage.view.logs([said("worker-0", "last words")])
    stage.view.end([JobVerdict("default", "demo", "Succeeded", 0, 1.0, 0, "")], "/state/run")
    stage.shown()

    assert stage.screen.lines == [
        "worker-0 | last words",
        "",
        "demo succeeded after 1.0s",
        "logs and final status: /state/run",
        "",
    ]


def test_logs_wait_while_the_screen_is_behind(stage: Stage) -> None:
    assert not stage.view.busy
    stage.view.logs([said("worker-0", "x")] * 2001)
    assert stage.view.busy


def test_logs_may_be_left_out() -> None:
    stage = Stage(with_logs=False)
    stage.view.logs([said("worker-0", "step 1")])
    stage.tick(board())
    stage.close()

    assert stage.screen.lines[0].startswith("demo  Running")


def test_each_job_shows_its_own_time(stage: Stage) -> None:
    first, second = (job(name, uid=name, status=status("Running")) for name in ("first", "second"))
    one = RunModel([(GENERICJOB, first), (GENERICJOB, second)], lambda: stage.elapsed)
    for at, body in ((2.0, first), (5.0, second)):
        stage.elapsed = at
        one.update_job(body)
    outcome = {"result": "Succeeded", "reason": "Rule", "at": "2026-11-15T20:00:07Z"}
    stage.elapsed = 9.0
    one.update_job(first | {"status": status("Succeeded", outcome=outcome)})
    stage.elapsed = 30.0
    stage.tick(one)

    assert stage.screen.lines[0].endswith("  7s  sandbox")
    assert stage.screen.lines[1].endswith("  25s")
