# SPDX-License-Identifier: Apache-2.0
"""A run that goes on: signals and time limits end it, other commands reach it, a second one of its name is refused."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from run_command import SCRIPT, CommandRunner, LiveRun, demo, processes, wait, worker
from run_terminal import Terminals, terminals_of

from patience import PATIENCE
from trainwright.cli.state import NameLocks
from trainwright.model.meta import Key
from trainwright.runtime.ports import WallClock


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


@pytest.fixture
def word(tmp_path: Path) -> str:
    """A word that no other test's processes have in their command lines."""
    return f"{tmp_path.name}-{os.getpid()}"


#: Says goodbye when it is asked to end.
POLITE = "trap 'echo goodbye; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
#: Does not listen.
DEAF = "trap '' TERM; echo ready; while true; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_ends_the_job_in_good_order(
    runner: CommandRunner, word: str, number: signal.Signals, code: int
) -> None:
    with runner.live(demo(worker(POLITE, f": {word}", replicas=2))) as run:
        run.until("worker-0 | ready")
        run.until("worker-1 | ready")
        run.process.send_signal(number)
        assert run.end() == code

    assert "ending 2 replicas, each with its grace period; " in run.text()
    assert "worker-0 | goodbye" in run.text()
    assert "demo was interrupted after " in run.text()
    wait(lambda: processes(word) == [])
    told = runner.call("get", "-a")
    assert "Interrupted" in told.stdout


def test_a_second_signal_ends_it_at_once(runner: CommandRunner, word: str) -> None:
    role = worker(DEAF, f": {word}")
    role["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    with runner.live(demo(role)) as run:
        run.until("worker-0 | ready")
        run.process.send_signal(signal.SIGINT)
        run.until("a second Ctrl-C kills at once")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130

    wait(lambda: processes(word) == [])


def test_time_that_has_passed(runner: CommandRunner, word: str) -> None:
    done = runner.run(demo(worker(DEAF, f": {word}")), args=("--timeout", "2s", "--grace", "100ms"))

    assert done.returncode == 124
    assert "notice: --timeout has passed: ending 1 replica, each with its grace period" in done.stdout
    assert "demo timed out after " in done.stdout
    wait(lambda: processes(word) == [])


def test_what_held_it_up_is_told_when_time_has_passed(runner: CommandRunner) -> None:
    job = demo(worker("sleep 60", kind="first"), worker("true", kind="second"))
    cpus = str(len(os.sched_getaffinity(0)))
    for role in job["spec"]["replicaSpecs"]:
        role["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{int(cpus) * 600}m"}}
    done = runner.run(job, args=("--timeout", "3s"))

    assert done.returncode == 124
    assert re.search(r"  state:   second-0 Pending: Unschedulable: .*cpu", done.stdout)


def test_a_killed_run_leaves_nothing_and_says_nothing(runner: CommandRunner, word: str) -> None:
    with runner.live(demo(worker(POLITE, f": {word}"))) as run:
        run.until("worker-0 | ready")
        wait(lambda: "Running" in runner.call("events", "demo").stdout)
        run.process.kill()
        run.end()
    wait(lambda: processes(word) == [])

    told = runner.call("get", "demo")
    assert "Lost" in told.stdout
    head, row, _, lost, unknown, *_ = told.stdout.splitlines()
    assert dict(zip(head.split(), row.split(), strict=True)).items() >= {
        ("NAME", "demo"),
        ("KIND", "GenericJob"),
        ("PHASE", "Lost"),
        ("REPLICAS", "?/1"),
        ("RESTARTS", "0"),
    }
    assert re.fullmatch(rf"demo was lost: its run \(process {run.pid}, started at \S+Z\) was killed", lost)
    assert unknown.startswith("not known: how the job and its replicas ended")
    assert re.search(r"^worker-0 +demo-worker-0 +0$", told.stdout, re.M)
    assert re.search(r"^last events:\n  \S+Z demo Running: ", told.stdout, re.M)
    assert f"they are in {runner.latest()}, without a final status" in told.stdout
    assert runner.call("logs", "demo").stdout.startswith("ready\n")
    refused = runner.call("exec", "demo", "worker-0", "--", "true")
    assert refused.returncode == 2
    assert "default/demo is not running; its last run was killed" in refused.stderr


def test_a_replica_that_is_killed_is_restarted(runner: CommandRunner, word: str) -> None:
    script = "[ -e done ] && exit 0; touch done; echo pid $$$$; sleep 60"
    job = demo(worker(script, f": {word}", restartPolicy={"policy": "OnFailure", "limit": 1}))
    with runner.live(job) as run:
        pid = int(re.findall(r"worker-0 \| pid (\d+)", run.until("worker-0 | pid "))[0])
        os.kill(pid, signal.SIGKILL)
        assert run.end() == 0

    assert "worker-0  Failed  killed by SIGKILL" in run.text()
    assert "worker-0  Running  node-0  restart 1" in run.text() or "worker-0  Succeeded" in run.text()
    assert ", 1 restart" in run.text()


