# SPDX-License-Identifier: Apache-2.0
"""For all tests: no event loop that nobody closes, no test that fails because the machine is busy, figures at the end.

looptime asks for a loop where a test is not asynchronous; hypothesis would hold each example against a deadline.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import threading

import pytest
from hypothesis import settings

LEASES = "TRAINWRIGHT_LEASES"
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Forget the loop that a plug-in's import may have made; keep the devices of this process to its tests.

    A shell starts what it puts into the background (`make test &`) deaf to Ctrl-C, and every process below inherits it.
    """
    asyncio.set_event_loop(None)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
    os.environ[LEASES] = tempfile.mkdtemp(prefix="trainwright-leases-")
    # Some machines set it for everybody; a user's machine does not, and buffers hide and show different defects.
    os.environ.pop("PYTHONUNBUFFERED", None)


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(os.environ[LEASES], ignore_errors=True)


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
