# SPDX-License-Identifier: Apache-2.0
"""The controller on the real store, with a kubelet of a few lines: what it writes, in which order, and what it tells.

Timers and memory are in `test_controller_timers`; kills and stale watches are in `test_controller_kills`.
"""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from runtime_rig import JOB, VIRTUAL, WRITES, Call, Run, Stage, key

from trainwright.errors import ConflictError, ForbiddenError, InvalidError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, JOB_UID
from trainwright.runtime.ports import EVENTS, PODS

pytestmark = VIRTUAL
STATUS = f"status {JOB.id}"


def counted(stage: Stage) -> Counter[str]:
    return Counter(f"{call.verb} {call.resource}" for call in stage.wire.calls if call.verb not in ("list", "watch"))


def order(stage: Stage) -> list[str]:
    """The writes in their order; events by their reason."""
    calls = [call for call in stage.wire.calls if call.verb in WRITES]
    return [call.body["reason"] if call.resource == EVENTS.id else f"{call.verb} {call.resource}" for call in calls]


def fails_first(pod: Body) -> Run:
    """The first attempt fails."""
    return Run(code=1 if pod["metadata"]["labels"][ATTEMPT] == "0" else 0)


# -- from creation to the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 4, 30])
async def test_a_job_runs_to_success_within_its_budget_of_writes(replicas: int) -> None:
    stage = Stage(lambda pod: Run(starts=0.1 + int(pod["metadata"]["name"].rpartition("-")[2]) / 7, lasts=20))
    async with stage.running():
        stage.submit(replicas=replicas, service=True)
        await stage.finished()
        await asyncio.sleep(600)
    assert stage.phase() == "Succeeded"
    assert counted(stage) == {"create pods": replicas, "create services": replicas, STATUS: 3, "create events": 2}
    assert sum(counted(stage).values()) == 2 * replicas + 5
    assert stage.events() == ["Running", "Succeeded"]


async def test_nothing_is_read_but_lists_and_watches() -> None:
    stage = Stage()
    async with stage.running():
        stage.submit(replicas=3)
        await stage.finished()
    assert "get" not in {call.verb for call in stage.wire.calls}
    assert max(Counter(stage.wire.made("list", "watch")).values()) == 1


async def test_status_goes_before_what_follows_from_it_and_events_come_last() -> None:
    stage = Stage(fails_first)
    async with stage.running():
        stage.submit(replicas=1, limit=1)
        await stage.finished()
    assert order(stage) == [
        *(STATUS, "create pods"),
        *(STATUS, "Running"),
        *(STATUS, "Restarting"),
        "delete pods",  # once the back-off is over
        "create pods",
        STATUS,
        *(STATUS, "Succeeded"),
    ]


async def test_a_replica_that_failed_is_replaced_as_soon_as_its_back_off_is_over() -> None:
    stage = Stage(fails_first)
    async with stage.running():
        stage.submit(replicas=1, limit=1)
        await stage.finished()
    failed = next(call.at for call in stage.wire.calls if call.body and call.body.get("reason") == "Restarting")
    again = [call.at for call in stage.wire.calls if str(call).startswith("create pods")][1]
    assert 1.0 <= again - failed <= 1.1


async def test_a_job_without_a_budget_fails() -> None:
    stage = Stage(lambda _: Run(code=3))
    async with stage.running():
        stage.submit(replicas=1)
        await stage.finished()
    assert stage.phase() == "Failed"
    assert stage.events() == ["Running", "Failed"]
    assert stage.controller.telemetry.outcomes == {("genericjob", "Failed"): 1}


async def test_what_is_cleaned_up_goes() -> None:
    stage = Stage(lambda pod: Run(lasts=3 if pod["metadata"]["name"].endswith("0") else None))
    async with stage.running():
        body = stage.submit(replicas=2, cleans="All", service=True)
        stage.store.patch(JOB, key(), {"spec": body["spec"] | {"successRules": [{"worker": [0]}]}})
        await stage.finished()
        await stage.until(lambda: not stage.pods(), 5)
        await asyncio.sleep(30)
        assert stage.status()["aggregate"]["deleted"] == 2


