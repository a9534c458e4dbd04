# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade between this version and the last one without verdict and history, as docs/kubernetes.md says.

Each combination of definitions and operator: nothing restarts, nobody writes for ever, and a history never contradicts
what happened while another version was at work: it is either whole or begins anew.
"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from cluster_client import until
from cluster_jobs import Body
from cluster_versions import WITHOUT_VERDICT, LongJob, UpgradeCluster, upgrade_cluster

NAMESPACE = "verdict-upgrade"
#: An operator stores changed counts after ten seconds: whatever it does not write in this time, it does not write.
QUIET_SECONDS = 13
NEW_FIELDS = {"verdict", "history"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradeCluster]:
    with upgrade_cluster(tmp_path_factory.mktemp("verdict-upgrade"), NAMESPACE, WITHOUT_VERDICT) as cluster:
        yield cluster


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def assert_sums(ledger: Body) -> None:
    """Lost and productive time are the time since the history began."""
    history = ledger["history"]
    wall = datetime.fromisoformat(history["until"]) - datetime.fromisoformat(history["begun"])
    assert history.get("productive", 0) + sum(history.get("lost", {}).values()) == wall // timedelta(milliseconds=1)


def test_a_job_of_the_older_version_goes_on_and_its_history_begins_with_its_next_change(
    cluster: UpgradeCluster,
) -> None:
    with cluster.operator(cluster.old):
        running, done = LongJob(cluster, "older").until("Running"), LongJob(cluster, "older-done").until("Running")
        running.restarts(1)
        done.succeeds()
    pods, mark = running.pods(), cluster.plane.mark()
    with cluster.operator(cluster.new):
        time.sleep(QUIET_SECONDS)
        assert (running.pods(), running.writes(mark), done.writes(mark)) == (pods, 0, 0)
        assert NEW_FIELDS.isdisjoint(running.ledger())
        before = time.time()
        running.restarts(2)
    ledger = running.ledger()

    assert (ledger["verdict"]["decision"], ledger["verdict"]["class"]) == ("Restart", "ProgramError")
    assert at(ledger["history"]["begun"]) > before > at(ledger["times"]["accepted"])
    assert ledger["history"]["total"] == 1
    assert_sums(ledger)
    assert NEW_FIELDS.isdisjoint(done.ledger())


def test_an_older_operator_removes_what_it_does_not_know_and_the_history_begins_anew(cluster: UpgradeCluster) -> None:
    """The way back that the docs describe: the newer definitions stay."""
    with cluster.operator(cluster.new):
        one = LongJob(cluster, "back").until("Running")
        one.restarts(1)
        done = LongJob(cluster, "back-done").until("Running")
        done.succeeds()
    assert one.ledger().keys() >= NEW_FIELDS
    pods, mark = one.pods(), cluster.plane.mark()
    with cluster.operator(cluster.old, definitions=cluster.new):
        until(lambda: NEW_FIELDS.isdisjoint(one.ledger()), "the older operator removes the fields")
        until(lambda: NEW_FIELDS.isdisjoint(done.ledger()), "also those of a job that has ended")
        assert (one.pods(), one.writes(mark), done.writes(mark)) == (pods, 1, 1)
        one.restarts(2)
    back = time.time()
    with cluster.operator(cluster.new):
        one.until("Running", 2)
        one.restarts(3)
    ledger = one.ledger()

    assert at(ledger["history"]["begun"]) > back
    assert (ledger["history"]["total"], ledger["verdict"]["decision"]) == (1, "Restart")
    assert_sums(ledger)
    assert done.ledger()["outcome"]["result"] == "Succeeded"


def test_older_definitions_hide_the_history_and_the_first_write_removes_it(cluster: UpgradeCluster) -> None:
    """A job that nobody wrote in between has its whole history again, and it is true: nothing has happened."""
    with cluster.operator(cluster.new):
        quiet, busy = (LongJob(cluster, name).until("Running") for name in ("quiet", "busy"))
        quiet.restarts(1)
        busy.restarts(1)
    history, pods = quiet.ledger()["history"], quiet.pods()
    with cluster.operator(cluster.old):
        assert NEW_FIELDS.isdisjoint(quiet.ledger())
        busy.restarts(2)
    back = time.time()
    with cluster.operator(cluster.new):
        assert quiet.ledger()["history"] == history
        assert NEW_FIELDS.isdisjoint(busy.ledger())
        quiet.restarts(2)
        busy.restarts(3)

    assert quiet.pods().keys() == pods.keys()
    assert at(quiet.ledger()["history"]["begun"]) == at(history["begun"])
    assert quiet.ledger()["history"]["total"] == 3
    assert at(busy.ledger()["history"]["begun"]) > back
    assert_sums(quiet.ledger())
    assert_sums(busy.ledger())


def test_older_definitions_under_a_running_operator_cost_the_verdict_and_nothing_else(cluster: UpgradeCluster) -> None:
    """The operator does not start with such definitions; but somebody may install them later."""
    with cluster.operator(cluster.new) as process:
        one = LongJob(cluster, "under").until("Running")
        one.restarts(1)
        mark = cluster.plane.mark()
        cluster.old.install_crds(cluster.plane)
        until(lambda: NEW_FIELDS.isdisjoint(one.ledger()), "the fields are hidden")
        one.restarts(2)
        one.succeeds(2)
        # The restart, the run after it, the end, and counts that are stored later.
        assert one.writes(mark) <= 5
        mark = cluster.plane.mark()
        time.sleep(QUIET_SECONDS)
        assert one.writes(mark) == 0
        assert NEW_FIELDS.isdisjoint(one.ledger())
        assert "drops parts of the durable state" in process.log.read_text()
