# SPDX-License-Identifier: Apache-2.0
"""Starts a control plane for an operator, and the operator with its fake nodes."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import peer
from cluster_install import install_crds
from cluster_nodes import fake_nodes
from cluster_plane import ControlPlane
from cluster_process import Process
from cpu import quiet
from drive import Place
from shapes import Shape

from trainwright.crd.rbac import RBAC, rights
from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import PODS

#: Our options, by the mode of a case. By default our operator has no limit and 16 concurrent reconciles. Both operators
#: log errors only, except that ours logs as usual in the mode "shipped".
_QUIET = ["--zap-log-level", "error"]
MODES = {
    "open": _QUIET,
    "matched": [*_QUIET, "--qps", "50", "--burst", "100", "--controller-threads", "8"],
    "shipped": [],
}
NODES = 10
#: The fake kubelet opens few connections: each costs the API server a TLS handshake, which is not an operator's cost.
CONNECTIONS = 16
FLOOR = Path(__file__).with_name("floor.py")
HOME = "trainwright"


@contextmanager
def control_plane(crds: Callable[[ControlPlane], object] = install_crds) -> Iterator[ControlPlane]:
    """Start an API server and etcd with CRDs and our operator's rights; no controllers, no scheduler."""
    with ControlPlane(controllers=False, scheduler=False, first=crds) as plane:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        items = rights(KINDS, HOME, "", {"kind": "User", "name": "operator", "apiGroup": RBAC})
        plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        yield plane


@contextmanager
def plane_for(who: str) -> Iterator[ControlPlane]:
    """Start a control plane with the CRDs of one contestant. Nobody has the peer's, so that ours count as our cost."""
    if who in ("peer", "nobody"):
        with ControlPlane(controllers=False, scheduler=False, first=peer.install_crd) as plane:
            peer.prepare(plane)
            yield plane
    else:
        with control_plane() as plane:
            yield plane


@contextmanager
def running(plane: ControlPlane, shape: Shape, what: str, mode: str = "open") -> Iterator[Place]:
    """Start one of the operators and the fake nodes, and wait until the operator is ready."""
    user = peer.USERS.get(what, "operator")
    with TemporaryDirectory() as folder, fake_nodes(plane, NODES, binds=True, connections=CONNECTIONS) as kubelet:
        words = _words(plane, shape, what, mode)
        operator = Process(what, words, Path(folder) / "log", peer.ENVIRONMENT if what == "peer" else None)
        mark = plane.mark()
        operator.start()
        try:
            if what == "peer":
                peer.certify(plane, operator)
            operator.until(lambda: _watches(plane, shape, user, mark))
            quiet(operator)
            yield Place(plane, shape, operator, kubelet, user)
        finally:
            operator.end()


def _words(plane: ControlPlane, shape: Shape, what: str, mode: str) -> list[str]:
    kubeconfig = str(plane.kubeconfig("operator"))
    if what == "peer":
        return peer.words(plane, mode)
    if what == "floor":
        return [sys.executable, str(FLOOR), kubeconfig, shape.kind]
    ours = [sys.executable, "-m", "trainwright", "operator", "--kubeconfig", kubeconfig, "--lease", f"{HOME}/operator"]
    return [*ours, *MODES[mode]]


def _watches(plane: ControlPlane, shape: Shape, user: str, since: int) -> bool:
    """Return whether the operator watches jobs and pods. An operator that still waits for something is also idle."""
    watched = plane.audit(since).where(user=user, verb="watch").tally("resource")
    return watched.keys() >= {shape.resource.id, PODS.id}


def idle(plane: ControlPlane) -> None:
    """Wait until the API server is idle: after a CRD was installed, it builds its OpenAPI document for some seconds."""
    quiet(plane.processes["kube-apiserver"], 0.1)