@pytest.mark.parametrize(
    ("cleans", "deleted", "running"), [("None", 0, 2), ("Unfinished", 2, 0), ("All", 3, 0)], ids=["None", "Some", "All"]
)
async def test_a_job_is_cleaned_up_once_its_final_status_is_stored(cleans: str, deleted: int, running: int) -> None:
    """Pods end slowly, and counts are stored late: what is stored when it says so is what stays."""
    stage = Stage(lambda pod: Run(lasts=5 if pod["metadata"]["name"].endswith("0") else None))
    stage.kubelet.grace = 20
    async with stage.running():
        body = stage.submit(replicas=3, cleans=cleans)
        stage.store.patch(JOB, key(), {"spec": {"successRules": [{"worker": [0]}]}})
        await stage.until(lambda: stage.phase() == "Running")
        assert not stage.controller.cleaned_up("genericjob", key())
        await stage.until(lambda: stage.controller.cleaned_up("genericjob", key()))
        final = stage.status()
        counts = final["aggregate"]
        assert (counts["deleted"], counts["running"], len(stage.pods())) == (deleted, running, 3 - deleted)
        await asyncio.sleep(600)
        assert stage.status() == final
        stage.store.delete(JOB, key(), uid=body["metadata"]["uid"])
        await stage.until(lambda: stage.controller.cleaned_up("genericjob", key()))


async def test_a_job_that_keeps_its_pods_is_cleaned_up_as_soon_as_its_outcome_is_stored() -> None:
    """A run waits for that: the next pass over a job that nothing happens to comes only with the next resync."""
    stage = Stage(lambda pod: Run(lasts=5 if pod["metadata"]["name"].endswith("0") else None))
    async with stage.running():
        stage.submit(replicas=3, cleans="None")
        stage.store.patch(JOB, key(), {"spec": {"successRules": [{"worker": [0]}]}})
        await stage.finished()
        await stage.until(lambda: stage.controller.cleaned_up("genericjob", key()), 1)


async def test_a_paused_job_has_no_pods_and_goes_on_when_it_is_resumed() -> None:
    stage = Stage()
    async with stage.running():
        stage.submit(replicas=2)
        await stage.until(lambda: stage.phase() == "Running")
        stage.store.patch(JOB, key(), {"spec": {"runMode": {"pause": {"enabled": True}}}})
        await stage.until(lambda: stage.phase() == "Paused" and not stage.pods(), 3)
        await asyncio.sleep(100)
        assert stage.pods() == {}
        stage.store.patch(JOB, key(), {"spec": {"runMode": {"pause": {"enabled": False}}}})
        await stage.until(lambda: set(stage.pods().values()) == {"Running"}, 3)
        await stage.finished()
    assert stage.events() == ["Running", "Suspended", "Resumed", "Running", "Succeeded"]


async def test_a_manifest_that_cannot_be_right_fails_and_no_other_job_notices() -> None:
    stage = Stage()
    async with stage.running():
        stage.submit("good")
        for name, spec in (("bad", {"replicaSpecs": []}), ("worse", {"replicaSpecs": 5})):
            body: Body = {"apiVersion": JOB.api_version, "kind": JOB.kind, "spec": spec}
            stage.store.create(JOB, body | {"metadata": {"name": name, "namespace": "default"}})
        await stage.finished("good", "bad", "worse")
    assert [stage.phase(name) for name in ("good", "bad", "worse")] == ["Succeeded", "Failed", "Failed"]


# -- when a write is refused -----------------------------------------------------------------------------------------


async def test_nothing_is_done_before_the_status_is_stored() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if call.verb == "status" and call.at < 5:
            raise ConflictError("not now")

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=1)
        await asyncio.sleep(4.9)
        assert stage.pods() == {}
        await stage.finished()
    assert stage.controller.telemetry.passes["conflict"] == 5
    assert stage.events() == ["Running", "Succeeded"]


async def test_an_edit_that_comes_between_is_taken_in_at_once_and_no_event_is_doubled() -> None:
    stage = Stage()
    edits = 0

    async def before(call: Call) -> None:
        nonlocal edits
        if call.verb == "status" and len([one for one in stage.wire.calls if one.verb == "status"]) % 2:
            edits += 1
            stage.store.patch(JOB, key(), {"metadata": {"annotations": {"edit": str(edits)}}})

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=1)
        await stage.finished()
        assert asyncio.get_running_loop().time() < 6
    assert edits == 3
    assert stage.controller.telemetry.passes["conflict"] == 3
    assert stage.events() == ["Running", "Succeeded"]


async def test_events_are_told_after_a_pass_that_failed_behind_the_status() -> None:
    """They wait in the track: the status that they speak of is stored, and says no more that they are to be told."""
    stage = Stage(lambda pod: Run(lasts=3 if pod["metadata"]["name"].endswith("0") else None))
    stage.kubelet.grace = 0.0

    async def before(call: Call) -> None:
        if call.verb == "delete" and call.at < 8:
            raise UnavailableError("not now")

    stage.wire.before = before
    async with stage.running():
        body = stage.submit(replicas=2, cleans="All")
        stage.store.patch(JOB, key(), {"spec": body["spec"] | {"successRules": [{"worker": [0]}]}})
        await stage.finished()
        assert stage.events() == ["Running"]
        await stage.until(lambda: not stage.pods(), 20)
        await asyncio.sleep(1)
    assert stage.events() == ["Running", "Succeeded"]


