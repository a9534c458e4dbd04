# SPDX-License-Identifier: Apache-2.0
"""The meaning of a silent process: the decision as a table, and the watchdog with a process that really stops."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from trainwright.node.silence import Liveness, Look, Silence, SilenceLimits, judge
from trainwright.node.watchdog import Watchdog, described

LIMITS = SilenceLimits.of(10.0)  # checks every second; stopped after 10 s, hung after 60 s
ALIVE, BLOCKED, STOPPED, HUNG = Liveness.ALIVE, Liveness.BLOCKED, Liveness.STOPPED, Liveness.HUNG
ANSWER = Look(1.0, answered=True, state="S")


def looks(count: int, state: str, elapsed: float = 1.0, cpu: float = 0.0) -> list[Look]:
    return [Look(elapsed, state=state, cpu=cpu)] * count


def after(*given: list[Look], begun: bool = True, limits: SilenceLimits = LIMITS) -> Silence:
    """The result of all these checks."""
    silence = Silence(has_answered=begun)
    for look in [look for some in given for look in some]:
        silence = judge(silence, look, limits)
    return silence


TABLE = {
    "it answers": ([[ANSWER] * 100], ALIVE),
    "it answers late, but it does": ([looks(59, "S"), [ANSWER], looks(59, "S")], ALIVE),
    # The process is stopped: it counts as dead after the grace period.
    "stopped, within the grace": ([looks(9, "T")], ALIVE),
    "stopped, for the grace": ([looks(10, "T")], STOPPED),
    "stopped twice, each within the grace": ([looks(9, "T"), looks(1, "S"), looks(9, "T")], ALIVE),
    "stopped, gone on and answered": ([looks(9, "T"), [ANSWER], looks(9, "T")], ALIVE),
    "stopped after a silence": ([looks(30, "S"), looks(10, "T")], STOPPED),
    # It could answer but does not.
    "asleep for less than the patience": ([looks(59, "S")], ALIVE),
    "asleep for the patience": ([looks(60, "S")], HUNG),
    "in a debugger for less than the patience": ([looks(59, "t")], ALIVE),
    "in a debugger for the patience": ([looks(60, "t")], HUNG),
    "in an endless loop": ([looks(60, "R", cpu=1.0)], HUNG),
    "in an endless loop that gets half a CPU, for a while": ([looks(119, "R", cpu=0.5)], ALIVE),
    "in an endless loop that gets half a CPU": ([looks(120, "R", cpu=0.5)], HUNG),
    # The machine has more work than CPUs.
    "no CPU for an hour": ([looks(3600, "R")], ALIVE),
    "hardly any CPU for ten minutes": ([looks(600, "R", cpu=0.01)], ALIVE),
    "hardly any CPU, seen asleep now and then": ([[*looks(9, "R"), *looks(1, "S")] * 59], ALIVE),
    # A disk or a network file system does not answer.
    "a disk that is slow": ([looks(59, "D")], ALIVE),
    "a disk that does not answer": ([looks(60, "D")], BLOCKED),
    "a disk that does not answer for a day": ([looks(86400, "D")], BLOCKED),
    "a disk that answers at last": ([looks(600, "D"), [ANSWER]], ALIVE),
    # The watchdog itself did not run, so it could not receive answers.
    "the watcher was suspended for a day": ([looks(1, "S", elapsed=86400.0)], ALIVE),
    "both were suspended, and it goes on later": ([looks(1, "T", elapsed=86400.0), looks(7, "T")], ALIVE),
    "both were suspended, and it does not go on": ([looks(1, "T", elapsed=86400.0), looks(8, "T")], STOPPED),
    "the watcher is starved, and looks late": ([looks(4, "T", elapsed=30.0)], ALIVE),
    "the watcher is starved, and has looked often": ([looks(5, "T", elapsed=30.0)], STOPPED),
    # It has ended; other code notices that.
    "a zombie": ([looks(1000, "Z")], ALIVE),
    # Without /proc only the time counts.
    "nothing known, within the patience": ([looks(59, "")], ALIVE),
    "nothing known, for the patience": ([looks(60, "")], HUNG),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_silence_means(case: str) -> None:
    given, liveness = TABLE[case]
    assert after(*given).liveness is liveness


@pytest.mark.parametrize(
    ("grace", "state", "enough"), [(1.0, "S", 600), (1.0, "T", 10), (100.0, "S", 600)], ids=["S", "T", "a long grace"]
)
def test_a_process_has_time_to_begin(grace: float, state: str, enough: int) -> None:
    """Before its first answer it counts as hung only after a minute, however short the grace period is."""
    limits = SilenceLimits.of(grace)
    given = looks(enough, state, elapsed=limits.interval)
    assert after(given[:-1], begun=False, limits=limits).liveness is ALIVE
    assert after(given, given[:5], begun=False, limits=limits).liveness is (STOPPED if state == "T" else HUNG)


@pytest.mark.parametrize("grace", [0.0, 0.1, 1.0, 10.0, 3600.0])
def test_limits_fit_any_grace(grace: float) -> None:
    limits = SilenceLimits.of(grace)
    assert 0.05 <= limits.interval <= 1.0
    assert limits.interval <= limits.stopped < limits.hung <= limits.start
    assert after([ANSWER, *looks(1, "S", elapsed=1e9)], limits=limits).liveness is ALIVE


def test_it_is_told_in_words() -> None:
    assert described(after(looks(12, "T"))) == "is stopped and has not answered for 12 s"
    assert described(after(looks(60, "S"))) == "hangs and has not answered for 60 s"
    waits = "waits for a disk or a network file system and has not answered for 65 s"
    assert described(after(looks(60, "D"), looks(5, "S"))) == waits


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
async def test_the_watchdog_sees_a_process_that_is_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        watchdog = Watchdog(process.pid, 0.5)
        running = asyncio.ensure_future(watchdog.run(lambda _: None))
        for _ in range(20):
            watchdog.answered()
            await asyncio.sleep(0.05)
        assert not running.done()
        began = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        silence = await asyncio.wait_for(running, 30)
        assert silence.liveness is STOPPED
        assert time.monotonic() - began >= 0.25
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("program", ["import time; time.sleep(60)", "while True: pass"], ids=["asleep", "busy"])
async def test_the_watchdog_sees_a_process_that_hangs(program: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        watchdog = Watchdog(process.pid, 0.1)
        watchdog.answered()
        silence = await asyncio.wait_for(watchdog.run(lambda _: None), 60)
        assert silence.liveness is HUNG
    finally:
        process.kill()
        process.wait()
