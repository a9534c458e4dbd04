# SPDX-License-Identifier: Apache-2.0
"""The same script of kubectl commands prints the same on a real control plane and on the background engine."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster_client import until
from cluster_kubectl_manifests import FILES
from cluster_kubectl_steps import STEPS
from cluster_script import NAMESPACE, Result, run_script
from cluster_servers import Server

pytest_plugins = ("cluster_server_fixtures",)
Results = list[Result]


@pytest.fixture(scope="module")
def results(servers: tuple[Server, Server]) -> tuple[Results, Results]:
    """What each step did on each server. Both run the script at the same time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        cluster, engine = pool.map(_run, servers)
    return cluster, engine


def _run(server: Server) -> Results:
    server.run("create", "namespace", NAMESPACE)
    if server.name == "cluster":
        account = ("get", "serviceaccounts", "-n", NAMESPACE, "-o", "name")
        until(lambda: "default" in server.run(*account), "pods can be made")
    return run_script(server, STEPS, FILES)


@pytest.mark.parametrize("index", [pytest.param(index, id=step.line) for index, step in enumerate(STEPS)])
def test_both_servers_answer_alike(results: tuple[Results, Results], index: int) -> None:
    step, (cluster, engine) = STEPS[index], results
    expected, found = cluster[index], engine[index]

    assert (expected.code != 0) == step.fails, expected.output
    code = expected.code if step.code is None else step.code
    assert found.code == code, f"{found.output}\n--- the cluster, {expected.code}:\n{expected.output}"
    assert step.says in found.output
    if step.fewer:
        others = {line.strip() for line in expected.without(step.ignored)}
        assert [line for line in found.without(step.ignored) if line.strip() not in others] == []
    elif not step.differs:
        assert found.without(step.ignored) == expected.without(step.ignored)
