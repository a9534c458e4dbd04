# SPDX-License-Identifier: Apache-2.0
"""What this machine has: CPUs, memory and GPUs, and how nodes share it out. The engine asks once, when it starts.

Each node agent reports its `Share` as the capacity of its Node, and hands out the GPUs in it by their ids.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from trainwright.errors import UsageError
from trainwright.local import cgroups
from trainwright.local.scheduling.requests import PODS

GPU = "nvidia.com/gpu"
_QUERY = ("--query-gpu=index,uuid", "--format=csv,noheader")
#: A driver in trouble can hang for minutes; without GPUs there is still much to run.
_PATIENCE = 10.0
#: As good as no limit: what a machine can really run is for its memory to say.
_MOST_PODS = "10000"


class Share(Struct, frozen=True):
    """What one node has: thousandths of a CPU, bytes, and the ids of its GPUs."""

    cpu: int
    memory: int
    gpus: tuple[str, ...] = ()

    def capacity(self) -> dict[str, str]:
        """As Kubernetes writes it, for `status.capacity` and `status.allocatable` of a Node."""
        cpu = f"{self.cpu}m" if self.cpu % 1000 else str(self.cpu // 1000)
        gpus = {GPU: str(len(self.gpus))} if self.gpus else {}
        return {"cpu": cpu, "memory": f"{self.memory // 1024}Ki", PODS: _MOST_PODS} | gpus


def machine(gpus: int | None = None) -> Share:
    """All of this machine that this process may use; `gpus` pretends that there are so many.

    Asking the driver for its GPUs may take a second: whoever knows that none is needed says 0.
    """
    held = cgroups.limits()
    cpu = _cpus() * 1000
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ids = found_gpus(os.environ) if gpus is None else tuple(str(index) for index in range(gpus))
    return Share(min(cpu, held.cpu or cpu), min(memory, held.memory or memory), ids)


def share(whole: Share, nodes: int) -> tuple[Share, ...]:
    """The machine, shared out among so many nodes: CPUs and memory alike, GPUs as in a game of cards."""
    if nodes < 1:
        raise UsageError(f"there must be at least one node, not {nodes}")
    if whole.cpu < nodes:
        raise UsageError(f"{nodes} nodes are more than this machine can be shared out among: it has {whole.cpu}m CPU")
    dealt = [whole.gpus[index::nodes] for index in range(nodes)]
    return tuple(Share(whole.cpu // nodes, whole.memory // nodes, gpus) for gpus in dealt)


def _cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def found_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the GPUs that the driver knows and that this process was given."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    known = _listed(program)
    given = environment.get("CUDA_VISIBLE_DEVICES")
    return tuple(index for index, _ in known) if given is None else _given(given.split(","), known)


def _listed(program: str) -> list[tuple[str, str]]:
    """Index and UUID of each GPU; none if the driver does not answer."""
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own program, found on PATH, with fixed words
            [Path(program), *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]


def _given(words: Sequence[str], known: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Those of them that the user lets us use, in the user's order; as CUDA does, the first bad word ends the list."""
    chosen: list[str] = []
    for word in (word.strip() for word in words):
        found = next((index for index, uuid in known if word and (word == index or uuid.startswith(word))), None)
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)
