# SPDX-License-Identifier: Apache-2.0
"""Plans carried out on the real store: their order, what stops them, and what an answer means."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from runtime_rig import JOB, START, VIRTUAL, Call, LoopClock, RecordingCluster, key, manifest

from trainwright.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    QuotaError,
    TooManyRequestsError,
    UnavailableError,
)
from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS
from trainwright.local.cluster import LocalCluster
from trainwright.local.storage.store import Store
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Ledger
from trainwright.model.meta import INDEX, JOB_UID, KIND, ROLE
from trainwright.model.plan import Create, Delete, Patch, Plan, Status
from trainwright.runtime.cache import ClusterCache
from trainwright.runtime.executor import Executor
from trainwright.runtime.job_state import JobState
from trainwright.runtime.ports import PODS, SERVICES, ListPage, groups_of
from trainwright.runtime.settings import ControllerSettings
from trainwright.runtime.telemetry import Telemetry

pytestmark = VIRTUAL
GENERICJOB, *_ = KINDS


class ExecutorRig:
    """One job in a store, and an executor with caches that have been listed once."""

    def __init__(self, **knobs: Any) -> None:
        self.store = Store(LoopClock())
        self.wire = RecordingCluster(LocalCluster(self.store))
        self.telemetry = Telemetry()
        settings = ControllerSettings(**knobs)
        self.view = ClusterCache(LoopClock(), settings)
        self.executor = Executor(self.wire, self.view, settings, self.telemetry)
        self.document = self.store.create(JOB, manifest())
        self.job: Job = load(GENERICJOB, self.document).job
        self.state = JobState(GENERICJOB, self.job.uid)
        self.pods = self.view.children["v1", "Pod"]
        for cache in (*self.view.children.values(), *self.view.jobs.values()):
            cache.replace(ListPage((), "1"))

    async def carry_out(self, *creates: Create, **plan: Any) -> None:
        todo = Plan(Status(Ledger(), ()), creates=creates, **plan)
        await self.executor.carry_out(self.job, todo, self.state, START)

    def pod(self, name: str, **more: Any) -> Create:
        return Create(self.body(name, **more))

    def service(self, name: str) -> Create:
        return Create(self.body(name, kind="Service"))

    def body(self, name: str, kind: str = "Pod", role: str = "worker", **metadata: Any) -> Body:
        labels = {KIND: self.job.kind, JOB_UID: self.job.uid, ROLE: role, INDEX: "0"}
        owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": "train", "uid": self.job.uid}
        given = {"labels": labels, "ownerReferences": [owner | {"controller": True}]} | metadata
        spec = {"containers": [{"name": "main"}]} if kind == "Pod" else {}
        meta = {"name": name, "namespace": "default"} | given
        return {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec}

    def exists(self, name: str, node: str = "", **more: Any) -> str:
        """The store has this pod, and our cache has seen it; its UID."""
        self.store.create(PODS, self.body(name, **more))
        if node:
            self.store.bind(key(name), node)
        self.pods.add_written(
            self.store.page(PODS).items[-1] if not node else PODS.decode(self.store.get(PODS, key(name)))
        )
        uid: str = self.store.get(PODS, key(name))["metadata"]["uid"]
        return uid

    def delete(self, name: str, uid: str, **more: Any) -> Delete:
        return Delete("Pod", name, uid, "for the test", **more)

    def patch(self, name: str, uid: str) -> Patch:
        return Patch("Pod", name, uid, {"metadata": {"labels": {"seen": "yes"}}}, "for the test")

    def there(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.store.list(PODS)[0]]

    def seen(self) -> list[str]:
        return sorted(one.metadata.name for one in self.pods.items())


def refuse(error: ApiError, *calls: str) -> Callable[[Call], Awaitable[None]]:
    """Refuse these requests."""

    async def before(call: Call) -> None:
        if str(call) in calls:
            raise error

    return before


async def slowly(call: Call) -> None:
    """Every request takes a second."""
    await asyncio.sleep(1)


# -- the order -------------------------------------------------------------------------------------------------------


async def test_patches_then_deletes_then_creates_each_only_after_the_last_of_those_before() -> None:
    rig = ExecutorRig()
    old = {name: rig.exists(name) for name in ("p0", "p1", "d0", "d1")}
    done: list[str] = []

    async def after(call: Call) -> None:
        done.append(call.verb)

    async def before(call: Call) -> None:
        await asyncio.sleep(len(rig.wire.calls) % 3)

    rig.wire.before, rig.wire.after = before, after
    await rig.carry_out(
        *[rig.pod(f"c{number}") for number in range(4)],
        deletes=tuple(rig.delete(name, old[name]) for name in ("d0", "d1")),
        patches=tuple(rig.patch(name, old[name]) for name in ("p0", "p1")),
    )
    assert done == ["patch"] * 2 + ["delete"] * 2 + ["create"] * 4
    assert [call.verb for call in rig.wire.calls] == done
    assert rig.there() == ["c0", "c1", "c2", "c3", "p0", "p1"] == rig.seen()


async def test_the_first_create_goes_alone_and_the_rest_several_at_a_time() -> None:
    rig = ExecutorRig(writes=4)
    rig.wire.before = slowly
    await rig.carry_out(*[rig.pod(f"c{number:02}") for number in range(13)])
    starts = [call.at for call in rig.wire.calls]
    assert starts == [0] + [1] * 4 + [2] * 4 + [3] * 4
    assert rig.wire.most == 4


@pytest.mark.parametrize("stage", ["patches", "deletes"])
async def test_patches_and_deletes_go_several_at_a_time(stage: str) -> None:
    rig = ExecutorRig(writes=4)
    make = rig.patch if stage == "patches" else rig.delete
    effects = tuple(make(f"p{number}", rig.exists(f"p{number}")) for number in range(8))
    rig.wire.before = slowly
    await rig.carry_out(**{stage: effects})
    assert [call.at for call in rig.wire.calls] == [0] * 4 + [1] * 4


async def test_a_plan_with_nothing_to_do_asks_for_nothing() -> None:
    rig = ExecutorRig()
    await rig.carry_out()
    assert rig.wire.calls == []


# -- what stops it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "made"),
    [
        ("patch pods p", ["patch pods p"]),
        ("delete pods d", ["patch pods p", "delete pods d"]),
        ("create pods c0", ["patch pods p", "delete pods d", "create pods c0"]),
    ],
)
@pytest.mark.parametrize("error", [UnavailableError("no"), TooManyRequestsError("later", retry_after=7)])
async def test_nothing_more_is_written_after_a_write_that_failed(
    refused: str, made: list[str], error: ApiError
) -> None:
    rig = ExecutorRig()
    patch, delete = rig.patch("p", rig.exists("p")), rig.delete("d", rig.exists("d"))
    rig.wire.before = refuse(error, refused)
    with pytest.raises(type(error)):
        await rig.carry_out(rig.pod("c0"), rig.pod("c1"), patches=(patch,), deletes=(delete,))
    assert rig.wire.made() == made
    assert rig.state.refusals == {}


async def test_nothing_more_is_written_once_something_is_out_of_date() -> None:
    rig = ExecutorRig()
    patch = rig.patch("p", "the UID of another")
    rig.exists("p")
    with pytest.raises(ConflictError):
        await rig.carry_out(rig.pod("c"), patches=(patch,), deletes=(rig.delete("d", rig.exists("d")),))
    assert rig.wire.made() == ["patch pods p"]


async def test_when_one_of_many_fails_none_begins_and_those_under_way_are_waited_for() -> None:
    """Their answers enter the cache: what has been written must be known before anybody looks again."""
    rig = ExecutorRig(writes=3)

    async def before(call: Call) -> None:
        await asyncio.sleep(1 if call.name == "c1" else 2)
        if call.name == "c1":
            raise UnavailableError("no")

    rig.wire.before = before
    with pytest.raises(UnavailableError):
        await rig.carry_out(*[rig.pod(f"c{number}") for number in range(9)])
    assert rig.wire.under_way == 0
    assert rig.wire.made() == [f"create pods c{number}" for number in range(4)]
    assert rig.there() == ["c0", "c2", "c3"] == rig.seen()


async def test_when_it_is_cancelled_nothing_is_left_under_way() -> None:
    rig = ExecutorRig()
    rig.wire.before = slowly
    task = asyncio.create_task(rig.carry_out(*[rig.pod(f"c{number}") for number in range(9)]))
    await asyncio.sleep(1.5)
    assert rig.wire.under_way == 8
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.wire.under_way == 0
    assert len(asyncio.all_tasks()) == 1


# -- a name that is taken --------------------------------------------------------------------------------------------


async def test_one_that_is_ours_already_is_taken_up() -> None:
    rig = ExecutorRig()
    rig.store.create(PODS, rig.body("c"))
    await rig.carry_out(rig.pod("c"), rig.pod("d"))
    assert rig.seen() == ["c", "d"]
    assert rig.state.refusals == {}


@pytest.mark.parametrize("seen", [False, True], ids=["that we have not seen", "that we have seen"])
async def test_one_on_its_way_out_is_waited_for(seen: bool) -> None:
    rig = ExecutorRig()
    others: Body = {"ownerReferences": [], "labels": {KIND: "genericjob", JOB_UID: "an older job of this name"}}
    rig.store.create(PODS, rig.body("c", **others))
    rig.store.bind(key("c"), "node-1")
    rig.store.delete(PODS, key("c"))
    if seen:
        rig.pods.replace(rig.store.page(PODS))
    await rig.carry_out(rig.pod("c"))
    assert rig.state.refusals == {}
    assert rig.state.requeue_seconds == 1.0
    await rig.carry_out(rig.pod("c"), rig.pod("d"))
    assert rig.there() == ["c", "d"]
    assert ("create pods c" in rig.wire.made()) is not seen


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": [], "labels": {}}, id="nobody's"),
        pytest.param({"ownerReferences": [{"uid": "x", "controller": True}]}, id="somebody else's"),
        pytest.param({"labels": {KIND: "genericjob"}}, id="ours, but not labelled so: no pass would see it"),
        pytest.param({"labels": {JOB_UID: "{uid}"}}, id="ours, but without the label that informers look for"),
    ],
)
async def test_a_foreign_one_is_told_of_and_the_others_are_made(metadata: Body) -> None:
    rig = ExecutorRig()
    for one in metadata.get("ownerReferences", ()):
        one["uid"] = rig.store.create(JOB, manifest("other"))["metadata"]["uid"]
    body = rig.body("c", **metadata)
    labels = {name: value.format(uid=rig.job.uid) for name, value in body["metadata"]["labels"].items()}
    rig.store.create(PODS, body | {"metadata": body["metadata"] | {"labels": labels}})
    await rig.carry_out(rig.pod("c"), rig.pod("d"))
    assert rig.there() == ["c", "d"]
    refusal = rig.state.refusals["Pod", "c"]
    assert (refusal.name, refusal.kind, refusal.reason) == ("c", "Pod", "AlreadyExists")
    assert "already exists" in refusal.message
    assert refusal.retry_at == START + timedelta(seconds=1)
    assert "c" not in rig.seen()
    assert rig.state.requeue_seconds == 0.0


async def test_one_that_has_gone_meanwhile_is_left_to_the_next_pass() -> None:
    rig = ExecutorRig()
    rig.store.create(PODS, rig.body("c"))

    async def after(call: Call) -> None:
        rig.store.delete(PODS, key("c"))

    async def before(call: Call) -> None:
        if call.verb == "get":
            rig.store.delete(PODS, key("c"))

    rig.wire.before = before
    await rig.carry_out(rig.pod("c"))
    assert rig.state.refusals == {}
    assert rig.state.requeue_seconds is not None


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        pytest.param(QuotaError("exceeded quota"), 1, id="quota"),
        pytest.param(ForbiddenError("violates PodSecurity"), 1, id="forbidden"),
        pytest.param(InvalidError("spec.x"), 1, id="invalid"),
        pytest.param(NotFoundError("no namespace"), 1, id="no namespace"),
        pytest.param(ForbiddenError("later", retry_after=99), 99, id="the server says when"),
        pytest.param(ForbiddenError("later", retry_after=0.5), 1, id="but not too soon"),
    ],
)
async def test_what_is_refused_is_kept_with_its_reason_and_its_time(error: ApiError, wait: int) -> None:
    rig = ExecutorRig()
    rig.wire.before = refuse(error, "create pods c0")
    await rig.carry_out(rig.pod("c0"))
    refusal = rig.state.refusals["Pod", "c0"]
    assert (refusal.reason, refusal.message) == (error.reason, str(error))
    assert refusal.quota is isinstance(error, QuotaError)
    assert refusal.retry_at == START + timedelta(seconds=wait)
    assert refusal.since == START
    assert rig.telemetry.writes["create", "pods", error.reason] == 1
    assert rig.state.requeue_seconds == 0.0  # so that it is told at once


async def test_what_refuses_one_refuses_its_like_and_no_other() -> None:
    rig = ExecutorRig()
    pods = [rig.pod(f"{role}{number}", role=role) for role in ("a", "b") for number in range(20)]
    rig.wire.before = refuse(ForbiddenError("no"), *[f"create pods a{number}" for number in range(20)])
    await rig.carry_out(*pods, *[rig.service(f"s{number}") for number in range(3)])
    assert [one for one in rig.wire.made() if " a" in one] == ["create pods a0"]
    assert rig.there() == sorted(f"b{number}" for number in range(20))
    assert len(rig.store.list(SERVICES)[0]) == 3


async def test_until_its_time_is_over_none_of_its_like_is_asked_for() -> None:
    rig = ExecutorRig()
    rig.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    pods = [rig.pod(f"a{number}") for number in range(5)]
    await rig.carry_out(*pods)
    rig.state.expire(START + timedelta(seconds=0.9), [])
    assert rig.state.refusals
    await rig.carry_out(*pods[1:])
    assert rig.wire.made() == ["create pods a0"]
    rig.state.expire(START + timedelta(seconds=1), [("Pod", "a0")])
    assert rig.state.refusals, "it is told of until it is made"
    rig.wire.before = slowly
    await rig.carry_out(*pods)
    assert rig.there() == [f"a{number}" for number in range(5)]
    assert rig.state.refusals == {}


async def test_a_refusal_of_what_is_no_longer_wanted_is_forgotten() -> None:
    rig = ExecutorRig()
    rig.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    await rig.carry_out(rig.pod("a0"))
    rig.state.expire(START + timedelta(seconds=1), [])
    assert rig.state.refusals == rig.state.blocked_until == {}


async def test_what_was_refused_before_with_the_same_words_is_not_told_again() -> None:
    rig = ExecutorRig()
    rig.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    await rig.carry_out(rig.pod("a0"))
    rig.state.requeue_seconds, rig.state.blocked_until = 99.0, {}
    await rig.carry_out(rig.pod("a0"))
    assert rig.state.requeue_seconds == 2.0, "only when it may be tried again"
    rig.state.blocked_until = {}
    rig.wire.before = refuse(ForbiddenError("still no"), "create pods a0")
    await rig.carry_out(rig.pod("a0"))
    assert rig.state.requeue_seconds == 0.0


async def test_people_are_told_once_whatever_the_numbers_in_it() -> None:
    rig = ExecutorRig()
    for used in range(3):
        rig.wire.before = refuse(ForbiddenError(f"exceeded quota, used: {used}"), f"create pods a{used}")
        rig.state.blocked_until = {}
        await rig.carry_out(rig.pod(f"a{used}"))
    (told,) = rig.state.unsent_events
    assert (told.event_reason, told.warning) == ("FailedCreate", True)
    assert str(told) == "Pod a0 could not be created: Forbidden: exceeded quota, used: 0"


async def test_what_is_refused_again_waits_twice_as_long_up_to_a_limit() -> None:
    rig = ExecutorRig()
    rig.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    waits = []
    for _ in range(7):
        rig.state.blocked_until = {}
        await rig.carry_out(rig.pod("a0"))
        at = rig.state.refusals["Pod", "a0"].retry_at
        waits.append((at - START).total_seconds() if at is not None else None)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


async def test_a_pod_of_an_older_job_of_the_same_name_is_waited_for() -> None:
    """It is not being deleted yet, but it will be: nobody needs to be told."""
    rig = ExecutorRig()
    uid = rig.store.create(JOB, manifest("stands-in"))["metadata"]["uid"]  # or it would be collected at once
    rig.store.create(PODS, rig.body("c", ownerReferences=[older_job(rig, uid)]))
    await rig.carry_out(rig.pod("c"))
    assert rig.state.refusals == {}
    assert rig.state.unsent_events == ()
    assert rig.state.requeue_seconds == 1.0


def older_job(rig: ExecutorRig, uid: str, **more: str) -> Body:
    """The owner reference of an older job that has the name of the rig's job."""
    owner = rig.job.owner
    about = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name}
    return {**about, "uid": uid, "controller": True, **more}


