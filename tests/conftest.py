# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes, no test that fails because the machine is busy, figures at the end.
And no decision that does I/O, in this process or in one that a test starts.

looptime asks for a loop where a test is not asynchronous; hypothesis would hold each example against a deadline.
"""

import asyncio
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator
from itertools import groupby
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
    # Nor does it forbid bytecode. Without it, each worker rewrites the assertions of all tests, which takes 12 seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
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


#: Begun first: it takes longer than any other test, and would run alone if it began last.
_LONGEST = "test_e2e_soak.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the modules whose tests wait for whole jobs evenly among the others.

    Each worker begins with an equal part of the list. So some workers wait for processes while others compute, from
    the beginning to the end, and no processor is idle. Modules stay together, because of their fixtures.
    """
    modules = [[*group] for _, group in groupby(items, key=lambda item: item.path)]
    waiting = [module for module in modules if module[0].path.parent.name == "e2e"]
    waiting.sort(key=lambda module: module[0].path.name != _LONGEST)
    others = [module for module in modules if module[0].path.parent.name != "e2e"]
    items[:] = [item for module in _spread(waiting, others) for item in module]


def _spread(some: list[list[pytest.Item]], others: list[list[pytest.Item]]) -> list[list[pytest.Item]]:
    """One of some, then its share of the others, and so on."""
    placed = [(index / max(len(some), 1), 0, module) for index, module in enumerate(some)]
    placed += [(index / max(len(others), 1), 1, module) for index, module in enumerate(others)]
    return [module for _, _, module in sorted(placed, key=lambda one: one[:2])]


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore the tests themselves: half a million objects that live until the end."""
    gc.freeze()


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