async def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if 0.2 < call.at < 60:
            raise UnavailableError("no answer")

    stage.wire.before = before
    async with stage.running():
        await asyncio.sleep(1)
        stage.submit("one")
        stage.submit("two", replicas=3)
        await stage.finished("one", "two")
    assert stage.controller.telemetry.passes["retry"] < 25
    assert stage.phase("one") == stage.phase("two") == "Succeeded"


async def test_pauses_grow_while_a_job_fails_and_begin_anew_after_a_pass_that_went_well() -> None:
    stage = Stage(fails_first)

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and (call.at < 10 or 15 < call.at < 25):
            raise UnavailableError("not now")

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=1, limit=1)
        await stage.finished()
    tries = [call.at for call in stage.wire.calls if str(call).startswith("create pods")]
    gaps = [round(later - earlier, 1) for earlier, later in pairwise(tries)]
    assert gaps[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert gaps[7:9] == [0.2, 0.4]


async def test_the_server_says_when_to_come_again() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if call.verb == "create" and call.at < 20:
            raise UnavailableError("later", retry_after=21)

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=1)
        await stage.finished()
    assert [call.at for call in stage.wire.calls if str(call).startswith("create pods")] == [0, 21]


async def test_a_quota_is_told_at_once_not_run_against_and_when_it_is_lifted_the_job_goes_on() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 100:
            raise ForbiddenError("exceeded quota: pods=0")

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=40)
        await asyncio.sleep(0.5)
        assert "exceeded quota" in str(stage.status()["conditions"])
        await asyncio.sleep(99)
        assert counted(stage)["create pods"] == 8  # after 0, 1, 3, 7, 15, 31, 61 and 91 s
        assert counted(stage)[STATUS] <= 3
        assert stage.events() == ["FailedCreate"]
        await stage.until(lambda: len(stage.pods()) == 40, 31)
        await stage.finished()
    assert stage.phase() == "Succeeded"


async def test_whoever_mends_a_manifest_does_not_wait_for_what_the_old_one_waited_for() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 50:
            raise InvalidError("spec.containers[0].image: Required value")

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=2)
        await asyncio.sleep(50)
        stage.store.patch(JOB, key("train"), {"spec": {"cleanUpPolicy": "All"}})
        await asyncio.sleep(0.1)
        assert len(stage.pods()) == 2


async def test_a_creation_that_is_never_answered_is_told_of() -> None:
    """A webhook that hangs: everything else is answered, so nobody else would know."""
    stage = Stage()

    async def before(call: Call) -> None:
        if str(call).startswith("create pods") and call.at < 50:
            await asyncio.sleep(5)
            raise UnavailableError("no answer within 5 s")

    stage.wire.before = before
    async with stage.running():
        stage.submit(replicas=2)
        await asyncio.sleep(45)
        assert "train-worker-0 could not be created: ServiceUnavailable: no answer" in str(stage.status()["conditions"])
        assert stage.events() == ["FailedCreate"]
        assert counted(stage)["create pods"] < 10
        await stage.finished()
    assert stage.phase() == "Succeeded"


async def test_an_edit_that_cannot_be_applied_is_told_once_and_again_when_there_is_another() -> None:
    stage = Stage(lambda _: Run(lasts=1000))
    async with stage.running():
        stage.submit(replicas=2)
        await asyncio.sleep(5)
        for _ in range(3):
            stage.store.patch(JOB, key("train"), {"spec": {"replicaSpecs": []}})
            await asyncio.sleep(30)
        assert stage.events() == ["Running", "Invalid"]
        assert len(stage.pods()) == 2


async def test_somebody_elses_pod_is_told_of_and_when_it_goes_the_job_goes_on() -> None:
    stage = Stage()
    foreign = {"metadata": {"name": "train-worker-0", "namespace": "default"}, "spec": {}}
    stage.store.create(PODS, foreign)
    async with stage.running():
        stage.submit(replicas=2)
        await asyncio.sleep(0.5)
        assert "already exists" in str(stage.status()["conditions"])
        assert sorted(stage.pods()) == ["train-worker-0", "train-worker-1"]
        stage.store.delete(PODS, key("train-worker-0"), grace=0)
        await stage.until(lambda: len(stage.pods()) == 2, 31)
        await stage.finished()


