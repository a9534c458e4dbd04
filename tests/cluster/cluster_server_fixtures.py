# SPDX-License-Identifier: Apache-2.0
"""A control plane and a background engine for the tests of one module. A plugin of the tests beside it."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from cluster_binaries import MissingError
from cluster_client import until
from cluster_servers import NODES, Server, cluster_server, engine_server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The control plane and the engine, each with its nodes ready."""
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(cluster_server(tmp_path_factory.mktemp("cluster")))
        except MissingError as missing:
            pytest.skip(str(missing))
        engine = stack.enter_context(engine_server(tmp_path_factory.mktemp("engine")))
        for server in (cluster, engine):
            _await_nodes(server)
        yield cluster, engine


def _await_nodes(server: Server) -> None:
    nodes = [f"node/{name}" for name in NODES]
    until(lambda: set(nodes) <= set(server.run("get", "nodes", "-o", "name").split()), f"{nodes} are there")
    server.run("wait", "--for=condition=Ready", "--timeout=60s", *nodes)
