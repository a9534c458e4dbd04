# SPDX-License-Identifier: Apache-2.0
"""The identity of a node on a real control plane: how it is requested, approved and renewed, and what it may not do.

The commands of docs/node.md run as they are written. What a node may not do is asked of the API server with the node's
own certificate, and with nothing of ours in between.
"""

import json
import re
import ssl
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_agents import (
    HOME,
    Pods,
    agent,
    agent_plane,
    agent_process,
    condition,
    left,
    node_folder,
    node_kubeconfig,
    pod,
    ready,
    refused_to_nodes,
)
from cluster_client import ask, run, until
from cluster_install import shell_environment, trainwright
from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.crd.install import BOOTSTRAP

pytest_plugins = ("cluster_fixtures",)
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "node.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh (node|machine)\n(.*?)^```", re.MULTILINE | re.DOTALL)
APPROVAL = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("identity")
    with agent_plane(folder) as plane:
        yield plane
    assert left([str(folder)]) == []


def bootstrap(plane: ControlPlane) -> Path:
    """A kubeconfig that may request certificates of nodes."""
    return plane.service_account(HOME, BOOTSTRAP)


def requests(plane: ControlPlane, node: str) -> list[str]:
    """The names of a node's CertificateSigningRequests."""
    items = plane.call("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests")["items"]
    names = [str(item["metadata"]["name"]) for item in items]
    return [name for name in names if re.fullmatch(f"trainwright-{node}-[0-9a-f]{{10}}", name)]


# -- how it comes to one -------------------------------------------------------------------------------------------


