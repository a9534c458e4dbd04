# SPDX-License-Identifier: Apache-2.0
"""A stage for each end-to-end test, in one runtime or in both, which must be empty when the test is over.

A plugin of the tests beside it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_stage import Stage, until
from e2e_traces import links

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_TRY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(os.strerror(ctypes.get_errno()) if libc.unshare(int(sys.argv[1])) else 0)
"""


def _sandbox() -> str:
    """Why this machine has no sandbox; nothing if it has. Not our own code's word for it."""
    flags = _NEWNS | _NEWPID | _NEWNET | (_NEWUSER if os.geteuid() else 0)
    if sys.platform != "linux":
        return "it needs Linux"
    words = [sys.executable, "-c", _TRY, str(flags)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


@pytest.fixture(scope="session")
def no_sandbox() -> str:
    return _sandbox()


def _stage(folder: Path, runtime: str, why: str) -> Iterator[Stage]:
    if runtime == "sandbox" and why:
        pytest.skip(f"no namespaces are to be had here: {why}")
    made = Stage(folder, runtime)
    try:
        yield made
        if not made.live:  # or else the test failed, and says more
            until(lambda: not made.left(), what=f"nothing is left: {made.left()}")
            until(lambda: not links(), what=f"no link is left: {links()}")  # the kernel takes its time
    finally:
        made.close()


@pytest.fixture(params=["sandbox", "process"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, no_sandbox: str) -> Iterator[Stage]:
    """In both runtimes."""
    yield from _stage(tmp_path, request.param, no_sandbox)


@pytest.fixture
def sandbox(tmp_path: Path, no_sandbox: str) -> Iterator[Stage]:
    """Where only the sandbox can do it."""
    yield from _stage(tmp_path, "sandbox", no_sandbox)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Stage]:
    """Where the runtime does not matter, or only plain processes do it."""
    yield from _stage(tmp_path, "process", "")