async def test_a_job_of_the_same_kind_and_name_in_another_group_is_another_owner() -> None:
    """Two groups may have a kind of the same name, such as PaddleJob: nothing will remove this pod."""
    rig = ExecutorRig()
    uid = rig.store.create(JOB, manifest("stands-in"))["metadata"]["uid"]
    rig.store.create(PODS, rig.body("c", ownerReferences=[older_job(rig, uid, apiVersion="other.example/v1")]))
    await rig.carry_out(rig.pod("c"))
    assert [*rig.state.refusals] == [("Pod", "c")]


async def test_a_foreign_name_bars_nobody() -> None:
    rig = ExecutorRig()
    rig.store.create(PODS, rig.body("a0", labels={}, ownerReferences=[]))
    pods = [rig.pod(f"a{number}") for number in range(5)]
    await rig.carry_out(*pods)
    await rig.carry_out(*pods[1:])
    assert rig.there() == [f"a{number}" for number in range(5)]


# -- what is gone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [False, True], ids=["gone", "another of its name"])
async def test_what_is_gone_already_is_as_good_as_deleted(other: bool) -> None:
    rig = ExecutorRig()
    uid = rig.exists("a")
    rig.store.delete(PODS, key("a"))
    if other:
        rig.store.create(PODS, rig.body("a"))
    await rig.carry_out(deletes=(rig.delete("a", uid),))
    assert rig.seen() == []
    assert rig.there() == (["a"] if other else [])


