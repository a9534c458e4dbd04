# SPDX-License-Identifier: Apache-2.0
"""The controller on the real store, with a kubelet of a few lines: what it writes, in which order, and what it tells.

Timers and memory are in `test_controller_timers`; kills and stale watches are in `test_controller_kills`.
"""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from runtime_rig import JOB, VIRTUAL, WRITES, Call, ControllerRig, Run, key

from trainwright.errors import ConflictError, ForbiddenError, InvalidError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, JOB_UID
from trainwright.runtime.ports import EVENTS, JOBS, PODS

pytestmark = VIRTUAL
STATUS = f"status {JOB.id}"


def counted(rig: ControllerRig) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in rig.wire.calls if call.verb not in ("list", "watch"))


def order(rig: ControllerRig) -> list[str]:
    """The writes in their order; events by their reason."""
    calls = [call for call in rig.wire.calls if call.verb in WRITES]
    return [call.body["reason"] if call.resource == EVENTS.id else f"{call.verb} {call.resource}" for call in calls]


def fails_first(pod: Body) -> Run:
    """The first attempt fails."""
    return Run(code=1 if pod["metadata"]["labels"][ATTEMPT] == "0" else 0)


# -- from creation to the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 4, 30])
async def test_a_job_runs_to_success_within_its_budget_of_writes(replicas: int) -> None:
    rig = ControllerRig(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with rig.running():
        rig.submit(replicas=replicas, service=True)
        await rig.finished()
        await asyncio.sleep(600)
    assert rig.phase() == "Succeeded"
    assert counted(rig) == {"create pods": replicas, "create services": replicas, STATUS: 2, "create events": 2}
    assert sum(counted(rig).values()) == 2 * replicas + 4
    assert rig.events() == ["Running", "Succeeded"]


async def test_nothing_is_read_but_lists_and_watches() -> None:
    rig = ControllerRig()
    async with rig.running():
        rig.submit(replicas=3)
        await rig.finished()
    assert "get" not in {call.verb for call in rig.wire.calls}
    assert max(Counter(rig.wire.made("list", "watch")).values()) == 1


async def test_status_goes_before_what_follows_from_it_and_events_come_last() -> None:
    rig = ControllerRig(fails_first)
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.finished()
    assert order(rig) == [
        "create pods",  # proves that the job was accepted
        *(STATUS, "Running"),
        *(STATUS, "Restarting"),
        "delete pods",  # once the back-off is over
        "create pods",
        STATUS,
        *(STATUS, "Succeeded"),
    ]


async def test_a_replica_that_failed_is_replaced_as_soon_as_its_back_off_is_over() -> None:
    rig = ControllerRig(fails_first)
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.finished()
    failed = next(call.at for call in rig.wire.calls if call.body and call.body.get("reason") == "Restarting")
    again = [call.at for call in rig.wire.calls if str(call).startswith("create pods")][1]
    assert 1.0 <= again - failed <= 1.1


async def test_a_job_without_a_budget_fails() -> None:
    rig = ControllerRig(lambda _: Run(code=3))
    async with rig.running():
        rig.submit(replicas=1)
        await rig.finished()
    assert rig.phase() == "Failed"
    assert rig.events() == ["Running", "Failed"]
    assert rig.controller.telemetry.outcomes == {("genericjob", "Failed"): 1}


async def test_what_is_cleaned_up_goes() -> None:
    rig = ControllerRig(lambda pod: Run(lasts=3 if pod["metadata"]["name"].endswith("0") else None))
    async with rig.running():
        body = rig.submit(replicas=2, cleans="All", service=True)
        rig.store.patch(JOB, key(), {"spec": body["spec"] | {"successRules": [{"worker": [0]}]}})
        await rig.finished()
        await rig.until(lambda: not rig.pods(), 5)
        await asyncio.sleep(30)
        assert rig.status()["aggregate"]["deleted"] == 2


@pytest.mark.parametrize(
    ("cleans", "deleted", "running"), [("None", 0, 2), ("Unfinished", 2, 0), ("All", 3, 0)], ids=["None", "Some", "All"]
)
async def test_a_job_is_cleaned_up_once_its_final_status_is_stored(cleans: str, deleted: int, running: int) -> None:
    """Pods end slowly, and counts are stored late: what is stored when it says so is what stays."""
    rig = ControllerRig(lambda pod: Run(lasts=5 if pod["metadata"]["name"].endswith("0") else None))
    rig.kubelet.grace = 20
    async with rig.running():
        body = rig.submit(replicas=3, cleans=cleans)
        rig.store.patch(JOB, key(), {"spec": {"successRules": [{"worker": [0]}]}})
        await rig.until(lambda: rig.phase() == "Running")
        assert not rig.controller.cleaned_up("genericjob", key())
        await rig.until(lambda: rig.controller.cleaned_up("genericjob", key()))
        final = rig.status()
        counts = final["aggregate"]
        assert (counts["deleted"], counts["running"], len(rig.pods())) == (deleted, running, 3 - deleted)
        await asyncio.sleep(600)
        assert rig.status() == final
        rig.store.delete(JOB, key(), uid=body["metadata"]["uid"])
        await rig.until(lambda: rig.controller.cleaned_up("genericjob", key()))


async def test_a_job_that_keeps_its_pods_is_cleaned_up_as_soon_as_its_outcome_is_stored() -> None:
    """A run waits for that: the next pass over a job that nothing happens to comes only with the next resync."""
    rig = ControllerRig(lambda pod: Run(lasts=5 if pod["metadata"]["name"].endswith("0") else None))
    async with rig.running():
        rig.submit(replicas=3, cleans="None")
        rig.store.patch(JOB, key(), {"spec": {"successRules": [{"worker": [0]}]}})
        await rig.finished()
        await rig.until(lambda: rig.controller.cleaned_up("genericjob", key()), 1)


async def test_a_paused_job_has_no_pods_and_goes_on_when_it_is_resumed() -> None:
    rig = ControllerRig()
    async with rig.running():
        rig.submit(replicas=2)
        await rig.until(lambda: rig.phase() == "Running")
        rig.store.patch(JOB, key(), {"spec": {"runMode": {"pause": {"enabled": True}}}})
        await rig.until(lambda: rig.phase() == "Paused" and not rig.pods(), 3)
        await asyncio.sleep(100)
        assert rig.pods() == {}
        rig.store.patch(JOB, key(), {"spec": {"runMode": {"pause": {"enabled": False}}}})
        await rig.until(lambda: set(rig.pods().values()) == {"Running"}, 3)
        await rig.finished()
    assert rig.events() == ["Running", "Suspended", "Resumed", "Running", "Succeeded"]


async def test_a_manifest_that_cannot_be_right_fails_and_no_other_job_notices() -> None:
    rig = ControllerRig()
    async with rig.running():
        rig.submit("good")
        for name, spec in (("bad", {"replicaSpecs": []}), ("worse", {"replicaSpecs": 5})):
            body: Body = {"apiVersion": JOB.api_version, "kind": JOB.kind, "spec": spec}
            rig.store.create(JOB, body | {"metadata": {"name": name, "namespace": "default"}})
        await rig.finished("good", "bad", "worse")
    assert [rig.phase(name) for name in ("good", "bad", "worse")] == ["Succeeded", "Failed", "Failed"]


# -- when a write is refused -----------------------------------------------------------------------------------------


async def test_nothing_is_done_before_the_status_is_stored() -> None:
    """The size of a PaddleJob must be stored before its pods are created."""
    rig = ControllerRig()
    jobs = JOBS["paddlejob"]
    template = {"spec": {"containers": [{"name": "paddle", "image": "x"}]}}
    document: Body = {"apiVersion": jobs.api_version, "kind": jobs.kind, "metadata": {"name": "train"}}
    document["metadata"]["namespace"] = "default"
    document["spec"] = {"worker": {"replicas": 1, "template": template}, "cleanPodPolicy": "Never"}

    async def before(call: Call) -> None:
        if call.verb == "status" and call.at < 5:
            raise ConflictError("not now")

    rig.wire.before = before
    async with rig.running():
        rig.store.create(jobs, document)
        await asyncio.sleep(4.9)
        assert rig.pods() == {}
        await rig.until(lambda: rig.store.get(jobs, key()).get("status", {}).get("phase") == "Completed")
    assert rig.controller.telemetry.passes["conflict"] == 5
    assert rig.events() == ["Running", "Completed"]


async def test_an_edit_that_comes_between_is_taken_in_at_once_and_no_event_is_doubled() -> None:
    rig = ControllerRig()
    edits = 0

    async def before(call: Call) -> None:
        nonlocal edits
        if call.verb == "status" and len([one for one in rig.wire.calls if one.verb == "status"]) % 2:
            edits += 1
            rig.store.patch(JOB, key(), {"metadata": {"annotations": {"edit": str(edits)}}})

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=1)
        await rig.finished()
        assert asyncio.get_running_loop().time() < 6
    assert edits == 2
    assert rig.controller.telemetry.passes["conflict"] == 2
    assert rig.events() == ["Running", "Succeeded"]


