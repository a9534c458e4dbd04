# SPDX-License-Identifier: Apache-2.0
"""What happens by time alone never happens early, in whatever part of a second the time began.

The ledger goes through JSON between passes, as on a server; what the API stamps is cut to whole seconds first.
"""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from trainwright.model.cause import CauseKind
from trainwright.model.job import Deadline, Lifecycle, RequestedEnd, Since
from trainwright.model.ledger import Reason
from trainwright.model.units import due, rfc3339
from trainwright.testing.factories import NOW, container, job, later, role
from trainwright.testing.world import World

#: Parts of a second in which a time may begin.
PARTS = [0.0, 0.001, 0.3, 0.5, 0.999]
#: The least before a moment.
SHORT = 0.001


def begun(part: float, lifecycle: Lifecycle) -> World:
    """A job that was accepted in that part of a second; its pods wait."""
    world = World(job(role(replicas=2), lifecycle=lifecycle))
    world.wait(part)
    world.step()
    return world


def running(world: World) -> None:
    for name in world.pods():
        world.start(name)
    world.catch_up()
    world.step()


def ended(world: World) -> Reason | None:
    """What has decided the job's end, if it has ended by now."""
    world.step()
    outcome = world.job.ledger.outcome
    return None if outcome is None else outcome.reason


def passes_exactly(world: World, seconds: float, reason: Reason) -> None:
    """The job lives until that many seconds have passed, wakes then, and ends."""
    at = world.clock + timedelta(seconds=seconds)
    world.wait(seconds - SHORT)
    assert ended(world) is None
    assert world.plans[-1].wake == at
    world.wait(SHORT)
    assert ended(world) is reason


@pytest.mark.parametrize("seconds", [1, 60])
@pytest.mark.parametrize("part", PARTS)
def test_a_deadline_from_the_start(part: float, seconds: float) -> None:
    world = begun(part, Lifecycle(deadline=Deadline(seconds)))

    passes_exactly(world, seconds, Reason.DEADLINE)


@pytest.mark.parametrize("seconds", [1, 60])
@pytest.mark.parametrize("part", PARTS)
def test_a_deadline_from_running(part: float, seconds: float) -> None:
    world = begun(0.0, Lifecycle(deadline=Deadline(seconds, Since.RUNNING)))
    world.wait(part)
    running(world)

    passes_exactly(world, seconds, Reason.DEADLINE)


@pytest.mark.parametrize("part", PARTS)
def test_a_deadline_from_a_resumption(part: float) -> None:
    world = begun(0.0, Lifecycle(deadline=Deadline(1), suspended=True))
    world.wait(5 + part)
    world.edit(lifecycle=Lifecycle(deadline=Deadline(1)))
    world.catch_up()
    world.step()

    passes_exactly(world, 1, Reason.DEADLINE)


@pytest.mark.parametrize("part", PARTS)
def test_a_start_deadline(part: float) -> None:
    passes_exactly(begun(part, Lifecycle(start_deadline=1)), 1, Reason.START_DEADLINE)


@pytest.mark.parametrize("ttl", [1, 30])
@pytest.mark.parametrize("part", PARTS)
def test_a_time_to_live(part: float, ttl: float) -> None:
    world = begun(0.0, Lifecycle(ttl=ttl))
    world.wait(part)
    world.edit(lifecycle=Lifecycle(ttl=ttl, ending=RequestedEnd("Failed")))
    world.catch_up()
    assert ended(world) is Reason.EXTERNAL

    world.wait(ttl - SHORT)
    world.step()
    assert not world.gone
    world.wait(SHORT)
    world.step()
    assert world.gone


@pytest.mark.parametrize("part", PARTS)
def test_a_back_off(part: float) -> None:
    world = begun(0.0, Lifecycle())
    first = world.job.roles[0]
    policy = replace(first.restart, causes=frozenset({CauseKind.EXIT}))
    world.edit(roles=(replace(first, restart=policy),))
    running(world)
    world.wait(part)
    world.exit("job-worker-0", 1)
    world.catch_up()
    world.step()

    world.wait(1 - SHORT)
    world.step()
    assert world.pods()["job-worker-0"].status.phase == "Failed"
    world.wait(SHORT)
    world.step()
    world.reap()
    world.catch_up()
    world.step()
    assert world.pods()["job-worker-0"].status.phase == "Pending"


@pytest.mark.parametrize("part", PARTS)
def test_patience_with_a_container_that_cannot_be_made(part: float) -> None:
    """The kubelet stamps its pods in whole seconds: it may be up to a second late, and is never early."""
    world = World(job(role(patience=5)))
    world.step()
    world.wait(part)
    world.bind("job-worker-0")
    stamp = world.clock.replace(microsecond=0)
    stuck = (container(waiting="ErrImagePull"),)
    world.change("job-worker-0", start_time=stamp, container_statuses=stuck)
    world.catch_up()

    world.wait(5 - SHORT)
    assert ended(world) is None
    world.wait(1 + SHORT)
    assert ended(world) is Reason.RULE


@pytest.mark.parametrize("part", PARTS)
def test_times_that_people_are_shown_are_in_whole_seconds_and_in_order(part: float) -> None:
    world = begun(part, Lifecycle(deadline=Deadline(1, Since.RUNNING)))
    running(world)
    world.wait(1)
    assert ended(world) is Reason.DEADLINE

    times = world.job.ledger.times
    found = [rfc3339(time) for time in (times.accepted, times.started, times.running, times.ended) if time is not None]
    assert len(found) == 4
    assert found == sorted(found)
    assert found[-1] > found[-2]


@pytest.mark.parametrize(
    ("stamp", "seconds", "expected"),
    [
        pytest.param(NOW, 10, later(11), id="a whole second may have been cut"),
        pytest.param(later(0.3), 10, later(10.3), id="a fraction is exact"),
        pytest.param(NOW, 0, NOW, id="0 means at once"),
    ],
)
def test_due(stamp: datetime, seconds: float, expected: datetime) -> None:
    assert due(stamp, seconds) == expected