def test_the_commands_of_the_page_make_a_machine_a_node(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    shell = Shell(plane, tmp_path)
    done = []
    try:
        for where, block in BLOCK.findall(PAGE):
            if where == "machine":
                shell.start(block)
                until(lambda: requests(plane, "gpu-0"), "it has asked for a certificate")
                assert plane.find("/api/v1/nodes/gpu-0") is None
            else:
                shell.run(block)
            done.append(block)
        pods = Pods(plane, namespace)
        pods.make(pod("a", "echo hello", nodeName="gpu-0"))
        pods.until("a", "Succeeded")
        assert pods.kubectl("logs", "a") == "hello\n"
    finally:
        shell.end()
    assert len(done) == 5
    plane.call("DELETE", "/api/v1/nodes/gpu-0")


class Shell:
    """A machine on which kubectl and trainwright are at hand."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._folder = folder
        # What the page does not need: another port, since the machine may have a kubelet.
        own = {"TRAINWRIGHT_STATE": str(folder / "state"), "TRAINWRIGHT_NODE_PORT": "0"}
        self._env = shell_environment(plane, folder) | own
        self._log = (folder / "node.log").open("wb")
        self._node: subprocess.Popen[bytes] | None = None

    def run(self, block: str) -> None:
        words = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(words, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False)
        log = (self._folder / "node.log").read_text()
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}\n{log}"

    def start(self, block: str) -> None:
        words = ["bash", "-c", f"exec {block}"]
        self._node = subprocess.Popen(words, cwd=self._folder, env=self._env, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        self._log.close()
        if self._node is not None:
            self._node.terminate()
            self._node.wait(30)


def test_a_node_waits_for_the_same_approval_again_and_needs_no_bootstrap_file_later(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "bootstrap"
    file.write_text(bootstrap(plane).read_text())
    process = agent_process(plane, "patient", "--bootstrap-kubeconfig", str(file))
    process.start()
    process.until(lambda: "kubectl certificate approve trainwright-patient-" in process.tail())
    (name,) = requests(plane, "patient")
    process.kill()
    plane.kubectl("certificate", "approve", name)
    with ready(plane, "patient", process):
        assert requests(plane, "patient") == [name]
    file.unlink()
    key = node_folder(plane, "patient") / "pki" / "client.pem"
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    later = agent_process(plane, "patient", "--bootstrap-kubeconfig", str(file))
    with ready(plane, "patient", later):
        pods = Pods(plane, namespace)
        pods.make(pod("a", "echo hello", nodeName="patient"))
        pods.until("a", "Succeeded")
    assert later.end() == 0
    without = agent_process(plane, "patient", env={"KUBECONFIG": "/no/such/file"})
    with ready(plane, "patient", without):
        assert requests(plane, "patient") == [name]
    assert who(plane, node_folder(plane, "patient") / "kubeconfig") == "system:node:patient"
    assert "and everyone who can read its kubeconfig" not in without.tail(200)
    plane.call("DELETE", "/api/v1/nodes/patient")


def who(plane: ControlPlane, config: Path) -> str:
    words = [plane.binaries["kubectl"], f"--kubeconfig={config}", "auth", "whoami", "-o", "json"]
    return str(json.loads(run(words).stdout)["status"]["userInfo"]["username"])


@pytest.mark.parametrize(
    ("verdict", "words", "told"),
    [
        pytest.param("deny", (), "was denied (KubectlDeny: This CSR was denied by kubectl certificate deny.)", id="no"),
        pytest.param("", ("--approval-timeout", "4s"), "was not approved within 4 s", id="nobody"),
    ],
)
def test_a_node_that_gets_no_certificate_says_why_and_what_to_do(
    plane: ControlPlane, verdict: str, words: tuple[str, ...], told: str
) -> None:
    node = f"unwanted-{verdict or 'late'}"
    process = agent_process(plane, node, "--bootstrap-kubeconfig", str(bootstrap(plane)), *words)
    process.start()
    until(lambda: requests(plane, node), "it has asked")
    (name,) = requests(plane, node)
    if verdict:
        plane.kubectl("certificate", verdict, name)
    until(lambda: not process.alive, "it has ended")

    assert process.end() == 3
    assert told in process.tail(1)
    assert (f"kubectl delete csr {name}" if verdict else f"kubectl certificate approve {name}") in process.tail(1)
    assert "Traceback" not in process.tail(50)
    assert plane.find(f"/api/v1/nodes/{node}") is None


def test_who_may_not_ask_for_certificates_is_told_what_to_install(plane: ControlPlane) -> None:
    process = agent_process(plane, "nobody", "--bootstrap-kubeconfig", str(plane.kubeconfig("stranger")))
    process.start()
    until(lambda: not process.alive, "it has ended")

    assert process.end() == 3
    assert "no certificate for node nobody can be requested" in process.tail(1)
    assert "`trainwright manifests --nodes` prints an account that may" in process.tail(1)


def test_a_node_cannot_be_another_one(plane: ControlPlane) -> None:
    process = agent_process(plane, "other", "--kubeconfig", str(node_kubeconfig(plane, "east")))
    process.start()
    until(lambda: not process.alive, "it has ended")

    assert process.end() == 2
    assert "--name other: the kubeconfig is that of system:node:east" in process.tail(1)


def test_an_agent_that_is_somebody_else_warns_and_may_remove_its_node(plane: ControlPlane) -> None:
    process = agent_process(plane, "guest", "--kubeconfig", str(plane.kubeconfig()), "--remove")
    with ready(plane, "guest", process):
        assert "this agent connects as the user admin" in process.tail(50)
    assert plane.find("/api/v1/nodes/guest") is None


def test_a_certificate_of_another_cluster_is_replaced(plane: ControlPlane) -> None:
    """One that the server does not accept, because a test cluster was made anew under the same name."""
    with approving(plane):
        process = agent_process(plane, "mover", "--bootstrap-kubeconfig", str(bootstrap(plane)))
        folder = node_folder(plane, "mover") / "pki"
        with ready(plane, "mover", process):
            pass
        foreign(folder)
        with ready(plane, "mover", process):
            assert "the agent requests a new one" in process.tail(50)
    plane.call("DELETE", "/api/v1/nodes/mover")


def foreign(folder: Path) -> None:
    """Put a certificate for the same user there, by a CA that nobody trusts."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subject = ("-subj", "/O=system:nodes/CN=system:node:mover")
    run(["openssl", "req", "-x509", *key, *subject, "-keyout", f"{folder}/x.key", "-out", f"{folder}/x.crt"])
    (folder / "client.pem").write_text((folder / "x.crt").read_text() + (folder / "x.key").read_text())


@contextmanager
def approving(plane: ControlPlane) -> Iterator[None]:
    """The cluster approves first certificates by itself, as the page shows it."""
    words = ("clusterrolebinding", "approval")
    plane.kubectl("create", *words, f"--clusterrole={APPROVAL}", f"--serviceaccount={HOME}:{BOOTSTRAP}")
    yield
    plane.kubectl("delete", *words)


# -- how it keeps it -----------------------------------------------------------------------------------------------


def test_a_certificate_is_renewed_before_it_ends_and_the_agent_goes_on(tmp_path: Path) -> None:
    """Certificates of 40 seconds. If this machine is so busy that one ends, the bootstrap user asks for the next."""
    with agent_plane(tmp_path / "plane", "--cluster-signing-duration=40s") as plane, approving(plane):
        pods = Pods(plane, "default")
        process = agent_process(plane, "brief", "--bootstrap-kubeconfig", str(bootstrap(plane)))
        with ready(plane, "brief", process):
            first = ends(plane, "brief")
            pods.make(pod("long", "while :; do sleep 0.2; done", nodeName="brief"))
            pods.until("long", "Running")
            process.until(lambda: "was renewed" in process.tail(50))
            assert ends(plane, "brief") > first
            time.sleep(max(0.0, first + 1 - time.time()))
            mark = plane.mark()
            pods.make(pod("late", "echo still here", nodeName="brief"))
            pods.until("late", "Succeeded")
            assert pods.kubectl("logs", "late") == "still here\n"
            assert condition(plane, "brief") == "True"
            assert plane.audit(mark).where(code=401) == ()
            status = pods.status("long")["containerStatuses"][0]
            assert (status["restartCount"], "running" in status["state"]) == (0, True)
        assert refused_to_nodes(plane) == ()


def ends(plane: ControlPlane, node: str) -> float:
    """When its certificate ends."""
    file = node_folder(plane, node) / "pki" / "client.pem"
    said = run(["openssl", "x509", "-noout", "-enddate", "-in", str(file)]).stdout
    return float(ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter=")))


# -- what it may not do --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(plane: ControlPlane) -> Iterator[dict[str, Process]]:
    with agent(plane, "east") as east, agent(plane, "west") as west:
        yield {"east": east, "west": west}


@pytest.fixture
def apart(plane: ControlPlane, namespace: str, two: object) -> Pods:
    """On each of two nodes a pod with a secret, a ConfigMap and a service account of its own."""
    pods = Pods(plane, namespace)
    for side in ("east", "west"):
        pods.make({"metadata": {"name": side}, "stringData": {"word": f"{side}-secret"}}, "secrets")
        pods.make({"metadata": {"name": side}, "data": {"word": f"{side}-setting"}}, "configmaps")
        pods.make({"metadata": {"name": side}}, "serviceaccounts")
        body = pod(side, "echo $SECRET $SETTING; cat /var/run/secrets/kubernetes.io/serviceaccount/token; sleep 600")
        body["spec"] |= {"nodeName": side, "serviceAccountName": side}
        secret = {"secretKeyRef": {"name": side, "key": "word"}}
        setting = {"configMapKeyRef": {"name": side, "key": "word"}}
        body["spec"]["containers"][0]["env"] = [
            {"name": "SECRET", "valueFrom": secret},
            {"name": "SETTING", "valueFrom": setting},
        ]
        pods.make(body)
    for side in ("east", "west"):
        pods.until(side, "Running")
    return pods


def asked(plane: ControlPlane, node: str, *words: str, given: Any = None) -> "subprocess.CompletedProcess[str]":
    """kubectl with the certificate of that node."""
    kubectl = [plane.binaries["kubectl"], f"--kubeconfig={node_kubeconfig(plane, node)}"]
    return run([*kubectl, *words], json.dumps(given) if given else "", check=False)


def test_a_node_runs_its_own_pod_with_secret_setting_token_and_log(apart: Pods) -> None:
    until(lambda: len(apart.kubectl("logs", "east").split()) == 3, "it has written all")
    secret, setting, token = apart.kubectl("logs", "east").split()
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    user = apart.plane.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]["user"]

    assert (secret, setting) == ("east-secret", "east-setting")
    assert user["username"] == f"system:serviceaccount:{apart.namespace}:east"
    assert asked(apart.plane, "east", "-n", apart.namespace, "get", "secret", "east").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("get secret west -n {}", id="a secret of a pod on another node"),
        pytest.param("get configmap west -n {}", id="a ConfigMap of a pod on another node"),
        pytest.param("get secrets -n {}", id="all secrets of a namespace"),
        pytest.param("get secrets -A", id="all secrets"),
        pytest.param("get pod west -n {}", id="another node's pod"),
        pytest.param("get pods -A", id="all pods"),
        pytest.param("create token west -n {}", id="a token of another pod's account"),
        pytest.param("create token east -n {}", id="a token that no pod of its own has"),
        pytest.param("annotate node west mine=yes", id="another Node"),
        pytest.param("delete node west", id="another Node's end"),
        pytest.param("delete node east", id="its own Node's end"),
        pytest.param("taint node east dedicated=x:NoSchedule", id="its own taints"),
        pytest.param("delete pod west -n {}", id="another node's pod's end"),
        pytest.param("create namespace mine", id="a namespace"),
    ],
)
def test_a_node_has_no_say_beyond_its_own_pods(apart: Pods, words: str) -> None:
    done = asked(apart.plane, "east", *words.format(apart.namespace).split())

    assert done.returncode == 1, done.stdout
    assert "forbidden" in done.stderr.lower()
    assert apart.plane.find("/api/v1/nodes/west") is not None
    assert apart.status("west")["phase"] == "Running"


