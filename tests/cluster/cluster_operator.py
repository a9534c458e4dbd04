# SPDX-License-Identifier: Apache-2.0
"""Operators out of process, with exactly the rights that the manifests grant. Tests of the operator start them here.

`cluster_operator_fixtures` starts one for all namespaces. Tests that kill or stop operators start their own, each with
a service account, so that the audit log tells them apart.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.crd.rbac import rights
from trainwright.kinds.registry import KINDS

#: A lease that is lost soon. It must last longer than one request may take, which is 5 s.
DURATION, RENEW, RETRY = 10.0, 4.5, 0.25
QUICK = ("--lease-duration", f"{DURATION}s", "--renew-deadline", f"{RENEW}s", "--retry-period", f"{RETRY}s")


class Operator(Process):
    """One that runs."""

    def leads(self, plane: ControlPlane, namespace: str) -> bool:
        """It has the lease: identities end with the process id."""
        return holder(plane, namespace).endswith(f"-{self.pid}")


def holder(plane: ControlPlane, namespace: str) -> str:
    """Who has the lease."""
    lease = plane.find(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator") or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


@contextmanager
def started(config: Path, log: Path, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Operator]:
    """An operator for that kubeconfig, until the end of the block: then it is killed."""
    argv = [sys.executable, "-m", "trainwright", "operator", "--kubeconfig", str(config), *words]
    process = Operator("operator", argv, log, env)
    process.start()
    try:
        yield process
    finally:
        process.kill()


def grant(plane: ControlPlane, namespace: str, name: str, subject: dict[str, str]) -> None:
    """What the manifests grant, and nothing else, with the lease in that namespace."""
    whole, lease, *bound = rights(KINDS, namespace, "", subject)
    bodies = [whole, lease, *({**one, "metadata": {**one["metadata"], "name": name}} for one in bound)]
    plane.kubectl(
        "apply", "--server-side", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    )


def account(plane: ControlPlane, namespace: str, name: str) -> tuple[str, Path]:
    """A service account with those rights: its user name, and its kubeconfig."""
    plane.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    grant(plane, namespace, f"{namespace}-{name}", {"kind": "ServiceAccount", "name": name, "namespace": namespace})
    return f"system:serviceaccount:{namespace}:{name}", plane.service_account(namespace, name)
