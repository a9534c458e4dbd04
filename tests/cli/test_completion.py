# SPDX-License-Identifier: Apache-2.0
"""What the shell offers after Tab: commands without an import of each, jobs, and the replicas of a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli.main import COMMANDS, run
from trainwright.cli.record import REPLICAS, RecordedPod, RunRecord
from trainwright.cli.state import job_folder, point_to
from trainwright.model.meta import Key


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path))
    for namespace, name, replicas in (("default", "demo", 2), ("default", "deep", 1), ("lab", "demo", 1)):
        folder = job_folder(tmp_path, Key(namespace, name)) / "20261117-120000-1"
        folder.mkdir(parents=True)
        point_to(folder.parent, folder.name)
        record = RunRecord(folder)
        for index in range(replicas):
            pod = f"{name}-worker-{index}"
            record.append(REPLICAS, RecordedPod(f"{namespace}/{name}", f"worker-{index}", pod, pod, ("main",)))
        record.flush()
    return tmp_path


def _complete(line: str, state: Path) -> list[str]:
    words = line.split(" ")
    env = {
        **os.environ,
        "TRAINWRIGHT_STATE": str(state),
        "_TRAINWRIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([sys.executable, "-m", "trainwright"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("trainwright su", ["submit", "suspend"]),
        ("trainwright get ", ["deep", "demo", "lab/demo"]),
        ("trainwright get de", ["deep", "demo"]),
        ("trainwright get deep de", ["demo"]),
        ("trainwright get -n lab ", ["demo"]),
        ("trainwright logs default/demo ", ["worker-0", "worker-1"]),
        ("trainwright exec lab/demo w", ["worker-0"]),
        ("trainwright logs nothing ", []),
        ("trainwright delete x", []),
        ("trainwright get --context production de", []),
        ("trainwright logs --kubeconfig file demo w", []),
        ("trainwright logs --fol", ["--follow"]),
        ("trainwright convert --to gen", ["genericjob"]),
        ("trainwright convert --l", ["--lossy"]),
    ],
)
def test_names_after_tab(line: str, offered: list[str], state: Path) -> None:
    assert _complete(line, state) == offered


def test_every_command_is_offered(state: Path) -> None:
    assert _complete("trainwright ", state) == list(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert f"_TRAINWRIGHT_COMPLETE={shell}_complete" in capsys.readouterr().out
