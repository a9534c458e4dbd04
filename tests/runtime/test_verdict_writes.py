# SPDX-License-Identifier: Apache-2.0
"""Verdict, history and budgets of a job are stored with writes that happen anyway.

The numbers of status writes below are those of commit 6b4a4fb, the last one without a verdict, less one if the
acceptance of the job is stored together with a later change (`Write.ACCEPTED`). `test_cluster_verdict` counts on a real
API server.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from runtime_rig import VIRTUAL, ControllerRig, Run, key

from trainwright.local.checks import admission
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT
from trainwright.runtime.ports import JOBS, PODS

pytestmark = VIRTUAL
#: What a job remembers of its failures.
NEW_FIELDS = frozenset({"verdict", "history", "budgets"})


def _body(api: str, kind: str, spec: Body, **annotations: str) -> Body:
    metadata = {"name": "train", "namespace": "default", "annotations": annotations}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _role(container: str, **more: Any) -> Body:
    return {"replicas": 2, "template": {"spec": {"containers": [{"name": container, "image": "x"}]}}, **more}


def genericjob(limit: int = 3) -> Body:
    task = _role("main", type="worker", restartPolicy={"policy": "OnFailure", "limit": limit})
    return _body("batch.tensorstack.dev/v1beta1", "GenericJob", {"replicaSpecs": [task]})


def tfjob(budget: str = "", **policy: Any) -> Body:
    worker = _role("tensorflow", restartPolicy="ExitCode")
    annotations = {"trainwright.dev/restart-budget": budget} if budget else {}
    spec = {"tfReplicaSpecs": {"Worker": worker}, "runPolicy": policy}
    return _body("kubeflow.org/v1", "TFJob", spec, **annotations)


def paddlejob() -> Body:
    return _body("batch.paddlepaddle.org/v1", "PaddleJob", {"worker": _role("paddle")})


def aitrainingjob(scope: str = "All") -> Body:
    policy = {"restartPolicy": "OnFailure", "restartScope": scope, "restartLimit": 3}
    trainer = _role("aitj-main", **policy)
    return _body("elasticdeeplearning.ai/v1", "AITrainingJob", {"replicaSpecs": {"trainer": trainer}})


def well(pod: Body) -> Run:
    """The pod runs for twenty seconds and succeeds."""
    return Run(lasts=20)


def fails_once(pod: Body) -> Run:
    """The first pod of replica 0 fails with a code that every kind restarts."""
    first = pod["metadata"]["name"].endswith("-0") and pod["metadata"]["labels"][ATTEMPT] == "0"
    return Run(lasts=8 if first else 20, code=137 if first else 0)


def asks_for_a_restart(pod: Body) -> Run:
    """As `fails_once`, with the exit code that asks for a restart of a PaddleJob."""
    run = fails_once(pod)
    return run._replace(code=101) if run.code else run


def fails_always(pod: Body) -> Run:
    """Replica 0 fails every time, five seconds after it began."""
    return Run(lasts=5, code=137) if pod["metadata"]["name"].endswith("-0") else Run(lasts=None)


def fails_before_all_run(pod: Body) -> Run:
    """The first pod of replica 0 fails while replica 1 still starts."""
    first = pod["metadata"]["labels"][ATTEMPT] == "0"
    if pod["metadata"]["name"].endswith("-0"):
        return Run(lasts=1, code=137) if first else Run(lasts=20)
    return Run(starts=6, lasts=20)


async def nothing_else(rig: ControllerRig, document: Body) -> None:
    """Nobody interferes."""


async def deletes_a_pod(rig: ControllerRig, document: Body) -> None:
    """Another client deletes a running pod."""
    await asyncio.sleep(10)
    name = next(iter(rig.pods()))
    rig.store.delete(PODS, key(name))


async def suspends(rig: ControllerRig, document: Body) -> None:
    """The job is suspended for a minute."""
    jobs = JOBS["tfjob"]
    for suspended in (True, False):
        await asyncio.sleep(10)
        rig.store.patch(jobs, key(), {"spec": {"runPolicy": {"suspend": suspended}}})
        await asyncio.sleep(60 * suspended)


class Scenario(NamedTuple):
    """A job, the lives of its pods, what else happens, and the number of status writes that this costs."""

    writes: int
    document: Body
    script: Callable[[Body], Run]
    happens: Any = nothing_else


SCENARIOS = {
    "GenericJob": Scenario(2, genericjob(), well),
    "GenericJob restarts": Scenario(4, genericjob(), fails_once),
    "GenericJob restarts until it fails": Scenario(8, genericjob(), fails_always),
    "GenericJob restarts before it has run": Scenario(4, genericjob(), fails_before_all_run),
    "GenericJob fails at once": Scenario(3, genericjob(limit=0), fails_once),
    "GenericJob loses a pod": Scenario(5, genericjob(), well, deletes_a_pod),
    "TFJob restarts": Scenario(5, tfjob(), fails_once),
    "TFJob restarts within its budget": Scenario(5, tfjob("5/1h"), fails_once),
    "TFJob restarts until it fails": Scenario(5, tfjob(backoffLimit=2), fails_always),
    "TFJob takes too long": Scenario(2, tfjob(activeDeadlineSeconds=15), well),
    "TFJob is suspended": Scenario(5, tfjob(), well, suspends),
    "PaddleJob restarts": Scenario(6, paddlejob(), asks_for_a_restart),
    "PaddleJob fails": Scenario(4, paddlejob(), fails_once),
    "PaddleJob loses a pod": Scenario(7, paddlejob(), well, deletes_a_pod),
    "AITrainingJob restarts as a whole": Scenario(7, aitrainingjob(), fails_once),
    "AITrainingJob restarts a replica": Scenario(7, aitrainingjob("Pod"), fails_once),
    "AITrainingJob restarts until it fails": Scenario(13, aitrainingjob(), fails_always),
}


async def statuses(scenario: Scenario) -> tuple[list[Body], Body]:
    """Each stored status of a job, from its creation until long after its end; and its status then."""
    rig = ControllerRig(scenario.script)
    admission.install(rig.store)
    resource = JOBS[scenario.document["kind"].lower()]
    async with rig.running():
        rig.store.create(resource, scenario.document)
        await scenario.happens(rig, scenario.document)
        await asyncio.sleep(900)
    status: Body = rig.store.get(resource, key())["status"]
    return [call.body["status"] for call in rig.wire.calls if call.verb == "status"], status


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_a_job_costs_as_many_writes_as_before_there_were_verdicts(scenario: Scenario) -> None:
    written, status = await statuses(scenario)

    assert "outcome" in status["trainwright"], "the scenario has no end"
    assert len(written) == scenario.writes


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_no_write_changes_only_verdict_or_history(scenario: Scenario) -> None:
    written, status = await statuses(scenario)

    assert all(without_new_fields(before) != without_new_fields(after) for before, after in pairwise(written))
    assert {"verdict", "history"} <= status["trainwright"].keys()


def without_new_fields(status: Body) -> Body:
    """A status without the fields of `NEW_FIELDS`."""
    ledger = {name: value for name, value in status["trainwright"].items() if name not in NEW_FIELDS}
    return {**status, "trainwright": ledger}
