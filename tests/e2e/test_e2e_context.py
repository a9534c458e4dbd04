# SPDX-License-Identifier: Apache-2.0
"""The commands through the Kubernetes API of the background engine: the same answers as by the name of the job."""

import json
import os
import re
import signal
import time

import pytest
from e2e_jobs import job, role, shell
from e2e_workspace import FinishedCommand, Workspace, until

from trainwright.cli.state import read_pid

pytest_plugins = ["e2e_fixtures"]
_SCRIPT = "trap 'exit 0' TERM; echo begun $RANK; sleep 1000 & wait"


def _ok(done: FinishedCommand) -> str:
    assert (done.code, done.err) == (0, ""), done.said
    return done.out


class Api:
    """The commands with the context of the engine."""

    def __init__(self, work: Workspace) -> None:
        self.work = work
        self.options = ("--context", "trainwright", "--kubeconfig", str(work.state / ".engine" / "kubeconfig"))

    def run(self, command: str, *words: str, given: str = "") -> FinishedCommand:
        return self.work.run(command, *self.options, *words, given=given)


@pytest.fixture
def api(process: Workspace) -> Api:
    _ok(process.run("up", "--nodes", "1"))
    return Api(process)


def _without_age(text: str) -> str:
    return re.sub(r"\b\d+(\.\d+)?(s|m\S*)\b", "AGE", text)


def test_the_answers_are_those_of_the_engine(api: Api) -> None:
    work = api.work
    text = json.dumps(job(role("worker", shell(_SCRIPT), replicas=2)))
    assert _ok(api.run("submit", "-o", "name", "-", given=text)) == "e2e\n"
    assert _ok(api.run("wait", "--for", "running", "e2e")) == "default/e2e runs\n"
    until(lambda: work.run("logs", "e2e").out.count("begun") == 2)

    for words in (("get",), ("get", "e2e"), ("get", "-o", "name"), ("wait", "--for", "running", "e2e"),
                  ("logs", "e2e"), ("logs", "--tail", "1", "e2e", "worker-1")):  # fmt: skip
        assert _without_age(_ok(api.run(*words))) == _without_age(_ok(work.run(*words))), words
    command = ("--", "sh", "-c", "cat; echo err >&2; exit 5")
    here, there = (place.run("exec", "e2e", "worker-1", *command, given="in") for place in (work, api))
    assert (there.code, there.out, there.err) == (here.code, here.out, here.err) == (5, "in", "err\n")
    assert _ok(api.run("annotate", "e2e", "owner=lena")) == "default/e2e annotated\n"
    assert _ok(api.run("scale", "e2e", "worker=1")) == "default/e2e worker: 1 replica\n"
    assert _ok(api.run("suspend", "e2e")) == "default/e2e is suspended\n"
    assert _ok(api.run("resume", "e2e")) == "default/e2e is resumed\n"
    for command_ in ("explain", "describe", "events", "history"):
        assert "e2e" in _ok(api.run(command_, "e2e")) or command_ == "history"
    assert _ok(api.run("delete", "e2e")) == "default/e2e deleted\n"
    assert api.run("wait", "e2e").code == 2
    _ok(work.run("down"))


def test_logs_and_wait_outlive_a_killed_engine(api: Api) -> None:
    """The API server is away for a moment: no line is missing, and none is printed twice."""
    work = api.work
    flag = work.work / "go"
    script = f"seq 1 300; while [ ! -e {flag} ]; do sleep 0.05; done; seq 301 600"
    text = json.dumps(job(role("worker", shell(script))))
    _ok(api.run("submit", "-", given=text))
    _ok(api.run("wait", "--for", "running", "e2e"))
    logs, waits = (work.start(*words) for words in (("logs", *api.options, "-f", "e2e"), ("wait", *api.options, "e2e")))
    logs.until("worker-0 | 300\n")
    waits.until_connected()
    time.sleep(1)  # `wait` says nothing when it has found the job

    os.kill(read_pid(work.state / ".engine" / "lock"), signal.SIGKILL)
    time.sleep(4)  # longer than a request is retried
    _ok(work.run("up"))
    flag.touch()
    done = waits.end()
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("e2e succeeded after ")
    done = logs.end()
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"worker-0 | {number}" for number in range(1, 601)]
    _ok(work.run("down"))