async def test_one_that_lingers_is_seen_as_it_now_is() -> None:
    rig = ExecutorRig()
    uid = rig.exists("a", node="node-1")
    await rig.carry_out(deletes=(rig.delete("a", uid),))
    assert rig.pods.get(key("a")).metadata.deletion_timestamp is not None
    await rig.carry_out(deletes=(rig.delete("a", uid, force=True),))
    assert rig.seen() == rig.there() == []
    assert [call.body["grace"] for call in rig.wire.calls] == [None, 0]


async def test_a_patch_of_what_is_gone_says_that_it_is() -> None:
    rig = ExecutorRig()
    uid = rig.exists("a")
    rig.store.delete(PODS, key("a"))
    await rig.carry_out(rig.pod("b"), patches=(rig.patch("a", uid),))
    assert rig.seen() == ["b"]


# -- the job itself --------------------------------------------------------------------------------------------------


async def test_the_status_is_stored_on_what_it_was_based_on_and_seen_at_once() -> None:
    rig = ExecutorRig()
    await rig.executor.store(rig.job, rig.document, {"phase": "Pending"})
    assert rig.view.job(("genericjob", key()))["status"] == {"phase": "Pending"}  # type: ignore[index]
    with pytest.raises(ConflictError):
        await rig.executor.store(rig.job, rig.document, {"phase": "Running"})
    assert rig.telemetry.writes == {
        ("update", JOB.id, "done"): 1,
        ("update", JOB.id, "Conflict"): 1,
    }


