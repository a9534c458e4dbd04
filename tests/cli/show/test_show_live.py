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
from trainwright.cli.show.news import JobEnding, LogSource
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


class LiveViewRig:
    """A live view on a pseudo-terminal, with a clock that tests advance."""

    def __init__(self, *, width: int = 80, height: int = 24, **options: bool) -> None:
        self.ours, self.theirs = os.openpty()
        attributes = termios.tcgetattr(self.theirs)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(self.theirs, termios.TCSANOW, attributes)
        os.set_blocking(self.ours, False)
        self.resize(width, height)
        self.screen = Screen(width)
        self.elapsed = 0.0
        self.writer = BackgroundWriter(self.theirs)
        self.view = LiveView(self.writer, self.theirs, self.table_input, **options)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def table_input(self) -> TableInput:
        return TableInput(NOW, self.elapsed, "sandbox")

    def tick(self, run_model: RunModel, after: float = 0.2) -> str:
        """Let time pass; what was written for it."""
        self.elapsed += after
        self.view.tick(run_model)
        return self.shown()

    def shown(self) -> str:
        while not self.writer.idle:
            pass
        try:
            text = os.read(self.ours, 1 << 20).decode()
        except BlockingIOError:
            return ""
        self.screen.feed(text)
        return text

    def close(self) -> None:
        self.writer.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rig() -> Iterator[LiveViewRig]:
    made = LiveViewRig()
    yield made
    made.close()


def run_model(body: Body | None = None, clock: Callable[[], float] = lambda: 0.0) -> RunModel:
    whole = body or job(status=status("Running"))
    made = RunModel([(GENERICJOB, whole)], clock)
    made.update_job(whole)
    return made


def said(label: str, text: str) -> tuple[LogSource, str]:
    return LogSource(Key("default", "demo"), label, f"demo-{label}", "main", label), text


def test_a_row_per_replica_below_the_log(rig: LiveViewRig) -> None:
    one = run_model()
    one.update_pod(pod("worker-0", containers=[container("running")], attempt=1))
    one.update_pod(pod("worker-1", phase="Failed", reason="Evicted", message="too much"))
    rig.view.logs([said("worker-0", "step 1")])
    rig.view.notice("images are not used")
    rig.tick(one)

    log, notice, head, titles, first, second, _ = rig.screen.lines
    assert log == "worker-0 | step 1"
    assert notice == "· notice: images are not used"
    assert head == "demo  Running  1 of 2 running, 1 failed  0s  sandbox"
    assert titles.split() == ["REPLICA", "PHASE", "NODE", "RESTARTS", "AGE", "REASON"]
    assert first.split() == ["worker-0", "Running", "node-0", "1", "30s"]
    assert second.split(maxsplit=4) == ["worker-1", "Failed", "node-0", "0", "Evicted: too much"]


def test_the_log_scrolls_and_the_table_stays(rig: LiveViewRig) -> None:
    one = run_model()
    for number in range(3):
        rig.view.logs([said("worker-0", f"step {number}")])
        rig.tick(one)

    assert rig.screen.lines[:3] == [f"worker-0 | step {number}" for number in range(3)]
    assert [line.split()[0] for line in rig.screen.lines[3:7]] == ["demo", "REPLICA", "worker-0", "worker-1"]
    assert rig.screen.lines[7:] == [""]


def test_nothing_is_painted_when_nothing_changed(rig: LiveViewRig) -> None:
    one = run_model(clock=lambda: rig.elapsed)
    assert rig.tick(one) != ""
    assert rig.tick(one) == ""
    assert rig.tick(one, after=0.3) == ""

    assert rig.tick(one, after=0.5) != ""  # a second has passed
    one.update_pod(pod())
    rig.view.news([])
    assert rig.tick(one, after=0.01) == ""  # too soon
    assert rig.tick(one) != ""


def test_news_that_do_not_show_paint_nothing(rig: LiveViewRig) -> None:
    one = run_model()
    rig.tick(one)
    rig.view.news([])

    assert rig.tick(one, after=0.2) == ""


def test_logs_are_painted_in_one_piece(rig: LiveViewRig) -> None:
    rig.view.logs([said("worker-0", f"step {number}") for number in range(50)])
    text = rig.tick(run_model())

    assert text.count("\x1b[J") == 1
    assert len(rig.screen.lines) == 50 + 5


