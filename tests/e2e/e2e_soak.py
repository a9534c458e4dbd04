# SPDX-License-Identifier: Apache-2.0
"""Kills the background engine, its agents and its supervisors at random while real jobs run, and checks what is left.

Run it with `make soak`; a test runs a short one. A witness records what really happened: every replica locks a file of
its own while it runs, so that a second process of the same replica cannot hide, and appends a line when it starts.

Checked after every restart of the engine: every acknowledged write is present, also of the clients that write through
the Kubernetes API when the engine is killed (`e2e_writers`). Checked at the end: every job has the outcome that its
rules demand, no replica ran twice at the same time, and no process is left.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from e2e_jobs import Body, container, job, role
from e2e_workspace import Workspace, until
from e2e_writers import ApiWriters
from msgspec import Struct

from trainwright.cli.state import API_SOCKET, is_live
from trainwright.errors import TrainwrightError
from trainwright.local.sockets.blocking import BlockingClient

_PATIENCE_SECONDS = 240.0
#: The number of clients that write through the Kubernetes API.
_WRITERS = 4
#: A long soak shows its progress after this many kills.
_REPORT_KILLS = 50
#: The program of each replica: lock, write a line, work, and end as its plan says: the exit code of each start.
_REPLICA = """
import fcntl, os, sys, time
folder, seconds, codes = sys.argv[1], float(sys.argv[2]), [int(word) for word in sys.argv[3].split(",")]
me = os.environ["WHO"]
lock = os.open(f"{folder}/{me}.lock", os.O_RDWR | os.O_CREAT, 0o600)
def say(text):
    with open(f"{folder}/{me}.lines", "a") as file:
        file.write(f"{text} {os.getpid()} {time.time():.3f}\\n")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    say("duplicate")
    sys.exit(99)
say("start")
end = time.time() + seconds
number = 0
while time.time() < end:
    print("line", number, flush=True)
    number += 1
    time.sleep(0.05)
