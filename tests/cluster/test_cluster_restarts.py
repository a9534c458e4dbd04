# SPDX-License-Identifier: Apache-2.0
"""The operator is killed again and again while two hundred jobs run: nothing is made twice, no count is lost.

A watch sees every pod that ever was: the audit log has a request that a kill cut off as failed, whatever came of it.
What was seen, what statuses have counted, and the pods that are left agree.
"""

import json
from pathlib import Path

import pytest
from cluster_client import until
from cluster_jobs import ENDS, Body, Jobs, job, pods_born, role
from cluster_operator import account, started
from cluster_plane import ControlPlane

from trainwright.model.meta import ATTEMPT, INDEX, ROLE
from trainwright.model.units import parse_counts

pytest_plugins = ("cluster_fixtures",)
MANY = 200
#: After so many jobs have ended it is killed.
KILLS = (20, 60, 90, 120, 160)


def _jobs() -> list[Body]:
    """Every fourth has pods that fail once, every eighth one that fails for good, after a restart."""
    made = []
    for number in range(MANY):
        roles = [role(replicas=2, limit=4, exit="1,0" if number % 4 == 0 else "0")]
        roles += [role("doomed", limit=1, exit="3")] if number % 8 == 5 else []
        made.append(job(f"job-{number:03}", *roles))
    return made


def _expected(number: int) -> tuple[str, list[int], dict[str, int]]:
    """How a job ends, what it counts by role, and how often each of its pods was made."""
    name, failing = f"job-{number:03}", number % 4 == 0
    pods = {f"{name}-worker-{index}": 1 + failing for index in range(2)}
    if number % 8 == 5:
        return "Failed", [0, 1], pods | {f"{name}-doomed-0": 2}
    return "Succeeded", [2 if failing else 0], pods


@pytest.mark.usefixtures("nodes")
def test_killed_again_and_again_it_makes_no_pod_twice_and_loses_no_count(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    jobs = Jobs(plane, namespace)
    user, config = account(plane, namespace, "mortal")
    words, log = ("--namespace", namespace, "--no-leader-elect"), tmp_path / "operator.log"
    mark = plane.mark()

    def ended() -> dict[str, Body]:
        found = {one["metadata"]["name"]: one.get("status") or {} for one in plane.call("GET", jobs.path)["items"]}
        return {name: status for name, status in found.items() if status.get("phase") in ENDS}

    with pods_born(jobs, tmp_path / "pods") as born:
        jobs.kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": _jobs()}))
        for share in (*KILLS, MANY):
            with started(config, log, *words) as process:
                process.until(lambda share=share: len(ended()) >= share)  # type: ignore[misc]
        with started(config, log, *words):  # what was left to clear away
            until(lambda: _agree(jobs, ended()), "pods and statuses agree")
        # Who watches may lag behind who works.
        pods = sum(sum(_expected(number)[2].values()) for number in range(MANY))
        until(lambda: born().total() >= pods, "every pod was seen")
        made = born()

    statuses = ended()
    expected = {f"job-{number:03}": _expected(number) for number in range(MANY)}
    assert made == {pod: times for _, _, pods in expected.values() for pod, times in pods.items()}
    assert {name: status["phase"] for name, status in statuses.items()} == {
        name: one[0] for name, one in expected.items()
    }
    counted = {name: [task.get("restartCount", 0) for task in one["tasks"]] for name, one in statuses.items()}
    assert counted == {name: one[1] for name, one in expected.items()}
    calls = plane.audit(mark).where(user=user)
    assert calls.where(denied=True) == ()
    assert calls.where(code=409) == ()


def _agree(jobs: Jobs, statuses: dict[str, Body]) -> bool:
    """Every pod that is there is of the attempt that its job's status has come to."""
    for pod in jobs.pods().values():
        meta = pod["metadata"]
        labels = meta["labels"]
        entries = statuses[meta["ownerReferences"][0]["name"]]["trainwright"]["roles"]
        entry = next(one for one in entries if one["name"] == labels[ROLE])
        tries = parse_counts(entry.get("retries", "")).get(int(labels[INDEX]), 0)
        if int(labels[ATTEMPT]) != tries + entry.get("epoch", 0):
            return False
    return True
