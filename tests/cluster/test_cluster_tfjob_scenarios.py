# SPDX-License-Identifier: Apache-2.0
"""The scenarios of the original's own tests of its TFJob controller, on a real API server.

No operator runs while an initial state is made: a job, its pods in given phases, their services. Then one starts, and
its creates, deletes and status are compared. No scheduler places the pods, so that only the operator changes them.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from cluster_client import until
from cluster_operator import grant, started
from cluster_plane import ControlPlane
from cluster_tfjobs import LABELS, TFJobs, replicas, seen, tfjob
from msgspec import Struct

from trainwright.crd.rbac import RBAC

pytest_plugins = ("cluster_fixtures",)
Body = dict[str, Any]
#: A scheduler that does not exist.
NOBODY = {"schedulerName": "nobody"}
DOMAIN = "tf.training.org"
FOUR_TWO = {"Worker": 4, "PS": 2}
RUNNING, SUCCEEDED, PENDING, FAILED = (seen(phase) for phase in ("Running", "Succeeded", "Pending", "Failed"))


class InitialState(Struct, frozen=True, kw_only=True):
    """A job of these types, the pods that it has (by type, in the order of their indexes), and what becomes of it."""

    types: dict[str, int]
    pods: dict[str, tuple[Body, ...]] = {}
    policy: str = "Never"
    #: What else its spec says.
    spec: Body = {}
    #: A status that it has already.
    status: Body = {}
    #: Pods, and services, that the operator makes, and how many pods are left of those that were there.
    made: int = 0
    kept: int | None = None
    counts: dict[str, Body] = {}
    conditions: tuple[str, ...] = ("Created",)
    message: str = ""

    def document(self, name: str) -> Body:
        """The job."""
        roles: dict[str, Any] = {role: replicas(count, self.policy, NOBODY) for role, count in self.types.items()}
        return tfjob(name, spec=self.spec, **roles)

    @property
    def present(self) -> int:
        """How many pods there are."""
        return sum(len(some) for some in self.pods.values())


def ended(result: str, at: str = "2026-01-01T00:00:00Z") -> Body:
    """What the original wrote of a job that was over."""
    said = {"type": result, "status": "True", "reason": f"TFJob{result}", "lastTransitionTime": at}
    return {"conditions": [{"type": "Created", "status": "True"}, said], "completionTime": at}


def cleaned(policy: str, **more: Any) -> Body:
    """A run policy."""
    return {"runPolicy": {"cleanPodPolicy": policy, **more}}


def all_of(status: Body) -> dict[str, tuple[Body, ...]]:
    """Four workers and two servers, all in one phase."""
    return {"Worker": (status,) * 4, "PS": (status,) * 2}


BACKOFF = "Job {} has failed because it has reached the specified backoff limit"
DEADLINE = "Job {} has failed because it was active longer than specified deadline"
OVER = ("Created", "Running=False", "Failed")

INITIAL_STATES = {
    # -- pods and services that are missing are made -------------------------------------------------------------
    "local": InitialState(types={"Worker": 1}, made=1, counts={"Worker": {}}),
    "distributed": InitialState(types=FOUR_TWO, made=6, counts={"Worker": {}, "PS": {}}),
    "all-pending": InitialState(types=FOUR_TWO, pods=all_of(PENDING), counts={"Worker": {}, "PS": {}}),
    "all-running": InitialState(
        types=FOUR_TWO,
        pods=all_of(RUNNING),
        counts={"Worker": {"active": 4}, "PS": {"active": 2}},
        conditions=("Created", "Running"),
    ),
    "half-pending": InitialState(types=FOUR_TWO, pods={"Worker": (PENDING,) * 2, "PS": (PENDING,)}, made=3),
    "some-pending-one-running": InitialState(
        types=FOUR_TWO,
        pods={"Worker": (PENDING, PENDING, RUNNING), "PS": (PENDING,)},
        made=2,
        counts={"Worker": {"active": 1}, "PS": {}},
        conditions=("Created", "Running"),
    ),
    "some-pending-one-succeeded": InitialState(
        types=FOUR_TWO,
        pods={"Worker": (PENDING, PENDING, SUCCEEDED), "PS": (PENDING,)},
        made=2,
        counts={"Worker": {"succeeded": 1}, "PS": {}},
    ),
    "all-succeeded": InitialState(
        types=FOUR_TWO,
        pods=all_of(SUCCEEDED),
        counts={"Worker": {"succeeded": 4}, "PS": {"succeeded": 2}},
        conditions=("Created", "Succeeded"),
    ),
    # -- worker 0, and the chief, decide ---------------------------------------------------------------------------
    "worker-0-runs": InitialState(types={"Worker": 1}, pods={"Worker": (RUNNING,)}, conditions=("Created", "Running")),
    "worker-0-succeeded": InitialState(
        types={"Worker": 1}, pods={"Worker": (SUCCEEDED,)}, conditions=("Created", "Succeeded")
    ),
    "chief-succeeded": InitialState(
        types={"Chief": 1, "Worker": 1},
        pods={"Chief": (SUCCEEDED,), "Worker": (RUNNING,)},
        conditions=("Created", "Succeeded"),
    ),
    "master-succeeded": InitialState(
        types={"Master": 1}, pods={"Master": (SUCCEEDED,)}, conditions=("Created", "Succeeded")
    ),
    "worker-0-failed": InitialState(
        types={"Worker": 2},
        pods={"Worker": (FAILED, RUNNING)},
        counts={"Worker": {"active": 1, "failed": 1}},
        conditions=("Created", "Failed"),
        message="TFJob {ns}/{} has failed because 1 Worker replica(s) failed.",
    ),
    # -- exit codes ------------------------------------------------------------------------------------------------
    "exit-130": InitialState(
        types={"Worker": 1},
        policy="ExitCode",
        pods={"Worker": (seen("Failed", 130),)},
        made=1,
        kept=0,
        conditions=("Created", "Restarting"),
        message="job {} is restarting because Worker replica(s) failed.",
    ),
    "exit-1": InitialState(
        types={"Worker": 1},
        policy="ExitCode",
        pods={"Worker": (seen("Failed", 1),)},
        conditions=("Created", "Failed"),
        message='job "{}" is failing because "Worker" replica(s) failed.',
    ),
    # -- a job that is over, or is to be -----------------------------------------------------------------------------
    "over-running-all": InitialState(
        types=FOUR_TWO,
        pods=all_of(RUNNING),
        spec=cleaned("All"),
        status=ended("Succeeded"),
        kept=0,
        conditions=("Created", "Succeeded"),
    ),
    "over-running-running": InitialState(
        types=FOUR_TWO,
        pods=all_of(RUNNING),
        spec=cleaned("Running"),
        status=ended("Succeeded"),
        kept=0,
        conditions=("Created", "Succeeded"),
    ),
    "over-succeeded-running": InitialState(
        types=FOUR_TWO,
        pods=all_of(SUCCEEDED),
        spec=cleaned("Running"),
        status=ended("Succeeded"),
        conditions=("Created", "Succeeded"),
    ),
    "over-succeeded-none": InitialState(
        types=FOUR_TWO,
        pods=all_of(SUCCEEDED),
        spec=cleaned("None"),
        status=ended("Succeeded"),
        conditions=("Created", "Succeeded"),
    ),
    "no-deadline": InitialState(
        types=FOUR_TWO, pods=all_of(RUNNING), spec=cleaned("All"), conditions=("Created", "Running")
    ),
    "deadline": InitialState(
        types=FOUR_TWO,
        pods=all_of(RUNNING),
        spec=cleaned("All", activeDeadlineSeconds=5),
        kept=0,
        conditions=OVER,
        message=DEADLINE,
    ),
    "backoff": InitialState(
        types=FOUR_TWO,
        policy="OnFailure",
        pods={"Worker": (seen("Running", restarts=1),) * 4, "PS": (RUNNING,) * 2},
        spec=cleaned("All", backoffLimit=4),
        kept=0,
        conditions=("Created", "Failed"),
        message=BACKOFF,
    ),
    # -- suspended, and somebody else's --------------------------------------------------------------------------------
    "suspended": InitialState(
        types={"Chief": 1, "Worker": 1}, spec=cleaned("None", suspend=True), conditions=("Created", "Suspended")
    ),
    "suspended-ttl": InitialState(
        types={"Worker": 1},
        spec=cleaned("None", suspend=True, ttlSecondsAfterFinished=0),
        conditions=("Created", "Suspended"),
    ),
    "theirs": InitialState(
        types={"Worker": 1}, spec=cleaned("None", managedBy="kueue.x-k8s.io/multikueue"), conditions=()
    ),
    # -- its time to live ----------------------------------------------------------------------------------------------
    "no-ttl": InitialState(types={"Worker": 1}, status=ended("Succeeded"), conditions=("Created", "Succeeded")),
}
#: These are removed.
LIVED = {
    "ttl-succeeded": InitialState(
        types={"Worker": 1}, pods={"Worker": (SUCCEEDED,)}, spec=cleaned("None", ttlSecondsAfterFinished=3)
    ),
    "ttl-failed": InitialState(
        types={"Worker": 1}, pods={"Worker": (FAILED,)}, spec=cleaned("None", ttlSecondsAfterFinished=3)
    ),
    "ttl-long-ago": InitialState(
        types={"Worker": 1}, spec=cleaned("None", ttlSecondsAfterFinished=180), status=ended("Succeeded")
    ),
    "ttl-0": InitialState(
        types={"Worker": 1}, pods={"Worker": (SUCCEEDED,)}, spec=cleaned("None", ttlSecondsAfterFinished=0)
    ),
}


class ScenarioJobs(TFJobs):
    """The jobs of all scenarios, and the place in the audit log at which the operator started."""

    since = 0

    def calls(self, verb: str, resource: str, name: str) -> list[str]:
        """What the operator did to children of a job."""
        found = self.plane.audit(self.since).where(
            user="operator", verb=verb, resource=resource, code=201 if verb == "create" else 200
        )
        return [call.name for call in found if call.namespace == self.namespace and call.name.startswith(f"{name}-")]


@pytest.fixture(scope="module")
def jobs(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioJobs]:
    """Make every initial state; then start the operator with the options of the original deployment."""
    namespace, subject = "scenes", {"kind": "User", "name": "operator", "apiGroup": RBAC}
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    until(lambda: plane.find(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "pods can be made")
    grant(plane, namespace, "operator", subject)
    jobs = ScenarioJobs(plane, namespace)
    for name, initial in (INITIAL_STATES | LIVED).items():
        document = jobs.make(initial.document(name))
        jobs.furnish(document, initial.pods)
        if initial.status:
            plane.call("PATCH", f"{jobs.path}/{name}/status", {"status": initial.status})
    jobs.since = plane.mark()
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    words, env = ("--no-leader-elect", f"--namespace={namespace}"), {"CUSTOM_CLUSTER_DOMAIN": DOMAIN}
    with started(plane.kubeconfig("operator"), log, *words, env=env) as process:
        yield jobs
        assert process.end() == 0
    assert plane.audit(jobs.since).where(user="operator", denied=True) == ()
    assert "Traceback" not in log.read_text()
    plane.call("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.mark.parametrize("name", INITIAL_STATES)
def test_what_becomes_of_it(jobs: ScenarioJobs, name: str) -> None:
    initial = INITIAL_STATES[name]
    status = jobs.until(name, *initial.conditions) if initial.conditions else {}

    left = initial.present if initial.kept is None else initial.kept
    until(lambda: len(jobs.children(name)) == initial.made + left, f"{name}: {sorted(jobs.children(name))}")
    if not initial.conditions:
        time.sleep(2)
        assert "status" not in jobs.find(name)
    if left == initial.present:
        assert jobs.calls("delete", "pods", name) == []
    for role, counts in initial.counts.items():
        assert status["replicaStatuses"][role] == counts
    if initial.message:
        assert status["conditions"][-1]["message"] == initial.message.format(name, ns=jobs.namespace)
    assert len(jobs.children(name, "services")) == len(jobs.children(name))


@pytest.mark.parametrize("name", [name for name, initial in INITIAL_STATES.items() if initial.made])
def test_every_child_that_is_made_is_its_jobs(jobs: ScenarioJobs, name: str) -> None:
    initial, uid = INITIAL_STATES[name], jobs.find(name)["metadata"]["uid"]
    until(lambda: len(jobs.calls("create", "pods", name)) == initial.made, f"{name} has its pods")
    made = set(jobs.calls("create", "pods", name))
    owners = [
        child["metadata"]["ownerReferences"]
        for kind in ("pods", "services")
        for child in jobs.children(name, kind).values()
        if child["metadata"]["name"] in made
    ]

    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": name, "uid": uid}
    assert owners == [[{**owner, "controller": True, "blockOwnerDeletion": True}]] * len(owners)
    assert len(owners) == 2 * initial.made


@pytest.mark.parametrize("name", LIVED)
def test_a_job_is_removed_when_its_time_to_live_is_over(jobs: ScenarioJobs, name: str) -> None:
    until(lambda: not jobs.find(name), f"{name} is gone: {jobs.find(name)}")

    assert jobs.events(name)[-1] == ("SuccessfulDeleteJob", f"Deleted job: {name}")
    until(lambda: not jobs.children(name), "and so are its pods")


def test_a_job_that_was_suspended_from_the_start_has_not_started(jobs: ScenarioJobs) -> None:
    status = jobs.until("suspended", "Created", "Suspended")

    assert "startTime" not in status
    assert jobs.children("suspended") == jobs.children("suspended", "services") == {}


def test_services_are_headless_and_find_one_pod(jobs: ScenarioJobs) -> None:
    until(lambda: jobs.children("local", "services"), "there is one")
    service = jobs.children("local", "services")["worker-0"]

    names = {
        f"{LABELS}/operator-name": "tfjob-controller",
        f"{LABELS}/job-name": "local",
        f"{LABELS}/replica-type": "worker",
        f"{LABELS}/replica-index": "0",
    }
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == names
    assert names.items() <= service["metadata"]["labels"].items()
    ports = [(port["name"], port["port"], port["targetPort"], port["protocol"]) for port in service["spec"]["ports"]]
    assert ports == [("tfjob-port", 2222, 2222, "TCP")]


# -- with the operator at work -----------------------------------------------------------------------------------------


def test_labels_and_annotations_of_the_template_are_the_pods(jobs: ScenarioJobs) -> None:
    one = replicas(1, pod=NOBODY)
    one["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    jobs.make(tfjob("copied", Worker=one))
    pod = until(lambda: jobs.children("copied").get("worker-0"), "it is made")["metadata"]

    assert (pod["labels"]["a"], pod["annotations"]["c"]) == ("b", "d")
    assert pod["labels"][f"{LABELS}/job-role"] == "master"


@pytest.mark.parametrize(
    ("name", "types", "cluster"),
    [
        ("one", {"Worker": 1}, None),
        ("two", {"Worker": 1, "PS": 1}, ("ps", "worker")),
        ("three", {"Worker": 1, "PS": 1, "Evaluator": 1}, ("evaluator", "ps", "worker")),
    ],
)
def test_the_cluster_domain_of_the_operator_is_in_tf_config(
    jobs: ScenarioJobs, name: str, types: dict[str, int], cluster: tuple[str, ...] | None
) -> None:
    roles: dict[str, Any] = {role: replicas(count, pod=NOBODY) for role, count in types.items()}
    jobs.make(tfjob(name, **roles))
    pod = until(lambda: jobs.children(name).get("worker-0"), "it is made")
    found = {one["name"]: one["value"] for one in pod["spec"]["containers"][0].get("env", ())}

    hosts = {role: [f"{name}-{role}-0.{jobs.namespace}.svc.{DOMAIN}:2222"] for role in cluster or ()}
    config = {"cluster": hosts, "task": {"type": "worker", "index": 0}, "environment": "cloud"}
    assert found == ({"TF_CONFIG": json.dumps(config, separators=(",", ":"))} if cluster else {})


def _has(jobs: ScenarioJobs, name: str, workers: int) -> bool:
    return set(jobs.children(name)) == {f"worker-{index}" for index in range(workers)}


def test_dynamic_workers_come_and_go(jobs: ScenarioJobs) -> None:
    jobs.make(tfjob("dynamic", spec={"enableDynamicWorker": True}, Worker=replicas(1, pod=NOBODY)))
    for count in (3, 2):
        jobs.edit("dynamic", tfReplicaSpecs={"Worker": {"replicas": count}})
        until(partial(_has, jobs, "dynamic", count), f"there are {count}")

    until(lambda: set(jobs.children("dynamic", "services")) == {"worker-0", "worker-1"}, "services follow")
    assert len(jobs.calls("create", "pods", "dynamic")) == 3
    assert jobs.calls("delete", "pods", "dynamic") == ["dynamic-worker-2"]
