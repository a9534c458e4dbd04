# SPDX-License-Identifier: Apache-2.0
"""The operator of the simulated world has the real caches and executor: what they guarantee is seen here, too."""

from trainwright.model.job import Lifecycle
from trainwright.testing import factories
from trainwright.testing.world import World


def test_what_the_operator_has_made_is_not_made_again_before_the_watch_tells_of_it() -> None:
    world = World(factories.job(factories.role(replicas=2)))
    world.step()

    assert [note.address[1] for note in world.notes] == ["job-worker-0", "job-worker-1"]
    assert world.look().creates == ()


def test_a_delete_that_was_decided_on_old_news_spares_the_object_that_has_taken_the_name() -> None:
    world = World(factories.job(factories.role()))
    world.settle(place="node-1")
    world.edit(lifecycle=Lifecycle(suspended=True))
    world.catch_up()
    world.put(("Pod", "job-worker-0"), factories.pod(uid="foreign", labels={}, owners=None))
    world.step()

    assert "delete Pod job-worker-0" in world.writes
    left = world.pods()["job-worker-0"].metadata
    assert (left.uid, left.deletion_timestamp) == ("foreign", None)
