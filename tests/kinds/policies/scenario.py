# SPDX-License-Identifier: Apache-2.0
"""Driving a job through the simulated world, so that a policy's whole story fits on one line of a table.

A story is a list of steps; after each one the operator works until it rests, without time passing by itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from trainwright.model.child import ContainerState, ContainerStatus, Running
from trainwright.model.job import Job, Lifecycle
from trainwright.model.site import Site
from trainwright.testing.world import World

Step = Callable[[World], None]

ROUNDS = 100


class Verdict(NamedTuple):
    """Where a job is, what decided it, and the replica that did, if one failed."""

    phase: str
    reason: str = ""
    failed: str = ""


OPEN = Verdict("Running")
RESTARTING = Verdict("Restarting")
SUCCEEDED = Verdict("Succeeded", "Rule")


def failed(who: str, reason: str = "Rule") -> Verdict:
    return Verdict("Failed", reason, who)


def tell(job: Job, *steps: Step, nodes: tuple[str, ...] = (), site: Site | None = None) -> World:
    """The world after this story."""
    world = World(job, nodes=nodes, site=site)
    rest(world)
    for step in steps:
        step(world)
        rest(world)
    return world


def rest(world: World) -> None:
    """The operator works, kubelets finish what is being deleted, until nothing changes at this moment."""
    for _ in range(ROUNDS):
        world.reap()
        world.catch_up()
        if world.gone or (world.step().empty and not world.notes):
            return
    raise AssertionError(f"no rest: {world.plans[-1]}")


def verdict(world: World) -> Verdict:
    ledger = world.job.ledger
    outcome = ledger.outcome
    if outcome is None:
        return Verdict(ledger.phase.value)
    failure = outcome.failure
    who = f"{failure.role} {failure.index} {failure.cause.why.value}" if failure is not None else ""
    return Verdict(ledger.phase.value, outcome.reason.value, who)


def pods(world: World) -> list[str]:
    """The pods that exist, without the job's name: `worker-0`, and `worker-0#1` for a later attempt."""
    return sorted(name.removeprefix("job-") + _attempt(pod.metadata.labels) for name, pod in world.pods().items())


def _attempt(labels: dict[str, str] | None) -> str:
    attempt = (labels or {}).get("trainwright.dev/attempt", "0")
    return "" if attempt == "0" else f"#{attempt}"


def services(world: World) -> list[str]:
    return sorted(name.removeprefix("job-") for kind, name in world.truth if kind == "Service")


# -- steps ---------------------------------------------------------------------------------------------------------


def run(world: World) -> None:
    """Every pod that has not started does: worker-0 on node worker-0, or on `spare` if that node is lost."""
    for name, pod in world.pods().items():
        if pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None:
            world.start(name, node=_node(world, name.removeprefix("job-")))


def _node(world: World, name: str) -> str:
    node = (world.nodes or {}).get(name)
    silent = node is not None and any(condition.status != "True" for condition in node.status.conditions or ())
    return "spare" if silent else name


def again(world: World) -> None:
    """The back-off passes, and what is made after it runs."""
    world.wait(60)
    rest(world)
    run(world)


def waits(seconds: float) -> Step:
    return lambda world: world.wait(seconds)


def exits(*names: str, code: int = 0) -> Step:
    def step(world: World) -> None:
        for name in names:
            world.exit(f"job-{name}", code)

    return step


def fails(*names: str, code: int = 1) -> Step:
    return exits(*names, code=code)


def both(*steps: Step) -> Step:
    """Several things happen before the operator looks."""

    def step(world: World) -> None:
        for one in steps:
            one(world)

    return step


def evicted(name: str) -> Step:
    """The kubelet throws it out; no container leaves a word."""
    return lambda world: world.change(f"job-{name}", phase="Failed", reason="Evicted", container_statuses=None)


def rejected(name: str) -> Step:
    """Failed, and no container left a word: the node would not have it."""
    return lambda world: world.change(
        f"job-{name}", phase="Failed", reason="UnexpectedAdmissionError", container_statuses=None
    )


def preempted(name: str) -> Step:
    return lambda world: world.evict(f"job-{name}")


def terminating(name: str) -> Step:
    """Somebody deletes the pod and its kubelet takes its time."""

    def step(world: World) -> None:
        world.delete(("Pod", f"job-{name}"))
        world.catch_up()
        world.step()

    return step


def collected(*names: str) -> Step:
    """The pod objects are gone at once: garbage collection."""

    def step(world: World) -> None:
        for name in names:
            world.vanish(f"job-{name}")

    return step


def loses(*nodes: str) -> Step:
    """Nodes fall silent and stay silent beyond the grace."""

    def step(world: World) -> None:
        for node in nodes:
            world.lose_node(node)
        world.wait(61)

    return step


def in_place(name: str, times: int) -> Step:
    """The kubelet has restarted the container that often by now."""
    container = ContainerStatus("main", ready=True, restart_count=times, state=ContainerState(running=Running()))
    return lambda world: world.change(f"job-{name}", container_statuses=(container,))


def crashes(*names: str) -> Step:
    """A container has failed, and its kubelet waits before it starts it again."""

    def step(world: World) -> None:
        for name in names:
            world.crash(f"job-{name}")

    return step


def becomes(name: str, **status: Any) -> Step:
    """Any other change of a pod's status."""
    return lambda world: world.change(f"job-{name}", **status)


def edits(**lifecycle: Any) -> Step:
    """Somebody edits the job: suspend, an annotation that asks for an end."""

    def step(world: World) -> None:
        changed: Lifecycle = replace(world.job.lifecycle, **lifecycle)
        world.edit(lifecycle=changed)

    return step
