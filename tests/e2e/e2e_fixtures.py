# SPDX-License-Identifier: Apache-2.0
"""A workspace for each end-to-end test, in one runtime or in both. Nothing of it may be left after the test.

A plugin of the tests beside it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_traces import links
from e2e_workspace import Workspace, until

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_TRY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(os.strerror(ctypes.get_errno()) if libc.unshare(int(sys.argv[1])) else 0)
"""


def _sandbox() -> str:
    """Why this machine cannot create namespaces; empty if it can. Does not rely on our own code."""
    flags = _NEWNS | _NEWPID | _NEWNET | (_NEWUSER if os.geteuid() else 0)
    if sys.platform != "linux":
        return "it needs Linux"
    words = [sys.executable, "-c", _TRY, str(flags)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


@pytest.fixture(scope="session")
def no_sandbox() -> str:
    return _sandbox()


def _workspace(folder: Path, runtime: str, why: str) -> Iterator[Workspace]:
    if runtime == "sandbox" and why:
        pytest.skip(f"this machine cannot create namespaces: {why}")
    made = Workspace(folder, runtime)
    try:
        yield made
        if not made.live:  # otherwise the test has failed and reports more
            until(lambda: not made.left(), what=f"nothing is left: {made.left()}")
            until(lambda: not links(), what=f"no link is left: {links()}")  # the kernel removes links asynchronously
    finally:
        made.close()


@pytest.fixture(params=["sandbox", "process"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, no_sandbox: str) -> Iterator[Workspace]:
    """In both runtimes."""
    yield from _workspace(tmp_path, request.param, no_sandbox)


@pytest.fixture
def either(tmp_path: Path, no_sandbox: str) -> Iterator[Workspace]:
    """In the sandbox if this machine can have one, for tests that take long."""
    yield from _workspace(tmp_path, "process" if no_sandbox else "sandbox", "")


@pytest.fixture
def sandbox(tmp_path: Path, no_sandbox: str) -> Iterator[Workspace]:
    """For tests that need the sandbox runtime."""
    yield from _workspace(tmp_path, "sandbox", no_sandbox)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Workspace]:
    """For tests that do not depend on the runtime, or need the process runtime."""
    yield from _workspace(tmp_path, "process", "")