def test_a_node_changes_the_status_of_its_own_pods_only(apart: Pods) -> None:
    node_kubeconfig(apart.plane, "east")
    pair = apart.plane.layout.folder / "identity-east"
    tls = ssl.create_default_context(cafile=str(apart.plane.authority))
    tls.load_cert_chain(f"{pair}.crt", f"{pair}.key")

    def patch(name: str) -> None:
        url = f"{apart.plane.server}{apart.path}/pods/{name}/status"
        kind = {"Content-Type": "application/merge-patch+json"}
        ask(url, {"status": {"message": "I was here"}}, verb="PATCH", headers=kind, tls=tls)

    patch("east")
    with pytest.raises(urllib.error.HTTPError) as refused:
        patch("west")
    with refused.value as error:
        assert (error.code, "pods with spec.nodeName set to itself" in error.read().decode()) == (403, True)
    assert apart.status("west").get("message") is None


@pytest.mark.usefixtures("apart")
def test_the_bootstrap_account_asks_for_certificates_and_for_nothing_else(plane: ControlPlane) -> None:
    said = plane.kubectl("auth", "can-i", "--list", f"--as=system:serviceaccount:{HOME}:{BOOTSTRAP}").stdout
    granted = {line.split()[0] for line in said.splitlines()[1:] if line.strip() and not line.startswith(" ")}

    for words in ("get secrets", "get pods", "get nodes", "create pods", "get configmaps", "create serviceaccounts"):
        account = f"--as=system:serviceaccount:{HOME}:{BOOTSTRAP}"
        assert plane.kubectl("auth", "can-i", *words.split(), "-A", account, check=False).stdout.strip() == "no"
    assert {name for name in granted if not name.startswith(("selfsubject", "["))} == {
        "certificatesigningrequests.certificates.k8s.io"
    }


