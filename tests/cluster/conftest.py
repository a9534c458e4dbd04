# SPDX-License-Identifier: Apache-2.0
"""Tests on a real control plane run when asked for (`make test-cluster`, `pytest tests/cluster`), not with the others.

What cannot be had here is skipped, and a line at the end says what and why; where `CI=true` that is a failure.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_binaries import CONTROL_PLANE, MissingError, find
from cluster_training_operator import installed

HERE = Path(__file__).parent


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
    _have(config, lambda: find(*CONTROL_PLANE), ours)
    _have(config, installed, [item for item in ours if item.path.name == "test_cluster_migrate.py"])


def _have(config: pytest.Config, build: Callable[[], object], users: list[pytest.Item]) -> None:
    """Build what these tests use, or skip them."""
    try:
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            if users:
                build()
    except MissingError as missing:
        for item in users:
            item.add_marker(pytest.mark.skip(reason=str(missing)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI everything is tested."""
    if os.environ.get("CI") == "true" and _skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was not tested."""
    for why, number in _skipped(config).items():
        terminalreporter.write_line(f"SKIPPED: {number} tests on a real control plane: {why}", yellow=True)


def _skipped(config: pytest.Config) -> dict[str, int]:
    """How many, by reason."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    found: dict[str, int] = {}
    for report in reports:
        if Path(config.rootpath, report.fspath).is_relative_to(HERE):
            why = report.longrepr[2].removeprefix("Skipped: ")
            found[why] = found.get(why, 0) + 1
    return found
