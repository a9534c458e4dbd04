# SPDX-License-Identifier: Apache-2.0
"""The audit hook: I/O below a decision fails and is written down, everything else passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.runtime import purity

#: A pass over a job whose dialect does what a test says, as a program of its own: a hook cannot be removed.
PROGRAM = """
import ctypes, os, socket, subprocess, sys
from msgspec import Struct
from trainwright.core.reconcile import reconcile
from trainwright.model.child import Observed
from trainwright.model.site import Site
from trainwright.runtime import purity
from trainwright.testing.factories import NOW, PlainDialect, job

class Table(dict):
    def get(self, key, default=None):
        WORK

class Asks(PlainDialect):
    def pod(self, job, replica, site):
        site.host(job.key, replica.name)
        return super().pod(job, replica, site)

purity.enforce()
open(os.devnull).close()
site = Site(names_resolve=False, hosts=Table())
try:
    reconcile(job(dialect=Asks()), Observed(), site, NOW)
except CATCHES:
    pass
"""


def run(work: str, file: Path, catches: str = "ZeroDivisionError") -> tuple[int, str, str]:
    code = PROGRAM.replace("WORK", work).replace("CATCHES", catches)
    env = os.environ | {purity.VARIABLE: str(file)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("work", "event"),
    [
        pytest.param("open(os.devnull)", "open", id="a file"),
        pytest.param("socket.socket().bind(('127.0.0.1', 0))", "socket.", id="a socket"),
        pytest.param("subprocess.Popen(['true'])", "subprocess.Popen", id="a process"),
        pytest.param("os.listdir('.')", "os.listdir", id="a folder"),
        pytest.param("os.putenv('A', 'b')", "os.putenv", id="the environment"),
        pytest.param("ctypes.CDLL(None)", "ctypes.dlopen", id="C"),
        pytest.param("import this", "import", id="an import"),
    ],
)
def test_what_a_decision_may_not_do(tmp_path: Path, work: str, event: str) -> None:
    code, errors, written = run(work, tmp_path / "found")
    assert (code, "ImpureError" in errors) == (1, True)
    assert written.startswith(event)
    assert " in reconcile > Site.host (" in written.splitlines()[0]


def test_whoever_catches_it_does_not_hide_it(tmp_path: Path) -> None:
    code, _, written = run("open(os.devnull)", tmp_path / "found", catches="Exception")
    assert (code, written.startswith("open")) == (0, True)


def test_it_fails_also_where_nothing_can_be_written(tmp_path: Path) -> None:
    code, errors, _ = run("open(os.devnull)", tmp_path / "no" / "folder")
    assert (code, "ImpureError: open" in errors) == (1, True)


@pytest.mark.parametrize("work", ["return id(self)", "return eval('1+1')", "return str(sys._getframe())"])
def test_what_a_decision_may_do(tmp_path: Path, work: str) -> None:
    assert run(work, tmp_path / "found") == (0, "", "")


def test_the_garbage_collector_may_close_files_whenever_it_likes(tmp_path: Path) -> None:
    finalizer = "class T:\n            def __del__(self): open(os.devnull).close()\n        T()"
    assert run(finalizer, tmp_path / "found") == (0, "", "")


def test_it_is_on_in_these_tests() -> None:
    assert Path(os.environ[purity.VARIABLE]).is_file()


@pytest.mark.parametrize("program", ["trainwright", "trainwright.local.agent_main"])
def test_programs_that_tests_start_have_it(tmp_path: Path, program: str) -> None:
    code = f"""
import runpy, sys
sys.addaudithook(lambda event, args: print("hooked") if event == "sys.addaudithook" else None)
sys.argv = ["x", "--help"]
runpy.run_module({program!r}, run_name="__main__")
"""
    for file, hooked in ((str(tmp_path / "found"), True), ("", False)):
        env = os.environ | {purity.VARIABLE: file}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, input="", capture_output=True, text=True, check=False
        )
        assert ("hooked" in done.stdout) is hooked
