# SPDX-License-Identifier: Apache-2.0
"""`trainwright node` on a real control plane: real processes, put on nodes by the real scheduler, seen by kubectl.

Two agents of one machine, each with the identity of its node, and nothing that they ask for is beyond its rights.
"""

import json
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster_agents import Body, Pods, agent, agent_plane, certificate, condition, left, pod, refused_to_nodes
from cluster_client import until
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_process import Process

pytest_plugins = ("cluster_fixtures",)
ROOT = Path(__file__).parents[2]
Agents = dict[str, Process]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One that can be asked for logs, and that notices dead nodes soon."""
    folder = tmp_path_factory.mktemp("agents")
    with agent_plane(folder) as plane:
        yield plane
        assert refused_to_nodes(plane) == ()
        assert plane.audit().where(user="operator", denied=True) == ()
    assert left([str(folder)]) == []


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[Agents]:
    """Two of this machine."""
    before = _links()
    four = ("--cpus", "4")
    with agent(plane, "east", *four, "--label", "side=east") as east, agent(plane, "west", *four) as west:
        yield {"east": east, "west": west}
    until(lambda: not any(link in _links() for link in _ours(before)), "the links of the nodes have gone")


def _links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def _ours(before: set[str]) -> set[str]:
    """Other tests make some, too, but those of our keeper came after."""
    return {name for name in _links() - before if name.startswith("tw") and not Path(f"/proc/{name[2:]}").exists()}


@pytest.fixture
def pods(plane: ControlPlane, namespace: str, agents: Agents) -> Pods:
    return Pods(plane, namespace)


# -- the node ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("agents")
def test_the_node_looks_like_any_other(plane: ControlPlane) -> None:
    node = plane.call("GET", "/api/v1/nodes/east")
    lease = plane.call("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/east")
    status = node["status"]

    kinds = {one["type"]: one["status"] for one in status["conditions"]}
    assert kinds == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert status["capacity"]["cpu"] == "4"
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    assert node["metadata"]["labels"]["side"] == "east"
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    until(lambda: _renewed(plane) != lease["spec"]["renewTime"], "the lease is renewed")
    assert "Ready" in plane.kubectl("get", "nodes", "east").stdout


def _renewed(plane: ControlPlane) -> str:
    lease = plane.call("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/east")
    return str(lease["spec"]["renewTime"])


@pytest.mark.usefixtures("agents")
def test_a_node_that_was_deleted_comes_back(plane: ControlPlane) -> None:
    before = plane.call("GET", "/api/v1/nodes/west")["metadata"]["uid"]
    plane.call("DELETE", "/api/v1/nodes/west")

    until(lambda: condition(plane, "west") == "True", "it is there and ready")
    assert plane.call("GET", "/api/v1/nodes/west")["metadata"]["uid"] != before


# -- pods ----------------------------------------------------------------------------------------------------------


def test_a_pod_runs_and_its_end_is_told_as_a_kubelet_tells_it(pods: Pods) -> None:
    pods.make(pod("a", "echo I am $(hostname) at $(hostname -i); exit 3"))
    status = pods.until("a", "Failed")

    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert pods.kubectl("logs", "a") == f"I am a at {status['podIP']}\n"
    scheduled = next(one for one in status["conditions"] if one["type"] == "PodScheduled")
    assert scheduled["status"] == "True"


def test_conditions_of_others_are_kept(pods: Pods) -> None:
    pods.make(pod("a", "exec sleep 3", readinessGates=[{"conditionType": "ours/gate"}]))
    pods.until("a", "Running")
    gate = {"type": "ours/gate", "status": "True", "reason": "Open"}
    conditions = [*pods.status("a")["conditions"], gate]
    pods.plane.call("PATCH", f"{pods.path}/pods/a/status", {"status": {"conditions": conditions}})
    status = pods.until("a", "Succeeded")

    seen = {one["type"]: one for one in status["conditions"]}
    assert seen["ours/gate"]["reason"] == "Open"
    assert seen["Ready"]["reason"] == "PodCompleted"


def test_every_pod_has_the_token_of_its_service_account(pods: Pods) -> None:
    pods.make(pod("a", "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && echo && cat token"))
    pods.until("a", "Succeeded")
    namespace, token = pods.kubectl("logs", "a").split()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = pods.plane.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)

    assert namespace == pods.namespace
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{pods.namespace}:default"


def test_secrets_and_claims_are_where_the_pod_asks_for_them(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("kept\n")
    name = f"volume-{pods.namespace}"
    amount = {"storage": "1Mi"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    disk = {**shared, "capacity": amount, "hostPath": {"path": str(tmp_path)}}
    pods.plane.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": disk})
    claim = {**shared, "volumeName": name, "resources": {"requests": amount}}
    pods.make({"metadata": {"name": "claim"}, "spec": claim}, "persistentvolumeclaims")
    pods.make({"metadata": {"name": "secret"}, "stringData": {"word": "sesame"}}, "secrets")
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]
    body = pod("a", "echo $WORD; cat /at/data", volumes=volumes)
    body["spec"]["containers"][0] |= {
        "volumeMounts": [{"name": "v", "mountPath": "/at"}],
        "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}}],
    }
    pods.make(body)
    pods.until("a", "Succeeded")

    assert pods.kubectl("logs", "a") == "sesame\nkept\n"


def test_pods_of_two_agents_find_each_other_by_name(pods: Pods) -> None:
    serve = "echo hello > index.html; exec python3 -m http.server 8000"
    pods.make(pod("server", f"mkdir /tmp/www && cd /tmp/www && {serve}", "east", hostname="first", subdomain="inside"))
    ports = [{"port": 8000}]
    pods.make({"metadata": {"name": "front"}, "spec": {"selector": {"app": "server"}, "ports": ports}}, "services")
    inside = {"clusterIP": "None", "selector": {"app": "server"}, "ports": ports}
    pods.make({"metadata": {"name": "inside"}, "spec": inside}, "services")
    pods.until("server", "Running")
    until(lambda: _is_ready(pods, "server"), "it is ready")
    space = pods.namespace
    hosts = ["server", "front", f"front.{space}", f"front.{space}.svc", f"front.{space}.svc.cluster.local", "inside"]
    hosts += ["first.inside", f"first.inside.{space}.svc.cluster.local", pods.status("server")["podIP"]]
    get = "import sys, urllib.request as r; print(sys.argv[1], r.urlopen(f'http://{sys.argv[1]}:8000/').read().decode().strip())"
    tries = "; ".join(f'until python3 -c "{get}" {host}; do sleep 0.2; done' for host in hosts)
    pods.make(pod("client", tries, "west"))
    pods.until("client", "Succeeded")

    said = re.findall(r"^(\S+) hello$", pods.kubectl("logs", "client"), re.MULTILINE)
    assert said == hosts
    assert pods.status("client")["podIP"].rsplit(".", 2)[0] == pods.status("server")["podIP"].rsplit(".", 2)[0]


def _is_ready(pods: Pods, name: str) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pods.status(name)["conditions"])


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"resources": {"requests": {"cpu": "9"}}}, "OutOfcpu", "cpu, requested: 9, free: 4"),
        ({"volume": {"nfs": {"server": "x", "path": "/"}}}, "UnsupportedPod", "spec.volumes[0].nfs: not supported"),
    ],
    ids=["room", "volume"],
)
def test_what_cannot_be_had_is_refused_with_the_reason(pods: Pods, spec: Body, reason: str, message: str) -> None:
    body = pod("a", "true", nodeName="east", automountServiceAccountToken=False)
    if "volume" in spec:
        body["spec"]["volumes"] = [{"name": "data", **spec["volume"]}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    else:
        body["spec"]["containers"][0] |= spec
    pods.make(body)
    status = pods.until("a", "Failed")

    assert status["reason"] == reason
    assert message in status["message"]


# -- logs ----------------------------------------------------------------------------------------------------------


def test_kubectl_logs_shows_any_part_of_a_log(pods: Pods) -> None:
    first = "touch /tmp/again; echo one; sleep 1.2; echo two; echo three; exit 1"
    script = f"test -e /tmp/again && echo second && sleep 60; {first}"
    pods.make(pod("a", script, restartPolicy="OnFailure"))
    until(lambda: "second" in pods.kubectl("logs", "a"), "it was restarted")
    former = ["logs", "a", "--previous"]
    stamped = pods.kubectl(*former, "--timestamps").splitlines()
    second = stamped[1].split()[0]

    assert pods.kubectl(*former) == "one\ntwo\nthree\n"
    assert pods.kubectl(*former, "--tail=2") == "two\nthree\n"
    assert pods.kubectl(*former, "--tail=0") == ""
    assert pods.kubectl(*former, "--limit-bytes=6") == "one\ntw"
    assert pods.kubectl(*former, f"--since-time={second[:19]}Z") == "two\nthree\n"
    assert pods.kubectl(*former, "--since=1h") == "one\ntwo\nthree\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z two", stamped[1])


def test_a_deleted_pod_has_its_grace_and_its_last_words_are_followed(pods: Pods) -> None:
    script = "trap 'echo saving; sleep 1; echo saved; exit 0' TERM; echo began; while :; do sleep 0.1; done"
    pods.make(pod("a", script, terminationGracePeriodSeconds=100))
    pods.until("a", "Running")
    words = [pods.plane.binaries["kubectl"], f"--kubeconfig={pods.plane.kubeconfig()}", "-n", pods.namespace]
    follow = subprocess.Popen([*words, "logs", "-f", "a"], stdout=subprocess.PIPE, text=True)
    assert follow.stdout is not None
    assert follow.stdout.readline() == "began\n"
    began = time.monotonic()
    pods.kubectl("delete", "pod", "a")

    assert 1 <= time.monotonic() - began < 60
    assert follow.communicate(timeout=60)[0] == "saving\nsaved\n"
    assert pods.status("a") == {}


def test_only_those_who_may_read_logs_read_them(plane: ControlPlane, pods: Pods) -> None:
    pods.make(pod("a", "echo secret; sleep 60", nodeName="east"))
    pods.until("a", "Running")
    certificate(plane.layout.folder, "stranger", "stranger", "visitors")
    node = plane.call("GET", "/api/v1/nodes/east")["status"]
    host, port = node["addresses"][0]["address"], node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://{host}:{port}/containerLogs/{pods.namespace}/a/main"

    assert _get(url) == (401, "Unauthorized\n")
    assert _get(url, plane.layout.folder / "stranger")[0] == 403
    assert _get(url, plane.layout.folder / "client") == (200, "secret\n")


def _get(url: str, pair: Path | None = None) -> tuple[int, str]:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        tls.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))
    try:
        with urllib.request.urlopen(url, context=tls, timeout=10) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- jobs, and nodes that go ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Process]:
    log = plane.layout.logs / "operator.log"
    with started(
        plane.kubeconfig("operator"), log, "--lease", "default/operator", "--node-grace", "3s", *QUICK
    ) as process:
        process.until(lambda: process.leads(plane, "default"))
        yield process
        assert process.end() == 0


def phase(pods: Pods, name: str) -> str:
    path = f"/apis/batch.tensorstack.dev/v1beta1/namespaces/{pods.namespace}/genericjobs/{name}"
    found = pods.plane.find(path) or {}
    return str((found.get("status") or {}).get("phase"))


@pytest.mark.usefixtures("operator")
def test_the_quickstart_trains_on_two_nodes(pods: Pods) -> None:
    pods.kubectl("apply", "-f", str(ROOT / "examples" / "quickstart.yaml"))
    until(lambda: len(_nodes_of(pods)) == 2, "pods are on both nodes")
    until(lambda: phase(pods, "quickstart") in ("Succeeded", "Failed"), "it has ended")

    assert phase(pods, "quickstart") == "Succeeded"
    assert "found y = " in pods.kubectl("logs", "quickstart-coordinator-0")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_servers_and_workers_of_a_paddlejob_find_each_other_on_two_nodes(pods: Pods, intranet: str) -> None:
    """Their programs end well only if each finds itself where the others look for it."""
    body = yaml.safe_load((ROOT / "examples" / "paddlejob" / "wide_and_deep_podip.yaml").read_text())
    body["spec"]["intranet"] = intranet
    path = f"/apis/batch.paddlepaddle.org/v1/namespaces/{pods.namespace}/paddlejobs"
    pods.plane.call("POST", path, body)

    def ended() -> str:
        job = pods.plane.call("GET", f"{path}/wide-and-deep-podip")
        return str((job.get("status") or {}).get("phase", ""))

    until(lambda: ended() in ("Completed", "Failed"), f"it has ended: {ended()}")
    assert ended() == "Completed"


def _nodes_of(pods: Pods) -> set[str]:
    return {one["spec"].get("nodeName", "") for one in pods.plane.call("GET", f"{pods.path}/pods")["items"]} - {""}


def test_an_agent_that_is_asked_to_end_gives_pods_their_time_and_comes_back(
    plane: ControlPlane, namespace: str
) -> None:
    pods = Pods(plane, namespace)
    script = "trap 'echo saved; exit 0' TERM; echo began; while :; do sleep 0.1; done"
    with agent(plane, "south") as process:
        pods.make(pod("a", script, nodeName="south"))
        pods.until("a", "Running")
        until(lambda: "began" in pods.kubectl("logs", "a"), "it has begun")
        assert process.end(20) == 0
    status = pods.status("a")
    assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert condition(plane, "south") == "False"
    with agent(plane, "south"):
        until(lambda: pods.kubectl("logs", "a") == "began\nsaved\n", "the agent knows the pod again")
        pods.kubectl("delete", "pod", "a")
        assert pods.status("a") == {}
    plane.call("DELETE", "/api/v1/nodes/south")


def test_pods_of_an_agent_that_was_killed_are_failed_or_started_again(plane: ControlPlane, namespace: str) -> None:
    pods = Pods(plane, namespace)
    with agent(plane, "north") as process:
        for name, policy in (("never", "Never"), ("again", "Always")):
            pods.make(pod(name, "echo began; exec sleep 60", nodeName="north", restartPolicy=policy))
            pods.until(name, "Running")
        process.kill()
        until(lambda: condition(plane, "north") == "Unknown", "its node is found dead")
    with agent(plane, "north") as process:
        status = pods.until("never", "Failed")
        until(lambda: _restarts(pods, "again") == 1, "it is started again")
        assert (status["reason"], "agent was restarted" in status["message"]) == ("NodeLost", True)
        until(lambda: not _taints(plane, "north"), "Kubernetes trusts it again")
        assert pods.kubectl("logs", "again", "--previous") == "began\n"
    plane.call("DELETE", "/api/v1/nodes/north")


def _restarts(pods: Pods, name: str) -> int:
    found = pods.status(name).get("containerStatuses") or [{}]
    return int(found[0].get("restartCount", 0)) if "running" in found[0].get("state", {}) else 0


def _taints(plane: ControlPlane, name: str) -> list[Body]:
    return plane.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints") or []


@pytest.mark.usefixtures("operator", "agents")
def test_a_job_goes_on_elsewhere_when_its_node_dies(plane: ControlPlane, namespace: str) -> None:
    pods = Pods(plane, namespace)
    with agent(plane, "doomed", "--label", "pool=doomed") as process:
        until(lambda: not _taints(plane, "doomed"), "Kubernetes trusts it")
        pods.plane.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(_job("doomed")))
        until(lambda: _running_on(pods) == {"doomed"}, "it runs there")
        process.kill()
        until(lambda: condition(plane, "doomed") == "Unknown", "its node is found dead")
        until(lambda: _running_on(pods) & {"east", "west"}, "it runs elsewhere", 120)
    plane.call("DELETE", "/api/v1/nodes/doomed")


def _job(pool: str) -> Body:
    """One that would rather run in that pool."""
    here = {"key": "pool", "operator": "In", "values": [pool]}
    prefer = [{"weight": 100, "preference": {"matchExpressions": [here]}}]
    spec = {
        "terminationGracePeriodSeconds": 1,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}},
        "containers": [{"name": "main", "image": "none", "command": ["sleep", "infinity"]}],
    }
    policy = {"policy": "OnFailure", "limit": 3}
    role = {"type": "worker", "replicas": 1, "restartPolicy": policy, "template": {"spec": spec}}
    head = {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob", "metadata": {"name": "j"}}
    return {**head, "spec": {"replicaSpecs": [role]}}


def _running_on(pods: Pods) -> set[str]:
    items = pods.plane.call("GET", f"{pods.path}/pods")["items"]
    return {one["spec"].get("nodeName", "") for one in items if one["status"].get("phase") == "Running"}


def test_plain_processes_are_pods_too(plane: ControlPlane, namespace: str) -> None:
    pods = Pods(plane, namespace)
    with agent(plane, "plain", "--runtime", "process"):
        pods.make(pod("a", "echo $HOSTNAME; ls /var/run/secrets/kubernetes.io", nodeName="plain"))
        status = pods.until("a", "Failed")
        assert pods.kubectl("logs", "a").startswith("a\n")
    assert status["podIP"] == status["hostIP"]
    plane.call("DELETE", "/api/v1/nodes/plain")