async def test_events_are_told_after_a_pass_that_failed_behind_the_status() -> None:
    """They wait in the track: the status that they speak of is stored, and says no more that they are to be told."""
    rig = ControllerRig(lambda pod: Run(lasts=3 if pod["metadata"]["name"].endswith("0") else None))
    rig.kubelet.grace = 0.0

    async def before(call: Call) -> None:
        if call.verb == "delete" and call.at < 8:
            raise UnavailableError("not now")

    rig.wire.before = before
    async with rig.running():
        body = rig.submit(replicas=2, cleans="All")
        rig.store.patch(JOB, key(), {"spec": body["spec"] | {"successRules": [{"worker": [0]}]}})
        await rig.finished()
        assert rig.events() == ["Running"]
        await rig.until(lambda: not rig.pods(), 20)
        await asyncio.sleep(1)
    assert rig.events() == ["Running", "Succeeded"]


async def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if 0.2 < call.at < 60:
            raise UnavailableError("no answer")

    rig.wire.before = before
    async with rig.running():
        await asyncio.sleep(1)
        rig.submit("one")
        rig.submit("two", replicas=3)
        await rig.finished("one", "two")
    assert rig.controller.telemetry.passes["retry"] < 25
    assert rig.phase("one") == rig.phase("two") == "Succeeded"


