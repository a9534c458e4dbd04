# SPDX-License-Identifier: Apache-2.0
"""The client of the etcd servers that `--etcd-server` names, through which replicas of elastic jobs find each other."""

from trainwright.runtime.ports import Registry


def registry(servers: str) -> Registry | None:
    """The client; None without servers."""
    if not servers:
        return None
    from trainwright.kube.etcd import Etcd  # noqa: PLC0415 - imports aiohttp, which few runs need

    return Etcd(servers)
