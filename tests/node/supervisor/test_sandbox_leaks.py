# SPDX-License-Identifier: Apache-2.0
"""Nothing is left of a hundred pods: no process, namespace, mount, link or descriptor."""

import os
import re
from pathlib import Path
from typing import Any

from sandboxed import Sandboxed, below, eventually

_KINDS = ("net", "mnt", "pid", "uts", "ipc", "user")


def namespaces(pids: list[int]) -> set[str]:
    """The namespaces that these processes are in or hold open."""
    found: set[str] = set()
    for pid in pids:
        links = [Path(f"/proc/{pid}/ns/{kind}") for kind in _KINDS]
        try:
            links += Path(f"/proc/{pid}/fd").iterdir()
            found |= {target for target in map(os.readlink, links) if target.partition(":")[0] in _KINDS}
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or belongs to another user
            continue
    return found


def mounts_of(process: str | int, folder: Path) -> list[str]:
    """The mounts that a process sees, without those of other tests that run on this machine, such as a kubelet's."""
    lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    ours = str(folder)
    return [line for line in lines if ours in line or not re.search(r" /run/| /tmp/|/pytest-of-", line)]


def state(box: Sandboxed, folder: Path) -> dict[str, Any]:
    """All resources of the supervisor, when they no longer change."""
    links = box.run("wc -l </proc/net/dev", "watcher")
    supervisor = Path(f"/proc/{box.process.pid}")
    eventually(lambda: not below(box.process.pid))
    return {
        "links": links,
        "namespaces": namespaces([box.process.pid]),
        "descriptors": len(list((supervisor / "fd").iterdir())),
        "threads": len(list((supervisor / "task").iterdir())),
        "mounts": mounts_of(box.process.pid, folder),
    }


def test_nothing_is_left_of_many_pods(box: Sandboxed, folder: Path) -> None:
    mounts = mounts_of("self", folder)
    (folder / "data").mkdir()
    shared = [{"source": str(folder / "memory"), "target": "/mnt", "tmpfs": 1 << 20}]
    covers = [{"source": str(folder / "data"), "target": target} for target in ("/sandbox-data", "/opt/sandbox-data")]
    box.open("watcher")
    before = state(box, folder)
    for batch in range(10):
        pods = [f"pod-{batch}-{number}" for number in range(10)]
        for pod in pods:
            box.open(pod)
            box.start("(setsid sleep 300 &); exec sleep 300" if pod[-1] in "05" else "true", pod, mounts=shared)
        assert "error" in box.attempt(["no-such-program"], pods[0], mounts=covers)[1]
        assert "error" in box.attempt(["true"], pods[1], mounts=[{"source": "/no/such", "target": "/x"}])[1]
        for number in [box.ask("close", pod=pod) for pod in pods]:
            assert box.answer(number)["ok"]
    eventually(lambda: state(box, folder) == before, lambda: (before, state(box, folder)))
    assert mounts_of("self", folder) == mounts


def test_no_process_is_left_of_the_supervisor(box: Sandboxed) -> None:
    """Then no namespace is left: a namespace exists only while a process is in it or holds it open."""
    box.open("a")
    box.open("b", network="host")
    for pod in ("a", "b"):
        box.hears(box.start("(setsid sleep 300 &); echo up; exec sleep 300", pod), "up")
    # One look can miss a process that changes its parent at this moment.
    eventually(lambda: len(below(box.process.pid)) == 6, lambda: below(box.process.pid))
    processes = below(box.process.pid)
    box.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
