# SPDX-License-Identifier: Apache-2.0
"""Conversions of manifests, and what source and result do: their pods as programs see them, and simulated faults."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from trainwright.cli.plan import preview
from trainwright.cli.simulate.faults import Fault, FaultKind, FaultReader, Scenario, default_durations
from trainwright.cli.simulate.simulation import Simulation
from trainwright.kinds.base import Kind, load
from trainwright.kinds.conversion import Conversion, convert
from trainwright.kinds.registry import KINDS, find
from trainwright.node.environment import expand

ROOT = Path(__file__).parent.parent.parent.parent
Body = dict[str, Any]


def kind_of(document: Body) -> Kind:
    found = find(document["apiVersion"], document["kind"])
    assert found is not None
    return found


def to(target: str, document: Body) -> Conversion:
    """The conversion of a valid manifest."""
    assert load(kind_of(document), document).errors == ()
    return convert(kind_of(document), document, next(kind for kind in KINDS if kind.id == target))


def generic(document: Body) -> Body:
    """The GenericJob for a manifest, whatever is lost."""
    found = to("genericjob", document).document
    assert found is not None
    return found


def jobs() -> dict[str, Body]:
    """Every job of the examples, by file."""
    found: dict[str, Body] = {}
    for path in sorted(ROOT.glob("examples/**/*.yaml")):  # those of `deploy` are copies
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if find(document["apiVersion"], document["kind"]) is not None:
                found[path.relative_to(ROOT).as_posix()] = document
    return found


def pods(document: Body) -> dict[str, Body]:
    """The pods that `trainwright plan` shows, by name."""
    kind = kind_of(document)
    loaded = load(kind, document)
    assert loaded.errors == ()
    objects = preview("job.yaml", kind, loaded).objects
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == "Pod"}


def environments(pod: Body) -> list[dict[str, str]]:
    """The variables of each container after the kubelet has filled them in; valueFrom as text."""
    found = []
    for container in [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]:
        known: dict[str, str] = {}
        for entry in container.get("env") or ():
            source = entry.get("valueFrom")
            known[entry["name"]] = str(source) if source else expand(entry.get("value") or "", known)
        found.append(known)
    return found


def simulated(document: Body, durations: dict[str, float | None], *faults: str) -> tuple[str, dict[str, int]]:
    """How the simulation of a job ends, and how many programs each replica has started.

    A fault is an option and its value, such as `fail worker-0=1@30s`. Roles are in lower case.
    """
    kind = kind_of(document)
    job = load(kind, document).job
    nodes = max(2, sum(role.replicas for role in job.roles))
    reader = FaultReader(job, nodes)
    read: dict[str, Callable[[str], Fault]] = {
        "fail": reader.fail,
        "suspend": reader.suspend,
        "lose-node": reader.lose_node,
        **{str(kind): partial(reader.hit, kind) for kind in (FaultKind.EVICT, FaultKind.PREEMPT, FaultKind.DELETE)},
    }
    words = [fault.split(" ") for fault in faults]
    takes = {role.name: durations[role.name.lower()] for role in job.roles}
    scenario = Scenario(tuple(read[option](value) for option, value in words), takes, nodes)
    timeline = Simulation("job.yaml", kind, document, scenario).run()
    started = Counter(f"{one.role.lower()}-{one.index}" for one in timeline.attempts if one.started is not None)
    return timeline.end.result if timeline.end is not None else "", dict(started)


def durations(document: Body) -> dict[str, float | None]:
    """How long the programs of a job run, by role in lower case."""
    return {name.lower(): time for name, time in default_durations(load(kind_of(document), document).job).items()}
