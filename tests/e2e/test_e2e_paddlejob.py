# SPDX-License-Identifier: Apache-2.0
"""PaddleJobs on this machine: the examples that need nothing but Python, in every way to find each other."""

import re

import pytest
import yaml
from e2e_jobs import Body
from e2e_workspace import EXAMPLES, FinishedCommand, Workspace

pytest_plugins = ["e2e_fixtures"]

PADDLEJOB = EXAMPLES / "paddlejob"


def status(workspace: Workspace, name: str) -> Body:
    """The final status of a job."""
    found: Body = yaml.safe_load((workspace.folder_of(name) / "status.yaml").read_text())["status"]
    return found


def places(done: FinishedCommand) -> dict[str, str]:
    """Where each replica says it is: its host and its port."""
    found = re.findall(r"^(\S+) \| (?:PSERVER|TRAINER) \d of 2 servers and 2 workers is at (\S+)$", done.out, re.M)
    return dict(found)


def trained(done: FinishedCommand) -> None:
    """Both workers have come to a low loss, and both servers hold what they found."""
    for worker in ("worker-0", "worker-1"):
        found = [float(loss) for loss in re.findall(rf"^{worker} \| step \d+/60  loss ([\d.]+)$", done.out, re.M)]
        assert found[-1] < 0.01 < found[0], done.said
    assert re.search(r"^ps-0 \| .* the parameter is (2\.9\d|3\.0\d)$", done.out, re.M), done.said
    assert re.search(r"^ps-1 \| .* the parameter is (1\.9\d|2\.0\d)$", done.out, re.M), done.said


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("design", "wide-ande-deep"),
        ("overview", "wide-and-deep"),
        ("wide_and_deep_podip", "wide-and-deep-podip"),
        ("wide_and_deep_volcano", "wide-and-deep-volcano"),
    ],
)
def test_servers_and_workers_find_each_other_and_train(workspace: Workspace, name: str, job: str) -> None:
    done = workspace.run("run", str(PADDLEJOB / f"{name}.yaml"))

    assert done.code == 0, done.said
    assert done.err == "" or (name == "wide_and_deep_volcano" and "ignores queues" in done.err), done.said
    trained(done)
    assert set(places(done)) == {"ps-0", "ps-1", "worker-0", "worker-1"}
    ports = {place.rsplit(":", 1)[1] for place in places(done).values()}
    assert (ports == {"36000"}) is (workspace.runtime == "sandbox")
    said = status(workspace, job)
    assert (said["phase"], said["mode"]) == ("Completed", "PS")
    assert workspace.left() == []


@pytest.mark.parametrize("intranet", ["Service", "Host"])
def test_by_name_and_on_the_hosts_network_too(workspace: Workspace, intranet: str) -> None:
    done = workspace.run("run", "--set", f"spec.intranet={intranet}", str(PADDLEJOB / "design.yaml"))

    assert (done.code, done.err) == (0, ""), done.said
    trained(done)
    found = places(done)
    if intranet == "Service" and workspace.runtime == "sandbox":
        assert found["ps-1"] == "wide-ande-deep-ps-1.default:36000"
    # Paddle's launcher counts hosts: two workers at one would each train alone.
    assert len({place.rsplit(":", 1)[0] for place in found.values()}) == 4


def test_workers_decide_where_the_manifest_says_so(workspace: Workspace) -> None:
    done = workspace.run("run", str(PADDLEJOB / "deepfm.yaml"))

    assert done.code == 0, done.said
    trained(done)
    assert status(workspace, "deepfm")["phase"] == "Completed"
    assert re.search(r"^ *[\d.]+s  ps-1  Stopped", done.out, re.M), done.out


def test_an_elastic_server_that_pods_do_not_reach_is_told_of(workspace: Workspace) -> None:
    done = workspace.run("run", "--etcd-server", "localhost:1", str(PADDLEJOB / "design.yaml"))

    assert done.code == 0, done.said
    assert ("notice: pods cannot reach localhost of this machine" in done.out) is (workspace.runtime == "sandbox")


def test_a_gang_that_does_not_fit_starts_nobody(sandbox: Workspace) -> None:
    much = "spec.ps.template.spec.containers[paddle].resources.limits.cpu=1000"
    done = sandbox.run("run", "--timeout", "3s", "--set", much, str(PADDLEJOB / "wide_and_deep_volcano.yaml"))

    assert done.code != 0, done.said
    assert places(done) == {}
