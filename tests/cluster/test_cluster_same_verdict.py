# SPDX-License-Identifier: Apache-2.0
"""The same fault, on the embedded engine and on a real control plane, gives the same verdict and the same history.

All jobs of the table run at the same time, in both places. Then `status.trainwright` is compared field by field,
without times. `docs/verdicts.md` documents each difference that the table allows.
"""

import json
import os
import re
import signal
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster_agents import agent, agent_plane
from cluster_client import until
from cluster_engines import PATH, Body, Cluster, Machine, find_process
from cluster_nodes import fake_nodes
from cluster_operator import QUICK, started
from cluster_plane import ControlPlane
from cluster_verdicts import (
    FAULTS,
    GPUS,
    KUBELET,
    KUBELETS,
    NODES,
    PLACE,
    PRIORITIES,
    QUOTA,
    URGENT,
    Act,
    Difference,
    Fault,
)

PAGE = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text(encoding="utf-8")
#: Seconds in which all jobs end, in both places.
PATIENCE = 120.0
#: The operator's options: soon, a node counts as lost, and a container that cannot be created fails.
SOON = ("--node-grace=3s", "--enable-creating-failed=true", "--creating-restart-period=6s")
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_TIMES = frozenset({"at", "begun", "until", "start", "running", "end", "productive", "lost"})


def _body(fault: Fault, place: str) -> Body:
    text = json.dumps(fault.body).replace(PLACE, place).replace(KUBELET, KUBELETS[place])
    found: Body = json.loads(text)
    return found


# -- the two places ------------------------------------------------------------------------------------------------


