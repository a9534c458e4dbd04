# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for tests, run by root and by an unprivileged user."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxed import NOBODY, Sandboxed, unavailable


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> str:
    reason = unavailable(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def folder(who: str) -> Iterator[Path]:
    """A folder of the user in /tmp, which pods do not see, so that no test passes by accident."""
    path = Path(tempfile.mkdtemp(prefix="trainwright-sandbox-"))
    path.chmod(0o755)
    if who == "user" and os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def box(who: str, folder: Path) -> Iterator[Sandboxed]:
    one = Sandboxed(folder, who)
    try:
        one.ready()
        yield one
    finally:
        one.end()
