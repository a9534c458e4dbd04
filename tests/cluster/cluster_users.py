# SPDX-License-Identifier: Apache-2.0
"""Who talks to the control plane: one user and one token for each part, so that the audit log tells them apart.

`cluster_plane` writes the token file and a kubeconfig for each.
"""

import json
import secrets
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

_MASTERS = ("system:masters",)
_NODES = ("system:nodes",)


class User(Struct, frozen=True):
    """`name` is what tests say; `account` is what Kubernetes knows it as, and what the audit log has."""

    name: str
    account: str
    groups: tuple[str, ...] = ()


USERS = (
    User("admin", "admin", _MASTERS),
    User("operator", "operator"),  # may do what RBAC grants it, and nothing else
    User("peer", "peer"),  # the same, for another operator that benchmarks compare ours with
    User("stranger", "stranger"),  # whom no test grants anything but its own
    User("scheduler", "system:kube-scheduler"),
    User("controller-manager", "system:kube-controller-manager", _MASTERS),  # it does the work of all its controllers
    User("kubelet-fake", "kubelet-fake", _MASTERS),
    User("node-0", "system:node:node-0", _NODES),  # what a real kubelet of that name may do
    User("node-1", "system:node:node-1", _NODES),
)


def token_file(users: Iterable[User], tokens: dict[str, str]) -> str:
    """As `--token-auth-file` wants it."""
    lines = [f'{tokens[one.name]},{one.account},{one.account},"{",".join(one.groups)}"' for one in users]
    return "\n".join(lines) + "\n"


def new_tokens(users: Iterable[User]) -> dict[str, str]:
    """One for each, by name."""
    return {one.name: secrets.token_hex(16) for one in users}


def write_kubeconfig(path: Path, server: str, authority: Path, token: str) -> Path:
    """A kubeconfig for who has a token."""
    return _write_kubeconfig(path, server, authority, {"token": token})


def write_certificate_kubeconfig(path: Path, server: str, authority: Path, pair: Path) -> Path:
    """One for who has a certificate and its key, `pair.crt` and `pair.key`."""
    files = {"client-certificate": f"{pair}.crt", "client-key": f"{pair}.key"}
    return _write_kubeconfig(path, server, authority, files)


def _write_kubeconfig(path: Path, server: str, authority: Path, user: dict[str, str]) -> Path:
    """In JSON, which is YAML."""
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o600)
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(body, indent=2))
    return path