@contextmanager
def _acting(place: Machine | Cluster, faults: list[Fault]) -> Iterator[None]:
    """Do in the background what the table says; the end of the block waits for it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        done = pool.submit(_act_on_all, faults, place)
        try:
            yield
        finally:
            done.result()


def _act_on_all(faults: list[Fault], place: Machine | Cluster) -> None:
    for fault in faults:
        _act(fault, place)


def _act(fault: Fault, place: Machine | Cluster) -> None:
    until(lambda: place.ledger(fault.body).get("phase") == "Running", f"{fault.name} runs {place.name}")
    (pod,) = place.pods(fault.name)
    if fault.act is Act.KILL:
        os.kill(find_process("python3", f"{place.name}-{fault.name}"), signal.SIGKILL)
    elif fault.act is Act.DELETE:
        place.delete(pod)
    elif fault.act is Act.LOSE_NODE:
        place.kill_node(NODES[1])
    elif isinstance(place, Cluster) and fault.act is Act.EVICT:
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        place.create(f"pods/{name}/eviction", body)
    elif isinstance(place, Cluster) and fault.act is Act.PREEMPT:
        place.create("pods", URGENT)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with agent_plane(tmp_path_factory.mktemp("verdicts")) as plane:
        yield plane


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    """All jobs of the table, running."""
    log = plane.layout.logs / "operator.log"
    with ExitStack() as stack:
        four = ("--cpus", "4", "--gpus", str(GPUS))
        agents = {name: stack.enter_context(agent(plane, name, *four, env=PATH)) for name in NODES}
        stack.enter_context(fake_nodes(plane, 1))
        words = ("--lease", "default/operator", *SOON, *QUICK)
        operator = stack.enter_context(started(plane.kubeconfig("operator"), log, *words))
        operator.until(lambda: operator.leads(plane, "default"))
        cluster = Cluster(plane, "default", agents)
        for name, value in PRIORITIES.items():
            plane.call("POST", PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        cluster.create("resourcequotas", QUOTA)
        for fault in FAULTS:
            cluster.submit(_body(fault, cluster.name))
        with _acting(cluster, [fault for fault in FAULTS if fault.act]):
            yield cluster
        assert operator.alive, operator.tail()
        assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[dict[str, Body]]:
    """The final status of all jobs that the embedded engine can run. The control plane runs meanwhile."""
    faults = [fault for fault in FAULTS if not fault.only_there]
    options = ("--nodes", str(len(NODES)), "--gpus", str(GPUS * len(NODES)), "--timeout", f"{PATIENCE - 60:.0f}")
    machine = Machine(tmp_path_factory.mktemp("machine"), [_body(one, Machine.name) for one in faults], *options)
    machine.process.start()
    try:
        with _acting(machine, [fault for fault in faults if fault.act]):
            until(lambda: not machine.process.alive, f"the run ends: {machine.process.tail()}", PATIENCE)
        yield machine.ledgers()
    finally:
        machine.close()


# -- the comparison --------------------------------------------------------------------------------------------------


def _record(ledger: Body) -> Body:
    """The verdict, the attempts of the history, and what time was lost to; without times."""
    history = ledger.get("history") or {}
    attempts = [_timeless(one) for one in history.get("attempts") or ()]
    return {"verdict": _timeless(ledger["verdict"]), "attempts": attempts, "lostTo": sorted(history.get("lost") or ())}


def _timeless(part: Body) -> Body:
    return _without(part, _TIMES)


def _ended(cluster: Cluster, fault: Fault) -> Body:
    ledger = cluster.ledger(fault.body)
    return ledger if ledger.get("outcome") else {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_the_same_verdict_in_both_places(here: dict[str, Body], cluster: Cluster, fault: Fault) -> None:
    ledger: Body = until(lambda: _ended(cluster, fault), f"{fault.name} ends: {cluster.ledger(fault.body)}", PATIENCE)
    there = _record(ledger)
    verdict = there["verdict"]

    stated = {key: value for key, value in fault.verdict.items() if key not in fault.there}
    assert {key: verdict.get(key) for key in stated} == stated
    for key, pattern in fault.there.items():
        assert (verdict.get(key) is None) if pattern is None else re.fullmatch(pattern, verdict[key]), verdict
    if fault.only_there:
        assert tuple(one.get("cause", "") for one in there["attempts"]) == fault.causes
        return
    same = _record(here[fault.name])
    assert {key: same["verdict"].get(key) for key in fault.verdict} == dict(fault.verdict)
    assert tuple(one.get("cause", "") for one in same["attempts"]) == fault.causes
    _assert_equal(same, there, fault)


def _assert_equal(here: Body, there: Body, fault: Fault) -> None:
    ours, theirs = here["verdict"], there["verdict"]
    differing = {
        key: (ours.get(key), theirs.get(key)) for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)
    }
    assert {key: pair for key, pair in differing.items() if key not in fault.there} == {}
    assert set(fault.there) <= {*differing, *(key for key in fault.there if key not in ours)}, "this is no difference"
    hidden = {"nodes" if key == "node" else "cause" for key in fault.there if key in ("node", "class")}
    assert [_without(one, hidden) for one in here["attempts"]] == [_without(one, hidden) for one in there["attempts"]]
    assert here["lostTo"] == there["lostTo"]


def _without(part: Body, keys: Set[str]) -> Body:
    return {key: value for key, value in part.items() if key not in keys}


@pytest.mark.parametrize(
    "fault", [one for one in FAULTS if one.differs is Difference.REFUSED], ids=lambda one: one.name
)
def test_the_embedded_engine_refuses_a_job_whose_objects_are_missing(tmp_path: Path, fault: Fault) -> None:
    machine = Machine(tmp_path, [_body(fault, Machine.name)], "--nodes", "2")
    machine.process.start()
    until(lambda: not machine.process.alive, "the run ends")

    assert machine.process.end() == 2
    assert re.search(r"\.spec\.containers\[0\]\.env.*: .*'absent'", machine.process.tail()), machine.process.tail()


def test_the_documentation_has_every_difference() -> None:
    section = PAGE.partition("## Differences between the embedded engine and a cluster\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) +\| ", section, re.MULTILINE)[1:]

    assert sorted(rows) == sorted(Difference)
    assert {fault.differs for fault in FAULTS} - {None} == set(Difference)
    assert [fault.name for fault in FAULTS if (fault.there or fault.only_there) and fault.differs is None] == []