async def test_a_job_that_has_lived_out_is_removed_with_its_children_after_all_else() -> None:
    rig = ExecutorRig()
    uid = rig.exists("a")
    await rig.carry_out(deletes=(rig.delete("a", uid),), remove_job=True)
    assert rig.wire.made() == ["delete pods a", f"delete {JOB.id} train"]
    assert rig.store.list(JOB)[0] == ()
    assert [str(event) for event in rig.state.unsent_events] == ["Deleted job: train"]


@pytest.mark.parametrize("finalizers", [[], ["example.org/stay"]], ids=["gone", "lingers"])
async def test_a_job_that_was_removed_is_known_to_be(finalizers: list[str]) -> None:
    """Else the next pass, before the watch tells, would remove it and tell of it once more."""
    rig = ExecutorRig()
    body = rig.store.patch(JOB, key(), {"metadata": {"finalizers": finalizers}})
    rig.view.jobs[rig.job.kind].add_written(body)
    await rig.carry_out(remove_job=True)

    found = rig.view.job((rig.job.kind, key()))
    assert found is None or finalizers
    assert found is None or "deletionTimestamp" in found["metadata"]


async def test_a_job_that_is_gone_already_needs_no_removing() -> None:
    rig = ExecutorRig()
    rig.store.delete(JOB, key())
    await rig.carry_out(remove_job=True)
    assert rig.state.unsent_events == ()