async def test_pauses_grow_while_a_job_fails_and_begin_anew_after_a_pass_that_went_well() -> None:
    rig = ControllerRig(fails_first)

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and (call.at < 10 or 15 < call.at < 25):
            raise UnavailableError("not now")

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.finished()
    tries = [call.at for call in rig.wire.calls if str(call).startswith("create pods")]
    gaps = [round(later - earlier, 1) for earlier, later in pairwise(tries)]
    assert gaps[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert gaps[7:9] == [0.2, 0.4]


async def test_the_server_says_when_to_come_again() -> None:
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if call.verb == "create" and call.at < 20:
            raise UnavailableError("later", retry_after=21)

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=1)
        await rig.finished()
    assert [call.at for call in rig.wire.calls if str(call).startswith("create pods")] == [0, 21]


async def test_a_quota_is_told_at_once_not_run_against_and_when_it_is_lifted_the_job_goes_on() -> None:
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 100:
            raise ForbiddenError("exceeded quota: pods=0")

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=40)
        await asyncio.sleep(0.5)
        assert "exceeded quota" in str(rig.status()["conditions"])
        await asyncio.sleep(99)
        assert counted(rig)["create pods"] == 8  # after 0, 1, 3, 7, 15, 31, 61 and 91 s
        assert counted(rig)[STATUS] <= 3
        assert rig.events() == ["FailedCreate"]
        await rig.until(lambda: len(rig.pods()) == 40, 31)
        await rig.finished()
    assert rig.phase() == "Succeeded"


async def test_whoever_mends_a_manifest_does_not_wait_for_what_the_old_one_waited_for() -> None:
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 50:
            raise InvalidError("spec.containers[0].image: Required value")

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(50)
        rig.store.patch(JOB, key("train"), {"spec": {"cleanUpPolicy": "All"}})
        await asyncio.sleep(0.1)
        assert len(rig.pods()) == 2


async def test_a_creation_that_is_never_answered_is_told_of() -> None:
    """A webhook that hangs: everything else is answered, so nobody else would know."""
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 50:
            await asyncio.sleep(5)
            raise UnavailableError("no answer within 5 s")

    rig.wire.before = before
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(45)
        assert "train-worker-0 could not be created: ServiceUnavailable: no answer" in str(rig.status()["conditions"])
        assert rig.events() == ["FailedCreate"]
        assert counted(rig)["create pods"] < 10
        await rig.finished()
    assert rig.phase() == "Succeeded"


async def test_an_edit_that_cannot_be_applied_is_told_once_and_again_when_there_is_another() -> None:
    rig = ControllerRig(lambda _: Run(lasts=1000))
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(5)
        for _ in range(3):
            rig.store.patch(JOB, key("train"), {"spec": {"replicaSpecs": []}})
            await asyncio.sleep(30)
        assert rig.events() == ["Running", "Invalid"]
        assert len(rig.pods()) == 2


async def test_somebody_elses_pod_is_told_of_and_when_it_goes_the_job_goes_on() -> None:
    rig = ControllerRig()
    foreign = {"metadata": {"name": "train-worker-0", "namespace": "default"}, "spec": {}}
    rig.store.create(PODS, foreign)
    async with rig.running():
        rig.submit(replicas=2)
        await asyncio.sleep(0.5)
        assert "already exists" in str(rig.status()["conditions"])
        assert sorted(rig.pods()) == ["train-worker-0", "train-worker-1"]
        rig.store.delete(PODS, key("train-worker-0"), grace=0)
        await rig.until(lambda: len(rig.pods()) == 2, 31)
        await rig.finished()


