# SPDX-License-Identifier: Apache-2.0
"""Jobs that end while some of their replicas still run: `trainwright run` leaves the status that a cluster stores.

The same manifests run as real processes in both places: on nodes that are `trainwright node`, under the operator and a
real control plane, and each in an embedded run of its own, whose end must not show in the status.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_agents import agent, agent_plane, left
from cluster_client import run, until
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import PlaneError
from cluster_scenarios import plain

from trainwright.kinds.registry import find as kind_of

pytest_plugins = ("cluster_fixtures",)

Body = dict[str, Any]
NAMESPACE = "final"
#: Whoever decides waits until one has ended and another runs, for long enough to be seen everywhere.
WAIT = "until [ -e {at}/up ] && [ -e {at}/early ]; do sleep 0.05; done; sleep 2"
RUNS = "touch {at}/up; exec sleep 600"
EARLY = "touch {at}/early"
TIMES = frozenset({"startTime", "completionTime", "endTime", "startRunningTime", "lastProbeTime", "lastUpdateTime"})

#: When it was last looked at, and which of this machine's ports plain processes were given.
PLACE = frozenset({"lastReconcileTime", "ports"})


# -- the jobs ----------------------------------------------------------------------------------------------------------


def template(container: str, script: str, **spec: Any) -> Body:
    main = {"name": container, "image": "none", "command": ["sh", "-c", script]}
    return {"spec": {"terminationGracePeriodSeconds": 2, "containers": [main], **spec}}


def job(api: str, kind: str, **spec: Any) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"namespace": NAMESPACE}, "spec": spec}


def generic(policy: str, code: int = 0) -> Body:
    """`main` decides with that code; `early` has ended before, `other` still runs."""
    programs = {"main": f"{WAIT}; exit {code}", "early": EARLY, "other": RUNS}
    roles = [{"type": name, "replicas": 1, "template": template("main", text)} for name, text in programs.items()]
    rules = {"successRules": [{"main": [0]}], "failureRules": [{"main": [0]}]}
    return job("batch.tensorstack.dev/v1beta1", "GenericJob", replicaSpecs=roles, cleanUpPolicy=policy, **rules)


def paddle(policy: str) -> Body:
    """The worker fails, the server still runs."""
    ps = {"replicas": 1, "template": template("paddle", RUNS, restartPolicy="Never")}
    worker = {"replicas": 1, "template": template("paddle", f"{EARLY}; {WAIT}; exit 3", restartPolicy="Never")}
    return job("batch.paddlepaddle.org/v1", "PaddleJob", ps=ps, worker=worker, cleanPodPolicy=policy)


def tensorflow(policy: str, chief: str = f"{EARLY}; {WAIT}", worker: str = RUNS, **more: Any) -> Body:
    """The chief decides, the workers still run."""
    specs = {
        "Chief": {"replicas": 1, "restartPolicy": "Never", "template": template("tensorflow", chief)},
        "Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": template("tensorflow", worker)},
    }
    return job("kubeflow.org/v1", "TFJob", tfReplicaSpecs=specs, runPolicy={"cleanPodPolicy": policy, **more})


def training(policy: str) -> Body:
    """The trainer decides, the server still runs."""
    specs = {
        "server": {"replicas": 1, "completePolicy": "None", "template": template("aitj-main", RUNS)},
        "trainer": {"replicas": 1, "template": template("aitj-main", f"{EARLY}; {WAIT}")},
    }
    more = {"completePolicy": "Any", "cleanPodPolicy": policy}
    return job("elasticdeeplearning.ai/v1", "AITrainingJob", replicaSpecs=specs, **more)


JOBS: dict[str, Body] = {
    **{f"generic-{policy.lower()}": generic(policy) for policy in ("None", "Unfinished", "All")},
    **{f"failed-{policy.lower()}": generic(policy, 3) for policy in ("None", "Unfinished", "All")},
    **{f"paddle-{policy.lower()}": paddle(policy) for policy in ("Never", "Always", "OnCompletion", "OnFailure")},
    **{f"tensorflow-{policy.lower()}": tensorflow(policy) for policy in ("None", "Running", "All")},
    **{f"training-{policy.lower()}": training(policy) for policy in ("None", "All")},
}
#: The pods that the policy keeps although they run: the end of a run ends them.
KEPT = {
    "generic-none": ["other-0"],
    "failed-none": ["other-0"],
    "tensorflow-none": ["Worker-0", "Worker-1"],
    "training-none": ["server-0"],
}


def at(folder: Path, name: str, body: Body) -> Body:
    """The job of that name; its replicas meet in a folder of its own."""
    (folder / name).mkdir(parents=True)
    text = json.dumps(body).replace("{at}", str(folder / name))
    made: Body = json.loads(text)
    return {**made, "metadata": {**made["metadata"], "name": name}}


# -- on a cluster ------------------------------------------------------------------------------------------------------


class Cluster:
    """A namespace with jobs of all kinds."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def path(self, body: Body) -> str:
        kind = kind_of(body["apiVersion"], body["kind"])
        assert kind is not None
        return f"/apis/{body['apiVersion']}/namespaces/{NAMESPACE}/{kind.plural}"

    def make(self, body: Body) -> None:
        self.plane.call("POST", self.path(body), body)

    def status(self, body: Body, name: str) -> Body:
        found = self.plane.find(f"{self.path(body)}/{name}") or {}
        return found.get("status") or {}

    def pods(self, name: str) -> dict[str, Body]:
        found = self.plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        mine = [one for one in found if one["metadata"]["name"].startswith(f"{name}-")]
        return {one["metadata"]["name"].removeprefix(f"{name}-"): one for one in mine}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("final")
    with agent_plane(folder) as plane:
        yield plane
    assert left([str(folder)]) == []


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    until(lambda: plane.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"), "its account")
    log = plane.layout.logs / "operator.log"
    many = ("--runtime", "process", "--cpus", "64")
    with (
        agent(plane, "north", *many),
        started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK) as operator,
    ):
        operator.until(lambda: operator.leads(plane, "default"))
        yield Cluster(plane)
        assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def there(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """All of them, at once."""
    folder = tmp_path_factory.mktemp("there")
    for name, body in JOBS.items():
        cluster.make(at(folder, name, body))
    return cluster


# -- on this machine ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here(there: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Body, Body]]:
    """What a run of one of them leaves: the job, and what is told of its end."""
    folder = tmp_path_factory.mktemp("here")

    def ran(name: str) -> tuple[Body, Body]:
        (folder / f"{name}.yaml").write_text(json.dumps(at(folder, name, JOBS[name])))
        env = ["env", f"TRAINWRIGHT_STATE={folder / 'state'}", f"PATH={os.environ['PATH']}"]
        words = ["run", "--runtime", "process", "-o", "json", "--timeout", "60s", str(folder / f"{name}.yaml")]
        said = run([*env, sys.executable, "-m", "trainwright", *words], check=False).stdout
        (end,) = (one for line in said.splitlines() if (one := json.loads(line))["type"] == "end")
        kept = (folder / "state" / NAMESPACE / name / "latest" / "status.yaml").read_text()
        return yaml.safe_load(kept), end

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(JOBS, pool.map(ran, JOBS), strict=True))
    return found.__getitem__