async def test_another_job_of_the_name_is_not_removed() -> None:
    rig = ExecutorRig()
    rig.store.delete(JOB, key())
    rig.store.create(JOB, manifest())
    with pytest.raises(ConflictError):
        await rig.carry_out(remove_job=True)
    assert len(rig.store.list(JOB)[0]) == 1


async def test_pod_groups_of_several_schedulers_are_told_apart() -> None:
    """They have the same kind and may have the same name."""
    groups = groups_of(KINDS)
    rig = ExecutorRig(extras=groups)
    bodies = [{**rig.body("train", kind="PodGroup"), "apiVersion": one.api_version} for one in groups]
    await rig.carry_out(*[Create(body) for body in bodies])
    first, second, *_ = rig.view.observe(rig.job, ()).extras
    await rig.carry_out(
        deletes=(Delete("PodGroup", "train", first.metadata.uid, "for the test", api=first.api_version),),
        patches=(Patch("PodGroup", "train", second.metadata.uid, {"spec": {}}, "likewise", api=second.api_version),),
    )

    left = [extra.api_version for extra in rig.view.observe(rig.job, ()).extras]
    assert left == [one.api_version for one in groups if one.api_version != first.api_version]
    assert rig.wire.made()[-2:] == [
        f"patch podgroups.{second.api_version.split('/')[0]} train",
        f"delete podgroups.{first.api_version.split('/')[0]} train",
    ]
