# SPDX-License-Identifier: Apache-2.0
"""A real kubectl scales jobs of Kubeflow v1 through the API of the background engine."""

import json
from collections.abc import Iterator

import pytest
from cluster_client import until
from cluster_kubeflow import kubeflow_job
from cluster_servers import Server, engine_server

SCALED = ["pytorchjobs", "jaxjobs", "paddlejobs"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with engine_server(tmp_path_factory.mktemp("engine")) as server:
        yield server


def create(server: Server, plural: str) -> str:
    """A job whose two workers run until they are ended. Its kind and name."""
    name = plural.removesuffix("jobs")
    body = kubeflow_job(plural, name, Worker=2)
    for spec in body["spec"].values():
        spec["Worker"]["template"]["spec"]["containers"][0]["command"] = ["sleep", "600"]
    file = server.folder / f"{name}.json"
    file.write_text(json.dumps(body))
    server.run("create", "-f", str(file))
    return f"{plural}.kubeflow.org/{name}"


@pytest.mark.parametrize("plural", SCALED)
def test_kubectl_scales_the_workers(engine: Server, plural: str) -> None:
    job = create(engine, plural)
    scale = ("get", job, "--subresource=scale", "-o")

    def running() -> str:
        return engine.run(*scale, "jsonpath={.status.replicas}")

    until(lambda: running() == "2", "two workers run")
    for words, count in ((("--replicas=3",), "3"), (("--replicas=1", "--current-replicas=3"), "1")):
        assert engine.run("scale", job, *words).endswith(" scaled\n")
        until(lambda: running() == count, f"{count} run")  # noqa: B023 - called at once
    selector = engine.run(*scale, "jsonpath={.status.selector}")
    name = job.partition("/")[2]

    def pods() -> list[str]:
        return engine.run("get", "pods", "-l", selector, "-o", "name").split()

    until(lambda: pods() == [f"pod/{name}-worker-0"], "the selector finds the worker that is left")
