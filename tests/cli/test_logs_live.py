# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs` on real runs: live, restarted, rotated, killed."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_command import SCRIPT, CommandRunner, LiveRun, demo, script, wait, worker
from run_terminal import Terminals, terminals_of

from patience import PATIENCE
from trainwright.model.job import Body

#: Prints `<rank> <number>` when the test says `<rank>-<number>`, from the number of files `started-<rank>-*` on.
TURNS = """
start=$(ls started-$(rank)-* 2>/dev/null | wc -l); touch started-$(rank)-$start
i=0
while true; do
  while [ ! -e $(rank)-$start-$i ]; do sleep 0.02; done
  cat $(rank)-$start-$i
  case "$(cat $(rank)-$start-$i)" in *bad) exit 1;; *good) exit 0;; esac
  i=$((i+1))
done
"""
AGAIN = {"policy": "OnFailure", "limit": 3}


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


@pytest.fixture
def terminals(runner: CommandRunner) -> Iterator[Terminals]:
    with terminals_of(runner) as start:
        yield start


class Turns:
    """Lets the replicas of a live run print lines one after the other."""

    def __init__(self, runner: CommandRunner, run: LiveRun) -> None:
        self._runner, self._run = runner, run
        self._next: dict[tuple[int, int], int] = {}

    def say(self, rank: int, text: str, attempt: int = 0) -> None:
        number = self._next.get((rank, attempt), 0)
        self._next[rank, attempt] = number + 1
        file = self._runner.folder / f"{rank}-{attempt}-{number}"
        file.with_suffix(".new").write_text(f"{text}\n")
        file.with_suffix(".new").rename(file)
        self._run.until(f"worker-{rank} | {text}\n")


def turns_job() -> Body:
    return demo(worker(TURNS, replicas=2, restartPolicy=AGAIN), successRules=[{"worker": [0, 1]}])


def test_lines_of_restarted_replicas_are_merged(runner: CommandRunner, terminals: Terminals) -> None:
    with runner.live(turns_job()) as run:
        turns = Turns(runner, run)
        turns.say(1, "b1")
        turns.say(0, "a1")
        turns.say(1, "b2")
        turns.say(0, "a2 bad")
        turns.say(0, "a3", attempt=1)
        expected = ["worker-1 | b1", "worker-0 | a1", "worker-1 | b2", "worker-0 | a2 bad", "worker-0#1 | a3"]
        assert runner.call("logs", "demo").stdout.splitlines() == expected
        assert runner.call("logs", "demo", "--previous").stdout.splitlines() == ["worker-0 | a1", "worker-0 | a2 bad"]
        turns.say(1, "b3 good")
        turns.say(0, "a4 good", attempt=1)
        assert run.end() == 0

    expected += ["worker-1 | b3 good", "worker-0#1 | a4 good"]
    assert runner.call("logs", "demo").stdout.splitlines() == expected
    assert runner.call("logs", "demo", "worker-0").stdout.splitlines() == ["a1", "a2 bad", "a3", "a4 good"]
    assert runner.call("logs", "demo", "--grep", "[13]").stdout.splitlines() == [
        line for line in expected if re.search("[13]$", line) or "b3" in line
    ]
    stamped = runner.call("logs", "demo", "--timestamps").stdout.splitlines()
    times = [line.split()[2] for line in stamped]
    assert times == sorted(times)
    since = runner.call("logs", "demo", "--since", times[3]).stdout.splitlines()
    assert since == expected[3:]
    shown = terminals("logs", "demo", "worker-0")
    assert shown.end() == 0
    assert shown.text.split("\r\n") == ["a1", "a2 bad", "==> worker-0#1 <==", "a3", "a4 good", ""]


