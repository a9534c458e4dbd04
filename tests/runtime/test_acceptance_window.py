# SPDX-License-Identifier: Apache-2.0
"""The window between the creation of a job's pods and the first write of its status (`Write.ACCEPTED`).

GenericJobs and TFJobs have this window. The ledger of a PaddleJob or an AITrainingJob holds a size that its pods know,
so that the acceptance of such a job is stored first; the tests of kills and edits hold for it too.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from runtime_rig import START, VIRTUAL, Call, ControllerRig, RecordingCluster, Run, at_work, key
from test_controller_kills import dies_after
from test_verdict_writes import aitrainingjob, genericjob, paddlejob, tfjob

from trainwright.errors import QuotaError, UnavailableError
from trainwright.local.cluster import LocalCluster
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT
from trainwright.runtime.ports import EVENTS, JOBS, PODS, SERVICES, Resource

pytestmark = VIRTUAL
#: Seconds after which an acceptance is stored (`ControllerSettings.accept_delay`).
DELAY = 5.0
PLAIN = {"GenericJob": genericjob(), "TFJob": tfjob()}
STORED_FIRST = {"PaddleJob": paddlejob(), "AITrainingJob": aitrainingjob()}
ALL = PLAIN | STORED_FIRST


def each(documents: dict[str, Body]) -> pytest.MarkDecorator:
    """Run a test with each of these jobs."""
    return pytest.mark.parametrize("document", documents.values(), ids=documents)


def never_starts(_: Body) -> Run:
    return Run(starts=1e6)


def starts_after(seconds: float, lasts: float | None = None) -> Callable[[Body], Run]:
    return lambda _: Run(starts=seconds, lasts=lasts)


class Window(NamedTuple):
    """A rig and the job in it."""

    rig: ControllerRig
    resource: Resource

    @property
    def status(self) -> Body:
        found: Body = self.rig.store.get(self.resource, key()).get("status") or {}
        return found

    @property
    def ledger(self) -> Body:
        found: Body = self.status.get("trainwright") or {}
        return found

    def written(self) -> list[float]:
        """When the status was written."""
        return [round(call.at, 1) for call in self.rig.wire.calls if call.verb == "status"]

    def conditions(self) -> dict[str, str]:
        """The conditions that hold, with the times since when."""
        found = [one for one in self.status.get("conditions") or () if one["status"] == "True"]
        return {one["type"]: one["lastTransitionTime"] for one in found}

    def check_is_open(self) -> None:
        """The pods exist. The acceptance is stored only if the kind stores it first."""
        assert len(self.rig.pods()) == 2
        assert bool(self.status) == (self.resource.kind in STORED_FIRST)

    def is_over(self) -> bool:
        return "outcome" in self.ledger

    def edit(self, spec: Body) -> None:
        self.rig.store.patch(self.resource, key(), {"spec": spec})

    def check_no_pod_was_replaced(self, pods: int = 2) -> None:
        """Each replica had one pod, of the first attempt, and no restart was counted."""
        assert Counter(name for name, _ in self.rig.kubelet.born) == dict.fromkeys(
            (one["metadata"]["name"] for one in self.rig.store.list(PODS)[0]), 1
        )
        assert len(self.rig.kubelet.born) == pods
        assert {one["metadata"]["labels"][ATTEMPT] for one in self.rig.store.list(PODS)[0]} == {"0"}
        assert not any("restarts" in role or "retries" in role for role in self.ledger["roles"])


def opened(document: Body, script: Callable[[Body], Run], **knobs: Any) -> Window:
    """A rig with this job, and no controller that runs."""
    rig, resource = ControllerRig(script, **knobs), JOBS[document["kind"].lower()]
    rig.store.create(resource, document)
    return Window(rig, resource)


def at(seconds: float) -> str:
    """The time as in a status."""
    return f"{START + timedelta(seconds=int(seconds)):%Y-%m-%dT%H:%M:%SZ}"


def since_start(text: str) -> float:
    return (datetime.fromisoformat(text) - START).total_seconds()


# -- when the acceptance is stored -----------------------------------------------------------------------------------


@each(PLAIN)
async def test_pods_come_first_and_the_acceptance_is_stored_after_the_delay(document: Body) -> None:
    window = opened(document, never_starts)
    rig = window.rig
    async with rig.running():
        await asyncio.sleep(DELAY - 0.1)
        assert (len(rig.pods()), window.status, rig.events()) == (2, {}, [])
        await asyncio.sleep(0.2)
        assert window.ledger["phase"] == "Pending"
        await asyncio.sleep(30)
    assert window.written() == [DELAY]


@each(PLAIN)
async def test_a_late_acceptance_has_the_times_of_the_acceptance(document: Body) -> None:
    rig = ControllerRig(never_starts)
    window = Window(rig, JOBS[document["kind"].lower()])
    async with rig.running():
        await asyncio.sleep(30)
        rig.store.create(window.resource, document)
        await asyncio.sleep(DELAY + 1)
    times = window.ledger["times"]
    assert [round(since_start(times[name])) for name in ("accepted", "started")] == [30, 30]
    assert since_start(window.ledger["history"]["begun"]) == pytest.approx(30, abs=1)
    since = {one["type"]: one["lastTransitionTime"] for one in window.status["conditions"]}
    # GenericJobs are `Initialized` once a pass has seen all pods, one second later.
    assert since.pop("Initialized", at(30)) in (at(30), at(31))
    assert set(since.values()) == {at(30)}
    assert window.status.get("startTime", at(30)) == at(30)


@each(PLAIN)
@pytest.mark.parametrize("starts", [0.5, 2.5, 4.5])
async def test_an_acceptance_is_stored_together_with_the_start(document: Body, starts: float) -> None:
    window = opened(document, starts_after(starts))
    async with window.rig.running():
        await asyncio.sleep(60)
    assert window.written() == [starts]
    assert window.ledger["phase"] == "Running"
    times = window.ledger["times"]
    assert since_start(times["accepted"]) == since_start(times["started"]) == 0
    assert since_start(times["running"]) == pytest.approx(starts, abs=0.1)
    holding = window.conditions()
    assert holding["Running"] == at(starts)
    assert since_start(holding[{"GenericJob": "Initialized", "TFJob": "Created"}[document["kind"]]]) <= 1


@each(PLAIN)
async def test_a_start_after_the_delay_is_a_write_of_its_own(document: Body) -> None:
    window = opened(document, starts_after(20))
    async with window.rig.running():
        await asyncio.sleep(60)
    assert window.written() == [DELAY, 20.0]


@each(PLAIN)
async def test_without_a_delay_the_acceptance_is_stored_first(document: Body) -> None:
    """The embedded engine sets no delay, because a write costs it nothing."""
    window = opened(document, starts_after(2.5), accept_delay=0.0)
    async with window.rig.running():
        await asyncio.sleep(60)
    assert window.rig.wire.made()[0].startswith("status")
    assert window.written() == [0.0, 2.5]


@each(STORED_FIRST)
async def test_a_size_is_stored_before_a_pod_has_it(document: Body) -> None:
    window = opened(document, starts_after(2.5))
    async with window.rig.running():
        await asyncio.sleep(60)
    assert window.rig.wire.made()[0].startswith("status")
    assert window.written()[0] == 0.0


@each(PLAIN)
async def test_some_replicas_that_run_do_not_hurry_the_acceptance(document: Body) -> None:
    """Counts change with every pod; a job of a thousand pods must not be stored a thousand times."""
    window = opened(document, lambda pod: Run(starts=1.5 if pod["metadata"]["name"].endswith("0") else 1e6, lasts=None))
    async with window.rig.running():
        await asyncio.sleep(DELAY - 0.1)
        assert window.written() == []
        await asyncio.sleep(4)
    assert window.written() == [DELAY]


@each(PLAIN)
async def test_a_clock_that_is_set_back_does_not_keep_the_acceptance_for_an_hour(document: Body) -> None:
    window = opened(document, never_starts)
    async with window.rig.running():
        await asyncio.sleep(2)
        window.rig.clock.offset = -3600.0
        await asyncio.sleep(DELAY + 15)
        assert window.ledger["phase"] == "Pending"


@each(ALL)
async def test_no_status_contains_null(document: Body) -> None:
    """A merge patch would remove such a field; a replaced status would contain it for ever."""
    window = opened(document, starts_after(2.5, lasts=10))
    async with window.rig.running():
        await window.rig.until(window.is_over)
        await asyncio.sleep(30)

    def nulls(value: object, path: str) -> list[str]:
        if isinstance(value, dict):
            return [found for name, part in value.items() for found in nulls(part, f"{path}.{name}")]
        if isinstance(value, list):
            return [found for part in value for found in nulls(part, path)]
        return [path] if value is None else []

    for call in window.rig.wire.calls:
        if call.verb == "status":
            assert call.body is not None
            assert nulls(call.body["status"], "status") == []


# -- what is reported at once ----------------------------------------------------------------------------------------


def refuses_pods(window: Window, name: str = "") -> None:
    """A quota refuses the pods with this part of a name."""

    async def before(call: Call) -> None:
        if (call.verb, call.resource) == ("create", "pods") and name in call.name:
            raise QuotaError("exceeded quota: pods=0")

    window.rig.wire.before = before


@each(ALL)
@pytest.mark.parametrize("name", ["", "-1"], ids=["all", "the second"])
async def test_a_refused_pod_is_reported_at_once(document: Body, name: str) -> None:
    window = opened(document, never_starts)
    refuses_pods(window, name)
    async with window.rig.running():
        await asyncio.sleep(0.3)
        (event,) = window.rig.store.list(EVENTS)[0]
        assert "exceeded quota" in event["message"]
        assert window.ledger["phase"] == "Pending"
        if document["kind"] in ("GenericJob", "PaddleJob"):  # the conditions of the other kinds report no refusals
            assert "exceeded quota" in str(window.status)
        await asyncio.sleep(20)
        assert len(window.rig.events()) == 1


@each(PLAIN)
async def test_a_pod_that_fails_in_the_window_is_counted_before_it_is_replaced(document: Body) -> None:
    def fails_once(pod: Body) -> Run:
        first = pod["metadata"]["name"].endswith("0") and pod["metadata"]["labels"][ATTEMPT] == "0"
        return Run(starts=0.5, lasts=1, code=137) if first else Run(starts=20, lasts=None)

    window = opened(document, fails_once)
    async with window.rig.running():
        await asyncio.sleep(15)
    made = window.rig.wire.made("status", "create")
    again = [place for place, call in enumerate(made) if call.startswith("create pods train-worker-0")][1]
    assert [call.split()[0] for call in made[:again]].count("status") >= 1
    assert [role["restarts"] for role in window.ledger["roles"]] == [{"Exit": 1}]
    assert since_start(window.ledger["times"]["accepted"]) == 0


# -- events ----------------------------------------------------------------------------------------------------------


@each(PLAIN)
async def test_the_start_is_told_once_and_after_it_is_stored(document: Body) -> None:
    window = opened(document, starts_after(2.5))

    async def before(call: Call) -> None:
        if call.verb == "status" and call.at < 8:
            raise UnavailableError("not now")

    window.rig.wire.before = before
    async with window.rig.running():
        await asyncio.sleep(7.9)
        assert len(window.written()) > 1
        assert window.rig.events() == []
        await asyncio.sleep(120)
    told = {"GenericJob": ["Running"], "TFJob": []}[document["kind"]]
    assert window.rig.events() == told
    events = [call.at for call in window.rig.wire.calls if call.resource == EVENTS.id]
    stored = next(call.at for call in window.rig.wire.calls if call.verb == "status" and call.at >= 8)
    assert events == [pytest.approx(stored, abs=0.2)] * len(told)


async def test_events_of_pods_wait_until_the_status_is_stored() -> None:
    window = opened(tfjob(), never_starts, child_events=True)
    async with window.rig.running():
        await asyncio.sleep(DELAY - 0.1)
        assert (len(window.rig.pods()), window.rig.events()) == (2, [])
        await asyncio.sleep(1)
        assert Counter(window.rig.events()) == {"SuccessfulCreatePod": 2, "SuccessfulCreateService": 2}


# -- kills -----------------------------------------------------------------------------------------------------------


async def outlive_kills(
    window: Window,
    kills: list[int],
    pause: float,
    happens: Callable[[Window], Awaitable[None]] | None = None,
) -> None:
    """Run one controller after the other, each killed after this number of writes; the last one sees the end.

    `happens` is called while no controller runs, after the first kill.
    """
    rig = window.rig
    async with at_work(rig.kubelet.run()):
        for number, writes in enumerate(kills):
            rig.wire = RecordingCluster(LocalCluster(rig.store))
            dead = dies_after(rig.wire, writes)
            async with at_work(rig.made().run()):
                await rig.until(lambda dead=dead: dead.is_set() or window.is_over())  # type: ignore[misc]
                await asyncio.sleep(0.05)
            if happens is not None and number == 0:
                await happens(window)
            await asyncio.sleep(pause)
        rig.wire = RecordingCluster(LocalCluster(rig.store))
        async with at_work(rig.made().run()):
            await rig.until(window.is_over, 600)
            await asyncio.sleep(30)


async def undisturbed_writes(document: Body, script: Callable[[Body], Run]) -> int:
    """How many writes the life of a job takes."""
    window = opened(document, script)
    async with window.rig.running():
        await window.rig.until(window.is_over)
        await asyncio.sleep(30)
    return len(window.rig.wire.made())


KEPT = {
    "GenericJob": genericjob() | {"spec": genericjob()["spec"] | {"cleanUpPolicy": "None"}},
    "TFJob": tfjob(cleanPodPolicy="None"),
    "PaddleJob": paddlejob() | {"spec": paddlejob()["spec"] | {"cleanPodPolicy": "Never"}},
    "AITrainingJob": aitrainingjob() | {"spec": aitrainingjob()["spec"] | {"cleanPodPolicy": "None"}},
}


@each(KEPT)
@pytest.mark.parametrize("starts", [2.5, 20.0], ids=["starts soon", "starts late"])
@pytest.mark.parametrize("pause", [0.0, 3.0], ids=["at once", "after a while"])
async def test_killed_after_any_write_no_pod_is_created_twice(document: Body, starts: float, pause: float) -> None:
    script = starts_after(starts, lasts=10)
    for writes in range(await undisturbed_writes(document, script) + 1):
        window = opened(document, script)
        await outlive_kills(window, [writes], pause)
        assert window.ledger["outcome"]["result"] == "Succeeded", f"killed after {writes} writes"
        window.check_no_pod_was_replaced()


@each(KEPT)
async def test_killed_again_and_again_no_pod_is_created_twice(document: Body) -> None:
    window = opened(document, starts_after(12, lasts=10))
    await outlive_kills(window, [1] * 8, pause=0.5)
    assert window.ledger["outcome"]["result"] == "Succeeded"
    window.check_no_pod_was_replaced()


@pytest.mark.parametrize("pause", [0.0, 3.0, 8.0])
async def test_killed_after_any_write_the_deadline_counts_from_the_first_child(pause: float) -> None:
    document = tfjob(activeDeadlineSeconds=30, cleanPodPolicy="None")
    for writes in range(await undisturbed_writes(document, never_starts) + 1):
        window = opened(document, never_starts)
        await outlive_kills(window, [writes], pause)
        outcome = window.ledger["outcome"]
        assert (outcome["result"], outcome["reason"]) == ("Failed", "Deadline")
        children = [*window.rig.store.list(PODS)[0], *window.rig.store.list(SERVICES)[0]]
        born = min(since_start(one["metadata"]["creationTimestamp"]) for one in children)
        assert since_start(outcome["at"]) == pytest.approx(born + 30, abs=1), f"killed after {writes} writes"
        window.check_no_pod_was_replaced()


async def test_killed_again_and_again_the_deadline_counts_from_the_first_pod() -> None:
    document = tfjob(activeDeadlineSeconds=30, cleanPodPolicy="None")
    window = opened(document, never_starts)
    await outlive_kills(window, [3, *[0] * 6], pause=2.0)
    assert since_start(window.ledger["outcome"]["at"]) == pytest.approx(30, abs=1)


# -- edits in the window ---------------------------------------------------------------------------------------------

#: An edit of each kind that leaves no roles to run.
BROKEN: dict[str, Body] = {
    "GenericJob": {"replicaSpecs": []},
    "TFJob": {"tfReplicaSpecs": {"Worker": {"replicas": -1}}},
    "PaddleJob": {"worker": {"replicas": -1}},
    "AITrainingJob": {"replicaSpecs": {"trainer": {"replicas": -1}}},
}


def told_invalid(window: Window) -> bool:
    """Whether the status or an event reports the edit."""
    events = [one["message"] for one in window.rig.store.list(EVENTS)[0] if one["type"] == "Warning"]
    return "replica" in str(events).lower() or bool(_error(window))


def _error(window: Window) -> str:
    """The error that the conditions report."""
    for one in window.status.get("conditions") or ():
        if one["type"] == "ReplicaFailure" and one["status"] == "True":
            return str(one["message"])
    return ""


@each(ALL)
async def test_an_edit_that_cannot_be_applied_is_reported_and_the_job_goes_on(document: Body) -> None:
    window = opened(document, starts_after(20, lasts=30))
    async with window.rig.running():
        await asyncio.sleep(1.5)
        window.check_is_open()
        window.edit(BROKEN[document["kind"]])
        await asyncio.sleep(1.5)
        assert window.ledger["phase"] == "Pending"
        assert told_invalid(window)
        if document["kind"] == "GenericJob":
            assert "replicaSpecs" in _error(window)
        assert since_start(window.ledger["times"]["accepted"]) == pytest.approx(0, abs=1)
        await asyncio.sleep(4)
        window.edit(document["spec"])
        await asyncio.sleep(1.5)
        assert _error(window) == ""
        await window.rig.until(window.is_over)
    assert window.ledger["outcome"]["result"] == "Succeeded"
    assert len(window.rig.kubelet.born) == 2


async def killed_and_broken(document: Body, writes: int) -> tuple[Window, int, bool]:
    """A job whose controller was killed after this number of writes, and which was edited then; the next one sees it.

    Also returns the number of pods and services at the time of the edit, and whether the acceptance was stored then.
    """
    window = opened(document, starts_after(20, lasts=30))
    rig = window.rig
    async with at_work(rig.kubelet.run()):
        dead = dies_after(rig.wire, writes)
        async with at_work(rig.controller.run()):
            await rig.until(dead.is_set, 10)
        window.edit(BROKEN[document["kind"]])
        pods, stored = len(rig.pods()), bool(window.status)
        children = pods + len(rig.store.list(SERVICES)[0])
        rig.wire = RecordingCluster(LocalCluster(rig.store))
        async with at_work(rig.made().run()):
            await asyncio.sleep(1.5)
            if window.is_over():
                return window, children, stored
            assert (window.ledger["phase"], len(rig.pods())) == ("Pending", pods), f"killed after {writes} writes"
            assert told_invalid(window)
            window.edit(document["spec"])
            await asyncio.sleep(1.5)
            assert _error(window) == ""
            await rig.until(window.is_over)
    return window, children, stored


@each(ALL)
async def test_an_edit_that_cannot_be_applied_and_a_kill(document: Body) -> None:
    """The next controller finds a manifest that it cannot run, and perhaps pods without a ledger."""
    seen = set()
    for writes in range(1, 4):
        window, children, stored = await killed_and_broken(document, writes)
        seen.add((children > 0, stored))
        outcome = window.ledger["outcome"]
        if children or stored:
            assert outcome["result"] == "Succeeded", f"killed after {writes} writes"
            assert Counter(name for name, _ in window.rig.kubelet.born).most_common(1)[0][1] == 1
            assert len(window.rig.kubelet.born) == 2
        else:
            assert outcome["reason"] == "Invalid", "no child of it has ever existed"
    assert ((True, False) in seen) == (document["kind"] in PLAIN), "the window was not hit"


def scaled(document: Body, replicas: int) -> Body:
    spec = document["spec"]
    match document["kind"]:
        case "GenericJob":
            return {"replicaSpecs": [spec["replicaSpecs"][0] | {"replicas": replicas}]}
        case "TFJob":
            return {"tfReplicaSpecs": {"Worker": {"replicas": replicas}}}
        case "PaddleJob":
            return {"worker": {"replicas": replicas}}
        case _:
            return {"replicaSpecs": {"trainer": {"replicas": replicas}}}


@each(ALL)
@pytest.mark.parametrize("replicas", [1, 4], ids=["down", "up"])
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_a_job_is_scaled_in_the_window(document: Body, replicas: int, *, killed: bool) -> None:
    window = opened(document, starts_after(8, lasts=30))
    rig = window.rig
    async with at_work(rig.kubelet.run()):
        async with at_work(rig.controller.run()):
            await asyncio.sleep(1.5)
            window.check_is_open()
            if not killed:
                window.edit(scaled(document, replicas))
                await asyncio.sleep(2)
        if killed:
            window.edit(scaled(document, replicas))
        async with at_work(rig.made().run()):
            await rig.until(lambda: window.ledger.get("phase") == "Running", 60)
            assert len(rig.pods()) == replicas
            assert since_start(window.ledger["times"]["accepted"]) == pytest.approx(0, abs=1)
            await rig.until(window.is_over)
    assert window.ledger["outcome"]["result"] == "Succeeded"
    assert not any("restarts" in role for role in window.ledger["roles"])
    if document["kind"] in PLAIN:
        assert Counter(name for name, _ in rig.kubelet.born).most_common(1)[0][1] == 1


def suspension(document: Body, *, suspended: bool) -> Body:
    if document["kind"] == "GenericJob":
        return {"runMode": {"pause": {"enabled": suspended}}}
    return {"runPolicy": {"suspend": suspended}}


@each(PLAIN)
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_a_job_is_suspended_in_the_window(document: Body, *, killed: bool) -> None:
    window = opened(document, starts_after(4, lasts=20))
    rig = window.rig
    async with at_work(rig.kubelet.run()):
        async with at_work(rig.controller.run()):
            await asyncio.sleep(1.5)
            window.check_is_open()
            if not killed:
                window.edit(suspension(document, suspended=True))
                await asyncio.sleep(1)
        if killed:
            window.edit(suspension(document, suspended=True))
        async with at_work(rig.made().run()):
            await rig.until(lambda: not rig.pods(), 5)
            assert window.ledger["phase"] == "Suspended"
            await asyncio.sleep(60)
            window.edit(suspension(document, suspended=False))
            await rig.until(window.is_over)
    assert window.ledger["outcome"]["result"] == "Succeeded"
    assert since_start(window.ledger["times"]["accepted"]) == pytest.approx(0, abs=1)
    assert Counter(name for name, _ in rig.kubelet.born) == {"train-worker-0": 2, "train-worker-1": 2}
    assert not any("restarts" in role for role in window.ledger["roles"])


@each(ALL)
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_a_job_is_deleted_in_the_window(document: Body, *, killed: bool) -> None:
    window = opened(document, never_starts)
    rig = window.rig
    async with at_work(rig.kubelet.run()):
        async with at_work(rig.controller.run()):
            await asyncio.sleep(1.5)
            window.check_is_open()
            if not killed:
                rig.store.delete(window.resource, key())
                await asyncio.sleep(10)
        if killed:
            rig.store.delete(window.resource, key())
        rig.wire.calls.clear()
        async with at_work(rig.made().run()):
            await asyncio.sleep(20)
    assert rig.store.list(window.resource)[0] == ()
    assert rig.pods() == {}
    assert [call for call in rig.wire.made() if call.startswith(("create", "status"))] == []
    assert rig.events() == []


@each(PLAIN)
async def test_a_job_of_the_same_name_has_a_window_of_its_own(document: Body) -> None:
    """The acceptance of the deleted job is not stored in its successor."""
    window = opened(document, never_starts)
    rig = window.rig
    async with rig.running():
        await asyncio.sleep(3)
        rig.store.delete(window.resource, key())
        rig.store.create(window.resource, document)
        await rig.until(lambda: window.ledger.get("phase") == "Pending", 20)
    accepted = since_start(window.ledger["times"]["accepted"])
    assert accepted == pytest.approx(3, abs=1.5)
    assert window.written() == [pytest.approx(accepted + DELAY, abs=1)]
