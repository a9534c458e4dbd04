# SPDX-License-Identifier: Apache-2.0
"""Where no control plane can be had, that is seen: one line, and a failure in CI. These tests run only when named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _pytest(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {key: value for key, value in os.environ.items() if key not in ("CI", "KUBEBUILDER_ASSETS")}
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(asked, cwd=ROOT, env=given | env, capture_output=True, text=True, check=False)


def _without_go(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder), "XDG_CACHE_HOME": str(folder)}


def test_what_cannot_run_is_skipped_and_says_why_and_how_to_have_it(tmp_path: Path) -> None:
    done = _pytest("tests/cluster/test_cluster_crds.py", **_without_go(tmp_path))

    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "tests on a real control plane: no etcd in" in line
    assert "install Go" in line
    assert "KUBEBUILDER_ASSETS" in line
    assert done.returncode == 0


def test_in_ci_it_is_a_failure(tmp_path: Path) -> None:
    done = _pytest("tests/cluster/test_cluster_crds.py", CI="true", **_without_go(tmp_path))

    assert "SKIPPED: " in done.stdout
    assert done.returncode == 1


def test_a_given_folder_must_have_what_is_needed(tmp_path: Path) -> None:
    done = _pytest("tests/cluster/test_cluster_crds.py", KUBEBUILDER_ASSETS=str(tmp_path))

    assert f"KUBEBUILDER_ASSETS={tmp_path} has no program etcd" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(("tests/cluster/test_cluster_crds.py",), True, id="a file"),
        pytest.param(("tests/cluster",), True, id="the folder"),
        pytest.param(("tests/cli/test_crds.py", "tests/cluster"), True, id="the folder and another"),
        pytest.param(("tests/crd",), False, id="another"),
        pytest.param(("tests", "--ignore-glob=tests/[a-bd-z]*", "--ignore=tests/contract"), False, id="all"),
    ],
)
def test_they_are_collected_only_when_named(words: tuple[str, ...], *, expected: bool) -> None:
    done = _pytest("--collect-only", *words)

    assert ("test_cluster_crds" in done.stdout) is expected