def test_a_container_that_is_restarted_inside_its_pod(runner: CommandRunner) -> None:
    lines = "n=$(ls try-* 2>/dev/null | wc -l); touch try-$n; echo try $n; [ $n = 2 ]"
    spec = {**script(lines, name="paddle")["spec"], "restartPolicy": "OnFailure"}
    job = {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "demo"},
        "spec": {"worker": {"replicas": 1, "template": {"spec": spec}}},
    }
    with runner.live(job) as run:
        wait(lambda: "try 1" in runner.call("logs", "demo").stdout)
        told = runner.call("logs", "--all-runs", "demo").stdout.splitlines()
        assert told[1:3] == ["worker-0 | try 0", "worker-0#1 | try 1"]
        run.process.send_signal(signal.SIGKILL)
        run.end()
    assert runner.call("logs", "-p", "demo").stdout.startswith("try ")


def test_a_killed_run_keeps_its_lines_with_their_times(runner: CommandRunner) -> None:
    with runner.live(turns_job()) as run:
        turns = Turns(runner, run)
        turns.say(1, "b1")
        turns.say(0, "a1")
        turns.say(1, "b2")
        os.kill(run.pid, signal.SIGKILL)
        run.end()
    assert runner.call("logs", "demo").stdout.splitlines() == ["worker-1 | b1", "worker-0 | a1", "worker-1 | b2"]
    assert len(list(runner.latest().glob("logs/*/*.times"))) == 2


def test_rotated_logs_of_a_run(runner: CommandRunner) -> None:
    lines = "seq -f '$(rank) %.0f and some more text to fill the line' 1 300000"
    assert runner.run(demo(worker(lines, replicas=2))).returncode == 0
    numbers = {path.name.rpartition(".")[2] for path in runner.latest().glob("logs/*/*.log*")}
    assert numbers == {"log", "1"}
    told = runner.call("logs", "demo").stdout.splitlines()
    assert len(told) == 600_000
    for rank in range(2):
        own = [line for line in told if line.startswith(f"worker-{rank} |")]
        assert own[0].startswith(f"worker-{rank} | {rank} 1 and")
        assert [int(line.split()[3]) for line in own] == list(range(1, 300_001))
    last = runner.call("logs", "demo", "--tail", "2").stdout.splitlines()
    assert sorted(line.split()[3] for line in last) == ["299999", "299999", "300000", "300000"]
    found = runner.call("logs", "demo", "--grep", r"\b77777\b").stdout.splitlines()
    assert sorted(line.split()[0] for line in found) == ["worker-0", "worker-1"]


def test_following_only_what_matches(runner: CommandRunner) -> None:
    with runner.live(turns_job()) as run:
        turns = Turns(runner, run)
        turns.say(0, "a1")
        turns.say(1, "b1 yes")
        words = [SCRIPT, "logs", "-f", "--grep", "yes|good", "--timestamps", "demo"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=runner.env, text=True) as follower:
            assert follower.stdout is not None
            stamp = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
            assert re.fullmatch(rf"worker-1 \| {stamp} b1 yes\n", follower.stdout.readline())
            turns.say(0, "a2 bad")
            turns.say(0, "a3 yes", attempt=1)
            assert re.fullmatch(rf"worker-0#1 \| {stamp} a3 yes\n", follower.stdout.readline())
            turns.say(1, "b2 good")
            turns.say(0, "a4 good", attempt=1)
            assert [line.split()[-2] for line in follower.stdout] == ["b2", "a4"]
            assert follower.wait(PATIENCE) == 0
        assert run.end() == 0


def test_an_unfinished_line_is_followed_as_one_line(runner: CommandRunner) -> None:
    lines = "echo hello; printf 'begin '; while [ ! -e go ]; do sleep 0.02; done; echo end"
    with runner.live(demo(worker(lines))) as run:
        run.until("worker-0 | begin ")
        words = [SCRIPT, "logs", "-f", "--grep", "hello|begin end", "demo"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=runner.env, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "worker-0 | hello\n"
            (runner.folder / "go").touch()
            assert follower.stdout.read() == "worker-0 | begin end\n"
        assert run.end() == 0