@pytest.fixture
def live(runner: CommandRunner, word: str) -> Iterator[LiveRun]:
    with runner.live(demo(worker("echo ready $(rank)", "sleep 60", f": {word}", replicas=2))) as run:
        run.until("worker-0 | ready 0")
        run.until("worker-1 | ready 1")
        yield run


def test_a_second_run_of_the_name_is_refused(runner: CommandRunner, live: LiveRun) -> None:
    done = runner.run(demo())

    assert (done.returncode, done.stdout) == (2, "")
    assert f"trainwright: default/demo already runs in process {live.pid} since 20" in done.stderr
    assert live.process.poll() is None


def test_get(runner: CommandRunner, live: LiveRun) -> None:
    table = runner.call("get").stdout.splitlines()
    assert table[0].split() == ["NAMESPACE", "NAME", "KIND", "PHASE", "REPLICAS", "RESTARTS", "AGE"]
    assert table[1].split()[:6] == ["default", "demo", "GenericJob", "Running", "2/2", "0"]

    lines = runner.call("get", "demo", "-o", "wide").stdout.splitlines()
    assert lines[1].endswith(str(runner.latest()))
    assert [line.split()[:4] for line in lines[4:]] == [[f"worker-{i}", "Running", "node-0", "0"] for i in range(2)]
    whole = msgspec.json.decode(runner.call("get", "-o", "json", "demo").stdout)
    assert whole["status"]["phase"] == "Running"
    listed = msgspec.json.decode(runner.call("get", "-o", "json").stdout)
    assert (listed["kind"], len(listed["items"])) == ("List", 1)
    assert runner.call("get", "-o", "name").stdout == "genericjob.batch.tensorstack.dev/demo\n"
    assert runner.call("get", "-o", "yaml", "demo").stdout.startswith("apiVersion: batch.tensorstack.dev/v1beta1\n")
    assert runner.call("get", "dmeo").stderr.endswith("did you mean `default/demo`?\n")


def test_logs(runner: CommandRunner, live: LiveRun) -> None:
    assert runner.call("logs", "demo", "worker-1").stdout == "ready 1\n"
    assert runner.call("logs", "demo", "demo-worker-0").stdout == "ready 0\n"
    assert sorted(runner.call("logs", "demo").stdout.splitlines()) == ["worker-0 | ready 0", "worker-1 | ready 1"]
    assert runner.call("logs", "demo", "--tail", "0").stdout == ""
    assert "did you mean `worker-1`?" in runner.call("logs", "demo", "wroker-1").stderr
    assert "no replica 'worker-7'; it has worker-0 and worker-1\n" in runner.call("logs", "demo", "worker-7").stderr
    assert (
        "has no container 'mian' in these replicas; did you mean `main`?"
        in runner.call("logs", "-c", "mian", "demo").stderr
    )


def test_following_logs_until_the_end(runner: CommandRunner, word: str) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; printf three"
    with runner.live(demo(worker(script, f": {word}"))) as run:
        run.until("worker-0 | one")
        words = [SCRIPT, "logs", "-f", "demo", "worker-0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=runner.env, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "one\n"
            (runner.folder / "go").touch()
            assert follower.stdout.read() == "two\nthree\n"
            assert follower.wait(PATIENCE) == 0
        assert run.end() == 0


def test_exec(runner: CommandRunner, live: LiveRun) -> None:
    done = runner.call("exec", "demo", "worker-0", "--", "sh", "-c", "cat; pwd; echo oops >&2; exit 7", text="input\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, f"input\n{runner.folder}\n", "oops\n")

    by_pod = runner.call("exec", "default/demo", "demo-worker-1", "-c", "main", "--", "echo", "-n", "--", "x")
    assert (by_pod.returncode, by_pod.stdout) == (0, "-- x")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("demo", "worker-7", "--", "ls"), "default/demo has no replica 'worker-7'; it has worker-0 and worker-1\n"),
        (("demo", "worker-0", "-c", "mian", "--", "ls"), "worker-0 has no container 'mian'; did you mean `main`?"),
        (("demo", "worker-0", "--", "no-such-command"), '"no-such-command": executable file not found in PATH'),
        (("demo", "worker-0", "-t", "--", "ls"), "-t needs a terminal, but standard input is not a terminal"),
    ],
)
def test_exec_that_cannot_be(runner: CommandRunner, live: LiveRun, args: tuple[str, ...], told: str) -> None:
    done = runner.call("exec", *args)

    assert (done.returncode, done.stdout) == (127 if "not found in PATH" in told else 2, "")
    assert told in done.stderr


