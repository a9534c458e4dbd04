# SPDX-License-Identifier: Apache-2.0
"""Random writes for the crash tests of the journal. As a program, it makes them and prints each durable version.

The same seed gives the same writes and the same versions, so that a test knows the state after each write.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from store_objects import JOB, Clock, body, key, owner, pod

from trainwright.errors import ApiError
from trainwright.local.storage import journal_file, journal_writer
from trainwright.local.storage.store import Store
from trainwright.runtime.ports import PODS, SECRETS, Propagation, Resource

#: By version, of every object: the resource, the name and the version. No two states are equal.
State = tuple[int, frozenset[tuple[str, str, int]]]
_RESOURCES = (JOB, PODS, SECRETS)
_NAMES = [f"n-{number}" for number in range(12)]
_OUTSTANDING = 8


def writes(seed: int) -> Iterator[tuple[Any, ...]]:
    """Endless random writes: families of objects are created, changed and deleted."""
    random = Random(seed)  # noqa: S311 - the same seed gives the same writes
    while True:
        name = random.choice(_NAMES)
        match random.randrange(8):
            case 0:
                yield "family", name, random.randrange(1, 60), random.random() < 0.5
            case 1 | 2:
                yield "delete", JOB, name, random.choice([*Propagation])
            case 3 | 4:
                yield "patch", random.choice(_RESOURCES), name, random.randrange(4000)
            case 5:
                yield "finalizer", random.choice(_RESOURCES), name, random.random() < 0.5
            case 6:
                yield "delete", random.choice(_RESOURCES), name, Propagation.BACKGROUND
            case 7:
                yield "create", name, random.randrange(3000)


def steps(items: Store, write: tuple[Any, ...]) -> Iterator[None]:
    """Make one write, or several for a family; yields after each one. Impossible writes change nothing."""
    try:
        match write:
            case "family", name, size, blocks:
                made = items.create(JOB, body(name, JOB))
                yield
                for number in range(size):
                    reference = [owner(made, blocks=blocks)]
                    if number % 2:
                        items.create(PODS, pod(f"{name}-{number}", ownerReferences=reference))
                    else:
                        items.create(SECRETS, body(f"{name}-{number}", ownerReferences=reference))
                    yield
            case "create", name, size:
                items.create(SECRETS, {**body(name), "data": {"a": "x" * size}})
            case "patch", resource, name, size:
                change = {"metadata": {"annotations": {"text": "y" * size}}}
                items.patch(resource, key(name), change)
            case "finalizer", resource, name, True:
                items.patch(resource, key(name), {"metadata": {"finalizers": ["example.com/held"]}})
            case "finalizer", resource, name, False:
                items.patch(resource, key(name), {"metadata": {"finalizers": None}})
            case "delete", resource, name, propagation:
                items.delete(resource, key(name), propagation=propagation)
    except ApiError:
        return
    yield


def state_of(items: Store) -> State:
    """The state of a store in memory."""
    return items.last_version, frozenset(
        (resource.id, one["metadata"]["name"], int(one["metadata"]["resourceVersion"]))
        for resource in _RESOURCES
        for one in _bodies(items, resource)
    )


def _bodies(items: Store, resource: Resource) -> tuple[dict[str, Any], ...]:
    return items.list(resource)[0]


def states(seed: int, until: int) -> dict[int, State]:
    """By version: the state after each write up to the version `until`."""
    items = Store(Clock())
    known = {items.last_version: state_of(items)}
    for write in writes(seed):
        for _ in steps(items, write):
            known[items.last_version] = state_of(items)
            if items.last_version >= until:
                return known
    raise AssertionError


async def main(path: Path, seed: int, checkpoint_bytes: int) -> None:
    """Make writes until this process is killed. Some of them always wait for the disk.

    Python switches between the threads as often as it can, so that a commit can begin at any moment. Replaced rows are
    deleted often, and a checkpoint follows after the given number of bytes.
    """
    sys.setswitchinterval(1e-6)
    journal_writer._MAX_REPLACED, journal_file.MAX_HISTORY = 8, 4
    journal_writer._CHECKPOINT_BYTES = checkpoint_bytes
    items = Store.open(Clock(), path)
    journal = items.journal
    assert journal is not None
    print(items.last_version, flush=True)
    limit = asyncio.Semaphore(_OUTSTANDING)

    async def confirm(version: int) -> None:
        await journal.wait(version)
        print(version, flush=True)
        limit.release()

    tasks = set()
    for write in writes(seed):
        for _ in steps(items, write):
            await limit.acquire()
            task = asyncio.create_task(confirm(items.last_version))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