def test_of_many_only_as_many_as_fit(rig: LiveViewRig) -> None:
    one = run_model(job(roles=[role("worker", 500)], status=status("Running")))
    for index in range(400):
        one.update_pod(pod(f"worker-{index}", phase="Succeeded" if index < 300 else "Running"))
    one.update_pod(pod("worker-7", phase="Failed"))
    rig.tick(one)

    lines = rig.screen.lines
    assert len(lines) <= 13
    assert lines[2].startswith("worker-7 ")
    assert lines[-2] == "… and 492 more: 299 succeeded, 100 running, 93 waiting"


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 3), (200, 60), (1, 1)])
def test_no_line_is_wider_than_the_screen(width: int, height: int) -> None:
    rig = LiveViewRig(width=width, height=height)
    one = run_model()
    one.update_pod(pod("worker-0", phase="Failed", reason="Odd", message="职" * 200))
    rig.tick(one)
    rig.close()

    for line in rig.screen.lines:
        assert sum(2 if ord(char) > 0x2E80 else 1 for char in line) <= max(width - 1, 20)


def test_a_screen_that_becomes_narrower_has_broken_its_lines(rig: LiveViewRig) -> None:
    one = run_model()
    one.update_pod(pod("worker-0", phase="Failed", reason="Odd", message="x" * 200))
    rig.tick(one)
    rows = sum(max(-(-len(line) // 40), 1) for line in rig.screen.lines[:-1])
    rig.resize(40, 24)
    rig.screen.row = rows
    text = rig.tick(one, after=2)

    assert rows > 4
    assert text.startswith(f"\r\x1b[{rows}A\x1b[J")


def test_what_would_wreck_the_screen_is_dropped(rig: LiveViewRig) -> None:
    rig.view.logs([said("worker-0", "\x1b[2J\x1b[10A\x1b]0;mine\x07ok"), said("worker-0", "10%\r\x1b[32m90%")])
    text = rig.tick(run_model())

    assert rig.screen.lines[:2] == ["worker-0 | ok", "worker-0 | 90%"]
    assert "\x1b[32m90%\x1b[0m" in text


def test_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rig = LiveViewRig()
    one = run_model()
    one.update_pod(pod())
    rig.view.logs([said("worker-0", "\x1b[32mgreen")])
    text = rig.tick(one)
    rig.close()

    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)
    assert rig.screen.lines[0] == "worker-0 | green"


def test_colours_are_each_replicas_own() -> None:
    names = [f"worker-{index}" for index in range(10)]
    colours = [prefix(name, colour=True)[:5] for name in names]

    assert len(set(colours)) == 10
    assert colours == [prefix(name, colour=True)[:5] for name in names]
    assert prefix("worker-0/side", colour=True)[:5] == colours[0]


def test_the_summary_takes_the_place_of_the_table(rig: LiveViewRig) -> None:
    rig.tick(run_model())
    rig.view.logs([said("worker-0", "last words")])
    rig.view.end([JobEnding("default", "demo", "Succeeded", 0, 1.0, 0, "")], "/state/run")
    rig.shown()

    assert rig.screen.lines == [
        "worker-0 | last words",
        "",
        "demo succeeded after 1.0s",
        "logs and final status: /state/run",
        "",
    ]


def test_logs_wait_while_the_screen_is_behind(rig: LiveViewRig) -> None:
    assert not rig.view.busy
    rig.view.logs([said("worker-0", "x")] * 2001)
    assert rig.view.busy


def test_logs_may_be_left_out() -> None:
    rig = LiveViewRig(with_logs=False)
    rig.view.logs([said("worker-0", "step 1")])
    rig.tick(run_model())
    rig.close()

    assert rig.screen.lines[0].startswith("demo  Running")


def test_each_job_shows_its_own_time(rig: LiveViewRig) -> None:
    first, second = (job(name, uid=name, status=status("Running")) for name in ("first", "second"))
    one = RunModel([(GENERICJOB, first), (GENERICJOB, second)], lambda: rig.elapsed)
    for at, body in ((2.0, first), (5.0, second)):
        rig.elapsed = at
        one.update_job(body)
    outcome = {"result": "Succeeded", "reason": "Rule", "at": "2026-11-15T20:00:07Z"}
    rig.elapsed = 9.0
    one.update_job(first | {"status": status("Succeeded", outcome=outcome)})
    rig.elapsed = 30.0
    rig.tick(one)

    assert rig.screen.lines[0].endswith("  7s  sandbox")
    assert rig.screen.lines[1].endswith("  25s")
