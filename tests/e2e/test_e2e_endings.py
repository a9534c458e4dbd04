# SPDX-License-Identifier: Apache-2.0
"""Every way a run can end: its exit code, how its replicas are ended, and that nothing of it stays."""

import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e_jobs import Body, job, python, role, shell, worker
from e2e_workspace import Workspace, until

from patience import PATIENCE

pytest_plugins = ["e2e_fixtures"]

#: Says when it is ready, and has something to do before it leaves.
POLITE = """
import signal, sys, time
def leave(*_):
    print("asked to leave")
    time.sleep(0.2)
    print("left")
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("ready")
time.sleep(600)
"""
#: Does not care.
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
time.sleep(600)
"""


def trained(program: str, grace: int = 600) -> Body:
    return job(role("worker", python(program), terminationGracePeriodSeconds=grace))


CODES = {
    "success": (worker("true"), (), 0, "Succeeded"),
    "failure": (worker("exit 3"), (), 1, "Failed"),
    "timeout": (worker("exec sleep 600"), ("--timeout", "1"), 124, "TimedOut"),
}


@pytest.mark.parametrize("case", CODES)
def test_the_exit_code_tells_the_outcome(process: Workspace, case: str) -> None:
    body, options, code, outcome = CODES[case]
    done = process.run("run", "-o", "json", *options, body)

    assert done.code == code, done.said
    (end,) = (item for item in done.items if item["type"] == "end")
    assert (end["outcome"], end["exitCode"]) == (outcome, code)
    assert process.left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_signal_ends_replicas_as_they_wish_to_be_ended(workspace: Workspace, number: int, code: int) -> None:
    run = workspace.start("run", trained(POLITE))
    run.until("worker-0 | ready")

    run.signal(number)
    done = run.end()

    assert done.code == code, done.said
    assert "worker-0 | asked to leave\nworker-0 | left\n" in done.out
    assert "e2e was interrupted after" in done.out
    assert workspace.left() == []


def test_a_terminal_that_is_gone_ends_the_run(process: Workspace) -> None:
    run = process.start("run", trained(POLITE))
    run.until("worker-0 | ready")

    run.signal(signal.SIGHUP)
    done = run.end()

    assert done.code == 129, done.said
    assert "worker-0 | left" in done.out


def test_nohup_outlives_its_terminal(process: Workspace) -> None:
    """The replica goes on until a file tells it to end, well after the signal has come."""
    until_told = f"echo ready; until [ -e {process.work}/go ]; do sleep 0.05; done; echo trained"
    words = ["nohup", *process.words("run", worker(until_told))]
    out = process.folder / "nohup-output"
    with out.open("wb") as to:
        run = subprocess.Popen(words, stdout=to, stderr=to, stdin=subprocess.DEVNULL, cwd=process.work, env=process.env)
    until(lambda: "| ready" in out.read_text())

    run.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    (process.work / "go").touch()

    assert run.wait(PATIENCE) == 0, out.read_text()
    assert "worker-0 | trained" in out.read_text()
    (process.work / "go").unlink()


def test_a_second_ctrl_c_kills_at_once(workspace: Workspace) -> None:
    run = workspace.start("run", trained(DEAF))
    run.until("worker-0 | ready")

    run.signal(signal.SIGINT)
    run.until("Terminating")
    run.signal(signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    assert workspace.left() == []


def test_who_does_not_leave_in_time_is_killed(workspace: Workspace) -> None:
    run = workspace.start("run", trained(DEAF, grace=1))
    run.until("worker-0 | ready")
    begun = time.monotonic()

    run.signal(signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    assert time.monotonic() - begun > 0.9
    assert workspace.left() == []


def test_ctrl_c_in_the_terminal_reaches_only_the_engine(workspace: Workspace) -> None:
    """The whole process group gets it; replicas must hear SIGTERM, and hear it from the engine."""
    heed = "import signal; signal.signal(signal.SIGINT, lambda *_: print('INT'))\n" + POLITE
    run = workspace.start("run", trained(heed), start_new_session=True)
    run.until("worker-0 | ready")

    os.killpg(run.pid, signal.SIGINT)
    done = run.end()

    assert done.code == 130
    assert "worker-0 | INT" not in done.out
    assert "worker-0 | left" in done.out


def test_ctrl_c_before_anything_runs_is_heeded(process: Workspace) -> None:
    run = process.start("run", trained(DEAF, grace=1))  # it may have begun when the signal comes
    until(process.state.exists)
    run.signal(signal.SIGINT)
    done = run.end()

    assert done.code == 130, done.said
    assert "Traceback" not in done.said


def test_an_engine_that_is_killed_takes_everything_along(workspace: Workspace) -> None:
    stray = "echo ready; setsid sleep 300 & (sleep 300 &) ; exec sleep 300"
    run = workspace.start("run", worker(stray, replicas=2))
    until(lambda: run.said.count("| ready") == 2)
    until(lambda: len(workspace.pids("sleep 300")) >= 6)

    run.process.kill()
    run.end()

    until(lambda: not workspace.left(), f"{workspace.left()}")
    after = workspace.run("get", "e2e")
    assert "killed" in after.said, after.said


def test_an_engine_that_is_killed_takes_a_stopped_supervisor_along(workspace: Workspace) -> None:
    """Nobody is left to let it go on but the kernel."""
    run = workspace.start("run", worker("echo ready; setsid sleep 300 & exec sleep 300"))
    run.until("| ready")
    os.kill(workspace.pid("trainwright.node.supervisor"), signal.SIGSTOP)

    run.process.kill()
    run.end()

    until(lambda: not workspace.left(), f"nothing is left: {workspace.left()}")


def test_a_supervisor_that_is_killed_is_a_clear_end(workspace: Workspace) -> None:
    run = workspace.start("run", worker("echo ready; setsid sleep 300 & exec sleep 300"))
    run.until("| ready")

    os.kill(workspace.pid("trainwright.node.supervisor"), signal.SIGKILL)
    done = run.end()

    assert (done.code, done.err) == (3, ""), done.said
    assert "no node is left: node-0: the supervisor (process" in done.out
    assert "e2e was lost after" in done.out
    until(lambda: not workspace.left(), f"{workspace.left()}")
    assert workspace.run("run", worker("true")).code == 0  # which tidies up what is the whole machine's


def test_a_reader_that_goes_away_ends_the_run(workspace: Workspace) -> None:
    with unread(workspace, "while :; do echo xxxxxxxx; sleep 0.01; done") as run:
        run.stdout.readline()
        run.stdout.close()
        code = run.wait(PATIENCE)

    assert code == 141
    assert workspace.left() == []


@contextmanager
def unread(workspace: Workspace, script: str) -> Iterator[Any]:
    """A run whose output nobody reads."""
    words = workspace.words("run", worker(script))
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=workspace.work, env=workspace.env) as run:
        try:
            yield run
        finally:
            run.kill()


def test_a_second_ctrl_c_does_not_wait_for_a_reader(process: Workspace) -> None:
    with unread(process, "seq 1 50000") as run:
        until(lambda: full(run), "its output fills the pipe")
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)  # nothing tells that it has heard the first
        run.send_signal(signal.SIGINT)

        assert run.wait(PATIENCE) == 130


def full(run: "subprocess.Popen[bytes]") -> bool:
    """The pipe of its output has no room for another page: whoever writes waits."""
    with Path(f"/proc/{run.pid}/fd/1").open("wb", buffering=0) as pipe:
        return not select.select([], [pipe], [], 0)[1]


@pytest.mark.parametrize("how_closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], ids=["in", "out", "errors", "all"])
def test_a_caller_that_has_closed_its_files_does_no_harm(process: Workspace, how_closed: str) -> None:
    mark = process.work / "mark"
    words = shlex.join(process.words("run", worker(f"touch {mark}")))
    how: dict[str, Any] = {"cwd": process.work, "env": process.env, "timeout": PATIENCE}
    done = subprocess.run(["sh", "-c", f"{words} {how_closed}"], capture_output=True, check=False, **how)  # noqa: S607 - sh

    assert (done.returncode, done.stderr) == (0, b"")
    assert mark.exists()


def test_a_working_directory_that_is_gone_is_told(process: Workspace) -> None:
    words = shlex.join(process.words("run", worker("true")))
    script = f"mkdir gone; cd gone; rmdir ../gone; {words}"
    how: dict[str, Any] = {"cwd": process.work, "env": process.env, "timeout": PATIENCE}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, **how)  # noqa: S607 - sh

    assert done.returncode in (2, 3)
    assert re.search("folder|directory", done.stderr), done.stderr
    assert "Errno" not in done.stderr


def test_what_the_outcome_left_running_is_ended_in_good_order(process: Workspace) -> None:
    ready = f"{process.work}/ready"
    told = POLITE.replace('print("ready")', f'open("{ready}", "w").close()')
    body = job(
        role("main", shell(f"until [ -e {ready} ]; do sleep 0.05; done")),
        role("other", python(told), terminationGracePeriodSeconds=600),
        successRules=[{"main": [0]}],
    )
    done = process.run("run", body)

    assert done.code == 0, done.said
    assert "other-0 | left" in done.out
    assert "ending 1 replica" in done.out


def test_the_whole_tree_is_killed_when_grace_is_over(workspace: Workspace) -> None:
    """Grandchildren in sessions of their own, deaf ones included."""
    tree = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 301 & echo ready; wait' & wait; sleep 301"
    run = workspace.start("run", worker(tree, terminationGracePeriodSeconds=1))
    run.until("| ready")
    until(lambda: workspace.pids("sleep 301"))

    run.signal(signal.SIGTERM)
    run.end()

    assert workspace.left() == []


def test_a_grandchild_that_outlives_its_container_is_ended_with_it(workspace: Workspace) -> None:
    """At once, while the run goes on, also if it has a session, a parent and an output of its own."""
    stray = "(setsid sh -c 'sleep 302; true' >/dev/null 2>&1 &); setsid sleep 302 & sleep 0.2"
    run = workspace.start("run", job(role("main", shell(stray)), role("other", shell("exec sleep 600"))))
    run.until("main-0  Succeeded")

    until(lambda: not workspace.pids("sleep 302"), f"{workspace.pids()}")
    assert run.process.poll() is None
    run.signal(signal.SIGINT)
    assert run.end().code == 130


def test_many_signals_in_a_row_leave_nothing(process: Workspace) -> None:
    run = process.start("run", trained(DEAF))
    run.until("worker-0 | ready")

    for _ in range(5):
        run.signal(signal.SIGINT)
        time.sleep(0.05)
    done = run.end()

    assert done.code in (130, -signal.SIGINT)
    assert "Traceback" not in done.said, done.said
    until(lambda: not process.left())


def test_the_state_folder_is_said_to_be_unusable(process: Workspace) -> None:
    Path(process.state).write_text("a file")
    done = process.run("run", worker("true"))

    assert done.code == 3
    assert f"the state folder {process.state} cannot be used: Not a directory" in done.err
