# SPDX-License-Identifier: Apache-2.0
"""Nodes for a control plane: fake ones that are a process of their own. Tests and benchmarks call `fake_nodes`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from cluster_api import CONNECTIONS
from cluster_plane import ControlPlane
from cluster_pods import Script
from cluster_process import Process

_PROGRAM = Path(__file__).with_name("cluster_kubelet.py")
_USUAL = Script()


@contextmanager
def fake_nodes(
    plane: ControlPlane,
    number: int = 1,
    *,
    prefix: str = "fake",
    script: Script = _USUAL,
    binds: bool = False,
    connections: int = CONNECTIONS,
) -> Iterator[Process]:
    """That many nodes, on which pods go as the script says, or as their own annotations do; gone afterwards."""
    words = [sys.executable, str(_PROGRAM), f"--kubeconfig={plane.kubeconfig('kubelet-fake')}", f"--prefix={prefix}"]
    words += [f"--nodes={number}", f"--script={msgspec.json.encode(script).decode()}", *["--binds"] * binds]
    words.append(f"--connections={connections}")
    process = Process(f"fake nodes {prefix}", words, plane.layout.logs / f"nodes-{prefix}.log")
    process.log.unlink(missing_ok=True)
    process.start()
    try:
        process.until(lambda: "ready" in process.tail())
        yield process
    finally:
        process.end()
