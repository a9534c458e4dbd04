# SPDX-License-Identifier: Apache-2.0
"""The Go original of TFJob, training-operator, prepared to run in turn with ours.

`TRAINING_OPERATOR_BIN` names its program. It runs as cluster-admin. `prepare` creates what it needs to start: its
namespace, a webhook that matches nothing, and the Secret for the certificate that it generates for this webhook.
"""

import base64
import os
import shutil
import subprocess
from pathlib import Path
from time import sleep
from typing import Any

from cluster_binaries import MissingError
from cluster_install import await_crds
from cluster_layout import free_ports
from cluster_plane import ControlPlane
from cluster_process import Process

NAME = "training-operator"
MODULE = "github.com/kubeflow/training-operator"
#: Its limits: the highest speed, the limits of the case `matched`, its defaults.
MODES = {
    "open": ["--kube-api-qps=1000", "--kube-api-burst=1000", "--controller-threads=8"],
    "matched": ["--kube-api-qps=50", "--kube-api-burst=100", "--controller-threads=8"],
    "shipped": [],
}
#: Its user name at the API server.
USERS = {"peer": "peer"}
ENVIRONMENT = {"MY_POD_NAMESPACE": NAME}
#: It always reads its certificate from this folder; there is no option for it.
_FOLDER = Path("/tmp/k8s-webhook-server/serving-certs")  # noqa: S108 - fixed in its code
_CERTIFICATE = f"{NAME}-webhook-cert"
_WEBHOOK = f"validator.{NAME}.kubeflow.org"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def program() -> str | None:
    """Return the path of its program, or None if it is not installed."""
    return os.environ.get("TRAINING_OPERATOR_BIN")


def prepare(plane: ControlPlane) -> None:
    """Create the objects that it needs to start."""
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAME}})
    plane.call("POST", f"/api/v1/namespaces/{NAME}/secrets", {"metadata": {"name": _CERTIFICATE}})
    plane.call("POST", _ADMISSION, _webhook())
    subject = {"kind": "User", "name": "peer", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
    plane.call("POST", _RBAC, {"metadata": {"name": NAME}, "subjects": [subject], "roleRef": role})


def _webhook() -> dict[str, Any]:
    nothing = {"apiGroups": ["nothing.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}
    one = {
        "name": _WEBHOOK,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"name": NAME, "namespace": NAME}},
        "rules": [nothing],
    }
    return {"metadata": {"name": _WEBHOOK}, "webhooks": [one]}


def words(plane: ControlPlane, mode: str = "open") -> list[str]:
    """Return its command line: one kind, and ports that are not in use."""
    metrics, health, webhook = free_ports(3)
    ports = [f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{health}"]
    server = [f"--kubeconfig={plane.kubeconfig(USERS['peer'])}", f"--webhook-server-port={webhook}"]
    return [str(program()), "--enable-scheme=tfjob", "--zap-log-level=error", *MODES[mode], *ports, *server]


def certify(plane: ControlPlane, operator: Process) -> None:
    """Copy its certificate from the Secret to the folder that it reads, as a mounted volume would do."""
    for _ in range(120):
        assert operator.alive, f"{NAME} has ended:\n{operator.tail()}"
        secret = plane.call("GET", f"/api/v1/namespaces/{NAME}/secrets/{_CERTIFICATE}")
        if secret.get("data"):
            _FOLDER.mkdir(parents=True, exist_ok=True)
            for name, text in secret["data"].items():
                (_FOLDER / name).write_bytes(base64.b64decode(text))
            return
        sleep(0.5)
    raise AssertionError(f"{NAME} made no certificate:\n{operator.tail()}")


def version() -> str:
    """Return the version that is recorded in its program."""
    lines = [line.split() for line in _go("version", "-m", str(program())).splitlines()]
    found = [words[2] for words in lines if words[:1] in (["mod"], ["dep"]) and words[1] == MODULE]
    return found[0] if found else "of an unknown version"


def check() -> None:
    """Raise MissingError, with one line, if its program or its CRDs are not there."""
    path = program()
    if not path:
        raise MissingError("TRAINING_OPERATOR_BIN is not set; `python bench/operator --help` says how to install it")
    if not os.access(path, os.X_OK):
        raise MissingError(f"TRAINING_OPERATOR_BIN={path} is not a program")
    crd()


def crd() -> Path:
    """Return the file of its TFJob CRD, from TRAINING_OPERATOR_CRDS or from Go's module cache."""
    given = os.environ.get("TRAINING_OPERATOR_CRDS")
    cache = Path(_go("env", "GOMODCACHE").strip() or ".")
    file = Path(given or cache / f"{MODULE}@{version()}" / "manifests" / "base" / "crds") / "kubeflow.org_tfjobs.yaml"
    if not file.exists():
        raise MissingError(f"{file} does not exist; set TRAINING_OPERATOR_CRDS to the folder of the peer's CRDs")
    return file


def install_crd(plane: ControlPlane) -> None:
    """Install its TFJob CRD and wait until the API server serves it."""
    plane.kubectl("apply", "--server-side", "-f", str(crd()))
    await_crds(plane)


def _go(*words: str) -> str:
    """Return the output of a go command; nothing if there is no Go."""
    go = shutil.which("go")
    if not go:
        return ""
    return subprocess.run([go, *words], capture_output=True, text=True, check=False).stdout  # noqa: S603 - only reads
