# SPDX-License-Identifier: Apache-2.0
"""Tests on a real control plane run when asked for (`make test-cluster`, `pytest tests/cluster`), not with the others.

Where its programs cannot be had, every test is skipped, and one line at the end says so; if `CI=true` it is an error.
"""

import os
from pathlib import Path

import pytest
from cluster_binaries import CONTROL_PLANE, MissingError, find

HERE = Path(__file__).parent
WHY = pytest.StashKey[str]()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """`pytest` and `pytest tests` leave this folder out; naming it, or something in it, does not."""
    named = [Path(config.invocation_params.dir, word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the programs before anything runs: building them takes minutes, and should be seen."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    if not ours or config.option.collectonly:
        return
    try:
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            find(*CONTROL_PLANE)
    except MissingError as missing:
        if os.environ.get("CI") == "true":
            raise pytest.UsageError(f"tests on a real control plane cannot run: {missing}") from None
        config.stash[WHY] = str(missing)
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=str(missing)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was not tested."""
    if WHY in config.stash:
        terminalreporter.write_line(f"SKIPPED: tests on a real control plane: {config.stash[WHY]}", yellow=True)
