# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on clusters: each is told by the job's status and by an event, goes on once it is mended, and costs
the API server little meanwhile. All the while other jobs come and go, and do not notice.
"""

import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import pytest
from cluster_bodies import pod
from cluster_client import RefusedError, until
from cluster_jobs import Body, Jobs, job, role
from cluster_nodes import fake_nodes
from cluster_operator import Operator
from cluster_plane import ControlPlane

from trainwright.model.meta import INDEX, JOB_UID, KIND

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
HOOK = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SERVICE = {"ports": [{"port": 80}]}


@pytest.fixture(scope="module", autouse=True)
def _bystanders(plane: ControlPlane, nodes: object, operator: Operator) -> Iterator[None]:
    """Jobs of somebody else, one after the other, all through this module: each ends as quickly as ever."""
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "bystanders"}})
    jobs, took, over = Jobs(plane, "bystanders"), list[float](), threading.Event()
    until(lambda: plane.find("/api/v1/namespaces/bystanders/serviceaccounts/default"), "its account")

    def work() -> None:
        while not over.wait(0.2):
            name, began = f"job-{len(took)}", time.monotonic()
            jobs.make(job(name, role(replicas=2)))
            jobs.until(name, "Succeeded")
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()
    assert took
    assert statistics.median(took) < 5.0, took
    assert max(took) < 20.0, took
    plane.call("DELETE", "/api/v1/namespaces/bystanders")


@pytest.fixture(scope="module", autouse=True)
def hanging(plane: ControlPlane, nodes: object, operator: Operator) -> Iterator[Jobs]:
    """A namespace whose pods must pass a webhook that never answers; it takes a while until that is known."""
    name = "hanging"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: plane.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its account")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        plane.call("POST", HOOK, _webhook(name, silent.getsockname()[1]))
        time.sleep(1)  # until the server knows it
        jobs = Jobs(plane, name)
        jobs.make(job("hooked", role(replicas=4)))
        yield jobs
    plane.call("DELETE", f"/api/v1/namespaces/{name}")


def _webhook(namespace: str, port: int) -> Body:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    hook = {
        "name": f"{namespace}.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": rules,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 30,
    }
    return {"metadata": {"name": namespace}, "webhooks": [hook]}


def _asked(jobs: Jobs, mark: int) -> int:
    """How often the operator has asked for pods since then."""
    found = jobs.plane.audit(mark).where(user="operator", namespace=jobs.namespace, verb="create", resource="pods")
    return len(found)


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        pytest.param("", "no controller owns it; remove it, or give the job another name", id="nobody's"),
        pytest.param("other", "ConfigMap other controls it; give the job another name", id="somebody's"),
    ],
)
def test_a_name_that_a_foreign_pod_has(jobs: Jobs, owner: str, text: str) -> None:
    owners = []
    if owner:
        maps = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
        uid = jobs.plane.call("POST", maps, {"metadata": {"name": owner}})["metadata"]["uid"]
        owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "controller": True}]
    foreign = jobs.plane.call("POST", jobs.pods_path, pod("taken-worker-1", owners=owners, runs="forever"))
    mark = jobs.plane.mark()
    jobs.make(job("taken", role(replicas=3, runs="2")))

    jobs.until_told("taken", f'pods "taken-worker-1" already exists, and is not this job\'s: {text}')
    assert jobs.phase("taken") == "Pending"
    assert sorted(jobs.pods()) == ["taken-worker-0", "taken-worker-1", "taken-worker-2"]
    assert jobs.pods()["taken-worker-1"]["metadata"]["uid"] == foreign["metadata"]["uid"]
    assert _asked(jobs, mark) <= 6

    jobs.kubectl("delete", "pod", "taken-worker-1", "--now")
    jobs.until("taken", "Succeeded")
    assert jobs.condition("taken") == ""


# -- what a cluster allows -----------------------------------------------------------------------------------------


def test_a_quota_with_room_for_some(jobs: Jobs) -> None:
    jobs.kubectl("create", "quota", "few", "--hard=pods=2")
    until(lambda: "pods: 0/2" in jobs.kubectl("get", "quota", "few"), "the quota is in force")
    mark = jobs.plane.mark()
    jobs.make(job("poor", role(replicas=4, runs="forever")))

    jobs.until_told("poor", "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2")
    jobs.until_pods(2, phase="Running")
    time.sleep(3)
    assert jobs.phase("poor") == "Pending"
    assert _asked(jobs, mark) <= 2 + 2 + 4
    assert [event.split()[0] for event in jobs.events("poor")] == ["FailedCreate"]

    jobs.kubectl("patch", "quota", "few", "-p", '{"spec": {"hard": {"pods": "4"}}}')
    jobs.until("poor", "Running")
    assert jobs.condition("poor") == ""


def test_a_limit_range_that_refuses_some_and_changes_others(jobs: Jobs) -> None:
    limits = {"limits": [{"type": "Container", "max": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}]}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": limits}
    jobs.apply(body)
    large = role(runs="1")
    large["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}

    jobs.apply(job("large", large), job("changed", role(runs="1")))
    jobs.until_told("large", "must be less than or equal to cpu limit")
    jobs.until("changed", "Succeeded")
    (made,) = jobs.pods("changed").values()
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m"}


def test_a_policy_that_refuses_pods(jobs: Jobs) -> None:
    """The word of whoever runs the cluster is told as it is."""
    group, name = "/apis/admissionregistration.k8s.io/v1", f"policy-{jobs.namespace}"
    match = {
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    }
    rule = {
        "expression": "has(object.metadata.labels.team)",
        "message": "pods here need a label team: ask the platform team",
    }
    spec = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [rule]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": jobs.namespace}}}
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": where}
    jobs.plane.call("POST", f"{group}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    jobs.plane.call("POST", f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": bound})
    until(lambda: _refused(jobs), "the policy is in force")

    jobs.make(job("teamless", role(replicas=2)))
    jobs.until_told("teamless", "pods here need a label team: ask the platform team")

    mended = role(replicas=2)
    mended["template"]["metadata"]["labels"] = {"team": "a"}
    jobs.plane.call("PATCH", f"{jobs.path}/teamless", {"spec": {"replicaSpecs": [mended]}})
    jobs.until("teamless", "Succeeded", patience=15)  # at once, not when the old one would have been tried again
    jobs.plane.call("DELETE", f"{group}/validatingadmissionpolicybindings/{name}")
    jobs.plane.call("DELETE", f"{group}/validatingadmissionpolicies/{name}")


def _refused(jobs: Jobs) -> bool:
    try:
        jobs.plane.call("POST", f"{jobs.pods_path}?dryRun=All", pod("probe"))
    except RefusedError:
        return True
    return False


def test_a_template_that_the_server_refuses(jobs: Jobs) -> None:
    wrong = role(replicas=2)
    wrong["template"]["spec"]["hostname"] = "No_Host"
    mark = jobs.plane.mark()
    jobs.make(job("wrong", wrong))

    jobs.until_told("wrong", 'spec.hostname: Invalid value: "No_Host"')
    time.sleep(4)
    assert _asked(jobs, mark) <= 4
    assert len(jobs.events("wrong")) == 1
    assert "Warning  FailedCreate" in jobs.kubectl("describe", "gj", "wrong")

    jobs.plane.call("PATCH", f"{jobs.path}/wrong", {"spec": {"replicaSpecs": [role(replicas=2)]}})
    jobs.until("wrong", "Succeeded", patience=15)


def test_a_webhook_that_is_away(jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    jobs.plane.call("POST", HOOK, _webhook(jobs.namespace, port))
    until(lambda: _refused(jobs), "the webhook is asked")

    jobs.make(job("unasked", role(replicas=2)))
    jobs.until_told("unasked", f'failed calling webhook "{jobs.namespace}.example.com"')

    jobs.plane.call("DELETE", f"{HOOK}/{jobs.namespace}")
    jobs.until("unasked", "Succeeded")


# -- somebody interferes -------------------------------------------------------------------------------------------


def test_a_pod_and_a_service_that_somebody_deletes_are_made_again(jobs: Jobs) -> None:
    jobs.make(job("robbed", role(replicas=2, runs="forever"), service=SERVICE))
    jobs.until("robbed", "Running")
    old = jobs.pods()["robbed-worker-0"]["metadata"]["uid"]

    jobs.kubectl("delete", "pod", "robbed-worker-0", "--now")
    jobs.kubectl("delete", "service", "robbed-worker-1")
    until(lambda: jobs.plane.find(f"/api/v1/namespaces/{jobs.namespace}/services/robbed-worker-1"), "the service")
    jobs.until_pods(2, phase="Running")
    assert jobs.pods()["robbed-worker-0"]["metadata"]["uid"] != old
    status = jobs.until("robbed", "Running")
    assert "restartCount" not in status["tasks"][0]


def test_a_pod_that_somebody_deletes_has_not_failed_however_long_it_lingers(jobs: Jobs) -> None:
    """Its kubelet has ended it and said its last word; a finalizer keeps it. No restart is allowed here."""
    slow = role(replicas=2, runs="forever", confirms="2")
    slow["template"]["metadata"]["finalizers"] = ["example.com/slow"]
    jobs.make(job("lingers", slow))
    jobs.until("lingers", "Running")

    jobs.kubectl("delete", "pod", "lingers-worker-0", "--wait=false")
    until(lambda: jobs.pods()["lingers-worker-0"]["metadata"].get("deletionGracePeriodSeconds") == 0, "its last word")
    assert jobs.pods()["lingers-worker-0"]["status"]["phase"] == "Failed"
    time.sleep(1)
    assert jobs.phase("lingers") == "Running"

    jobs.plane.call("PATCH", f"{jobs.pods_path}/lingers-worker-0", {"metadata": {"finalizers": None}})
    jobs.until_pods(2, phase="Running")
    assert "restartCount" not in jobs.status("lingers")["tasks"][0]
    for name in jobs.pods():
        jobs.plane.call("PATCH", f"{jobs.pods_path}/{name}", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    "label",
    [pytest.param(KIND, id="the kind"), pytest.param(JOB_UID, id="the job"), pytest.param(INDEX, id="the index")],
)
def test_a_pod_whose_labels_somebody_takes_away_is_let_go_and_told_of(jobs: Jobs, label: str) -> None:
    jobs.make(job("bare", role(replicas=2, runs="forever")))
    jobs.until("bare", "Running")

    jobs.plane.call("PATCH", f"{jobs.pods_path}/bare-worker-1", {"metadata": {"labels": {label: None}}})
    until(lambda: "bare-worker-1 could not be created" in jobs.condition("bare"), f"{jobs.status('bare')}")
    assert jobs.pods()["bare-worker-1"]["status"]["phase"] == "Running"

    jobs.kubectl("delete", "pod", "bare-worker-1", "--now")
    until(lambda: not jobs.condition("bare"), "it is made anew")
    jobs.until_pods(2, phase="Running")


def test_a_namespace_that_is_deleted_while_jobs_run_and_are_made(plane: ControlPlane, operator: Operator) -> None:
    """It is kept on its way out by a finalizer of somebody else, as happens."""
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "doomed"}})
    until(lambda: plane.find("/api/v1/namespaces/doomed/serviceaccounts/default"), "its account")
    maps = "/api/v1/namespaces/doomed/configmaps"
    plane.call("POST", maps, {"metadata": {"name": "stays", "finalizers": ["example.com/slow"]}})
    jobs = Jobs(plane, "doomed")
    for number in range(10):
        jobs.make(job(f"old-{number}", role(replicas=2, runs="forever", limit=3)))
    jobs.until("old-9", "Running")
    mark = plane.mark()
    plane.call("DELETE", "/api/v1/namespaces/doomed")
    made = _made_until_refused(jobs)

    until(lambda: not plane.call("GET", jobs.path)["items"], "the jobs are gone")
    jobs.until_pods(0)
    quiet = plane.mark()
    time.sleep(2)
    assert plane.audit(quiet).where(user="operator", namespace="doomed") == ()
    calls = plane.audit(mark).where(user="operator", namespace="doomed")
    assert len(calls.where(code=403)) <= 10 * (10 + made), calls.tally("verb", "resource", "code")
    plane.call("PATCH", f"{maps}/stays", {"metadata": {"finalizers": None}})


def _made_until_refused(jobs: Jobs) -> int:
    for number in range(1000):
        try:
            jobs.make(job(f"new-{number}", role(replicas=20, runs="forever")))
        except RefusedError as error:
            return number if "because it is being terminated" in str(error) else -1
    return -1


def test_a_node_that_falls_silent_for_good(jobs: Jobs) -> None:
    prefer = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["frail-0"]}]}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": prefer}]}
    }
    with fake_nodes(jobs.plane, 1, prefix="frail") as frail:
        until(lambda: not jobs.plane.call("GET", "/api/v1/nodes/frail-0")["spec"].get("taints"), "it takes pods")
        jobs.make(job("moved", role(replicas=2, runs="forever", pod={"affinity": affinity})))
        jobs.until("moved", "Running")
        assert {one["spec"]["nodeName"] for one in jobs.pods().values()} == {"frail-0"}

        frail.kill()
        then = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 300))
        gone = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": then}
        jobs.plane.call("PATCH", "/api/v1/nodes/frail-0/status", {"status": {"conditions": [gone]}})

        def moved() -> bool:
            found = jobs.pods().values()
            return len(found) == 2 and all(one["spec"].get("nodeName", "frail-0") != "frail-0" for one in found)

        until(moved, "its pods are elsewhere")
        jobs.plane.call("DELETE", "/api/v1/nodes/frail-0")
    until(lambda: any("node frail-0 is lost" in event for event in jobs.events("moved")), f"{jobs.events('moved')}")
    status = jobs.until("moved", "Running")
    assert "restartCount" not in status["tasks"][0]  # not its own doing


def test_a_webhook_that_never_answers(hanging: Jobs) -> None:
    """The last of these, since its beginning was that of the first."""
    hanging.until_told("hooked", "hooked-worker-0 could not be created: ServiceUnavailable: no answer", patience=40)
    assert hanging.phase("hooked") == "Pending"
    (event,) = hanging.events("hooked")
    assert event.startswith("FailedCreate Pod hooked-worker-0 could not be created")

    hanging.plane.call("DELETE", f"{HOOK}/hanging")
    hanging.until("hooked", "Succeeded")
    assert json.dumps(hanging.status("hooked")["tasks"]).count('"Succeeded"') == 4
