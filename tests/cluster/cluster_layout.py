# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a control plane find each other: folders, ports, and the flags that follow from them.

`cluster_plane` starts programs with these flags.
"""

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom

from cluster_audit import POLICY
from msgspec import Struct

#: Below the ports that the kernel hands to whoever connects.
_PORTS = range(15000, 32000)
_FAST = {"kube-api-qps": "1000", "kube-api-burst": "1000"}
_ALONE = {"leader-elect": "false", "secure-port": "0"}
Flags = dict[str, str]


class Layout(Struct, frozen=True):
    """The places of one control plane. `data` does not outlive it, the rest may."""

    folder: Path
    etcd_port: int
    peer_port: int
    server_port: int

    @property
    def etcd(self) -> str:
        """Where etcd listens."""
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def server(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self.server_port}"

    @property
    def data(self) -> Path:
        """What goes with it."""
        return self.folder / "data"

    @property
    def logs(self) -> Path:
        """What each part wrote, and the audit log."""
        return self.folder / "logs"

    @property
    def audit_log(self) -> Path:
        """One line for each request."""
        return self.logs / "audit.jsonl"

    @property
    def tokens(self) -> Path:
        """The token file."""
        return self.folder / "tokens.csv"

    @property
    def authority(self) -> Path:
        """The certificates to trust: the API server makes them when it starts."""
        return self.data / "certificates" / "apiserver.crt"

    @property
    def key(self) -> Path:
        """The key beside them."""
        return self.authority.with_suffix(".key")


def etcd(at: Layout) -> Flags:
    """Nothing of it is worth a disk's time."""
    peers = f"http://127.0.0.1:{at.peer_port}"
    return {
        "data-dir": str(at.data / "etcd"),
        "unsafe-no-fsync": "true",
        "listen-client-urls": at.etcd,
        "advertise-client-urls": at.etcd,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "quota-backend-bytes": str(4 << 30),
    }


def apiserver(at: Layout, *, controllers: bool) -> Flags:
    """RBAC, a token for each user, and everything on record. Some admission waits for controllers that may not run."""
    policy = at.folder / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    return {
        "etcd-servers": at.etcd,
        "cert-dir": str(at.authority.parent),
        "secure-port": str(at.server_port),
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "endpoint-reconciler-type": "none",  # what is on loopback may not be an endpoint
        "service-cluster-ip-range": "10.96.0.0/16",
        # The pair that the server makes for itself also signs and checks the tokens of service accounts.
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": str(at.authority),
        "service-account-signing-key-file": str(at.key),
        "token-auth-file": str(at.tokens),
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "kubelet-preferred-address-types": "InternalIP",
        "audit-policy-file": str(policy),
        "audit-log-path": str(at.audit_log),
        "audit-log-maxsize": "100000",  # MB: never begun anew
        **({} if controllers else {"disable-admission-plugins": "ServiceAccount,TaintNodesByCondition"}),
    }


def controller_manager(at: Layout, kubeconfig: Path) -> Flags:
    """All its controllers but the one that hands out addresses; quicker than its defaults."""
    return {
        "kubeconfig": str(kubeconfig),
        "service-account-private-key-file": str(at.key),
        "root-ca-file": str(at.authority),
        "controllers": "*,-node-ipam-controller",
        "node-monitor-grace-period": "24h",  # fake nodes have no heartbeat
        **_ALONE,
        **_FAST,
    }


def scheduler(kubeconfig: Path) -> Flags:
    """As it is, but quicker."""
    return {"kubeconfig": str(kubeconfig), **_ALONE, **_FAST}


def free_ports(number: int) -> list[int]:
    """Ports on loopback that nobody has just now."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < number:
            one = stack.enter_context(socket.socket())
            port = SystemRandom().choice(_PORTS)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
