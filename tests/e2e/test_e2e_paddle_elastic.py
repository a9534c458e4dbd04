# SPDX-License-Identifier: Apache-2.0
"""An elastic PaddleJob with PaddlePaddle's own elastic launcher and a real etcd: workers come and go, and are killed.

`make test-paddle` runs it; nothing else does. Plain processes, since they all reach an etcd on this machine.
"""

import base64
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_binaries import MissingError, find
from cluster_process import Process
from e2e_workspace import EXAMPLES, RunningCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]
pytestmark = pytest.mark.paddle

PATIENCE = 180.0
Record = Callable[[str, object], None]
NP = "/paddle/default-elastic/np"
POD = "spec.worker.template.spec"
MAIN = f"{POD}.containers[paddle]"


class Etcd:
    """A real one, of this test alone."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            here, peers = (f"127.0.0.1:{place.getsockname()[1]}" for place in (one, other))
        self.place = here
        words = [find("etcd")["etcd"], "--unsafe-no-fsync", f"--data-dir={folder / 'etcd'}", "--log-level=error"]
        words += [f"--listen-client-urls=http://{here}", f"--advertise-client-urls=http://{here}"]
        self.process = Process("etcd", [*words, f"--listen-peer-urls=http://{peers}"], folder / "etcd.log")

    def ask(self, verb: str, **body: str) -> dict[str, Any]:
        coded = {key: base64.b64encode(text.encode()).decode() for key, text in body.items()}
        url = f"http://{self.place}/v3/kv/{verb}"
        with urllib.request.urlopen(url, json.dumps(coded).encode(), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def up(self) -> bool:
        with suppress(OSError):
            return bool(self.ask("range", key=NP))
        return False

    @property
    def np(self) -> str:
        return base64.b64decode(self.ask("range", key=NP)["kvs"][0]["value"]).decode()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    try:
        made = Etcd(tmp_path)
    except MissingError as error:
        pytest.skip(str(error))
    made.process.start()
    try:
        until(made.up, "etcd answers")
        yield made
    finally:
        made.process.kill()


def started(workspace: Workspace, etcd: Etcd) -> RunningCommand:
    """The example with its checkpoints and its logs in a folder of the test."""
    saved = workspace.folder / "checkpoints"
    saved.mkdir()
    volume = json.dumps({"name": "checkpoints", "hostPath": {"path": str(saved)}})
    changes = [f"{POD}.volumes[checkpoints]={volume}", f"{MAIN}.volumeMounts[checkpoints].mountPath={saved}"]
    given = {"CHECKPOINTS": str(saved), "STEPS": "200"}
    given["PADDLE_LOG_DIR"] = str(workspace.folder / "$(POD)")
    changes += [f"{MAIN}.env[{name}].value='{value}'" for name, value in given.items()]
    words = [word for change in changes for word in ("--set", change)]
    path = os.pathsep.join([str(Path(sys.prefix) / "paddle" / "bin"), workspace.env["PATH"]])
    file = str(EXAMPLES / "paddlejob" / "elastic.yaml")
    return workspace.start("run", "--etcd-server", etcd.place, *words, file, env=workspace.env | {"PATH": path})


def steps(said: str, size: int) -> list[int]:
    """Which steps were made by so many workers, as worker 0 says."""
    return [int(step) for step in re.findall(rf"worker-0 \| step +(\d+)/200 .* by {size} workers", said)]


def grows(run: RunningCommand, size: int) -> int:
    """Wait until so many workers have made more steps than anybody had; the last one."""
    known = max([0, *steps(run.said, 2), *steps(run.said, 3)])
    deadline = time.monotonic() + PATIENCE
    while max([0, *steps(run.said, size)]) <= known:
        assert time.monotonic() < deadline, run.said
        assert run.process.poll() is None, run.said
        time.sleep(0.1)
    return max(steps(run.said, size))


def processes(workspace: Workspace, address: str) -> list[int]:
    """Those of the pod at this address."""
    found = []
    for pid in workspace.pids("-uc"):
        with suppress(OSError):
            if f"POD_IP={address}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def test_a_job_of_three_goes_on_with_two_and_three_and_a_worker_that_is_killed_joins_again(
    process: Workspace, etcd: Etcd, record_property: Record
) -> None:
    etcd.ask("put", key=NP, value="3")  # as a launcher before 2.3 keeps it
    run = started(process, etcd)
    grows(run, 3)

    assert process.run("scale", "elastic", "worker=2").code == 0
    until(lambda: etcd.np == "2", "its old launchers would know")
    grows(run, 2)
    assert process.run("scale", "elastic", "worker=3").code == 0
    until(lambda: etcd.np == "3", "its old launchers would know")
    grows(run, 3)

    address = re.findall(r"worker-1 \| .* Host ip reset to (\S+)", run.said)[0]
    victims = processes(process, address)
    assert len(victims) == 2, victims  # the launcher and what it launched
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    grows(run, 3)
    done = run.end(PATIENCE)

    assert done.code == 0, done.said
    assert "Scaled: scaled replicas to 2" in done.out
    assert "Scaled: scaled replicas to 3" in done.out
    assert re.search(r"worker-1  Running .* restart 1", done.out), done.out  # in place, as restartPolicy says
    begins = [int(step) for step in re.findall(r"worker-0 \| process \d+ is worker 0 of \d, from step (\d+)", done.out)]
    assert begins[0] == 0
    assert begins == sorted(begins)
    assert len(set(begins)) >= 4  # at the start, and after each of three changes
    losses = [float(loss) for loss in re.findall(r"worker-0 \| step .* loss ([\d.]+)", done.out)]
    assert losses[0] > 1
    assert losses[-1] < 0.01
    record_property("figure", f"PaddlePaddle, elastic 3 → 2 → 3 → killed: loss {losses[0]:.4f} → {losses[-1]:.4f}")
    shutil.rmtree(process.home / ".cache", ignore_errors=True)  # not ours, but left in the home of a plain process