def test_scale(runner: CommandRunner, live: LiveRun) -> None:
    assert runner.call("scale", "demo", "worker=3").stdout == "default/demo worker: 3 replicas\n"
    live.until("worker-2 | ready 2")
    assert runner.call("scale", "demo", "worker=1").stdout == "default/demo worker: 1 replica\n"
    refused = runner.call("scale", "demo", "wroker=1")
    assert refused.returncode == 2
    assert "there is no replica type 'wroker'; the job has worker; did you mean `worker`?" in refused.stderr
    refused = runner.call("scale", "demo", "worker=0")
    assert "every type has 0 replicas; a job needs at least one" in refused.stderr


def test_suspend_and_resume(runner: CommandRunner, live: LiveRun, word: str) -> None:
    assert runner.call("suspend", "demo").stdout == "default/demo is suspended\n"
    assert processes(f": {word}") == []
    live.until("demo  Paused  `trainwright resume demo` continues the job")

    assert runner.call("resume", "demo").stdout == "default/demo is resumed\n"
    wait(lambda: live.text().count("worker-0 | ready 0") == 2)
    assert runner.call("get", "demo").stdout.splitlines()[4].split()[:4] == ["worker-0", "Running", "node-0", "0"]


def test_annotate(runner: CommandRunner, live: LiveRun) -> None:
    assert runner.call("annotate", "demo", "owner=lena", "example.org/note=a=b").stdout == "default/demo annotated\n"
    refused = runner.call("annotate", "demo", "owner=tom")
    assert (refused.returncode, "already has owner=lena; to replace it, give --overwrite" in refused.stderr) == (
        2,
        True,
    )
    assert runner.call("annotate", "--overwrite", "demo", "owner=tom", "example.org/note-").returncode == 0
    whole = msgspec.json.decode(runner.call("get", "-o", "json", "demo").stdout)
    assert whole["metadata"]["annotations"] == {"owner": "tom"}


def test_delete(runner: CommandRunner, live: LiveRun, word: str) -> None:
    assert runner.call("delete", "demo").stdout == "default/demo deleted\n"
    assert live.end() == 1
    assert "demo was deleted after " in live.text()
    assert "the job was deleted before it ended" in live.text()
    wait(lambda: processes(word) == [])


def test_an_engine_that_does_not_answer(runner: CommandRunner) -> None:
    with NameLocks(runner.state, [Key("default", "demo")], WallClock().now()):
        for args in (("get", "demo"), ("exec", "demo", "worker-0", "--", "ls"), ("suspend", "demo")):
            done = runner.call(*args)
            assert (done.returncode, done.stdout) == (3, "")
            assert f"process {os.getpid()} runs default/demo, but no engine answers at " in done.stderr


@pytest.fixture
def terminals(runner: CommandRunner) -> Iterator[Terminals]:
    with terminals_of(runner) as start:
        yield start


def test_exec_at_a_terminal(terminals: Terminals, live: LiveRun) -> None:
    terminal = terminals("exec", "demo", "worker-0", "--", "sh")
    terminal.type("stty size; echo $TERM; [ -t 0 ] && echo term''inal\n")
    terminal.until("terminal\r\n")
    assert "30 100\r\nxterm-256color\r\n" in terminal.text

    terminal.resize(120, 40)
    terminal.type("sleep 0.2; stty size\n")
    terminal.until("40 120\r\n")
    terminal.type("sleep 99\n")
    time.sleep(0.3)
    terminal.type("\x03")  # ends the sleep, not the shell
    terminal.type("exit 5\n")
    assert terminal.end() == 5


def test_a_live_table_at_a_terminal(runner: CommandRunner, terminals: Terminals) -> None:
    job = demo(worker("echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done", replicas=2))
    terminal = terminals("run", "--runtime", "process", runner.write(job))
    terminal.until("worker-1 |\x1b[0m ready")
    terminal.until("2 of 2 running")
    (runner.folder / "go").touch()
    assert terminal.end() == 0

    assert re.search(r"REPLICA.*PHASE.*NODE.*RESTARTS.*AGE.*REASON", terminal.text)
    assert "worker-0 |\x1b[0m done" in terminal.text
    assert terminal.text.rstrip().endswith(f"logs and final status: {runner.latest()}")
    assert "demo succeeded after " in terminal.text


def test_ctrl_c_at_a_terminal(runner: CommandRunner, terminals: Terminals, word: str) -> None:
    terminal = terminals("run", "--runtime", "process", runner.write(demo(worker(POLITE, f": {word}"))))
    terminal.until("ready")
    terminal.until("1 of 1 running")
    terminal.type("\x03")

    assert terminal.end() == 130
    assert "goodbye" in terminal.text  # the replica was asked, not killed along with us
    wait(lambda: processes(word) == [])
