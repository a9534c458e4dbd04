# SPDX-License-Identifier: Apache-2.0
"""The cache: no older object after a newer one, nothing revived, nothing kept too long, whatever the order of news.

The random world below has a server with a log, a watch that reads it late and now and then from further back, a list
that may be of any age the contract allows, and answers to our own writes that arrive whenever they like.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import replace

from trainwright.model.child import Pod, PodStatus
from trainwright.model.meta import JOB_UID, Key, Meta
from trainwright.runtime.cache import Cache
from trainwright.runtime.ports import JOBS, PODS, ListPage, WatchEvent, WatchEventType

#: `WORLDS=2000 make test` looks longer than usual.
EXAMPLES = int(os.environ.get("WORLDS", "150"))


def pod(name: str = "a", version: int = 1, *, uid: str = "", job: str = "job", phase: str = "Pending") -> Pod:
    labels = {JOB_UID: job} if job else None
    meta = Meta(name, "default", uid or f"uid-{name}", str(version), labels)
    return Pod(meta, status=PodStatus(phase))


def key(name: str = "a") -> Key:
    return Key("default", name)


def change(what: WatchEventType, one: Pod) -> WatchEvent:
    return WatchEvent(what, one.metadata.resource_version, one)


def added(one: Pod) -> WatchEvent:
    return change(WatchEventType.ADDED, one)


def gone(one: Pod) -> WatchEvent:
    return change(WatchEventType.DELETED, one)


def page(version: int, *pods: Pod) -> ListPage:
    return ListPage(pods, str(version))


def listed(version: int, *pods: Pod) -> Cache:
    cache = Cache(PODS)
    cache.replace(page(version, *pods))
    return cache


def everything(cache: Cache) -> dict[Key, Any]:
    return dict(zip(cache.keys(), cache.items(), strict=True))


def names(cache: Cache) -> list[str]:
    return sorted(one.name for one in everything(cache))


# -- what is there ---------------------------------------------------------------------------------------------------


def test_it_is_in_step_only_after_a_list() -> None:
    cache = Cache(PODS)
    assert not cache.synced
    cache.replace(page(1))
    assert cache.synced


def test_children_are_found_by_their_job_in_the_order_of_names() -> None:
    cache = listed(9, pod("b", 1), pod("a", 2), pod("c", 3, job="other"), pod("d", 4, job=""))
    assert [one.metadata.name for one in cache.children_of(("default", "job"))] == ["a", "b"]
    assert [one.metadata.name for one in cache.children_of(("default", "other"))] == ["c"]
    assert cache.children_of(("default", "nobody")) == ()
    assert len(cache) == 4


def test_what_bears_the_uid_of_a_job_in_another_namespace_is_none_of_its_children() -> None:
    forged = replace(pod("a", 2), metadata=replace(pod("a", 2).metadata, namespace="elsewhere", uid="forged"))
    cache = listed(9, pod("a", 1), forged)
    assert [one.metadata.uid for one in cache.children_of(("default", "job"))] == [pod("a", 1).metadata.uid]
    assert cache.owners() == (("default", "job"), ("elsewhere", "job"))


def test_what_changes_tells_which_jobs_see_it() -> None:
    cache = listed(9, pod("a", 1))
    assert cache.apply(change(WatchEventType.MODIFIED, pod("a", 10))) == {"job"}
    assert cache.apply(change(WatchEventType.MODIFIED, pod("a", 11, job="other"))) == {"job", "other"}
    assert cache.children_of(("default", "job")) == ()
    assert [one.metadata.name for one in cache.children_of(("default", "other"))] == ["a"]
    assert cache.apply(gone(pod("a", 12, job="other"))) == {"other"}
    assert cache.apply(added(pod("free", 13, job=""))) == set()


def test_whole_objects_are_kept_as_they_are() -> None:
    cache = Cache(JOBS["genericjob"])
    body = {"metadata": {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "3"}}
    cache.replace(ListPage((body,), "3"))
    assert cache.get(key()) is body
    assert cache.items() == (body,)


# -- read your writes ------------------------------------------------------------------------------------------------


def test_our_own_write_is_seen_at_once_and_its_echo_is_no_news() -> None:
    cache = listed(9)
    assert cache.add_written(pod("a", 10)) == {"job"}
    assert cache.get(key()) is not None
    assert cache.apply(added(pod("a", 10))) == set()


def test_an_older_event_does_not_hide_our_newer_write() -> None:
    cache = listed(9, pod("a", 9))
    cache.add_written(pod("a", 12, phase="Running"))
    assert cache.apply(change(WatchEventType.MODIFIED, pod("a", 11))) == set()
    assert cache.get(key()).status.phase == "Running"


def test_an_older_answer_does_not_hide_a_newer_event() -> None:
    cache = listed(9, pod("a", 9))
    cache.apply(change(WatchEventType.MODIFIED, pod("a", 12, phase="Running")))
    assert cache.add_written(pod("a", 11)) == set()
    assert cache.get(key()).status.phase == "Running"


def test_what_we_deleted_is_not_revived_by_an_older_event() -> None:
    cache = listed(9, pod("a", 9))
    assert cache.remove_deleted(key(), "uid-a") == {"job"}
    assert cache.apply(change(WatchEventType.MODIFIED, pod("a", 10))) == set()
    assert cache.get(key()) is None
    cache.apply(gone(pod("a", 11)))
    assert cache.get(key()) is None


def test_another_object_of_the_name_is_not_what_we_deleted() -> None:
    cache = listed(9, pod("a", 9))
    cache.remove_deleted(key(), "uid-a")
    assert cache.add_written(pod("a", 12, uid="second")) == {"job"}
    assert cache.apply(gone(pod("a", 11))) == set()
    assert cache.get(key()).metadata.uid == "second"


def test_burying_one_leaves_another_of_its_name_alone() -> None:
    cache = listed(9, pod("a", 9, uid="second"))
    assert cache.remove_deleted(key(), "first") == set()
    assert cache.get(key()).metadata.uid == "second"


@pytest.mark.parametrize("answer", [pod("a", 10), pod("a", 10, phase="Running")], ids=["create", "patch"])
def test_an_answer_that_comes_after_the_news_of_the_end_revives_nothing(answer: Pod) -> None:
    cache = listed(9)
    cache.apply(added(pod("a", 10)))
    cache.apply(gone(pod("a", 11)))
    assert cache.add_written(answer) == set()
    assert cache.get(key()) is None


def test_an_event_that_comes_twice_revives_nothing() -> None:
    cache = listed(9)
    for one in (added(pod("a", 10)), gone(pod("a", 11)), added(pod("a", 10))):
        cache.apply(one)
    assert cache.get(key()) is None


# -- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_drops_what_is_gone() -> None:
    cache = listed(9, pod("a", 5), pod("b", 6))
    assert cache.replace(page(12, pod("b", 6), pod("c", 11, job="other"))) == {"job", "other"}
    assert names(cache) == ["b", "c"]


def test_a_list_does_not_drop_what_we_have_written_since() -> None:
    cache = listed(9)
    cache.add_written(pod("a", 13))
    cache.replace(page(12))
    assert names(cache) == ["a"]


def test_a_list_that_is_older_than_our_delete_does_not_revive() -> None:
    cache = listed(9, pod("a", 9))
    cache.remove_deleted(key(), "uid-a")
    cache.replace(page(10, pod("a", 9)))
    cache.apply(change(WatchEventType.MODIFIED, pod("a", 11)))
    assert cache.get(key()) is None


def test_a_list_must_be_as_new_as_our_writes_and_as_what_the_watch_has_told() -> None:
    cache = Cache(PODS)
    assert cache.newest_version == 0
    cache.replace(page(5))
    assert cache.newest_version == 5
    cache.add_written(pod("a", 7))
    assert cache.newest_version == 7
    cache.apply(added(pod("b", 9)))
    assert cache.newest_version == 9


# -- nothing is kept for ever ----------------------------------------------------------------------------------------


def held(cache: Cache) -> int:
    """The number of entries in all mappings and sets of the cache."""
    return sum(len(part) for part in vars(cache).values() if isinstance(part, dict | set))


def pass_by(cache: Cache, number: int, delete: Callable[[Pod], Any]) -> None:
    """A pod comes and goes."""
    name, job = f"pod-{number}", f"job-{number}"
    cache.apply(added(pod(name, 10 * number, job=job)))
    assert cache.children_of(("default", job))
    delete(pod(name, 10 * number + 1, job=job))
    assert cache.children_of(("default", job)) == ()


def test_pods_that_come_and_go_leave_nothing() -> None:
    cache = listed(1)
    for number in range(1, 100):
        pass_by(cache, number, lambda one: cache.apply(gone(one)))
    assert held(cache) == 0


def test_pods_that_we_delete_leave_nothing_once_the_watch_has_told() -> None:
    cache = listed(1)

    def answer_first(one: Pod) -> None:
        cache.remove_deleted(key(one.metadata.name), one.metadata.uid)
        cache.apply(gone(one))

    def answer_last(one: Pod) -> None:
        cache.apply(gone(one))
        cache.remove_deleted(key(one.metadata.name), one.metadata.uid)

    for number in range(1, 100):
        pass_by(cache, number, answer_first if number % 2 else answer_last)
    assert held(cache) == 0


def test_a_list_clears_what_was_tombstones_and_is_gone() -> None:
    cache = listed(1, *[pod(f"p{number}", 1) for number in range(50)])
    for number in range(50):
        cache.remove_deleted(key(f"p{number}"), f"uid-p{number}")
    cache.replace(page(100))
    assert held(cache) == 0


# -- any order -------------------------------------------------------------------------------------------------------


class Entry(Struct, frozen=True):
    """One line of the server's log."""

    what: WatchEventType
    item: Pod

    @property
    def version(self) -> int:
        return int(self.item.metadata.resource_version)


