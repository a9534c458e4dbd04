# SPDX-License-Identifier: Apache-2.0
"""What a run shows of replicas that still run when their job has ended: what a cluster stores, as the policy says.

The end of the run terminates the replicas that a clean-up policy keeps. A line of its own tells that.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_command import CommandRunner, demo, script, worker
from run_terminal import Terminal, Terminals, terminals_of

from trainwright.model.job import Body

#: Says when it is asked to end, and ends when the test says so.
SLOW = "trap 'echo bye; until [ -e go ]; do sleep 0.05; done; exit 1' TERM; touch up; while :; do sleep 0.05; done"
#: Decides once the other one runs, and is shown to run.
DECIDES = "until [ -e up ] && [ -e shown ]; do sleep 0.05; done"


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


@pytest.fixture
def terminals(runner: CommandRunner) -> Iterator[Terminals]:
    with terminals_of(runner) as start:
        yield start


def generic(policy: str) -> Body:
    roles = (worker(DECIDES, kind="main"), worker(SLOW, kind="other"))
    return demo(*roles, cleanUpPolicy=policy, successRules=[{"main": [0]}])


def of_kind(api: str, kind: str, **spec: Any) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "demo"}, "spec": spec}


def template(name: str, lines: str, **spec: Any) -> Body:
    return {"spec": {**script(lines, name=name)["spec"], **spec}}


def tfjob(policy: str) -> Body:
    specs = {
        "Chief": {"replicas": 1, "restartPolicy": "Never", "template": template("tensorflow", DECIDES)},
        "Worker": {"replicas": 1, "restartPolicy": "Never", "template": template("tensorflow", SLOW)},
    }
    return of_kind("kubeflow.org/v1", "TFJob", tfReplicaSpecs=specs, runPolicy={"cleanPodPolicy": policy})


def paddlejob(policy: str) -> Body:
    """Worker 1 fails; worker 0 still runs, and no policy of this kind keeps it."""
    lines = f'if [ "$PADDLE_TRAINER_ID" = 0 ]; then {SLOW}; fi; {DECIDES}; exit 3'
    part = {"replicas": 2, "template": template("paddle", lines, restartPolicy="Never")}
    return of_kind("batch.paddlepaddle.org/v1", "PaddleJob", worker=part, cleanPodPolicy=policy)


KEPT = [
    pytest.param(generic("None"), "other-0", id="GenericJob-None"),
    pytest.param(tfjob("None"), "Worker-0", id="TFJob-None"),
]
REMOVED = [
    pytest.param(generic("Unfinished"), "other-0", id="GenericJob-Unfinished"),
    pytest.param(tfjob("Running"), "Worker-0", id="TFJob-Running"),
    pytest.param(paddlejob("Never"), "worker-0", id="PaddleJob-Never"),
]
ENDS = "notice: the end of the run ends 1 replica that a clean-up policy keeps: "
ENDED = "  the end of the run ended 1 replica that the job's clean-up policy keeps: "


def lines_of(runner: CommandRunner, body: Body, replica: str) -> tuple[str, list[str]]:
    """What a run writes into a pipe, and the phases of one replica in it. The replica ends when it is asked to."""
    with runner.live(body) as run:
        run.until(f"{replica}  Running")
        (runner.folder / "shown").touch()
        run.until(f"{replica} | bye")
        (runner.folder / "go").touch()
        run.end()
    return run.text(), re.findall(rf"s  {replica}  (\w+)", run.text())


@pytest.mark.parametrize(("body", "replica"), KEPT)
def test_lines_tell_of_a_kept_replica_what_a_cluster_stores(runner: CommandRunner, body: Body, replica: str) -> None:
    text, phases = lines_of(runner, body, replica)

    assert phases == ["Running"]
    assert f"{ENDS}{replica}\n" in text
    assert text.index(ENDS) < text.index("| bye") < text.index(f"{ENDED}{replica}\n")


@pytest.mark.parametrize(("body", "replica"), REMOVED)
def test_lines_tell_that_the_policy_removes_a_replica(runner: CommandRunner, body: Body, replica: str) -> None:
    text, phases = lines_of(runner, body, replica)

    assert phases[-3:] == ["Running", "Terminating", "Stopped"]
    assert ENDS not in text
    assert ENDED not in text


def frames(terminal: Terminal, replica: str) -> list[str]:
    """The phases of a replica in the tables that were painted, oldest first."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text)
    return re.findall(rf"^{replica} +(\w+)", text, re.MULTILINE)


