# SPDX-License-Identifier: Apache-2.0
"""A cluster with the definitions of some kinds only, as after an upgrade of the operator alone.

The operator has the roles of this version. Each test goes on where the one before it ended.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster_client import until
from cluster_install import await_crds, trainwright
from cluster_kubeflow import KubeflowJobs, kubeflow_job
from cluster_nodes import fake_nodes
from cluster_operator import Operator, account, started
from cluster_plane import ControlPlane

from trainwright.kinds.registry import KINDS

NAMESPACE = "few"
LEFT_OUT = "the operator leaves out kinds whose definitions it cannot use"


class FewKinds(NamedTuple):
    plane: ControlPlane
    operator: Operator
    tfjobs: KubeflowJobs
    jaxjobs: KubeflowJobs

    def command(self, *words: str) -> str:
        """What a command says about the namespace, as a user on another machine."""
        config = ("--kubeconfig", str(self.plane.kubeconfig()))
        return trainwright(*words, *config).stdout


def _install(plane: ControlPlane, *kinds: str) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", given=trainwright("crds", *kinds).stdout)
    await_crds(plane)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FewKinds]:
    folder: Path = tmp_path_factory.mktemp("kinds")
    first = lambda plane: _install(plane, "tfjob", "genericjob")  # noqa: E731 - a name would need a line more
    with ControlPlane(folder / "plane", first=first) as plane, fake_nodes(plane, 1):
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        until(lambda: plane.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"), "pods can be made")
        _, config = account(plane, NAMESPACE, "operator")
        words = (f"--lease={NAMESPACE}/operator", "--new-kinds-period=1s")
        with started(config, folder / "operator.log", *words) as operator:
            operator.until(lambda: operator.leads(plane, NAMESPACE))
            yield FewKinds(plane, operator, *(KubeflowJobs(plane, NAMESPACE, kind) for kind in ("tfjobs", "jaxjobs")))


def test_the_kinds_that_are_installed_work(few: FewKinds) -> None:
    few.tfjobs.make(kubeflow_job("tfjobs", "train", runs="0.2"))
    until(lambda: "Succeeded" in few.tfjobs.conditions("train"), "the TFJob succeeds")

    (line,) = [line for line in few.operator.log.read_text().splitlines() if LEFT_OUT in line]
    assert "jaxjobs.kubeflow.org: not installed" in line
    assert "tfjob" not in line


@pytest.mark.parametrize("command", ["get", "explain", "describe", "events", "history"])
def test_commands_treat_a_kind_that_is_not_installed_as_one_without_jobs(few: FewKinds, command: str) -> None:
    mark = few.plane.mark()
    said = few.command(command, "train", "-n", NAMESPACE)
    calls = few.plane.audit(mark).where(user="admin")

    assert ("ATTEMPT" if command == "history" else "train") in said
    assert len(calls) <= 5 + len(KINDS), "the name is looked for in every kind"


def test_get_lists_the_jobs_of_all_installed_kinds(few: FewKinds) -> None:
    mark = few.plane.mark()
    said = few.command("get", "-n", NAMESPACE, "--all")
    calls = few.plane.audit(mark).where(user="admin")

    assert "train" in said
    assert len(calls) <= 1 + len(KINDS), "one list per kind, and one of the pods"


def test_preflight_shows_which_kinds_are_not_installed(few: FewKinds) -> None:
    found = json.loads(few.command("preflight", "-o", "json"))

    absent = {one["id"] for one in found["kinds"] if one["definition"]["origin"] == "absent"}
    assert absent == {kind.id for kind in KINDS} - {"tfjob", "genericjob"}
    assert (found["decisions"], found["steps"]) == ([], [])


def test_a_kind_is_picked_up_when_it_is_installed(few: FewKinds) -> None:
    """Nothing else happens to jobs of other kinds: no pod is created again."""
    few.tfjobs.make(kubeflow_job("tfjobs", "stays"))
    until(lambda: "Running" in few.tfjobs.conditions("stays"), "the TFJob runs")
    uids = {name: pod["metadata"]["uid"] for name, pod in few.tfjobs.children("stays").items()}
    _install(few.plane, "jaxjob")
    few.jaxjobs.make(kubeflow_job("jaxjobs", "new", runs="0.2"))
    until(lambda: "Succeeded" in few.jaxjobs.conditions("new"), "the JAXJob succeeds")

    assert {name: pod["metadata"]["uid"] for name, pod in few.tfjobs.children("stays").items()} == uids
    assert few.operator.end() == 0
    assert "Traceback" not in few.operator.log.read_text()
