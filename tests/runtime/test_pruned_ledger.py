# SPDX-License-Identifier: Apache-2.0
"""The definitions are replaced by older ones while the operator runs: the API server drops verdict, history, budgets.

An operator does not start with such definitions (`crd.compare`). One that runs already goes on as the older version
would: every job ends as it should, and what the server drops is not written again and again.
"""

import asyncio
from typing import Any

import pytest
from runtime_rig import JOB, VIRTUAL, ControllerRig, key
from test_verdict_writes import NEW_FIELDS, SCENARIOS, Scenario, tfjob, well

from trainwright.local.checks import admission
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.runtime.ports import JOBS, PODS, Resource

pytestmark = VIRTUAL


class PruningCluster(LocalCluster):
    """A cluster whose definitions do not know the new fields of the ledger."""

    async def replace_status(self, resource: Resource, document: Body) -> Any:
        """Drop the new fields, as an API server does."""
        ledger = document["status"].get("trainwright") or {}
        for name in NEW_FIELDS.intersection(ledger):
            del ledger[name]
        return await super().replace_status(resource, document)


def rig_with_old_definitions(scenario: Scenario) -> ControllerRig:
    rig = ControllerRig(scenario.script)
    rig.wire.inner = PruningCluster(rig.store)
    admission.install(rig.store)
    return rig


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_a_job_ends_with_as_many_writes_as_if_all_were_kept(scenario: Scenario) -> None:
    rig = rig_with_old_definitions(scenario)
    resource = JOBS[scenario.document["kind"].lower()]
    async with rig.running():
        rig.store.create(resource, scenario.document)
        await scenario.happens(rig, scenario.document)
        await asyncio.sleep(7200)

    ledger = rig.store.get(resource, key())["status"]["trainwright"]
    assert "outcome" in ledger
    assert NEW_FIELDS.isdisjoint(ledger)
    assert len(rig.wire.made("status")) == scenario.writes


async def test_a_budget_that_is_dropped_is_not_written_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """The budget of a job is stored when the job is accepted; here it never is, so nothing is charged to it."""
    document = tfjob("50/1h")
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    rig = rig_with_old_definitions(Scenario(0, document, lambda pod: well(pod)._replace(lasts=None)))
    async with rig.running():
        rig.store.create(JOBS["tfjob"], document)
        await asyncio.sleep(20)
        told = {"name": "tensorflow", "restartCount": 3, "state": {"running": {}}}
        rig.store.patch(PODS, key("train-worker-0"), {"status": {"containerStatuses": [told]}}, status=True)
        await asyncio.sleep(60)
        before = len(rig.wire.made("status"))
        await asyncio.sleep(24 * 3600)
        assert len(rig.wire.made("status")) == before
    warnings = [line for line in caplog.messages if "the API server drops parts of the durable state" in line]
    assert [line.rpartition("fields=")[2] for line in warnings] == ["budgets,history"]


async def test_what_is_dropped_is_stored_with_the_next_change_after_the_definitions_are_right_again() -> None:
    scenario = SCENARIOS["GenericJob restarts"]
    rig = rig_with_old_definitions(scenario)
    async with rig.running():
        rig.store.create(JOB, scenario.document)
        await rig.until(lambda: "failures" in rig.status().get("trainwright", {}))
        rig.wire.inner = LocalCluster(rig.store)
        await rig.finished()

    ledger = rig.status()["trainwright"]
    assert (ledger["verdict"]["decision"], ledger["history"]["total"]) == ("Succeeded", 1)
    assert ledger["history"]["begun"] > ledger["times"]["accepted"]
