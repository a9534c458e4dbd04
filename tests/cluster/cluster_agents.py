# SPDX-License-Identifier: Apache-2.0
"""Nodes that are `trainwright node` processes, and a control plane that talks to them as to any kubelet.

`agent_plane` gives the API server a certificate to ask nodes for logs with, and a CA that signs for nodes. `agent`
starts a node as the user `system:node:NAME`, under the Node authorizer, NodeRestriction and the additions of
`crd.install.agents`. Its certificate comes from the test's CA, which is quicker than a CertificateSigningRequest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cluster_audit import Call, Calls
from cluster_client import until
from cluster_install import install_crds
from cluster_operator import grant
from cluster_plane import ControlPlane
from cluster_process import Process
from cluster_users import write_certificate_kubeconfig

from patience import PATIENCE
from trainwright.crd import install
from trainwright.crd.rbac import RBAC

Body = dict[str, Any]
#: Where the account is that requests certificates for nodes.
HOME = "trainwright"
#: A control plane that notices a dead node soon.
_QUICK = ("--node-monitor-grace-period=6s", "--node-monitor-period=500ms")


def agent_plane(folder: Path, *controllers: str) -> ControlPlane:
    """A control plane whose API server reads logs from nodes, and on which our operator and nodes have their rights.

    `controllers` are more flags of kube-controller-manager.
    """
    folder.mkdir(exist_ok=True)
    authority(folder)
    flags = {
        "kube-apiserver": [
            f"--client-ca-file={folder / 'ca.crt'}",
            f"--kubelet-client-certificate={folder / 'client.crt'}",
            f"--kubelet-client-key={folder / 'client.key'}",
            "--enable-admission-plugins=NodeRestriction",
        ],
        "kube-controller-manager": [*_QUICK, *_signing(folder), *controllers],
    }
    return ControlPlane(folder, first=_install, flags=flags)


def _signing(folder: Path) -> tuple[str, str]:
    """Makes kube-controller-manager sign the requests of nodes."""
    return f"--cluster-signing-cert-file={folder / 'ca.crt'}", f"--cluster-signing-key-file={folder / 'ca.key'}"


def authority(folder: Path, user: str = "kube-apiserver-kubelet-client", group: str = "system:masters") -> None:
    """A CA, and a client's certificate by it, as `ca.crt` and `client.crt`, each with its key."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    _openssl(folder, "req", "-x509", *key, "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.crt")
    certificate(folder, "client", user, group)


def certificate(folder: Path, name: str, user: str, group: str) -> None:
    """Another client's, by the same CA."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", *key, "-subj", f"/O={group}/CN={user}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    _openssl(folder, "x509", "-req", *signing, "-in", f"{name}.csr", "-out", f"{name}.crt")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: S607 - as the system has it


def _install(plane: ControlPlane) -> None:
    install_crds(plane)
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
    bodies = install.agents(HOME)
    for name in ("kube-node-lease", "kube-system", "default"):
        until(partial(plane.find, f"/api/v1/namespaces/{name}"), f"there is a namespace {name}")
    plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
    grant(plane, "default", "operator", {"kind": "User", "name": "operator", "apiGroup": RBAC})


def node_kubeconfig(plane: ControlPlane, name: str) -> Path:
    """A kubeconfig with the identity of that node."""
    folder = plane.layout.folder
    pair = folder / f"identity-{name}"
    if not pair.with_suffix(".crt").exists():
        certificate(folder, pair.name, f"system:node:{name}", "system:nodes")
    return write_certificate_kubeconfig(folder / "kubeconfig" / pair.name, plane.server, plane.authority, pair)


def agent_process(plane: ControlPlane, name: str, *words: str, env: Mapping[str, str] | None = None) -> Process:
    """A node agent that has not been started; `words` say who it is."""
    argv = [sys.executable, "-m", "trainwright", "node", "--name", name, "--folder", str(node_folder(plane, name))]
    argv += ["--port", "0", "--heartbeat", "1s", *words]
    return Process(f"node {name}", argv, plane.layout.logs / f"agent-{name}.log", env)


def node_folder(plane: ControlPlane, name: str) -> Path:
    """Where an agent keeps what it needs again."""
    return plane.layout.folder / "nodes" / name


@contextmanager
def agent(plane: ControlPlane, name: str, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
    """A node of that name, ready; ended with all that it runs, however it is by then."""
    process = agent_process(plane, name, "--kubeconfig", str(node_kubeconfig(plane, name)), *words, env=env)
    with ready(plane, name, process):
        yield process


@contextmanager
def ready(plane: ControlPlane, name: str, process: Process) -> Iterator[None]:
    """Start an agent and wait for its node; at the end it is ended."""
    process.start()
    try:
        process.until(lambda: condition(plane, name) == "True")
        yield
    finally:
        process.end(20)


def refused_to_nodes(plane: ControlPlane) -> Calls:
    """What nodes asked for without the right to it.

    A node may learn of its pod a moment before the authorizer does: what was granted a moment later is left out.
    """
    calls = Calls(call for call in plane.audit() if call.user.startswith("system:node:"))
    granted = {_what(call) for call in calls if call.code < 400}
    return Calls(call for call in calls if call.denied and _what(call) not in granted)


def _what(call: Call) -> tuple[str, str, str, str, str]:
    return call.user, call.verb, call.resource, call.namespace, call.name


def condition(plane: ControlPlane, name: str) -> str:
    """What is said of the node's readiness: True, False, Unknown or nothing."""
    node: Body = plane.find(f"/api/v1/nodes/{name}") or {}
    found = node.get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in found if one["type"] == "Ready"), "")


def left(names: Sequence[str]) -> list[str]:
    """Processes that were told of one of these folders."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(name in said for name in names) and int(entry.name) != os.getpid():
                found.append(f"{entry.name}: {said}")
    return found


def pod(name: str, script: str, node: str = "", **spec: Any) -> Body:
    """A pod that runs a line of shell."""
    main = {"name": "main", "image": "none", "command": ["sh", "-c", script.replace("$(", "$$(")]}
    placed = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    body = {"restartPolicy": "Never", "containers": [main], **placed, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": body}


class Pods:
    """The pods of a test's own namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"/api/v1/namespaces/{namespace}"

    def make(self, body: Body, kind: str = "pods") -> Body:
        """A pod, or something else of this namespace."""
        return self.plane.call("POST", f"{self.path}/{kind}", body)

    def status(self, name: str) -> Body:
        """How it is; nothing if it is gone."""
        found = self.plane.find(f"{self.path}/pods/{name}") or {}
        return found.get("status") or {}

    def until(self, name: str, *phases: str, patience: float = PATIENCE) -> Body:
        """Wait for one of these phases; the status."""
        until(lambda: self.status(name).get("phase") in phases, f"{name} is {phases}: {self.status(name)}", patience)
        return self.status(name)

    def kubectl(self, *words: str) -> str:
        """All that it says."""
        done = self.plane.kubectl("-n", self.namespace, *words, check=False)
        return done.stdout + done.stderr
