# SPDX-License-Identifier: Apache-2.0
"""Commands about jobs of the background engine use its Kubernetes API, through a Unix socket."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e_jobs import job, role, shell
from e2e_workspace import FinishedCommand, Workspace, until

from trainwright.cli.state import is_live, read_pid
from trainwright.kube.blocking import engine_client
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, INDEX, JOB_UID

pytest_plugins = ["e2e_fixtures"]
_SCRIPT = "trap 'exit 0' TERM; echo begun; sleep 1000 & wait"
_IMPORTS = """
import sys
from trainwright.cli.main import run
run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""


def _ok(done: FinishedCommand) -> str:
    assert done.code == 0, done.said
    return done.out


def _start(work: Workspace, *words: str) -> Path:
    """Start an engine with one running job; return the folder of the engine."""
    _ok(work.run("up", "--nodes", "1", *words))
    _ok(work.run("submit", job(role("worker", shell(_SCRIPT), replicas=2))))
    _ok(work.run("wait", "--for", "running", "e2e"))
    return work.state / ".engine"


def _check_commands(work: Workspace) -> None:
    """Use every command about jobs once."""
    assert "Running" in _ok(work.run("get"))
    assert json.loads(_ok(work.run("get", "e2e", "-o", "json")))["status"]["phase"] == "Running"
    assert "worker-1" in _ok(work.run("describe", "e2e"))
    assert "2 of 2 replicas run" in _ok(work.run("explain", "e2e"))
    for command in ("events", "history", "logs"):
        _ok(work.run(command, "e2e"))
    assert "worker-1" in _ok(work.run("top", "--once", "--interval", "100ms"))
    assert _ok(work.run("exec", "e2e", "worker-1", "--", "echo", "inside")) == "inside\n"
    assert _ok(work.run("annotate", "e2e", "owner=lena")) == "default/e2e annotated\n"
    assert work.run("annotate", "e2e", "owner=tom").code == 2
    assert work.run("scale", "e2e", "worker=-1").code == 2
    assert _ok(work.run("scale", "e2e", "worker=1")) == "default/e2e worker: 1 replica\n"
    assert _ok(work.run("suspend", "e2e")) == "default/e2e is suspended\n"
    assert _ok(work.run("resume", "e2e")) == "default/e2e is resumed\n"
    _ok(work.run("wait", "--for", "running", "--timeout", "60s", "e2e"))
    assert _ok(work.run("delete", "e2e")) == "default/e2e deleted\n"


def test_commands_about_jobs_do_not_need_the_private_socket(process: Workspace) -> None:
    engine = _start(process)
    assert stat.S_IMODE((engine / "api.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE(engine.stat().st_mode) == 0o700
    (engine / "engine.sock").rename(engine / "elsewhere")
    assert process.run("status").code == 3  # a question about the engine itself
    _check_commands(process)
    (engine / "elsewhere").rename(engine / "engine.sock")
    _ok(process.run("down"))
    assert not (engine / "api.sock").exists()


def test_an_engine_without_an_api_is_asked_through_the_private_socket(process: Workspace) -> None:
    engine = _start(process)
    os.kill(read_pid(engine / "lock"), signal.SIGKILL)
    until(lambda: not is_live(engine / "lock"))
    assert (engine / "api.sock").is_socket()  # the socket of the killed engine
    _ok(process.run("up", "--no-api"))
    assert not (engine / "api.sock").exists()
    _check_commands(process)
    _ok(process.run("down"))


def test_a_killed_engine_does_not_keep_the_next_one_from_its_socket(process: Workspace) -> None:
    engine = _start(process)
    os.kill(read_pid(engine / "lock"), signal.SIGKILL)
    until(lambda: not is_live(engine / "lock"))
    _ok(process.run("up"))
    (engine / "engine.sock").rename(engine / "elsewhere")
    assert "Running" in _ok(process.run("get"))
    (engine / "elsewhere").rename(engine / "engine.sock")
    _ok(process.run("down", "--end", "--grace", "1s"))


def test_a_stopped_engine_is_an_error_within_seconds(process: Workspace) -> None:
    engine = _start(process)
    pid = read_pid(engine / "lock")
    os.kill(pid, signal.SIGSTOP)
    try:
        for words in (("get",), ("get", "e2e"), ("delete", "e2e")):
            began = time.monotonic()
            done = process.run(*words)
            assert (done.code, time.monotonic() - began < 15) == (3, True), done.said
            assert f"process {pid} runs default/e2e, but the engine at " in done.err
            assert "is its process stopped (Ctrl-Z)?" in done.err
    finally:
        os.kill(pid, signal.SIGCONT)
    _ok(process.run("down", "--end", "--grace", "1s"))


@pytest.mark.parametrize("words", ["get", "get e2e", "annotate e2e a=b --overwrite", "explain e2e", "describe e2e"])
def test_these_commands_import_no_large_module(process: Workspace, words: str) -> None:
    _start(process)
    command = [sys.executable, "-c", _IMPORTS, *words.split()]
    done = subprocess.run(command, env=process.env, cwd=process.work, capture_output=True, text=True, check=True)
    assert "trainwright.kube.unix_connection" in done.stderr.split()
    assert not {"ssl", "http.client", "aiohttp", "asyncio"} & {*done.stderr.split()}
    _ok(process.run("down", "--end", "--grace", "1s"))


def test_odd_objects_of_a_client_end_neither_the_engine_nor_the_next_one(process: Workspace) -> None:
    """Everybody who may create pods may also write the labels and annotations that the engine reads."""
    engine = _start(process)
    with engine_client(engine / "api.sock", 10.0) as client:
        uid = client.get("genericjobs.batch.tensorstack.dev", ("default", "e2e"))["metadata"]["uid"]
        odd: dict[str, Body] = {
            "labelled": {"labels": {JOB_UID: uid, INDEX: "x"}},
            "placed": {"annotations": {ADDRESS: "nowhere"}},
        }
        container = {"name": "main", "image": "none", "command": ["true"]}
        for name, metadata in odd.items():
            spec = {"containers": [container], "restartPolicy": "Never"}
            metadata |= {"name": name, "namespace": "default"}
            client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        _ok(process.run("submit", job(role("worker", shell(_SCRIPT)), name="orphan")))
        _ok(process.run("wait", "--for", "running", "orphan"))
        client.delete("genericjobs.batch.tensorstack.dev", ("default", "orphan"), propagation="Orphan")
    os.kill(read_pid(engine / "lock"), signal.SIGKILL)
    until(lambda: not is_live(engine / "lock"))
    _ok(process.run("up"))
    _check_commands(process)
    _ok(process.run("down", "--end"))


def test_down_asks_what_happens_to_pods_without_a_job(process: Workspace) -> None:
    _ok(process.run("up", "--nodes", "1"))
    container = {"name": "main", "image": "python", "command": ["sh", "-c", "echo begun; exec sleep 1000"]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": "default"}}
    with engine_client(process.state / ".engine" / "api.sock", 60) as client:
        client.create("pods", {**body, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}})
        until(lambda: client.get("pods", ("default", "alone"))["status"]["phase"] == "Running")
    assert "1 without a job" in _ok(process.run("status"))
    refused = process.run("down")
    assert (refused.code, "1 pod without a job is unfinished" in refused.err) == (2, True), refused.said
    assert "1 pod without a job continues" in _ok(process.run("down", "--keep-running"))
    assert list(process.pids("sleep 1000"))
    _ok(process.run("up", "--nodes", "1"))
    assert "1 pod without a job ended" in _ok(process.run("down", "--end"))
    assert not list(process.pids("sleep 1000"))
