# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes, no test that fails because the machine is busy, figures at the end.
And no decision that does I/O, in this process or in one that a test starts.

looptime asks for a loop where a test is not asynchronous; hypothesis would hold each example against a deadline.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from trainwright.runtime import purity

LEASES = "TRAINWRIGHT_LEASES"
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Forget the loop that a plug-in's import may have made; keep the devices of this process to its tests."""
    asyncio.set_event_loop(None)
    os.environ[LEASES] = tempfile.mkdtemp(prefix="trainwright-leases-")
    os.environ[purity.VARIABLE] = _violations()
    purity.enforce()


def _violations() -> str:
    """A file that processes of any user can append to: some tests start programs as another one."""
    folder = Path(tempfile.mkdtemp(prefix="trainwright-purity-"))
    folder.chmod(0o711)
    file = folder / "violations"
    file.touch()
    file.chmod(0o666)
    return str(file)


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(os.environ[LEASES], ignore_errors=True)
    shutil.rmtree(Path(os.environ[purity.VARIABLE]).parent, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test during which a decision did I/O."""
    try:
        return (yield)
    finally:
        _check_purity()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """The same for processes that end with the test."""
    try:
        return (yield)
    finally:
        _check_purity()


def _check_purity() -> None:
    file = Path(os.environ[purity.VARIABLE])
    if file.stat().st_size:
        found = file.read_text()
        os.truncate(file, 0)
        pytest.fail(f"a decision did I/O:\n{found}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have measured by the way, each as a property called `figure`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    for report in reports:
        for name, figure in report.user_properties if report.when == "call" else ():
            if name == "figure":
                terminalreporter.write_line(f"FIGURE: {figure}")