NAMES = st.sampled_from("ab")
OWNERS = st.sampled_from(["one", "two"])


class News(RuleBasedStateMachine):
    """A server, a watch, lists, and answers to our writes that are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 1
        self.log: list[Entry] = []
        self.truth: dict[Key, Pod] = {}
        self.position = 0
        self.answers: list[Callable[[], Any]] = []
        self.cache = listed(1)
        self.highest: dict[Key, int] = {}
        self.shown: dict[Key, str] = {}
        self.departed: set[str] = set()

    # -- the server

    def write(self, what: WatchEventType, name: str, uid: str, job: str) -> Pod:
        self.version += 1
        one = pod(name, self.version, uid=uid, job=job)
        self.log.append(Entry(what, one))
        if what is WatchEventType.DELETED:
            del self.truth[key(name)]
        else:
            self.truth[key(name)] = one
        return one

    def put(self, name: str, job: str) -> Pod:
        there = self.truth.get(key(name))
        what = WatchEventType.MODIFIED if there else WatchEventType.ADDED
        return self.write(what, name, there.metadata.uid if there else f"{name}{self.version}", job)

    def take(self, name: str) -> None:
        if (there := self.truth.get(key(name))) is not None:
            self.write(WatchEventType.DELETED, name, there.metadata.uid, (there.metadata.labels or {})[JOB_UID])

    @rule(name=NAMES, job=OWNERS)
    def others_write(self, name: str, job: str) -> None:
        self.put(name, job)

    @rule(name=NAMES)
    def others_delete(self, name: str) -> None:
        self.take(name)

    # -- we

    @rule(name=NAMES, job=OWNERS)
    def we_write(self, name: str, job: str) -> None:
        one = self.put(name, job)
        self.answers.append(lambda: self.cache.add_written(one))

    @rule(name=NAMES)
    def we_delete(self, name: str) -> None:
        """By the UID that we know; it is gone then, or was, and the answer says so."""
        known = self.cache.get(key(name))
        if known is None:
            return
        there = self.truth.get(key(name))
        if there is not None and there.metadata.uid == known.metadata.uid:
            self.take(name)
        self.answers.append(lambda: self.cache.remove_deleted(key(name), known.metadata.uid))

    @precondition(lambda self: self.answers)
    @rule(place=st.integers(0, 9))
    def an_answer_arrives(self, place: int) -> None:
        self.answers.pop(place % len(self.answers))()

    # -- the watch

    @rule(many=st.integers(1, 4))
    def the_watch_tells(self, many: int) -> None:
        for entry in self.log[self.position : self.position + many]:
            self.cache.apply(change(entry.what, entry.item))
            self.position += 1
            self.no_step_back()

    @rule(back=st.integers(1, 4))
    def the_watch_repeats_itself(self, back: int) -> None:
        for entry in self.log[max(self.position - back, 0) : self.position]:
            self.cache.apply(change(entry.what, entry.item))
            self.no_step_back()

    @rule(share=st.floats(0, 1))
    def it_begins_with_a_new_list(self, share: float) -> None:
        least = self.cache.newest_version
        at = least + round((self.version - least) * share)
        there: dict[Key, Pod] = {}
        for entry in self.log:
            if entry.version <= at:
                there.pop(key(entry.item.metadata.name), None)
                if entry.what is not WatchEventType.DELETED:
                    there[key(entry.item.metadata.name)] = entry.item
        self.cache.replace(page(at, *there.values()))
        self.position = sum(entry.version <= at for entry in self.log)

    # -- what must hold

    @invariant()
    def no_step_back(self) -> None:
        seen = everything(self.cache)
        now = {where: one.metadata.uid for where, one in seen.items()}
        self.departed |= {uid for where, uid in self.shown.items() if now.get(where) != uid}
        self.shown = now
        for where, one in seen.items():
            assert one.metadata.uid not in self.departed, "revived"
            version = int(one.metadata.resource_version)
            assert version >= self.highest.get(where, 0), "older than before"
            self.highest[where] = version

    @invariant()
    def the_index_agrees(self) -> None:
        for job in ("one", "two"):
            mine = [one for _, one in sorted(everything(self.cache).items())]
            assert self.cache.children_of(("default", job)) == tuple(
                one for one in mine if one.metadata.labels == {JOB_UID: job}
            )

    def teardown(self) -> None:
        """Once everything has arrived, the cache is the truth, and nothing else is left in it."""
        self.the_watch_tells(len(self.log))
        while self.answers:
            self.an_answer_arrives(0)
            self.no_step_back()
        assert everything(self.cache) == self.truth
        assert not self.cache._tombstones


News.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
TestNews = News.TestCase
