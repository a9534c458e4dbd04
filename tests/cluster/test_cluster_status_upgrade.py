# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade between this version and the last one whose definitions described every field of a status.

The older operator patches the status and stores the acceptance of a job at once; this one replaces the status with
PUT. Each works with the definitions of the other: the older definitions have all fields of the ledger.
"""

import time
from collections.abc import Iterator

import pytest
from cluster_client import until
from cluster_jobs import Body
from cluster_versions import CLOSED_STATUS, LongJob, UpgradeCluster, upgrade_cluster

NAMESPACE = "status-upgrade"
#: An operator stores changed counts after ten seconds: whatever it does not write in this time, it does not write.
QUIET_SECONDS = 13
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradeCluster]:
    with upgrade_cluster(tmp_path_factory.mktemp("status-upgrade"), NAMESPACE, CLOSED_STATUS) as cluster:
        yield cluster


def verbs(cluster: UpgradeCluster, one: LongJob, mark: int) -> set[str]:
    """The verbs of the writes of its status since then."""
    calls = cluster.plane.audit(mark).where(user=cluster.user, name=one.name)
    assert calls.refused == (), calls.tally()
    return {call.verb for call in calls.writes if call.resource.endswith("/status")}


def managers(one: LongJob) -> list[Body]:
    """What the operators manage of the status, as the API server records it."""
    path = f"{one.jobs.path}/{one.name}"
    entries = one.jobs.plane.call("GET", path)["metadata"]["managedFields"]
    return [entry["fieldsV1"]["f:status"] for entry in entries if entry.get("subresource") == "status"]


def test_a_job_passes_from_operator_to_operator_and_loses_nothing(cluster: UpgradeCluster) -> None:
    mark = cluster.plane.mark()
    with cluster.operator(cluster.old):
        one = LongJob(cluster, "passed").until("Running")
        one.restarts(1)
    assert verbs(cluster, one, mark) == {"patch"}
    accepted, pods, mark = one.ledger()["times"]["accepted"], one.pods(), cluster.plane.mark()

    with cluster.operator(cluster.new, definitions=cluster.old):  # they have every field of the ledger
        time.sleep(QUIET_SECONDS)
        assert (one.pods(), one.writes(mark)) == (pods, 0)
        one.restarts(2)
        assert verbs(cluster, one, mark) == {"update"}
        cluster.new.install_crds(cluster.plane)
        one.restarts(3)
    (managed,) = managers(one)
    assert managed == {}, "the whole status has one manager"

    mark = cluster.plane.mark()
    with cluster.operator(cluster.old, definitions=cluster.new):
        one.restarts(4)
    assert verbs(cluster, one, mark) == {"patch"}
    with cluster.operator(cluster.new):
        one.restarts(5)
        ledger = one.ledger()
        one.succeeds(5)

    assert ledger["times"]["accepted"] == accepted
    assert (ledger["history"]["total"], ledger["verdict"]["decision"]) == (6, "Restart")
    assert one.ledger()["outcome"]["result"] == "Succeeded"


def test_older_definitions_refuse_nothing_that_this_operator_writes(cluster: UpgradeCluster) -> None:
    """A job from its first to its last write; with them, the API server still validates every field of the status."""
    mark = cluster.plane.mark()
    with cluster.operator(cluster.new, definitions=cluster.old):
        one = LongJob(cluster, "closed").until("Running")
        one.restarts(1)
        one.succeeds(1)
        until(lambda: one.ledger().get("outcome"), "its end is stored")
    assert verbs(cluster, one, mark) == {"update"}
    assert one.ledger().keys() >= {"verdict", "history", "roles", "times"}
