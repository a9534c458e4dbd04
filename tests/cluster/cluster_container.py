# SPDX-License-Identifier: Apache-2.0
"""A real node: kubelet and containerd, with images that were made here. `real_node` is for tests, as root.

Pods have addresses of their own on a bridge; nothing resolves their names. Afterwards processes, mounts, the bridge and
all data are gone.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import cluster_images as images
from cluster_binaries import alone, cache, find
from cluster_client import RefusedError, run, until
from cluster_layout import free_ports
from cluster_packages import Packages, packages
from cluster_plane import ControlPlane
from cluster_process import Process

_BRIDGE = "twtest0"
_SUBNET = "10.130.0.0/24"
_NAMESPACE = "k8s.io"
_CONTAINERD = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/net"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


@contextmanager
def real_node(plane: ControlPlane, name: str = "node-0") -> Iterator[Process]:
    """The kubelet of that name, which must be a user of the plane; ready.

    The machine has one bridge for all of them, so tests of several processes use it one after the other.
    """
    found = packages()
    folder = plane.layout.data / name
    (folder / "net").mkdir(parents=True)
    with alone(cache() / "node", print), ExitStack() as stack:
        stack.callback(_clear, folder)
        containerd = _containerd(plane, found, folder)
        stack.callback(containerd.kill)
        _import_images(found, folder)
        kubelet = _kubelet(plane, found, folder, name)
        stack.callback(plane.call, "DELETE", f"/api/v1/nodes/{name}")
        stack.callback(kubelet.kill)
        stack.callback(_drain, plane, name)
        kubelet.until(lambda: _ready(plane, name))
        yield kubelet


def _containerd(plane: ControlPlane, found: Packages, folder: Path) -> Process:
    config = folder / "containerd.toml"
    config.write_text(_CONTAINERD.format(folder=folder, pause=images.PAUSE, plugins=found.plugins))
    (folder / "net" / "bridge.conflist").write_text(json.dumps(_network(folder)))
    words = [found.containerd, f"--config={config}"]
    process = Process("containerd", words, plane.layout.logs / f"containerd-{folder.name}.log", {"PATH": found.path})
    process.start()
    process.until(lambda: _listens(folder / "c.sock"))
    return process


def _network(folder: Path) -> dict[str, Any]:
    addresses = {"type": "host-local", "subnet": _SUBNET, "dataDir": str(folder / "addresses")}
    bridge = {"type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": _BRIDGE, "plugins": [bridge]}


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one, suppress(OSError):
        one.connect(str(path))
        return True
    return False


def _import_images(found: Packages, folder: Path) -> None:
    for name, entry in ((images.PAUSE, ["/bin/sleep", "2147483647"]), (images.BUSYBOX, [])):
        file = folder / "image.tar"
        file.write_bytes(images.archive(name, found.busybox, entry))
        words = [found.ctr, f"--address={folder / 'c.sock'}", f"--namespace={_NAMESPACE}", "image", "import"]
        run([*words, "--snapshotter=native", str(file)])


def _kubelet(plane: ControlPlane, found: Packages, folder: Path, name: str) -> Process:
    config = folder / "kubelet.json"
    (port,) = free_ports(1)
    config.write_text(json.dumps(_configuration(folder, port)))
    flags = {
        "config": config,
        "kubeconfig": plane.kubeconfig(name),
        "hostname-override": name,
        "node-ip": _address(),
        "root-dir": folder / "kubelet",
        "cert-dir": folder / "certificates",
    }
    words = [find("kubelet")["kubelet"], *(f"--{key}={value}" for key, value in flags.items())]
    process = Process("kubelet", words, plane.layout.logs / f"kubelet-{name}.log", {"PATH": found.path})
    process.start()
    return process


def _configuration(folder: Path, port: int) -> dict[str, Any]:
    """As little of the machine as can be: no cgroups of its own, no eviction, nobody asked for leave on loopback."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": port,
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{folder / 'c.sock'}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "syncFrequency": "1s",
    }


def _address() -> str:
    """One of a real interface, which a kubelet insists on: that by which it would reach others. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("198.51.100.1", 9))
        return str(one.getsockname()[0])


def _ready(plane: ControlPlane, name: str) -> bool:
    node = plane.find(f"/api/v1/nodes/{name}") or {"status": {}}
    conditions = node["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


# -- afterwards ----------------------------------------------------------------------------------------------------


def _drain(plane: ControlPlane, name: str) -> None:
    path = f"/api/v1/pods?fieldSelector=spec.nodeName={name}"
    for pod in plane.call("GET", path)["items"]:
        meta = pod["metadata"]
        where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        with suppress(RefusedError):  # it went by itself
            plane.call("DELETE", where, {"gracePeriodSeconds": 1})
    until(lambda: not plane.call("GET", path)["items"], f"no pods are left on {name}")


def _clear(folder: Path) -> None:
    """What neither takes along: processes that watch over containers, mounts, the bridge, links, empty cgroups."""
    for pid in _of(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        where = line.split()[1]
        if where.startswith(str(folder)):
            subprocess.run(["umount", "--lazy", where], check=False)  # noqa: S607 - as the system has it
    subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)  # noqa: S607 - as the system has it
    for link in Path("/var/log/containers").glob("*.log"):  # a kubelet knows no other place
        if link.is_symlink() and link.readlink().is_relative_to(folder):
            link.unlink()
    for group in Path("/sys/fs/cgroup").glob(f"**/{_NAMESPACE}"):
        with suppress(OSError):  # somebody else's, in use
            group.rmdir()
    shutil.rmtree(folder)


def _of(folder: Path) -> list[int]:
    """Processes that were told of the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