# ----------------------------------------------------------------------------------------------------------------------


def bare(part: Any) -> Any:
    """A status without what cannot be the same in two places."""
    if isinstance(part, dict):
        return {key: "…" if key in TIMES else bare(value) for key, value in part.items() if key not in PLACE}
    return [bare(one) for one in part] if isinstance(part, list) else part


@pytest.mark.parametrize("name", JOBS)
def test_a_run_leaves_the_status_that_a_cluster_stores(
    there: Cluster, here: Callable[[str], tuple[Body, Body]], name: str
) -> None:
    body, end = here(name)
    mine = plain(bare(body["status"]))

    def theirs() -> Body:
        found: Body = plain(bare(there.status(JOBS[name], name)))
        return found

    with suppress(PlaneError):  # counts follow; whatever differs then is shown below
        until(lambda: theirs() == mine, "it is as here")
    assert theirs() == mine
    assert body["metadata"]["generation"] == 1
    assert end.get("terminated", []) == KEPT.get(name, [])
    running = [pod for pod in there.pods(name).values() if pod["status"]["phase"] == "Running"]
    assert len(running) == len(KEPT.get(name, []))


def test_a_pod_in_back_off_is_deleted_when_its_job_has_failed(cluster: Cluster, tmp_path: Path) -> None:
    """Two workers crash until backoffLimit is reached; the chief simply runs, and its policy keeps it."""
    body = at(tmp_path, "crashing", tensorflow("None", RUNS, "exit 7", backoffLimit=2))
    cluster.make(body)

    def failed() -> bool:
        said = cluster.status(body, "crashing").get("conditions") or [{"type": ""}]
        return bool(said[-1]["type"] == "Failed" and said[-1]["status"] == "True")

    until(failed, "it fails")
    until(lambda: set(cluster.pods("crashing")) == {"chief-0"}, f"{list(cluster.pods('crashing'))}")
    assert cluster.pods("crashing")["chief-0"]["status"]["phase"] == "Running"


def test_a_kept_pod_that_fails_after_the_end_is_not_restarted(cluster: Cluster, tmp_path: Path) -> None:
    """A worker goes on when the chief has ended; when it fails, minutes or days later, it is deleted."""
    worker = "touch {at}/up; until [ -e {at}/fail ]; do sleep 0.05; done; echo >> {at}/tries; exit 7"
    body = at(tmp_path, "later", tensorflow("None", worker=worker))
    cluster.make(body)
    until(lambda: cluster.status(body, "later").get("completionTime"), "it has ended")
    assert set(cluster.pods("later")) == {"chief-0", "worker-0", "worker-1"}

    (tmp_path / "later" / "fail").touch()

    until(lambda: set(cluster.pods("later")) == {"chief-0"}, f"{list(cluster.pods('later'))}")
    assert len((tmp_path / "later" / "tries").read_text().splitlines()) <= 4