done = sum(line.startswith("exit ") for line in open(f"{folder}/{me}.lines"))
code = codes[min(done, len(codes) - 1)]
say("exit")
sys.exit(code)
"""


class SoakPlan(Struct, frozen=True):
    """One kind of job: the exit codes of the starts of each replica, its allowed restarts, and its outcome."""

    name: str
    codes: str
    restarts: int
    outcome: str


#: A replica that was killed with its node has not said `exit`, and its next start has the same plan.
PLANS = (
    SoakPlan("well", "0", 0, "Succeeded"),
    SoakPlan("again", "3,3,0", 5, "Succeeded"),
    SoakPlan("never", "7", 2, "Failed"),
)


class Soak:
    """One soak: jobs, kills and checks in one workspace."""

    def __init__(self, work: Workspace, seed: int, nodes: int) -> None:
        self._work, self._seed, self._nodes = work, seed, nodes
        self._random = random.Random(seed)  # noqa: S311 - a test, no secret
        self._engine = work.state / ".engine"
        self._witness = work.folder / "witness"
        self._witness.mkdir()
        self._program = work.folder / "replica.py"
        self._program.write_text(_REPLICA)
        self._jobs: dict[str, SoakPlan] = {}
        #: The last acknowledged value of the annotation of each job.
        self._acknowledged: dict[str, int] = {}
        self.kills: Counter[str] = Counter()
        self.restarts: list[float] = []
        self.writers: ApiWriters | None = None
        self._next_report = _REPORT_KILLS

    def run(self, kills: int, jobs: int) -> None:
        """Run so many jobs at the same time until so many kills have happened, then check everything."""
        self._up()
        self.writers = writers = ApiWriters(self._engine / API_SOCKET, _WRITERS, self._seed)
        try:
            while sum(self.kills.values()) < kills:
                self._submit_up_to(jobs)
                self._write_some()
                time.sleep(self._random.uniform(0.1, 1.2))
                self._kill_one()
                writers.check()
                self._show_progress()
            self._up_if_down()
        finally:
            writers.stop()
        writers.compare()
        for name in self._jobs:
            self._wait_ended(name)
        self._check_end()
        assert self._work.run("down").code == 0
        left = [one for one in self._work.left() if one.startswith("process")]
        assert not left, left

    def _show_progress(self) -> None:
        number = sum(self.kills.values())
        if number >= self._next_report:
            self._next_report = number + _REPORT_KILLS
            print(self.report(), flush=True)

    # -- the engine ------------------------------------------------------------------------------------------------

    def _up(self) -> None:
        began = time.monotonic()
        # Every job is checked until the end, so the engine must remove none of them.
        done = self._work.run("up", "--nodes", str(self._nodes), "--keep-jobs", "100000")
        assert done.code == 0, done.said + self._log()
        self.restarts.append(time.monotonic() - began)

    def _up_if_down(self) -> None:
        if not is_live(self._engine / "lock"):
            self._up()
            self._check_writes()

    def _log(self) -> str:
        return (self._engine / "engine.log").read_text(errors="replace")[-4000:]

    def _client(self) -> BlockingClient:
        return BlockingClient(self._engine / "engine.sock", timeout=60)

    # -- jobs and writes -------------------------------------------------------------------------------------------

    def _submit_up_to(self, wanted: int) -> None:
        open_jobs = [name for name in self._jobs if self._outcome(name) is None]
        for _ in range(wanted - len(open_jobs)):
            plan = self._random.choice(PLANS)
            name = f"{plan.name}-{len(self._jobs)}"
            done = self._work.run("submit", self._job(name, plan))
            assert done.code == 0, done.said + self._log()
            self._jobs[name] = plan  # acknowledged: from now on the job must exist

    def _job(self, name: str, plan: SoakPlan) -> Body:
        seconds = f"{self._random.uniform(0.2, 4.0):.2f}"
        words = (sys.executable, str(self._program), str(self._witness), seconds, plan.codes)
        env = [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        return job(role("worker", container(*words, env=env), replicas=2, restarts=plan.restarts), name=name)

    def _write_some(self) -> None:
        """Set an annotation of some jobs. What the engine acknowledges must be there after any kill."""
        names = self._random.sample(sorted(self._jobs), min(3, len(self._jobs)))
        try:
            with self._client() as client:
                for name in names:
                    value = self._acknowledged.get(name, 0) + 1
                    body = {"metadata": {"annotations": {"soak": str(value)}}}
                    client.patch("genericjobs.batch.tensorstack.dev", ("default", name), body)
                    self._acknowledged[name] = value
        except TrainwrightError as error:  # the engine has ended by itself: that is a failure of the soak
            raise AssertionError(f"{error}; {self._log()}") from None

    def _check_writes(self) -> None:
        with self._client() as client:
            for name in self._jobs:
                body = client.get("genericjobs.batch.tensorstack.dev", ("default", name))
                value = int((body["metadata"].get("annotations") or {}).get("soak", 0))
                assert value >= self._acknowledged.get(name, 0), f"{name}: an acknowledged write is lost"

    # -- kills -----------------------------------------------------------------------------------------------------

    def _kill_one(self) -> None:
        what = self._random.choices(("engine", "agent", "supervisor"), (6, 3 if self._nodes > 1 else 0, 1))[0]
        marks = {"engine": "up --foreground", "agent": "agent_main", "supervisor": "supervisor.main"}
        found = sorted(self._work.pids(marks[what]))
        if not found:
            return
        if what == "engine" and self.writers is not None:
            self.writers.before_kill()
        os.kill(self._random.choice(found), signal.SIGKILL)
        self.kills[what] += 1
        if what == "engine":
            until(lambda: not is_live(self._engine / "lock"))
            time.sleep(self._random.choice((0.0, 0.0, 0.5, 2.0)))  # a gap in which replicas end unseen
            self._up()
            self._check_writes()

    # -- checks ----------------------------------------------------------------------------------------------------

    def _outcome(self, name: str) -> str | None:
        path = self._work.folder_of(name) / "run.json"
        try:
            info: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        endings = info.get("endings") or ()
        return str(endings[0]["outcome"]) if endings else None

    def _wait_ended(self, name: str) -> None:
        try:
            until(lambda: self._outcome(name), f"the end of {name}", _PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._work.run('describe', name).said}{self._log()}") from None

    def _check_end(self) -> None:
        wrong = {name: self._outcome(name) for name, plan in self._jobs.items() if self._outcome(name) != plan.outcome}
        assert not wrong, {name: self._work.run("describe", name).said for name in wrong}
        lines = [line for file in self._witness.glob("*.lines") for line in file.read_text().splitlines()]
        twice = [line for line in lines if line.startswith("duplicate")]
        assert not twice, twice
        alive = [line for line in lines if Path(f"/proc/{line.split()[1]}/environ").exists()]
        running = list(self._work.pids("replica.py"))
        assert not running, (running, alive)

    def report(self) -> str:
        """One line for people."""
        by_outcome = Counter(plan.outcome for plan in self._jobs.values())
        kills = ", ".join(f"{number} {what}s" for what, number in sorted(self.kills.items()))
        starts = sorted(self.restarts)
        middle = starts[len(starts) // 2]
        jobs = ", ".join(f"{number} {name}" for name, number in sorted(by_outcome.items()))
        writes = self.writers.report() if self.writers is not None else ""
        numbers = f"{sum(self.kills.values())} kills ({kills}); {len(self._jobs)} jobs ({jobs})"
        return f"{numbers}; {writes}; `up` took {middle:.2f} s"


def main() -> None:
    """Run a soak with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=8, help="the number of jobs at the same time")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--runtime", choices=("sandbox", "process"), default="process")
    given = parser.parse_args()
    os.environ.setdefault("TRAINWRIGHT_PURITY", "")
    with tempfile.TemporaryDirectory(prefix="trainwright-soak-") as folder:
        work = Workspace(Path(folder), given.runtime)
        soak = Soak(work, given.seed, given.nodes)
        print(f"seed {given.seed}, runtime {given.runtime}, {given.nodes} nodes", flush=True)
        try:
            soak.run(given.kills, given.jobs)
        finally:
            print(soak.report(), flush=True)
            work.close()
    print("no acknowledged write was lost, nothing ran twice, nothing is left, every job ended as its rules demand")


if __name__ == "__main__":
    main()
