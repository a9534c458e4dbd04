# SPDX-License-Identifier: Apache-2.0
"""The real training-operator of Kubeflow 1.9.4, built once from the module in `tools`, on a real control plane.

It runs as cluster-admin. `prepare` creates what it needs to start: its namespace, a webhook that matches nothing, and
the Secret for the certificate that it generates for this webhook.
"""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_binaries import MissingError, alone
from cluster_client import until
from cluster_install import await_crds
from cluster_layout import free_ports
from cluster_plane import ControlPlane
from cluster_process import Process

NAME = "training-operator"
MODULE = "github.com/kubeflow/training-operator"
#: The user of `cluster_users` with whose rights it runs.
USER = "peer"
#: The namespace of its documents.
NAMESPACE = "kubeflow"
ENVIRONMENT = {"MY_POD_NAMESPACE": NAMESPACE}
_TOOLS = Path(__file__).resolve().parents[2] / "tools" / NAME
#: It always reads its certificate from this folder; there is no option for it.
_FOLDER = Path("/tmp/k8s-webhook-server/serving-certs")  # noqa: S108 - fixed in its code
_CERTIFICATE = f"{NAME}-webhook-cert"
_WEBHOOK = f"validator.{NAME}.kubeflow.org"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def version() -> str:
    """The version that the module in `tools` requires."""
    found = re.search(rf"^require {MODULE} (\S+)$", (_TOOLS / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{_TOOLS / 'go.mod'} does not require {MODULE}"
    return found[1]


def installed(tell: Callable[[str], None] = print) -> Path:
    """The folder with its program and its manifests, built first if need be. MissingError if it cannot be had."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "trainwright" / NAME / version()
    if not (folder / NAME).exists():
        with alone(folder, tell):
            if not (folder / NAME).exists():  # another process may have built it while this one waited
                _build(folder, tell)
    return folder


def _build(folder: Path, tell: Callable[[str], None]) -> None:
    tell(f"building {NAME} {version()} in {folder}: only once, but it takes minutes")
    part = folder / ".part"
    _go("build", "-buildvcs=false", "-ldflags=-s -w", "-o", str(part), f"{MODULE}/cmd/{NAME}.v1")
    source = Path(_go("list", "-m", "-f", "{{.Dir}}", MODULE).strip())
    shutil.copytree(source / "manifests", folder / "manifests", dirs_exist_ok=True, copy_function=shutil.copyfile)
    part.rename(folder / NAME)  # last: whoever sees the program finds the rest


def _go(*words: str) -> str:
    go = shutil.which("go")
    if not go:
        raise MissingError(f"no Go to build {NAME} with: install Go 1.26 or later")
    how = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run([go, *words], cwd=_TOOLS, env=how, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise MissingError(f"Go could not build {NAME}: {last}")
    return done.stdout


def install_crds(plane: ControlPlane) -> None:
    """Install its CRDs as its documents say, and wait until the API server serves them."""
    plane.kubectl("apply", "--server-side", "-k", str(installed() / "manifests" / "base" / "crds"))
    await_crds(plane)


def prepare(plane: ControlPlane) -> None:
    """Create the objects that it needs to start."""
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    plane.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": _CERTIFICATE}})
    plane.call("POST", _ADMISSION, _webhook())
    subject = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
    plane.call("POST", _RBAC, {"metadata": {"name": NAME}, "subjects": [subject], "roleRef": role})


def _webhook() -> dict[str, Any]:
    nothing = {"apiGroups": ["nothing.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}
    one = {
        "name": _WEBHOOK,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"name": NAME, "namespace": NAMESPACE}},
        "rules": [nothing],
    }
    return {"metadata": {"name": _WEBHOOK}, "webhooks": [one]}


def words(plane: ControlPlane, path: str, kinds: Sequence[str]) -> list[str]:
    """Its command line: these kinds, and ports that are not in use."""
    metrics, health, webhook = free_ports(3)
    ports = [f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{health}"]
    server = [f"--kubeconfig={plane.kubeconfig(USER)}", f"--webhook-server-port={webhook}"]
    return [path, *(f"--enable-scheme={kind}" for kind in kinds), "--zap-log-level=error", *ports, *server]


def certify(plane: ControlPlane, operator: Process) -> None:
    """Copy its certificate from the Secret to the folder that it reads, as a mounted volume would do."""

    def data() -> dict[str, str]:
        assert operator.alive, f"{NAME} has ended:\n{operator.tail()}"
        found: dict[str, str] = (
            plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{_CERTIFICATE}").get("data") or {}
        )
        return found

    until(lambda: bool(data()), f"{NAME} makes a certificate")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in data().items():
        (_FOLDER / name).write_bytes(base64.b64decode(text))


class TrainingOperator(Process):
    """The operator that runs, and the address of its metrics."""

    def __init__(self, plane: ControlPlane, log: Path, kinds: Sequence[str]) -> None:
        command = words(plane, str(installed() / NAME), kinds)
        super().__init__(NAME, command, log, ENVIRONMENT)
        (self.metrics,) = [one.partition("=")[2] for one in command if one.startswith("--metrics-bind-address=")]


@contextmanager
def running(plane: ControlPlane, log: Path, kinds: Sequence[str]) -> Iterator[TrainingOperator]:
    """The operator, until the end of the block: then it is killed."""
    process = TrainingOperator(plane, log, kinds)
    process.start()
    try:
        certify(plane, process)
        yield process
    finally:
        process.kill()