async def test_events_that_nobody_may_write_hold_nothing_up() -> None:
    rig = ControllerRig(workers=1)

    async def before(call: Call) -> None:
        if call.resource == EVENTS.id:
            raise ForbiddenError("no events here")

    rig.wire.before = before
    async with rig.running():
        names = [f"job{number}" for number in range(10)]
        for name in names:
            rig.submit(name, replicas=1)
        await rig.finished(*names)
        assert asyncio.get_running_loop().time() < 8


# -- one job and the others ------------------------------------------------------------------------------------------


async def test_one_job_whose_pass_raises_holds_up_no_other_and_is_tried_again() -> None:
    rig = ControllerRig(workers=2)

    async def before(call: Call) -> None:
        if call.name.startswith("bad") and call.verb == "create" and call.at < 60:
            raise RuntimeError("a mistake of ours")

    rig.wire.before = before
    async with rig.running():
        for name in ("bad0", "bad1", "bad2", "good"):
            rig.submit(name, replicas=1)
        await rig.finished("good")
        assert asyncio.get_running_loop().time() < 7
        await rig.finished("bad0", "bad1", "bad2")
    assert 3 * 7 <= rig.controller.telemetry.passes["error"] <= 3 * 12


async def test_a_huge_job_does_not_starve_small_ones() -> None:
    rig = ControllerRig(workers=2)

    async def before(call: Call) -> None:
        if call.name.startswith("huge") and call.verb == "create":
            await asyncio.sleep(1)

    rig.wire.before = before
    async with rig.running():
        rig.submit("huge", replicas=200)
        await asyncio.sleep(1)
        for number in range(5):
            rig.submit(f"small{number}", replicas=1)
        await rig.finished(*[f"small{number}" for number in range(5)])
        assert asyncio.get_running_loop().time() < 8
        assert len(rig.pods()) < 200
    assert rig.wire.most <= 32 + 1


async def test_two_jobs_of_one_name_one_after_the_other_are_two_jobs() -> None:
    rig = ControllerRig(lambda _: Run(lasts=20))
    rig.kubelet.grace = 25.0
    async with rig.running():
        first = rig.submit(replicas=2)["metadata"]["uid"]
        await rig.until(lambda: rig.phase() == "Running")
        rig.store.delete(JOB, key())
        second = rig.submit(replicas=2)["metadata"]["uid"]
        began = asyncio.get_running_loop().time()
        await rig.until(lambda: rig.phase() == "Running")
        took = asyncio.get_running_loop().time() - began
        assert 25 < took < 28, "the old pods must go first, and nobody tells the new job"
        assert {pod["metadata"]["labels"][JOB_UID] for pod in rig.store.list(PODS)[0]} == {second} != {first}
        await rig.finished()
    # While the old pods were going, their names were asked for once at most.
    assert counted(rig)["create pods"] <= 6


async def test_a_job_that_is_deleted_while_it_is_looked_at_is_no_trouble() -> None:
    rig = ControllerRig()

    async def before(call: Call) -> None:
        if call.verb == "status":
            rig.store.delete(JOB, key())

    rig.wire.before = before
    async with rig.running():
        rig.submit()
        await asyncio.sleep(60)
    assert rig.pods() == {}
    assert rig.controller.telemetry.passes["error"] == rig.controller.telemetry.passes["retry"] == 0


async def test_nothing_is_looked_at_before_everything_has_been_listed() -> None:
    """A controller that does not know its pods yet would make them again."""
    rig = ControllerRig()
    listed = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "list" and call.resource == "services":
            await listed.wait()

    rig.wire.before = before
    async with rig.running():
        rig.submit()
        await asyncio.sleep(30)
        assert not rig.wire.made()
        listed.set()
        await rig.finished()


# -- what is counted -------------------------------------------------------------------------------------------------


async def test_everything_is_counted_and_nothing_is_labelled_with_a_job() -> None:
    rig = ControllerRig(fails_first)
    async with rig.running():
        rig.submit("secretname", replicas=2, limit=9, service=True)
        await rig.finished("secretname")
    text = rig.controller.telemetry.expose()
    assert "secretname" not in text
    assert 'trainwright_jobs_finished_total{kind="genericjob",result="Succeeded"} 1.0' in text
    assert 'trainwright_writes_total{resource="pods",result="done",verb="create"} 4.0' in text
    assert 'trainwright_writes_total{resource="pods",result="done",verb="delete"} 2.0' in text
    assert 'trainwright_writes_total{resource="events",result="done",verb="create"}' in text
    assert 'trainwright_lists_total{resource="pods"} 1.0' in text
    passes = rig.controller.telemetry.passes
    assert f'trainwright_reconciles_total{{result="done"}} {float(passes["done"])}' in text
    assert f"trainwright_reconcile_seconds_count {float(passes.total())}" in text
    assert "trainwright_queue_depth 0.0" in text
