# SPDX-License-Identifier: Apache-2.0
"""Old → new → old → new, each operator killed while jobs are in the middle of a restart: no count is lost.

The old operator is that of the commit before, with its own definitions, which drop what they do not know. A watch sees
every pod that ever was, so that a replica that is made twice is found whatever statuses say.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster_aitrainingjobs import AITrainingJobs, aitrainingjob, replicas
from cluster_client import until
from cluster_install import trainwright
from cluster_jobs import Body, Jobs, job, pods_born, role
from cluster_versions import UpgradeCluster, upgrade_cluster

from trainwright.model.meta import ATTEMPT, INDEX
from trainwright.model.units import parse_indexes

NAMESPACE = "upgrade"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradeCluster]:
    with upgrade_cluster(tmp_path_factory.mktemp("upgrade"), NAMESPACE) as cluster:
        yield cluster


def ledger(jobs: Jobs, name: str) -> Body:
    found = jobs.status(name).get("trainwright") or {}
    return found if isinstance(found, dict) else {}


def restarts(jobs: Jobs, name: str, place: int = 0) -> int:
    """Those that are charged to a role by now."""
    roles = ledger(jobs, name).get("roles") or [{}] * (place + 1)
    return sum((roles[place].get("restarts") or {}).values())


def attempts(jobs: Jobs, name: str) -> dict[str, int]:
    return {pod: int(one["metadata"]["labels"][ATTEMPT]) for pod, one in jobs.pods(name).items()}


def _charged(jobs: Jobs, name: str, number: int) -> bool:
    return restarts(jobs, name) >= number


def _all_at(jobs: Jobs, name: str, attempt: int) -> bool:
    return set(attempts(jobs, name).values()) == {attempt}


class Waits(NamedTuple):
    """What was charged when an operator died, and when the replicas that waited then may be made again."""

    charged: int
    until: dict[int, datetime]


def waiting(jobs: Jobs, name: str) -> Waits:
    holds = ledger(jobs, name)["roles"][0].get("holds") or ()
    found = {index: datetime.fromisoformat(one["until"]) for one in holds for index in parse_indexes(one["indexes"])}
    return Waits(restarts(jobs, name), found)


def test_counts_attempts_and_back_off_survive_every_change_of_the_operator(
    cluster: UpgradeCluster, tmp_path: Path
) -> None:
    """Each replica fails four times. They wait 1, 2, 4 and 8 s, and the operators die during the last three."""
    jobs = Jobs(cluster.plane, NAMESPACE)
    deaths: list[Waits] = []
    with pods_born(jobs, tmp_path / "pods") as born:
        jobs.apply(
            job("often", role(replicas=2, limit=10, exit="1,1,1,1,0")),
            job("spent", role(limit=3, exit="3")),
        )
        for version, failures in ((cluster.old, 2), (cluster.new, 3), (cluster.old, 4)):
            with cluster.operator(version) as process:
                process.until(partial(_charged, jobs, "often", 2 * failures))
            deaths.append(waiting(jobs, "often"))
            # Nobody is at work: what was failed waits, and no replica has a pod of the attempt that was decided on.
            assert restarts(jobs, "often") == 2 * failures
            assert all(attempt < failures for attempt in attempts(jobs, "often").values())
        with cluster.operator(cluster.new):
            status = jobs.until("often", "Succeeded")
            spent = jobs.until("spent", "Failed", patience=30)
        made, whole = born(), (tmp_path / "pods").read_text()

    assert [one.charged for one in deaths] == [4, 6, 8]
    assert (status["tasks"][0]["restartCount"], restarts(jobs, "often")) == (8, 8)
    assert (spent["tasks"][0]["restartCount"], restarts(jobs, "spent")) == (3, 3)
    assert made == {"often-worker-0": 5, "often-worker-1": 5, "spent-worker-0": 4}
    births = _births(whole)
    for attempt, death in enumerate(deaths, 2):
        for index, end in death.until.items():
            born_at = births[f"often-worker-{index}", attempt]
            assert born_at >= end.replace(microsecond=0), f"{index} is made at {born_at}, and was to wait until {end}"
    assert sum(len(death.until) for death in deaths) >= 4, f"hardly anything waited when operators died: {deaths}"


def _births(watched: str) -> dict[tuple[str, int], datetime]:
    """When each pod was made, by name and attempt."""
    metas = [json.loads(line)["object"]["metadata"] for line in watched.rpartition("\n")[0].splitlines()]
    return {
        (meta["name"], int(meta["labels"][ATTEMPT])): datetime.fromisoformat(meta["creationTimestamp"])
        for meta in metas
        if INDEX in meta.get("labels", {})
    }


def test_a_restart_of_the_whole_job_whose_pods_are_still_going_is_made_once(
    cluster: UpgradeCluster, tmp_path: Path
) -> None:
    """The replica beside the one that failed takes four seconds to go; the operators die in the meantime."""
    jobs = AITrainingJobs(Jobs(cluster.plane, NAMESPACE))
    again = {"restartPolicy": "OnFailure", "restartScope": "All", "restartLimit": 9}
    body = aitrainingjob("whole", a=replicas(1, spec=again, runs="forever"), b=replicas(1, runs="forever", stops="4"))
    with pods_born(jobs, tmp_path / "pods") as born:
        jobs.apply(body)
        for number, version in enumerate((cluster.old, cluster.new, cluster.old)):
            with cluster.operator(version):
                jobs.until_pods(2, "whole", "Running")
                until(partial(_all_at, jobs, "whole", number), f"attempt {number}")
                _fail(jobs, "whole-a-0")
                until(lambda: _going(jobs, "whole-b-0"), "the other one goes")
            assert restarts(jobs, "whole") == number + 1
            assert attempts(jobs, "whole").get("whole-b-0", number) == number
        with cluster.operator(cluster.new):
            until(lambda: attempts(jobs, "whole") == {"whole-a-0": 3, "whole-b-0": 3}, "the last attempt")
            jobs.until("whole", "Running", patience=30)
            status = jobs.status("whole")
        made = born()

    assert (status["RestartCount"], status["restarts"]) == ({"a": 3, "b": 3}, 3)
    assert made == {"whole-a-0": 4, "whole-b-0": 4}


def _fail(jobs: Jobs, name: str) -> None:
    state = {"terminated": {"exitCode": 3, "reason": "Error"}}
    one = {"name": "aitj-main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"phase": "Failed", "containerStatuses": [one]}
    jobs.plane.call("PATCH", f"{jobs.pods_path}/{name}/status", {"status": status})


def _going(jobs: Jobs, name: str) -> bool:
    return "deletionTimestamp" in jobs.pods().get(name, {"metadata": {"deletionTimestamp": "it has gone"}})["metadata"]


def test_the_new_operator_does_not_start_with_the_old_definitions(cluster: UpgradeCluster) -> None:
    """They would drop what this version remembers besides; the old operator does start with the new ones, see above."""
    cluster.old.install_crds(cluster.plane)
    words = ("--kubeconfig", str(cluster.config), "--namespace", NAMESPACE, "--no-leader-elect")
    done = trainwright("operator", *words, check=False)
    told = trainwright("preflight", "--kubeconfig", str(cluster.plane.kubeconfig()), check=False)

    assert done.returncode == 2
    assert "would drop or refuse parts of the durable state: status.trainwright.roles[]." in done.stderr
    assert told.returncode == 1
    assert "from another version of Trainwright (unknown)" in told.stdout
    assert "the operator would refuse to start: genericjobs.batch.tensorstack.dev would drop" in told.stdout
