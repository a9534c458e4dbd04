# SPDX-License-Identifier: Apache-2.0
"""Decisions are pure: every example lives a whole life while its decisions are watched.

No clock is read, no random number drawn, no cached value handed out that somebody could edit, and the site is asked for
nothing that the controller does not reserve before the pass. I/O needs no test of its own: `conftest` has an audit hook
that fails every test in which a decision does some.
"""

import gc
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, date, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
import yaml
from msgspec.structs import replace

from trainwright.core import ports
from trainwright.kinds.base import Kind, load
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.plan import Plan
from trainwright.model.site import Site
from trainwright.testing.factories import UID
from trainwright.testing.world import World

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_NAME = {(kind.name, version): kind for kind in KINDS for version in kind.served}
T = TypeVar("T")

#: Read once: to read all of them takes a second.
EXAMPLE_DOCUMENTS = [
    (path, document)
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


def jobs() -> Iterator[Any]:
    for path, shared in EXAMPLE_DOCUMENTS:
        kind = BY_NAME.get((shared["kind"], shared["apiVersion"]))
        if kind is not None:
            document = deepcopy(shared)  # a test must not see what another did to it
            meta = {"namespace": "lab", "generation": 1} | document["metadata"] | {"uid": UID}
            name = f"{path.parent.name}/{path.stem}"
            yield pytest.param(kind, document | {"metadata": meta}, id=name)


# -- clocks and random numbers -----------------------------------------------------------------------------------------

#: Modules of C functions whose answer is another one each time.
_CHANGING = ("time", "random", "_random", "posix", "nt", "_uuid", "_io", "_socket", "select")
#: Names of such functions in modules that have others.
_NAMES = ("now", "utcnow", "today", "id")


def changes(function: Any) -> bool:
    """Whether a C function is a clock, a source of random numbers, or one that asks the system."""
    owner = getattr(function, "__self__", None)
    holder = owner if isinstance(owner, type) else type(owner)
    return function.__name__ in _NAMES or {function.__module__, holder.__module__, _of(owner)} & {*_CHANGING} != set()


def _of(owner: Any) -> str:
    return getattr(owner, "__name__", "") if isinstance(owner, type(sys)) else ""


def watched(work: Callable[[], T]) -> tuple[T, list[str]]:
    """What it returns, and which such functions it called."""
    called: list[str] = []

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and changes(function) and function is not sys.setprofile:
            called.append(f"{function.__qualname__} in {frame.f_code.co_qualname}")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # hypothesis measures each collection with a clock
    sys.setprofile(profile)
    try:
        result = work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return result, called


class Watched(World):
    """A world whose operator is watched while it decides."""

    def look(self) -> Plan:
        plan, called = watched(super().look)
        assert called == []
        return plan


def live(world: World) -> None:
    """Start everything, lose the first pod, and let the rest come to its end."""
    world.settle(place="node-1")
    if pods := world.pods():
        world.exit(min(pods), 1)
        world.settle(place="node-1")
    for name, pod in world.pods().items():
        if pod.status.phase == "Running":
            world.exit(name)
    world.settle(place="node-1")


@pytest.mark.parametrize(("kind", "document"), [*jobs()])
def test_no_decision_reads_a_clock_or_draws_a_random_number(kind: Kind, document: Body) -> None:
    loaded, called = watched(lambda: load(kind, document))
    assert (loaded.errors, called) == ((), [])
    world = Watched(loaded.job, nodes=("node-1",))
    live(world)
    last = world.plans[-1]
    _, called = watched(lambda: kind.render(loaded.status, world.job, last.status, world.clock))
    assert called == []


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(time.time, id="time.time"),
        pytest.param(time.monotonic, id="time.monotonic"),
        pytest.param(lambda: datetime.now(UTC), id="datetime.now"),  # noqa: TID251 - to see it noticed
        pytest.param(date.today, id="date.today"),
        pytest.param(random.random, id="random.random"),
        pytest.param(lambda: random.Random(1).getrandbits(3), id="random.Random"),  # noqa: S311 - likewise
        pytest.param(uuid.uuid4, id="uuid.uuid4"),
        pytest.param(lambda: id(work_of), id="id"),
    ],
)
def test_whoever_does_is_noticed(work: Callable[[], object]) -> None:
    assert watched(lambda: work())[1] != []  # noqa: PLW0108 - a C function that is called from Python


def work_of() -> None:
    """An object with an address."""


# -- what is kept between passes ---------------------------------------------------------------------------------------


def spoil(value: Any) -> None:
    """Change every list and mapping in a value, from the inside out."""
    if isinstance(value, dict):
        for part in value.values():
            spoil(part)
        value["spoiled"] = "yes"
    elif isinstance(value, list):
        for part in value:
            spoil(part)
        value.append("spoiled")


@pytest.mark.parametrize(("kind", "document"), [*jobs()])
def test_whoever_edits_what_a_plan_creates_changes_no_other_plan(kind: Kind, document: Body) -> None:
    """Bodies may share the job's own template, which is read anew here; but nothing that outlives the job."""

    def planned() -> list[Body]:
        world = World(load(kind, deepcopy(document)).job, nodes=("node-1",))
        world.settle(place="node-1")
        return [create.body for plan in world.plans for create in plan.creates]

    first = planned()
    told = deepcopy(first)
    for body in first:
        spoil(body)
    assert planned() == told


# -- what is reserved --------------------------------------------------------------------------------------------------


class Reserved(dict[Any, Any]):
    """A table that must have whatever it is asked for."""

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: ARG002 - the signature of dict
        assert key in self, f"{key} is not reserved"
        return self[key]


class Placed(World):
    """A world in which names do not resolve. Before each pass, what the job needs is reserved, and nothing else."""

    def look(self) -> Plan:
        wanted, key = ports.endpoints(self.seen_job), self.seen_job.key
        names = [(name, one.ports) for one in wanted for name in one.names]
        hosts = Reserved({(key, name): f"127.0.0.{index}" for index, (name, _) in enumerate(names)})
        numbers = Reserved({(key, name, port): 20000 + port % 1000 for name, some in names for port in some})
        self.site = replace(self.site, names_resolve=False, hosts=hosts, ports=numbers)
        return super().look()


@pytest.mark.parametrize(("kind", "document"), [*jobs()])
def test_the_site_is_asked_only_for_what_was_reserved(kind: Kind, document: Body) -> None:
    job = load(kind, document).job
    live(Placed(job, site=Site(elastic_server="etcd:2379"), nodes=("node-1",)))
