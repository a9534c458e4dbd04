# SPDX-License-Identifier: Apache-2.0
"""Python clients get the same from a real control plane and from the background engine.

These are the official client and Kubeflow's TrainingClient. `make test-clients` installs them in an environment of
their own and runs these tests; nothing else does. `python_core` and `python_jobs` have the calls.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_client import until
from cluster_script import normalized
from cluster_servers import Server

pytest_plugins = ("cluster_server_fixtures",)
pytestmark = pytest.mark.clients
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
MAIN = Path(__file__).with_name("python_main.py")
NAMESPACE = "snakes"
#: The calls that must return the same.
CALLS = ("pods", "commands", "config_maps", "watches", "others", "custom_objects", "dynamic_client", "training")
#: The parts of results that differ, and why.
DIFFERENCES = {
    "config_maps": {"wrong page": "an unknown token may be an old one, so it gets 410, not 400"},
}
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def results(servers: tuple[Server, Server]) -> tuple[Results, Results]:
    """What each call returned on each server. Both run at the same time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        cluster, engine = pool.map(_run, servers)
    return cluster, engine


def _run(server: Server) -> Results:
    server.run("create", "namespace", NAMESPACE)
    if server.name == "cluster":
        account = ("get", "serviceaccounts", "-n", NAMESPACE, "-o", "name")
        until(lambda: "default" in server.run(*account), "pods can be made")
    file = server.folder / "results.json"
    words = [str(PYTHON), str(MAIN), NAMESPACE, str(file), *CALLS, "server_side_apply"]
    done = subprocess.run(words, env=server.env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{server.name}: {done.stdout}{done.stderr}"
    found: Results = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("name", CALLS)
def test_both_servers_return_the_same(results: tuple[Results, Results], name: str) -> None:
    cluster, engine = results
    assert "error" not in cluster[name], cluster[name]["error"]
    assert "error" not in engine[name], engine[name]["error"]
    assert _shown(engine[name], name) == _shown(cluster[name], name)


def _shown(result: dict[str, Any], name: str) -> str:
    compared = {part: value for part, value in result.items() if part not in DIFFERENCES.get(name, {})}
    return normalized(json.dumps(compared, indent=1, sort_keys=True))


def test_server_side_apply_is_refused_with_415_and_only_by_the_engine(results: tuple[Results, Results]) -> None:
    cluster, engine = results

    assert cluster["server_side_apply"] == {"code": "ConfigMap"}
    assert engine["server_side_apply"] == {"code": [415, "UnsupportedMediaType"]}


def test_the_results_are_those_of_the_calls(results: tuple[Results, Results]) -> None:
    """Both servers could be wrong in the same way."""
    engine = results[1]

    assert engine["pods"]["followed"] == ["line 1", "line 2", "line 3", "end"]
    assert engine["config_maps"]["conflict"] == [409, "Conflict"]
    assert engine["config_maps"]["wrong page"] == [410, "Expired"]
    assert engine["watches"]["seen"] == [
        ["ADDED", "x", "1"],
        ["ADDED", "y", "1"],
        ["MODIFIED", "x", "2"],
        ["DELETED", "y", "1"],
    ]
    for kind, found in engine["training"].items():
        (log,) = found["logs"].values()
        assert log == "step 1\nstep 2\nstep 3\n", kind
        assert found["succeeded"] == [True, False, False], kind
        assert (found["kind"], found["left"]) == (kind, 0)