# -- what was there before -----------------------------------------------------------------------------------------

#: What `trainwright manifests --nodes` of version 0.1.0 printed for nodes.
BEFORE = Path(__file__).parent / "data" / "nodes-0.1.0.yaml"
OLD = "system:serviceaccount:trainwright:trainwright-node"


def test_the_shared_account_loses_its_rights_when_the_new_manifests_are_applied(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(BEFORE))
    asked = ("get secrets", "create serviceaccounts --subresource=token", "list pods", "patch nodes", "get configmaps")

    def may() -> set[str]:
        as_old = {one: ("auth", "can-i", *one.split(), "-A", f"--as={OLD}") for one in asked}
        return {one for one, words in as_old.items() if plane.kubectl(*words, check=False).stdout.strip() == "yes"}

    until(lambda: may() == set(asked), "the shared account may do all that")
    new = trainwright("manifests", "--nodes", "--no-crds").stdout
    plane.kubectl("apply", "--server-side", "-f", "-", given=new)
    until(lambda: may() == set(), f"it may do nothing of it: {may()}")
    assert OLD.rpartition(":")[2] not in {
        one["name"]
        for binding in plane.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")["items"]
        for one in binding.get("subjects") or ()
    }


def test_nothing_but_these_is_refused_to_nodes(plane: ControlPlane, two: dict[str, Process]) -> None:
    """The agents themselves ask for nothing that they may not have; the tests above ask with kubectl."""
    assert all(process.alive for process in two.values())
    assert [call for call in refused_to_nodes(plane) if "trainwright" in call.agent] == []
