# SPDX-License-Identifier: Apache-2.0
"""The workspace of an end-to-end test: its folders, and the real `trainwright` command in them.

`e2e_fixtures` makes one per test. `run` waits for a command, `start` runs it in the background. `left` lists what must
not remain after a test: processes, mounts, files outside the state folder.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import e2e_traces as traces
from e2e_jobs import Body
from msgspec import Struct

from patience import PATIENCE
from trainwright.cli.state import is_live
from trainwright.runtime import purity

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


class FinishedCommand(Struct):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def items(self) -> list[dict[str, Any]]:
        """The lines of `-o json`."""
        return [json.loads(line) for line in self.out.splitlines()]


def until(true: Callable[[], Any], what: str = "", patience: float = PATIENCE) -> Any:
    """Wait until the condition holds, and return its value."""
    deadline = time.monotonic() + patience
    while True:
        began = time.monotonic()
        if found := true():
            return found
        now = time.monotonic()
        assert now < deadline, f"waited in vain for: {what or true}"
        # Some conditions run a command or read all of /proc: the processes that the test waits for need the CPU more.
        time.sleep(max(0.02, now - began))


class RunningCommand:
    """A command in the background; its output goes to files."""

    def __init__(self, words: list[str], out: Path, **how: Any) -> None:
        self._out, self._err = out.with_suffix(".out"), out.with_suffix(".err")
        with self._out.open("wb") as to, self._err.open("wb") as errors:
            self.process = subprocess.Popen(words, stdout=to, stderr=errors, **how)
        self.pid = self.process.pid

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace") + self._err.read_text(errors="replace")

    def until(self, text: str) -> None:
        """Wait until the output contains this text."""
        try:
            until(lambda: text in self.said or self.process.poll() is not None)
        finally:
            assert text in self.said, f"{text!r} is not in: {self.said}"

    def until_connected(self) -> None:
        """Wait until the command has a connection, such as that to its engine."""
        until(lambda: any("socket:" in file for file in traces.open_files(self.pid)), f"a connection of {self.pid}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, patience: float = PATIENCE) -> FinishedCommand:
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said}") from None
        return FinishedCommand(code, self._out.read_text(errors="replace"), self._err.read_text(errors="replace"))


class Workspace:
    """Folders of one test, and the command in them."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self.folder = folder
        self.runtime = runtime
        self.state = folder / "state"
        self.work, self.home, self.tmp = folder / "work", folder / "home", folder / "tmp"
        for one in (self.work, self.home, self.tmp):
            one.mkdir()
        #: The Python interpreter itself comes before a shim such as pyenv; the rest of our environment is not passed.
        path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ.get("PATH", os.defpath)])
        self.env = {"PATH": path, "HOME": str(self.home), "TMPDIR": str(self.tmp), "LANG": "C.UTF-8"}
        #: Each test has its own device leases, so that parallel tests do not wait for each other.
        self.leases = folder / "leases"
        self.leases.mkdir()
        self.leases.chmod(0o1777)
        self.env |= {"TRAINWRIGHT_STATE": str(self.state), "TRAINWRIGHT_LEASES": str(self.leases)}
        self.env[purity.VARIABLE] = os.environ[purity.VARIABLE]
        #: Arguments before the command, such as `unshare --mount`.
        self.before: list[str] = []
        self._lives: list[RunningCommand] = []
        self._count = 0

    # -- commands --------------------------------------------------------------------------------------------------

    def write(self, *bodies: Body, name: str = "") -> str:
        """Write these documents into a file and return its path."""
        self._count += 1
        path = self.folder / (name or f"{self._count}.yaml")
        path.write_text("\n---\n".join(json.dumps(body) for body in bodies))
        return str(path)

    def words(self, *words: str | Body) -> list[str]:
        """The argument list. A manifest is written to a file; `run` and `up` get the runtime of the test."""
        texts = [self.write(word) if isinstance(word, dict) else word for word in words]
        if texts[0] in ("run", "up") and not {"--runtime", "--detach"} & set(texts):
            texts[1:1] = ["--runtime", self.runtime]
        return [*self.before, sys.executable, "-m", "trainwright", *texts]

    def run(self, *words: str | Body, given: str = "", env: dict[str, str] | None = None) -> FinishedCommand:
        """Run a command to its end."""
        how = {"cwd": self.work, "env": self.env | (env or {}), "timeout": PATIENCE, "check": False}
        done = subprocess.run(self.words(*words), input=given, capture_output=True, text=True, **how)  # type: ignore[call-overload]  # noqa: PLW1510 - it is among them
        return FinishedCommand(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str | Body, **how: Any) -> RunningCommand:
        """Start a command in the background."""
        self._count += 1
        how = {"cwd": self.work, "env": self.env, "stdin": subprocess.DEVNULL, **how}
        self._lives.append(RunningCommand(self.words(*words), self.folder / f"live-{self._count}", **how))
        return self._lives[-1]

    # -- what there is of a run ------------------------------------------------------------------------------------

    def folder_of(self, name: str = "e2e", namespace: str = "default") -> Path:
        return (self.state / namespace / name / "latest").resolve()

    def pids(self, text: str = "") -> dict[int, str]:
        """Processes of this test whose arguments contain the text."""
        return {pid: words for pid, words in traces.processes(str(self.folder)).items() if text in words}

    def pid(self, text: str) -> int:
        """Wait for the one process whose arguments contain the text, and return its ID."""
        found: dict[int, str] = until(lambda: self.pids(text), f"a process with {text!r}")
        assert len(found) == 1, found
        return next(iter(found))

    # -- the end ---------------------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """What a run must not leave behind."""
        found = [f"process {pid}: {words}" for pid, words in self.pids().items()]
        found += [f"mount {line}" for line in traces.mounts(str(self.folder))]
        return found + [f"file {path}" for one in (self.home, self.tmp) for path in one.rglob("*")]

    @property
    def live(self) -> bool:
        """Whether a command that was started has not ended, or a background engine runs."""
        return any(live.process.poll() is None for live in self._lives) or is_live(self.state / ".engine" / "lock")

    def close(self) -> None:
        """Kill all commands and processes; also after a failed test."""
        for live in self._lives:
            if live.process.poll() is None:
                live.process.kill()
                live.process.wait()
        traces.end(str(self.folder))
