# SPDX-License-Identifier: Apache-2.0
"""The same faults, run for real on this machine and simulated: the same phases, attempts, outcome and verdict."""

import json
import os
import signal
from collections.abc import Iterable
from itertools import dropwhile, groupby
from pathlib import Path

import pytest
import yaml
from run_command import CommandRunner, LiveRun, wait
from simulated import Body, Simulated, generic, paddle, tensorflow, training

from trainwright.kinds.registry import KINDS

#: What each replica does until the test lets it end. The one that gets the file `fail` fails.
PROGRAM = "echo up; until [ -e go ]; do if rm fail 2>/dev/null; then {}; fi; sleep 0.02; done"
#: How a replica fails. `$$$$` in a manifest is `$$` for the shell: its own process.
FAILURES = {"killed": ("kill -9 $$$$", 137), "exit 1": ("exit 1", 1)}
#: In these parts, a verdict of the simulation differs: only an engine on this machine knows signals for sure.
DIFFERENT = ("at", "node", "signal")
#: An engine writes these phases later, and not at all if the next one follows soon.
DEFERRED = {phase for kind in KINDS for phase in kind.deferrable}
JOBS = {
    "GenericJob": generic(2),
    "TFJob": tensorflow("ExitCode"),
    "PaddleJob": paddle(2, elastic=False),
    "AITrainingJob": training("All", "OnFailure"),
}
#: Each kind has all faults; the two ways to fail are divided between the kinds.
SCENARIOS = [(kind, fault) for kind in JOBS for fault in ("node lost", "suspended")] + [
    ("GenericJob", "killed"),
    ("TFJob", "killed"),
    ("PaddleJob", "exit 1"),
    ("AITrainingJob", "exit 1"),
]


class RealJob:
    """A job that runs on this machine, as a program sees it that reads `trainwright run -o json`."""

    def __init__(self, run: LiveRun, runner: CommandRunner) -> None:
        self._run, self._runner = run, runner

    def news(self, kind: str) -> list[Body]:
        """The lines of this type so far."""
        lines = [json.loads(line) for line in self._run.text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["type"] == kind]

    def until_running(self, count: int) -> None:
        """Wait until programs have started so many times and the whole job runs, or until the job has ended."""
        wait(lambda: bool(self.news("end")) or (self._ups() >= count and self._phases() == {"Running"}))

    def _ups(self) -> int:
        return sum(one["text"] == "up" for one in self.news("log"))

    def _phases(self) -> set[str]:
        """The phases of the job and of its replicas now."""
        now = {one["replica"]: one["phase"] for one in self.news("replica")}
        return {*now.values(), *(one["phase"] for one in self.news("job")[-1:])}

    def kill_node_of(self, replica: str) -> None:
        """Kill the agent of the node of a replica. It is a child of the run."""
        node = next(one["node"] for one in self.news("replica") if one["replica"] == replica and one["node"])
        children = Path(f"/proc/{self._run.pid}/task/{self._run.pid}/children").read_text().split()
        (agent,) = (one for one in children if f'"node":"{node}"' in Path(f"/proc/{one}/cmdline").read_text())
        os.kill(int(agent), signal.SIGKILL)

    def suspend_and_resume(self) -> None:
        assert self._runner.call("suspend", "demo").returncode == 0
        wait(lambda: any(one["reason"].endswith("Suspended") for one in self.news("event")))
        assert self._runner.call("resume", "demo").returncode == 0

    def end(self) -> Body:
        """Let the programs end. Return what the status remembers of the job."""
        (self._runner.folder / "go").touch()
        self._run.end()
        (body,) = yaml.safe_load_all((self._runner.latest() / "status.yaml").read_text())
        found: Body = body["status"]["trainwright"]
        return found


def replica(one: Body) -> str:
    return f"{one['role']}-{one['index']}"


def comparable(verdict: Body) -> Body:
    """The verdict without what differs. Messages about a lost node or a signal have the node and the signal."""
    found = {key: value for key, value in verdict.items() if key not in DIFFERENT}
    return found | ({"message": ""} if found.get("class") in ("NodeLost", "Killed") else {})


def since_running(phases: Iterable[str]) -> list[str]:
    written = (phase for phase, _ in groupby(phases) if phase not in DEFERRED)
    return list(dropwhile(lambda phase: phase != "Running", written))


def is_part(part: list[str], whole: list[str]) -> bool:
    """Whether all of these are in the other list, in the same order."""
    left = iter(whole)
    return all(one in left for one in part)


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulated:
    return Simulated(tmp_path, capsys)


@pytest.mark.parametrize(("kind", "fault"), SCENARIOS)
def test_reality_is_as_simulated(tmp_path: Path, simulate: Simulated, kind: str, fault: str) -> None:
    failing, code = FAILURES.get(fault, ("exit 1", 1))
    program = json.dumps(["sh", "-c", PROGRAM.format(failing)])
    manifest = json.loads(json.dumps(JOBS[kind]).replace('["train"]', program))
    nodes = {replica(one): one["node"] for one in simulate.json(manifest)["attempts"]}
    hit = list(nodes)[-1]
    runner = CommandRunner(tmp_path)
    with runner.live(manifest, args=("-o", "json", "--nodes", str(len(nodes)))) as run:
        job = RealJob(run, runner)
        job.until_running(len(nodes))
        if fault == "node lost":
            job.kill_node_of(hit)
        elif fault == "suspended":
            job.suspend_and_resume()
        else:
            (tmp_path / "fail").touch()
        job.until_running(len(nodes) + 1)
        ledger = job.end()

    failed = next((one["replica"] for one in ledger["history"]["attempts"] if "replica" in one), hit)
    special = {"node lost": ["--lose-node", f"{nodes[hit]}@1m"], "suspended": ["--suspend", "1m+1m"]}
    found = simulate.json(manifest, *special.get(fault, ["--fail", f"{failed}={code}@1m"]))
    (end,) = job.news("end")
    assert end["outcome"] == found["end"]["result"]
    attempts = {one["replica"]: one["attempt"] for one in job.news("replica")}
    assert attempts == {replica(one): one["attempt"] for one in found["attempts"]}
    assert comparable(ledger["verdict"]) == comparable(found["end"]["verdict"])
    assert set(ledger["history"]["lost"]) == set(found["time"]["lost"])
    real = since_running(one["phase"] for one in job.news("job"))
    assert is_part(real, since_running(one["phase"] for one in found["phases"]))
    assert is_part(since_running(one["phase"] for one in found["phases"] if one["end"] != one["start"]), real)
