# SPDX-License-Identifier: Apache-2.0
"""Folders for root and for an ordinary user, a registry, and an environment without credentials of this machine."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_server import RunningRegistry, running
from sandboxed import NOBODY, unavailable

from trainwright.images.store import ImageStore
from trainwright.images.unpack.trees import remove_tree

_VARIABLES = ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "XDG_CACHE_HOME")


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> str:
    reason = unavailable(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def place(who: str) -> Iterator[Path]:
    """A folder of that user."""
    path = Path(tempfile.mkdtemp(prefix="trainwright-images-"))
    path.chmod(0o755)
    if who == "user" and os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    remove_tree(str(path))


@pytest.fixture
def registry() -> Iterator[RunningRegistry]:
    with running() as one:
        yield one


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    """An empty store; the home folder of the test has no credentials."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINWRIGHT_IMAGES", str(tmp_path / "images"))
    made = ImageStore(tmp_path / "images")
    made.prepare()
    return made
