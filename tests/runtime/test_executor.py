# SPDX-License-Identifier: Apache-2.0
"""Plans carried out on the real store: their order, what stops them, and what an answer means."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from runtime_rig import JOB, START, VIRTUAL, Call, LoopClock, Wire, key, manifest

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


class Stand:
    """One job in a store, and an executor with caches that have been listed once."""

    def __init__(self, **knobs: Any) -> None:
        self.store = Store(LoopClock())
        self.wire = Wire(LocalCluster(self.store))
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
    stand = Stand()
    old = {name: stand.exists(name) for name in ("p0", "p1", "d0", "d1")}
    done: list[str] = []

    async def after(call: Call) -> None:
        done.append(call.verb)

    async def before(call: Call) -> None:
        await asyncio.sleep(len(stand.wire.calls) % 3)

    stand.wire.before, stand.wire.after = before, after
    await stand.carry_out(
        *[stand.pod(f"c{number}") for number in range(4)],
        deletes=tuple(stand.delete(name, old[name]) for name in ("d0", "d1")),
        patches=tuple(stand.patch(name, old[name]) for name in ("p0", "p1")),
    )
    assert done == ["patch"] * 2 + ["delete"] * 2 + ["create"] * 4
    assert [call.verb for call in stand.wire.calls] == done
    assert stand.there() == ["c0", "c1", "c2", "c3", "p0", "p1"] == stand.seen()


async def test_the_first_create_goes_alone_and_the_rest_several_at_a_time() -> None:
    stand = Stand(writes=4)
    stand.wire.before = slowly
    await stand.carry_out(*[stand.pod(f"c{number:02}") for number in range(13)])
    starts = [call.at for call in stand.wire.calls]
    assert starts == [0] + [1] * 4 + [2] * 4 + [3] * 4
    assert stand.wire.most == 4


@pytest.mark.parametrize("stage", ["patches", "deletes"])
async def test_patches_and_deletes_go_several_at_a_time(stage: str) -> None:
    stand = Stand(writes=4)
    make = stand.patch if stage == "patches" else stand.delete
    effects = tuple(make(f"p{number}", stand.exists(f"p{number}")) for number in range(8))
    stand.wire.before = slowly
    await stand.carry_out(**{stage: effects})
    assert [call.at for call in stand.wire.calls] == [0] * 4 + [1] * 4


async def test_a_plan_with_nothing_to_do_asks_for_nothing() -> None:
    stand = Stand()
    await stand.carry_out()
    assert stand.wire.calls == []


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
    stand = Stand()
    patch, delete = stand.patch("p", stand.exists("p")), stand.delete("d", stand.exists("d"))
    stand.wire.before = refuse(error, refused)
    with pytest.raises(type(error)):
        await stand.carry_out(stand.pod("c0"), stand.pod("c1"), patches=(patch,), deletes=(delete,))
    assert stand.wire.made() == made
    assert stand.state.refusals == {}


async def test_nothing_more_is_written_once_something_is_out_of_date() -> None:
    stand = Stand()
    patch = stand.patch("p", "the UID of another")
    stand.exists("p")
    with pytest.raises(ConflictError):
        await stand.carry_out(stand.pod("c"), patches=(patch,), deletes=(stand.delete("d", stand.exists("d")),))
    assert stand.wire.made() == ["patch pods p"]


async def test_when_one_of_many_fails_none_begins_and_those_under_way_are_waited_for() -> None:
    """Their answers enter the cache: what has been written must be known before anybody looks again."""
    stand = Stand(writes=3)

    async def before(call: Call) -> None:
        await asyncio.sleep(1 if call.name == "c1" else 2)
        if call.name == "c1":
            raise UnavailableError("no")

    stand.wire.before = before
    with pytest.raises(UnavailableError):
        await stand.carry_out(*[stand.pod(f"c{number}") for number in range(9)])
    assert stand.wire.under_way == 0
    assert stand.wire.made() == [f"create pods c{number}" for number in range(4)]
    assert stand.there() == ["c0", "c2", "c3"] == stand.seen()


async def test_when_it_is_cancelled_nothing_is_left_under_way() -> None:
    stand = Stand()
    stand.wire.before = slowly
    task = asyncio.create_task(stand.carry_out(*[stand.pod(f"c{number}") for number in range(9)]))
    await asyncio.sleep(1.5)
    assert stand.wire.under_way == 8
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stand.wire.under_way == 0
    assert len(asyncio.all_tasks()) == 1


# -- a name that is taken --------------------------------------------------------------------------------------------


async def test_one_that_is_ours_already_is_taken_up() -> None:
    stand = Stand()
    stand.store.create(PODS, stand.body("c"))
    await stand.carry_out(stand.pod("c"), stand.pod("d"))
    assert stand.seen() == ["c", "d"]
    assert stand.state.refusals == {}


@pytest.mark.parametrize("seen", [False, True], ids=["that we have not seen", "that we have seen"])
async def test_one_on_its_way_out_is_waited_for(seen: bool) -> None:
    stand = Stand()
    others: Body = {"ownerReferences": [], "labels": {KIND: "genericjob", JOB_UID: "an older job of this name"}}
    stand.store.create(PODS, stand.body("c", **others))
    stand.store.bind(key("c"), "node-1")
    stand.store.delete(PODS, key("c"))
    if seen:
        stand.pods.replace(stand.store.page(PODS))
    await stand.carry_out(stand.pod("c"))
    assert stand.state.refusals == {}
    assert stand.state.requeue_seconds == 1.0
    await stand.carry_out(stand.pod("c"), stand.pod("d"))
    assert stand.there() == ["c", "d"]
    assert ("create pods c" in stand.wire.made()) is not seen


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
    stand = Stand()
    for one in metadata.get("ownerReferences", ()):
        one["uid"] = stand.store.create(JOB, manifest("other"))["metadata"]["uid"]
    body = stand.body("c", **metadata)
    labels = {name: value.format(uid=stand.job.uid) for name, value in body["metadata"]["labels"].items()}
    stand.store.create(PODS, body | {"metadata": body["metadata"] | {"labels": labels}})
    await stand.carry_out(stand.pod("c"), stand.pod("d"))
    assert stand.there() == ["c", "d"]
    refusal = stand.state.refusals["Pod", "c"]
    assert (refusal.name, refusal.kind, refusal.reason) == ("c", "Pod", "AlreadyExists")
    assert "already exists" in refusal.message
    assert refusal.retry_at == START + timedelta(seconds=1)
    assert "c" not in stand.seen()
    assert stand.state.requeue_seconds == 0.0


async def test_one_that_has_gone_meanwhile_is_left_to_the_next_pass() -> None:
    stand = Stand()
    stand.store.create(PODS, stand.body("c"))

    async def after(call: Call) -> None:
        stand.store.delete(PODS, key("c"))

    async def before(call: Call) -> None:
        if call.verb == "get":
            stand.store.delete(PODS, key("c"))

    stand.wire.before = before
    await stand.carry_out(stand.pod("c"))
    assert stand.state.refusals == {}
    assert stand.state.requeue_seconds is not None


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
    stand = Stand()
    stand.wire.before = refuse(error, "create pods c0")
    await stand.carry_out(stand.pod("c0"))
    refusal = stand.state.refusals["Pod", "c0"]
    assert (refusal.reason, refusal.message) == (error.reason, str(error))
    assert refusal.quota is isinstance(error, QuotaError)
    assert refusal.retry_at == START + timedelta(seconds=wait)
    assert refusal.since == START
    assert stand.telemetry.writes["create", "pods", error.reason] == 1
    assert stand.state.requeue_seconds == 0.0  # so that it is told at once


async def test_what_refuses_one_refuses_its_like_and_no_other() -> None:
    stand = Stand()
    pods = [stand.pod(f"{role}{number}", role=role) for role in ("a", "b") for number in range(20)]
    stand.wire.before = refuse(ForbiddenError("no"), *[f"create pods a{number}" for number in range(20)])
    await stand.carry_out(*pods, *[stand.service(f"s{number}") for number in range(3)])
    assert [one for one in stand.wire.made() if " a" in one] == ["create pods a0"]
    assert stand.there() == sorted(f"b{number}" for number in range(20))
    assert len(stand.store.list(SERVICES)[0]) == 3


async def test_until_its_time_is_over_none_of_its_like_is_asked_for() -> None:
    stand = Stand()
    stand.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    pods = [stand.pod(f"a{number}") for number in range(5)]
    await stand.carry_out(*pods)
    stand.state.expire(START + timedelta(seconds=0.9), [])
    assert stand.state.refusals
    await stand.carry_out(*pods[1:])
    assert stand.wire.made() == ["create pods a0"]
    stand.state.expire(START + timedelta(seconds=1), [("Pod", "a0")])
    assert stand.state.refusals, "it is told of until it is made"
    stand.wire.before = slowly
    await stand.carry_out(*pods)
    assert stand.there() == [f"a{number}" for number in range(5)]
    assert stand.state.refusals == {}


async def test_a_refusal_of_what_is_no_longer_wanted_is_forgotten() -> None:
    stand = Stand()
    stand.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    await stand.carry_out(stand.pod("a0"))
    stand.state.expire(START + timedelta(seconds=1), [])
    assert stand.state.refusals == stand.state.blocked_until == {}


async def test_what_was_refused_before_with_the_same_words_is_not_told_again() -> None:
    stand = Stand()
    stand.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    await stand.carry_out(stand.pod("a0"))
    stand.state.requeue_seconds, stand.state.blocked_until = 99.0, {}
    await stand.carry_out(stand.pod("a0"))
    assert stand.state.requeue_seconds == 2.0, "only when it may be tried again"
    stand.state.blocked_until = {}
    stand.wire.before = refuse(ForbiddenError("still no"), "create pods a0")
    await stand.carry_out(stand.pod("a0"))
    assert stand.state.requeue_seconds == 0.0


async def test_people_are_told_once_whatever_the_numbers_in_it() -> None:
    stand = Stand()
    for used in range(3):
        stand.wire.before = refuse(ForbiddenError(f"exceeded quota, used: {used}"), f"create pods a{used}")
        stand.state.blocked_until = {}
        await stand.carry_out(stand.pod(f"a{used}"))
    (told,) = stand.state.unsent_events
    assert (told.event_reason, told.warning) == ("FailedCreate", True)
    assert str(told) == "Pod a0 could not be created: Forbidden: exceeded quota, used: 0"


async def test_what_is_refused_again_waits_twice_as_long_up_to_a_limit() -> None:
    stand = Stand()
    stand.wire.before = refuse(ForbiddenError("no"), "create pods a0")
    waits = []
    for _ in range(7):
        stand.state.blocked_until = {}
        await stand.carry_out(stand.pod("a0"))
        at = stand.state.refusals["Pod", "a0"].retry_at
        waits.append((at - START).total_seconds() if at is not None else None)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


async def test_a_pod_of_an_older_job_of_the_same_name_is_waited_for() -> None:
    """It is not being deleted yet, but it will be: nobody needs to be told."""
    stand = Stand()
    uid = stand.store.create(JOB, manifest("stands-in"))["metadata"]["uid"]  # or it would be collected at once
    older = {"kind": stand.job.owner.kind, "name": stand.job.owner.name, "uid": uid, "controller": True}
    stand.store.create(PODS, stand.body("c", ownerReferences=[older]))
    await stand.carry_out(stand.pod("c"))
    assert stand.state.refusals == {}
    assert stand.state.unsent_events == ()
    assert stand.state.requeue_seconds == 1.0


async def test_a_foreign_name_bars_nobody() -> None:
    stand = Stand()
    stand.store.create(PODS, stand.body("a0", labels={}, ownerReferences=[]))
    pods = [stand.pod(f"a{number}") for number in range(5)]
    await stand.carry_out(*pods)
    await stand.carry_out(*pods[1:])
    assert stand.there() == [f"a{number}" for number in range(5)]


# -- what is gone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [False, True], ids=["gone", "another of its name"])
async def test_what_is_gone_already_is_as_good_as_deleted(other: bool) -> None:
    stand = Stand()
    uid = stand.exists("a")
    stand.store.delete(PODS, key("a"))
    if other:
        stand.store.create(PODS, stand.body("a"))
    await stand.carry_out(deletes=(stand.delete("a", uid),))
    assert stand.seen() == []
    assert stand.there() == (["a"] if other else [])


async def test_one_that_lingers_is_seen_as_it_now_is() -> None:
    stand = Stand()
    uid = stand.exists("a", node="node-1")
    await stand.carry_out(deletes=(stand.delete("a", uid),))
    assert stand.pods.get(key("a")).metadata.deletion_timestamp is not None
    await stand.carry_out(deletes=(stand.delete("a", uid, force=True),))
    assert stand.seen() == stand.there() == []
    assert [call.body["grace"] for call in stand.wire.calls] == [None, 0]


async def test_a_patch_of_what_is_gone_says_that_it_is() -> None:
    stand = Stand()
    uid = stand.exists("a")
    stand.store.delete(PODS, key("a"))
    await stand.carry_out(stand.pod("b"), patches=(stand.patch("a", uid),))
    assert stand.seen() == ["b"]


# -- the job itself --------------------------------------------------------------------------------------------------


async def test_the_status_is_stored_on_what_it_was_based_on_and_seen_at_once() -> None:
    stand = Stand()
    version = stand.document["metadata"]["resourceVersion"]
    await stand.executor.store(stand.job, version, {"phase": "Pending"})
    assert stand.view.job(("genericjob", key()))["status"] == {"phase": "Pending"}  # type: ignore[index]
    with pytest.raises(ConflictError):
        await stand.executor.store(stand.job, version, {"phase": "Running"})
    assert stand.telemetry.writes == {
        ("patch", JOB.id, "done"): 1,
        ("patch", JOB.id, "Conflict"): 1,
    }


async def test_a_job_that_has_lived_out_is_removed_with_its_children_after_all_else() -> None:
    stand = Stand()
    uid = stand.exists("a")
    await stand.carry_out(deletes=(stand.delete("a", uid),), remove_job=True)
    assert stand.wire.made() == ["delete pods a", f"delete {JOB.id} train"]
    assert stand.store.list(JOB)[0] == ()
    assert [str(event) for event in stand.state.unsent_events] == ["Deleted job: train"]


@pytest.mark.parametrize("finalizers", [[], ["example.org/stay"]], ids=["gone", "lingers"])
async def test_a_job_that_was_removed_is_known_to_be(finalizers: list[str]) -> None:
    """Else the next pass, before the watch tells, would remove it and tell of it once more."""
    stand = Stand()
    body = stand.store.patch(JOB, key(), {"metadata": {"finalizers": finalizers}})
    stand.view.jobs[stand.job.kind].add_written(body)
    await stand.carry_out(remove_job=True)

    found = stand.view.job((stand.job.kind, key()))
    assert found is None or finalizers
    assert found is None or "deletionTimestamp" in found["metadata"]


async def test_a_job_that_is_gone_already_needs_no_removing() -> None:
    stand = Stand()
    stand.store.delete(JOB, key())
    await stand.carry_out(remove_job=True)
    assert stand.state.unsent_events == ()


async def test_another_job_of_the_name_is_not_removed() -> None:
    stand = Stand()
    stand.store.delete(JOB, key())
    stand.store.create(JOB, manifest())
    with pytest.raises(ConflictError):
        await stand.carry_out(remove_job=True)
    assert len(stand.store.list(JOB)[0]) == 1


async def test_pod_groups_of_several_schedulers_are_told_apart() -> None:
    """They have the same kind and may have the same name."""
    groups = groups_of(KINDS)
    stand = Stand(extras=groups)
    bodies = [{**stand.body("train", kind="PodGroup"), "apiVersion": one.api_version} for one in groups]
    await stand.carry_out(*[Create(body) for body in bodies])
    first, second, *_ = stand.view.observe(stand.job, ()).extras
    await stand.carry_out(
        deletes=(Delete("PodGroup", "train", first.metadata.uid, "for the test", api=first.api_version),),
        patches=(Patch("PodGroup", "train", second.metadata.uid, {"spec": {}}, "likewise", api=second.api_version),),
    )

    left = [extra.api_version for extra in stand.view.observe(stand.job, ()).extras]
    assert left == [one.api_version for one in groups if one.api_version != first.api_version]
    assert stand.wire.made()[-2:] == [
        f"patch podgroups.{second.api_version.split('/')[0]} train",
        f"delete podgroups.{first.api_version.split('/')[0]} train",
    ]
