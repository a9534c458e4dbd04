# SPDX-License-Identifier: Apache-2.0
"""Nothing is left of a hundred pods: no process, namespace, mount, link or descriptor."""

import os
from pathlib import Path
from typing import Any

from sandboxed import Sandboxed, eventually

_KINDS = ("net", "mnt", "pid", "uts", "ipc", "user")


def namespaces(pids: list[int]) -> set[str]:
    """The namespaces that these processes are in or hold open."""
    found: set[str] = set()
    for pid in pids:
        links = [Path(f"/proc/{pid}/ns/{kind}") for kind in _KINDS]
        try:
            links += Path(f"/proc/{pid}/fd").iterdir()
            found |= {target for target in map(os.readlink, links) if target.partition(":")[0] in _KINDS}
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or none of ours
            continue
    return found


def state(box: Sandboxed) -> dict[str, Any]:
    supervisor = box.process.pid
    return {
        "processes": box.descendants(),
        "namespaces": namespaces([supervisor, *box.descendants()]),
        "descriptors": len(list(Path(f"/proc/{supervisor}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{supervisor}/task").iterdir())),
        "mounts": Path(f"/proc/{supervisor}/mountinfo").read_text(),
        "links": box.run("cat /proc/net/dev | wc -l", "watcher"),
    }


def test_nothing_is_left_of_many_pods(box: Sandboxed, folder: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    (folder / "data").mkdir()
    wanted = [
        {"source": str(folder / "data"), "target": "/sandbox-data/x"},
        {"source": None, "target": "/opt/scratch", "tmpfs": 1 << 20},
        {"source": str(folder / "memory"), "target": "/sandbox-memory", "tmpfs": 1 << 20},
    ]
    box.open("watcher")
    box.run("true", "watcher")
    before = state(box)
    for batch in range(10):
        pods = [f"pod-{batch}-{number}" for number in range(10)]
        for pod in pods:
            box.open(pod)
            box.start("(setsid sleep 300 &); exec sleep 300" if pod[-1] in "05" else "true", pod, mounts=wanted)
            assert "error" in box.attempt(["no-such-program"], pod, mounts=wanted)[1]
            assert "error" in box.attempt(["true"], pod, mounts=[{"source": "/no/such", "target": "/x"}])[1]
        numbers = [box.ask("close", pod=pod) for pod in pods]
        for number in numbers:
            assert box.answer(number)["ok"]
    eventually(lambda: state(box) == before, lambda: (before, state(box)))
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_nothing_is_left_of_the_supervisor(box: Sandboxed) -> None:
    box.open("a")
    box.open("b", network="host")
    for pod in ("a", "b"):
        box.start("(setsid sleep 300 &); exec sleep 300", pod)
    ours = namespaces([box.process.pid, *box.descendants()]) - namespaces([os.getpid()])
    processes = box.descendants()
    assert len(ours) >= 12
    box.end()
    everybody = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    eventually(lambda: not ours & namespaces(everybody))
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
