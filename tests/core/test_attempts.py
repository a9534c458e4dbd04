# SPDX-License-Identifier: Apache-2.0
"""The ledger entry of a role: attempts only grow, holds are few, and budgets count the right causes."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.core import attempts
from trainwright.model.cause import CauseKind
from trainwright.model.ledger import Hold, Ledger, RoleLedger
from trainwright.testing.factories import NOW, later

BOOK = RoleLedger("w", 3, "0:1,2:4", {"Exit": 5}, "1", "2", 4, (Hold(later(1), "2"),))


def test_a_role_is_found_by_its_name() -> None:
    ledger = Ledger(roles=(RoleLedger("v", epoch=1), BOOK))

    assert attempts.find_entry(ledger, "w") is BOOK


def test_a_new_role_has_nothing_behind_it() -> None:
    assert RoleLedger("x") == attempts.find_entry(Ledger(roles=(BOOK,)), "x")


@pytest.mark.parametrize(("index", "expected"), [(0, 4), (1, 3), (2, 7), (99, 3)])
def test_an_attempt_is_the_epoch_plus_the_retries_of_the_index(index: int, expected: int) -> None:
    assert expected == attempts.current_attempt(BOOK, index)


def test_without_retries_an_attempt_is_the_epoch() -> None:
    assert attempts.current_attempt(RoleLedger("w", epoch=2), 5) == 2


@pytest.mark.parametrize(
    ("entry", "epoch"),
    [
        pytest.param(RoleLedger("w"), 1, id="the first"),
        pytest.param(RoleLedger("w", epoch=6), 7, id="the next"),
        pytest.param(BOOK, 8, id="above every attempt so far"),
    ],
)
def test_a_new_epoch_forgets_all_but_the_counts(entry: RoleLedger, epoch: int) -> None:
    assert RoleLedger("w", epoch, restarts=entry.restarts) == attempts.next_epoch(entry)


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        pytest.param([], BOOK, id="nobody"),
        pytest.param(
            [1],
            RoleLedger("w", 3, "0-1:1,2:4", {"Exit": 5}, "", "2", 4, (Hold(later(1), "2"),)),
            id="one that succeeded",
        ),
        pytest.param(
            [2, 2], RoleLedger("w", 3, "0:1,2:5", {"Exit": 5}, "1", "", 4, (Hold(later(1), "2"),)), id="one that failed"
        ),
        pytest.param(
            [0, 3], RoleLedger("w", 3, "0:2,2:4,3:1", {"Exit": 5}, "1", "2", 4, (Hold(later(1), "2"),)), id="two others"
        ),
    ],
)
def test_a_retry_raises_these_attempts_and_forgets_these_ends(indexes: list[int], expected: RoleLedger) -> None:
    assert expected == attempts.retry_replicas(BOOK, indexes)


def test_attempts_found_on_pods_are_believed() -> None:
    learned = attempts.raise_attempts(BOOK, {0: 9, 1: 4})

    assert [attempts.current_attempt(learned, index) for index in range(4)] == [9, 4, 7, 3]
    assert learned.retries == "0:6,1:1,2:4"


@pytest.mark.parametrize(
    ("why", "times", "expected"),
    [
        pytest.param(CauseKind.EXIT, 1, {"Exit": 6}, id="one more"),
        pytest.param(CauseKind.EVICTED, 1, {"Exit": 5, "Evicted": 1}, id="the first of its kind"),
        pytest.param(CauseKind.IN_PLACE, 3, {"Exit": 5, "InPlace": 3}, id="several"),
    ],
)
def test_restarts_are_counted_by_cause(why: CauseKind, times: int, expected: dict[str, int]) -> None:
    assert expected == attempts.count_restarts(BOOK, why, times).restarts
    assert BOOK.restarts == {"Exit": 5}


def test_one_restart_is_counted_unless_told_otherwise() -> None:
    assert attempts.count_restarts(BOOK, CauseKind.EXIT).restarts == {"Exit": 6}


@pytest.mark.parametrize(
    ("before", "indexes", "until", "expected"),
    [
        pytest.param((), [0, 1], 5, ((5, "0-1"),), id="the first"),
        pytest.param((), [], 5, (), id="nobody"),
        pytest.param(((1, "2"),), [0], 5, ((1, "2"), (5, "0")), id="sorted by time"),
        pytest.param(((9, "2"),), [0], 5, ((5, "0"), (9, "2")), id="sorted by time, the other way"),
        pytest.param(((5, "2"),), [0], 5, ((5, "0,2"),), id="the same moment is one group"),
        pytest.param(((1, "0-2"),), [0], 5, ((1, "1-2"), (5, "0")), id="a new hold takes the place of the old"),
        pytest.param(((9, "0"),), [0], 5, ((5, "0"),), id="also of a longer one"),
    ],
)
def test_a_hold_is_kept_once_per_moment_and_replica(
    before: tuple[tuple[float, str], ...],
    indexes: list[int],
    until: float,
    expected: tuple[tuple[float, str], ...],
) -> None:
    entry = RoleLedger("w", holds=tuple(Hold(later(when), text) for when, text in before))

    assert (
        tuple(Hold(later(when), text) for when, text in expected) == attempts.hold(entry, indexes, later(until)).holds
    )


def test_more_holds_than_there_is_room_for_are_merged_from_the_earliest() -> None:
    entry = RoleLedger("w", holds=tuple(Hold(later(when), str(when)) for when in range(attempts.MAX_HOLDS)))

    holds = attempts.hold(entry, [77], later(99)).holds

    assert attempts.MAX_HOLDS == 32
    assert len(holds) == 32
    assert Hold(later(1), "0-1") == holds[0]
    assert Hold(later(2), "2") == holds[1]
    assert Hold(later(99), "77") == holds[-1]


def test_as_many_holds_as_there_is_room_for_are_kept_apart() -> None:
    entry = RoleLedger("w", holds=tuple(Hold(later(when), str(when)) for when in range(attempts.MAX_HOLDS - 1)))

    holds = attempts.hold(entry, [77], later(99)).holds

    assert [Hold(later(when), str(when)) for when in range(31)] + [Hold(later(99), "77")] == list(holds)


HELD = RoleLedger("w", holds=(Hold(later(1), "0,2"), Hold(later(2), "1")))


@pytest.mark.parametrize(
    ("now", "held", "kept"),
    [
        pytest.param(later(0.5), {0: later(1), 2: later(1), 1: later(2)}, HELD.holds, id="before both"),
        pytest.param(later(1), {1: later(2)}, HELD.holds[1:], id="in the second the first is over"),
        pytest.param(later(2), {}, (), id="after both"),
    ],
)
def test_a_hold_is_over_in_its_own_second(now: datetime, held: dict[int, datetime], kept: tuple[Hold, ...]) -> None:
    assert held == attempts.held_replicas(HELD, now)
    assert RoleLedger("w", holds=kept) == attempts.drop_expired_holds(HELD, now)


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [
        pytest.param(59.999, True, id="within the longest back-off"),
        pytest.param(60, True, id="the longest back-off"),
        pytest.param(120, True, id="a leader's clock was somewhat ahead"),
        pytest.param(120.001, False, id="a moment beyond that"),
        pytest.param(86400, False, id="a day ahead"),
    ],
)
def test_a_hold_further_ahead_than_any_back_off_is_over(seconds: float, holds: bool) -> None:
    sound, odd = Hold(later(1), "0"), Hold(later(seconds), "1-2")
    entry = RoleLedger("w", 2, holds=(sound, odd))

    wrong = {1: later(seconds), 2: later(seconds)} if holds else {}
    assert {0: later(1)} | wrong == attempts.held_replicas(entry, NOW)
    assert RoleLedger("w", 2, holds=(sound, odd) if holds else (sound,)) == attempts.drop_expired_holds(entry, NOW)


def test_the_shortest_and_the_longest_back_off() -> None:
    assert (attempts.FIRST_BACKOFF_SECONDS, attempts.LONGEST_BACKOFF_SECONDS) == (1.0, 60.0)


def test_a_release_of_nothing_is_the_same_book() -> None:
    assert attempts.drop_expired_holds(HELD, NOW) is HELD


@pytest.mark.parametrize(
    ("entry", "replicas", "expected"),
    [
        pytest.param(RoleLedger("w", reached=4), 5, RoleLedger("w", reached=4), id="growth"),
        pytest.param(RoleLedger("w", reached=4), 4, RoleLedger("w", reached=4), id="no change"),
        pytest.param(RoleLedger("w", reached=4), 3, RoleLedger("w", reached=3), id="shrinking"),
        pytest.param(
            RoleLedger("w", retries="3:2", succeeded="0,3", failed="1,2", reached=4),
            3,
            RoleLedger("w", retries="3:2", succeeded="0", failed="1-2", reached=3),
            id="what had ended beyond is forgotten, its attempts are not",
        ),
        pytest.param(
            RoleLedger("w", succeeded="2", reached=2),
            2,
            RoleLedger("w", reached=2),
            id="ended beyond, though not reached",
        ),
        pytest.param(
            RoleLedger("w", failed="1-2", reached=2), 2, RoleLedger("w", failed="1", reached=2), id="failed beyond"
        ),
    ],
)
def test_resizing_forgets_replicas_that_are_no_longer_wanted(
    entry: RoleLedger, replicas: int, expected: RoleLedger
) -> None:
    assert expected == attempts.forget_surplus(entry, replicas)


def test_resizing_that_changes_nothing_is_the_same_book() -> None:
    entry = RoleLedger("w", reached=4)

    assert attempts.forget_surplus(entry, 4) is entry


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        pytest.param(frozenset[CauseKind](), 11, id="all of them"),
        pytest.param(frozenset({CauseKind.EVICTED}), 9, id="less what is free"),
        pytest.param(frozenset({CauseKind.EVICTED, CauseKind.EXIT, CauseKind.IN_PLACE}), 0, id="nothing left"),
    ],
)
def test_a_budget_is_used_up_by_what_is_not_free(free: frozenset[CauseKind], expected: int) -> None:
    entry = RoleLedger("w", restarts={"Exit": 5, "Evicted": 2, "InPlace": 4})

    assert expected == attempts.budget_used(entry, free)


STEPS = st.lists(
    st.just("epoch")
    | st.frozensets(st.integers(0, 4), min_size=1).map(lambda chosen: ("retry", chosen))
    | st.dictionaries(st.integers(0, 4), st.integers(1, 9), min_size=1).map(lambda more: ("learn", more))
    | st.integers(0, 5).map(lambda size: ("resize", size)),
    max_size=12,
)


@given(STEPS)
def test_attempts_only_ever_grow(steps: list[object]) -> None:
    entry = RoleLedger("w", reached=5, succeeded="0-1", failed="4")
    tries = [0] * 5
    for step in steps:
        match step:
            case ("retry", frozenset() as chosen):
                entry = attempts.retry_replicas(entry, chosen)
                expected = [tries[index] + (index in chosen) for index in range(5)]
            case ("learn", dict() as more):
                entry = attempts.raise_attempts(entry, {index: tries[index] + extra for index, extra in more.items()})
                expected = [tries[index] + more.get(index, 0) for index in range(5)]
            case ("resize", int() as size):
                entry = attempts.forget_surplus(entry, size)
                expected = tries
            case _:
                entry = attempts.next_epoch(entry)
                expected = [max(tries) + 1] * 5
        found = [attempts.current_attempt(entry, index) for index in range(5)]
        assert all(now >= before for now, before in zip(found, tries, strict=True))
        assert found == expected or step == "epoch"
        tries = found
