# SPDX-License-Identifier: Apache-2.0
"""The annotation `trainwright.dev/restart-scope: Job`: replicas that can only work together are restarted together."""

from typing import Any

from genericjob_driver import Driver, manifest, phases, replicas, restart_count

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body

ANNOTATION = "trainwright.dev/restart-scope"


def collective(scope: str = "Job", limit: int = 1, **more: Any) -> Body:
    """Four workers, all of which must succeed."""
    document = manifest(replicas(restartPolicy={"policy": "OnFailure", "limit": limit}), **more)
    document["metadata"]["annotations"] = {ANNOTATION: scope}
    return document


def uids(job: Driver) -> dict[str, str]:
    return {name: pod.metadata.uid for name, pod in job.pods().items()}


def again(job: Driver) -> None:
    """The back-off passes, and everybody that should runs."""
    job.wait(60)
    job.go()
    job.reap()
    job.go()
    job.start_all()


def test_one_failure_restarts_all_and_costs_one_restart() -> None:
    job = Driver(collective()).running()
    before = uids(job)
    job.end("worker-3")  # it is done, but its peers are not
    job.end("worker-1", code=1)
    again(job)

    assert set(phases(job.status).values()) == {"Running"}
    assert not set(uids(job).values()) & set(before.values())
    assert restart_count(job.status) == 1


def test_peers_that_fail_along_cost_nothing_more() -> None:
    job = Driver(collective()).running()
    job.end("worker-0", "worker-1", "worker-2", "worker-3", code=1)
    again(job)

    assert set(phases(job.status).values()) == {"Running"}
    assert restart_count(job.status) == 1
    assert job.end("worker-0", "worker-1", "worker-2", "worker-3")["phase"] == "Succeeded"


def test_the_limit_is_of_the_job_and_its_end_is_the_end_of_all() -> None:
    job = Driver(collective(limit=1, cleanUpPolicy="Unfinished")).running()
    job.end("worker-1", code=1)
    again(job)
    job.end("worker-2", code=1)
    again(job)

    assert job.status["phase"] == "Failed"
    assert job.names() == ["demo-worker-2"]


def test_a_pod_that_is_removed_takes_its_peers_along_at_no_cost() -> None:
    job = Driver(collective(limit=0)).running()
    before = uids(job)
    job.vanish("demo-worker-2")
    job.go()
    again(job)

    assert set(phases(job.status).values()) == {"Running"}
    assert not set(uids(job).values()) & set(before.values())
    assert restart_count(job.status) is None


def test_without_it_a_replica_is_restarted_alone() -> None:
    for document in (collective("Replica"), manifest(replicas(restartPolicy={"policy": "OnFailure", "limit": 1}))):
        job = Driver(document).running()
        before = uids(job)
        job.fail_and_restart("worker-1")

        assert [name for name, uid in uids(job).items() if before[name] != uid] == ["demo-worker-1"]


def test_a_scope_that_is_not_known_is_refused() -> None:
    assert [str(problem) for problem in load(GENERICJOB, collective("job")).errors] == [
        f"metadata.annotations[\"{ANNOTATION}\"]: 'job' is not known; expected Job or Replica; did you mean `Job`?"
    ]
