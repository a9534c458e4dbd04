# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes, no test that fails because the machine is busy, figures at the end.
And no decision that does I/O, in this process or in one that a test starts.

looptime asks for a loop where a test is not asynchronous; hypothesis would hold each example against a deadline.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from trainwright.runtime import purity

LEASES = "TRAINWRIGHT_LEASES"
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Forget the loop that a plug-in's import may have made; keep the devices of this process to its tests.

    A shell starts what it puts into the background (`make test &`) deaf to Ctrl-C, and every process below inherits it.
    """
    asyncio.set_event_loop(None)
    defaults = {signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}  # `nohup make test` ignores SIGHUP
    for number, handler in ((signal.SIGINT, signal.default_int_handler), *defaults.items()):
        if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
    os.environ[LEASES] = tempfile.mkdtemp(prefix="trainwright-leases-")
    # Some machines set it for everybody; a user's machine does not, and buffers hide and show different defects.
    os.environ.pop("PYTHONUNBUFFERED", None)
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that wait for whole jobs: at the end of the run, they would leave processors idle."""
    items.sort(key=lambda item: item.path.parent.name != "e2e")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each CPU: most of the time a test waits for processes that it has started."""
    return 2 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2 * (os.cpu_count() or 1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have measured by the way, each as a property called `figure`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    for report in reports:
        for name, figure in report.user_properties if report.when == "call" else ():
            if name == "figure":
                terminalreporter.write_line(f"FIGURE: {figure}")