async def test_events_that_nobody_may_write_hold_nothing_up() -> None:
    stage = Stage(workers=1)

    async def before(call: Call) -> None:
        if call.resource == EVENTS.id:
            raise ForbiddenError("no events here")

    stage.wire.before = before
    async with stage.running():
        names = [f"job{number}" for number in range(10)]
        for name in names:
            stage.submit(name, replicas=1)
        await stage.finished(*names)
        assert asyncio.get_running_loop().time() < 8


# -- one job and the others ------------------------------------------------------------------------------------------


async def test_one_job_whose_pass_raises_holds_up_no_other_and_is_tried_again() -> None:
    stage = Stage(workers=2)

    async def before(call: Call) -> None:
        if call.name.startswith("bad") and call.verb == "create" and call.at < 60:
            raise RuntimeError("a mistake of ours")

    stage.wire.before = before
    async with stage.running():
        for name in ("bad0", "bad1", "bad2", "good"):
            stage.submit(name, replicas=1)
        await stage.finished("good")
        assert asyncio.get_running_loop().time() < 7
        await stage.finished("bad0", "bad1", "bad2")
    assert 3 * 7 <= stage.controller.telemetry.passes["error"] <= 3 * 12


async def test_a_huge_job_does_not_starve_small_ones() -> None:
    stage = Stage(workers=2)

    async def before(call: Call) -> None:
        if call.name.startswith("huge") and call.verb == "create":
            await asyncio.sleep(1)

    stage.wire.before = before
    async with stage.running():
        stage.submit("huge", replicas=200)
        await asyncio.sleep(1)
        for number in range(5):
            stage.submit(f"small{number}", replicas=1)
        await stage.finished(*[f"small{number}" for number in range(5)])
        assert asyncio.get_running_loop().time() < 8
        assert len(stage.pods()) < 200
    assert stage.wire.most <= 16 + 1


async def test_two_jobs_of_one_name_one_after_the_other_are_two_jobs() -> None:
    stage = Stage(lambda _: Run(lasts=20))
    stage.kubelet.grace = 25.0
    async with stage.running():
        first = stage.submit(replicas=2)["metadata"]["uid"]
        await stage.until(lambda: stage.phase() == "Running")
        stage.store.delete(JOB, key())
        second = stage.submit(replicas=2)["metadata"]["uid"]
        began = asyncio.get_running_loop().time()
        await stage.until(lambda: stage.phase() == "Running")
        took = asyncio.get_running_loop().time() - began
        assert 25 < took < 28, "the old pods must go first, and nobody tells the new job"
        assert {pod["metadata"]["labels"][JOB_UID] for pod in stage.store.list(PODS)[0]} == {second} != {first}
        await stage.finished()
    # While the old pods were going, their names were asked for once at most.
    assert counted(stage)["create pods"] <= 6


async def test_a_job_that_is_deleted_while_it_is_looked_at_is_no_trouble() -> None:
    stage = Stage()

    async def before(call: Call) -> None:
        if call.verb == "status":
            stage.store.delete(JOB, key())

    stage.wire.before = before
    async with stage.running():
        stage.submit()
        await asyncio.sleep(60)
    assert stage.pods() == {}
    assert stage.controller.telemetry.passes["error"] == stage.controller.telemetry.passes["retry"] == 0


async def test_nothing_is_looked_at_before_everything_has_been_listed() -> None:
    """A controller that does not know its pods yet would make them again."""
    stage = Stage()
    listed = asyncio.Event()

    async def before(call: Call) -> None:
        if call.verb == "list" and call.resource == "services":
            await listed.wait()

    stage.wire.before = before
    async with stage.running():
        stage.submit()
        await asyncio.sleep(30)
        assert not stage.wire.made()
        listed.set()
        await stage.finished()


# -- what is counted -------------------------------------------------------------------------------------------------


async def test_everything_is_counted_and_nothing_is_labelled_with_a_job() -> None:
    stage = Stage(fails_first)
    async with stage.running():
        stage.submit("secretname", replicas=2, limit=9, service=True)
        await stage.finished("secretname")
    text = stage.controller.telemetry.expose()
    assert "secretname" not in text
    assert 'trainwright_jobs_finished_total{kind="genericjob",result="Succeeded"} 1.0' in text
    assert 'trainwright_writes_total{resource="pods",result="done",verb="create"} 4.0' in text
    assert 'trainwright_writes_total{resource="pods",result="done",verb="delete"} 2.0' in text
    assert 'trainwright_writes_total{resource="events",result="done",verb="create"}' in text
    assert 'trainwright_lists_total{resource="pods"} 1.0' in text
    passes = stage.controller.telemetry.passes
    assert f'trainwright_reconciles_total{{result="done"}} {float(passes["done"])}' in text
    assert f"trainwright_reconcile_seconds_count {float(passes.total())}" in text
    assert "trainwright_queue_depth 0.0" in text
