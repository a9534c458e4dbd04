# SPDX-License-Identifier: Apache-2.0
"""The contract that every engine keeps (`tests/contract`) holds for a real API server behind our client."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cluster_plane import ControlPlane

pytest_plugins = ("cluster_fixtures",)
ROOT = Path(__file__).parents[2]


def test_a_real_api_server_keeps_the_contract(plane: ControlPlane) -> None:
    plane.restart("kube-apiserver")  # so that there is something it does not remember
    env = os.environ | {"TRAINWRIGHT_KUBECONFIG": str(plane.kubeconfig("admin"))}
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/contract", "-k", "kube"]

    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 50, done.stdout  # they did run, and here
    assert "skipped" not in done.stdout