def table_of(runner: CommandRunner, terminals: Terminals, body: Body, replica: str) -> Terminal:
    """A run at a terminal, to its end. A table is painted below the last line of the replica, which has not ended."""
    terminal = terminals("run", "--runtime", "process", runner.write(body))
    terminal.until_so(lambda: "Running" in frames(terminal, replica))
    (runner.folder / "shown").touch()
    terminal.until("bye")
    seen = len(frames(terminal, replica))
    terminal.until_so(lambda: len(frames(terminal, replica)) > seen)
    (runner.folder / "go").touch()
    terminal.end()
    return terminal


@pytest.mark.parametrize(("body", "replica"), KEPT)
def test_the_table_shows_a_kept_replica_as_a_cluster_stores_it(
    runner: CommandRunner, terminals: Terminals, body: Body, replica: str
) -> None:
    terminal = table_of(runner, terminals, body, replica)
    phases = frames(terminal, replica)

    assert phases[-1] == "Running"
    assert {"Terminating", "Stopped", "Failed", "Succeeded"}.isdisjoint(phases)
    assert f"{ENDS}{replica}" in terminal.text
    assert f"{ENDED}{replica}" in terminal.text


@pytest.mark.parametrize(("body", "replica"), REMOVED)
def test_the_table_shows_that_the_policy_removes_a_replica(
    runner: CommandRunner, terminals: Terminals, body: Body, replica: str
) -> None:
    terminal = table_of(runner, terminals, body, replica)

    assert "Terminating" in frames(terminal, replica)
    assert ENDS not in terminal.text
    assert ENDED not in terminal.text


@pytest.mark.parametrize(
    ("args", "number", "code"), [((), signal.SIGINT, 130), (("--timeout", "3s"), None, 124)], ids=["Ctrl-C", "timeout"]
)
def test_a_run_that_is_cut_short_tells_that_its_replicas_end(
    runner: CommandRunner, args: tuple[str, ...], number: int | None, code: int
) -> None:
    """The job has not ended, so its clean-up policy has no say."""
    with runner.live(generic("None"), args=args) as run:
        run.until("other-0  Running")
        if number is not None:
            run.process.send_signal(number)
        run.until("other-0 | bye")
        (runner.folder / "go").touch()
        assert run.end() == code

    text = run.text()
    assert "ending 2 replicas, each with its grace period; " in text
    assert re.findall(r"s  other-0  (\w+)", text)[:2] == ["Running", "Terminating"]
    assert ENDS not in text
    assert "  the end of the run ended 2 replicas: main-0, other-0\n" in text


def test_ctrl_c_at_a_terminal_shows_that_replicas_end(runner: CommandRunner, terminals: Terminals) -> None:
    terminal = terminals("run", "--runtime", "process", runner.write(generic("None")))
    terminal.until_so(lambda: "Running" in frames(terminal, "other-0"))
    terminal.type("\x03")
    terminal.until_so(lambda: "Terminating" in frames(terminal, "other-0"))
    (runner.folder / "go").touch()

    assert terminal.end() == 130
    assert "  the end of the run ended 2 replicas: main-0, other-0" in terminal.text


def test_of_two_jobs_only_the_one_that_was_cut_short_shows_that_its_replicas_end(runner: CommandRunner) -> None:
    """The first one has ended, and its policy keeps a replica; the second one is interrupted."""
    first = demo(worker(DECIDES, kind="main"), worker(SLOW), name="first", successRules=[{"main": [0]}])
    second = demo(worker(SLOW), name="second")
    with runner.live(first, second) as run:
        run.until("first/worker-0  Running")
        run.until("second/worker-0  Running")
        (runner.folder / "shown").touch()
        run.until("first  Succeeded")
        (runner.folder / "go").touch()
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130

    text = run.text()
    assert re.findall(r"s  first/worker-0  (\w+)", text) == ["Running"]
    assert re.findall(r"s  second/worker-0  (\w+)", text)[1:] == ["Terminating", "Stopped"]
    assert f"{ENDS}first/worker-0\n" in text
