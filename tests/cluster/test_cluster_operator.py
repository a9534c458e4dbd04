# SPDX-License-Identifier: Apache-2.0
"""The operator, out of process, on a real control plane: what a job costs, and that others may edit it meanwhile."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster_jobs import Jobs, job, role
from cluster_plane import ControlPlane

from trainwright.kinds.registry import KINDS

pytest_plugins = ("cluster_fixtures", "cluster_operator_fixtures")
SERVICE = {"ports": [{"name": "http", "port": 80}]}


@pytest.mark.parametrize("replicas", [1, 4, 32])
def test_a_job_succeeds_within_its_budget_of_writes(plane: ControlPlane, jobs: Jobs, replicas: int) -> None:
    """One write for each pod and service, two statuses and two events: the first status also says that it runs."""
    mark = plane.mark()
    jobs.apply(job("budget", role(replicas=replicas, runs="1"), service=SERVICE))
    jobs.until("budget", "Succeeded")

    calls = plane.audit(mark).where(user="operator", namespace=jobs.namespace)
    assert len(calls.writes) <= 2 * replicas + 4, calls.writes.tally()
    assert calls.where(resource="genericjobs.batch.tensorstack.dev/status").tally("verb") == {"update": 2}
    assert calls.refused == ()
    assert calls.reads == ()


def test_a_job_that_is_edited_all_the_while_is_looked_after_all_the_same(plane: ControlPlane, jobs: Jobs) -> None:
    """Status and edits meet: a conflict costs a pass, nothing is lost or done twice, and no edit is undone."""
    mark = plane.mark()
    jobs.make(job("busy", role(replicas=4, limit=8, exit="1,0", runs="0.2"), service=SERVICE))
    edited = 0
    while jobs.phase("busy") != "Succeeded" and edited < 2000:
        edited += 1
        note = {"metadata": {"annotations": {"edit": str(edited)}}}
        plane.call("PATCH", f"{jobs.path}/busy", note)

    status = jobs.until("busy", "Succeeded")
    calls = plane.audit(mark).where(user="operator", namespace=jobs.namespace)
    assert edited > 20
    assert jobs.find("busy")["metadata"]["annotations"]["edit"] == str(edited)
    assert status["tasks"][0]["restartCount"] == 4
    assert len(calls.where(verb="create", resource="pods", code=201)) == 8
    assert len(calls.where(code=409)) <= len(calls.where(verb="update")), calls.tally()
    assert [event.split()[0] for event in jobs.events("busy")].count("Succeeded") == 1


def test_a_hundred_jobs_at_once_all_end(plane: ControlPlane, jobs: Jobs) -> None:
    names = [f"many-{number}" for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: jobs.make(job(name, role(replicas=2))), names))
    for name in names:
        jobs.until(name, "Succeeded")


@pytest.mark.usefixtures("lease_namespace")
def test_the_api_server_takes_the_manifests(plane: ControlPlane, namespace: str) -> None:
    argv = [sys.executable, "-m", "trainwright", "manifests", "--image", "example/trainwright:1", "-n", namespace]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    told = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=text).stdout

    assert "deployment.apps/trainwright-operator serverside-applied (server dry run)" in told
    assert len(told.splitlines()) >= 8 + len(KINDS)
