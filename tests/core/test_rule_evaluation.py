# SPDX-License-Identifier: Apache-2.0
"""Rules in three values, and what decided them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.core.outcomes import Judgement, RoleTally, Truth, evaluate
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Rule, Which

YES, NO, OPEN = Truth.YES, Truth.NO, Truth.OPEN
GOOD, BAD = Result.SUCCEEDED, Result.FAILED
UNDECIDED = Judgement(OPEN)


def tally(replicas: int, succeeded: set[int] | None = None, failed: set[int] | None = None) -> dict[str, RoleTally]:
    return {"w": RoleTally(replicas, succeeded or set(), failed or set())}


@pytest.mark.parametrize(
    ("which", "result", "tallies", "expected"),
    [
        pytest.param(Which.EVERY, GOOD, tally(2), UNDECIDED, id="every: none ended"),
        pytest.param(Which.EVERY, GOOD, tally(2, {1}), UNDECIDED, id="every: one of two"),
        pytest.param(Which.EVERY, GOOD, tally(2, {0, 1}), Judgement(YES, role="w", index=0), id="every: both"),
        pytest.param(
            Which.EVERY, GOOD, tally(3, {0}, {2, 1}), Judgement(NO, role="w", index=1), id="every: one missed"
        ),
        pytest.param(Which.EVERY, GOOD, tally(0), UNDECIDED, id="every of none"),
        pytest.param(Which.EVERY, BAD, tally(2, set(), {0, 1}), Judgement(YES, role="w", index=0), id="every failed"),
        pytest.param(Which.EVERY, BAD, tally(2, {1}, {0}), Judgement(NO, role="w", index=1), id="one succeeded"),
        pytest.param(Which.SOME, GOOD, tally(3, {2, 1}, {0}), Judgement(YES, role="w", index=1), id="some: the first"),
        pytest.param(Which.SOME, GOOD, tally(2, set(), {0}), UNDECIDED, id="some: one may yet"),
        pytest.param(Which.SOME, GOOD, tally(2, set(), {1, 0}), Judgement(NO, role="w", index=0), id="some: none can"),
        pytest.param(Which.SOME, BAD, tally(2, set(), {1}), Judgement(YES, role="w", index=1), id="some failed"),
        pytest.param(Which.SOME, BAD, tally(2, {0, 1}), Judgement(NO, role="w", index=0), id="some: none can fail"),
        pytest.param(Which.SOME, BAD, tally(0), UNDECIDED, id="some of none"),
        pytest.param((0, 2), GOOD, tally(3, {0, 1}), UNDECIDED, id="ranks: one of two"),
        pytest.param(
            (2, 1), GOOD, tally(3, {0, 1, 2}), Judgement(YES, role="w", index=1), id="ranks: only those named"
        ),
        pytest.param((1, 2), GOOD, tally(3, {1}, {0}), UNDECIDED, id="ranks: another one missed"),
        pytest.param((1, 2), GOOD, tally(3, {1}, {0, 2}), Judgement(NO, role="w", index=2), id="ranks: one missed"),
        pytest.param((0,), BAD, tally(3, {1}, {0}), Judgement(YES, role="w", index=0), id="rank failed"),
        pytest.param((0,), BAD, tally(3, {0}, {1}), Judgement(NO, role="w", index=0), id="rank did not fail"),
        pytest.param((3,), GOOD, tally(3), Judgement(NO, role="w"), id="a rank beyond the last"),
        pytest.param((2,), GOOD, tally(3), UNDECIDED, id="the last rank"),
        pytest.param((-1,), GOOD, tally(3), Judgement(NO, role="w"), id="a rank below 0"),
        pytest.param((), GOOD, tally(3, {0, 1, 2}), UNDECIDED, id="no ranks"),
        pytest.param(Which.EVERY, GOOD, {}, Judgement(NO, role="w"), id="a role that is not there"),
    ],
)
def test_an_atom(
    which: Which | tuple[int, ...], result: Result, tallies: dict[str, RoleTally], expected: Judgement
) -> None:
    assert expected == evaluate(Atom("w", which, result), tallies)


A0, A1, A2 = (Atom("w", (rank,), GOOD) for rank in range(3))
TALLY = tally(3, {0}, {1})  # A0 holds, A1 cannot, A2 is open
Y0, N1 = Judgement(YES, role="w", index=0), Judgement(NO, role="w", index=1)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(AllOf(()), UNDECIDED, id="all of none"),
        pytest.param(AnyOf(()), UNDECIDED, id="any of none"),
        pytest.param(NEVER, UNDECIDED, id="never"),
        pytest.param(AllOf((A0,)), Y0, id="all of one that holds"),
        pytest.param(AllOf((A0, A0)), Y0, id="all hold"),
        pytest.param(AllOf((A0, A2)), UNDECIDED, id="all: one is open"),
        pytest.param(AllOf((A2, A0)), UNDECIDED, id="all: the first is open"),
        pytest.param(AllOf((A0, A1)), N1, id="all: one cannot"),
        pytest.param(AllOf((A2, A1)), N1, id="all: one cannot, one is open"),
        pytest.param(AllOf((A0, AllOf(()))), UNDECIDED, id="all: an empty part never decides"),
        pytest.param(AnyOf((A1,)), N1, id="any of one that cannot"),
        pytest.param(AnyOf((A1, A1)), N1, id="none can"),
        pytest.param(AnyOf((A1, A2)), UNDECIDED, id="any: one is open"),
        pytest.param(AnyOf((A1, A0)), Y0, id="any: one holds"),
        pytest.param(AnyOf((A2, A0)), Y0, id="any: one holds, one is open"),
        pytest.param(AnyOf((A1, AnyOf(()))), UNDECIDED, id="any: an empty part never decides"),
        pytest.param(AllOf((A0,), "zero"), Judgement(YES, "zero", "w", 0), id="the text of the rule"),
        pytest.param(
            AnyOf((AllOf((A0,), "inner"), A1)), Judgement(YES, "inner", "w", 0), id="the text of the inner rule"
        ),
        pytest.param(
            AnyOf((AllOf((A0,), "inner"),), "outer"), Judgement(YES, "outer", "w", 0), id="the outermost text"
        ),
        pytest.param(
            AllOf((AnyOf((A1,), "x"), A0), "y"), Judgement(NO, "y", "w", 1), id="the text of what cannot hold"
        ),
        pytest.param(
            AnyOf((AllOf((A0, A2), "first"), AllOf((A0,), "second"))),
            Judgement(YES, "second", "w", 0),
            id="the one that holds",
        ),
        pytest.param(
            AnyOf((AllOf((A0,), "first"), AllOf((A0,), "second"))),
            Judgement(YES, "first", "w", 0),
            id="the first that holds",
        ),
    ],
)
def test_rules_of_rules(rule: Rule, expected: Judgement) -> None:
    assert expected == evaluate(rule, TALLY)


ROLES = ("a", "b")
SIZE = 3
WHICH = st.sampled_from(list(Which)) | st.lists(st.integers(-1, SIZE), max_size=3).map(tuple)
ATOMS: st.SearchStrategy[Rule] = st.builds(
    Atom, st.sampled_from((*ROLES, "nobody")), WHICH, st.sampled_from(list(Result))
)
RULES = st.recursive(
    ATOMS,
    lambda parts: (
        st.builds(AllOf, st.lists(parts, max_size=3).map(tuple))
        | st.builds(AnyOf, st.lists(parts, max_size=3).map(tuple))
    ),
    max_leaves=8,
)
ENDS = st.lists(
    st.tuples(st.sampled_from(ROLES), st.integers(0, SIZE - 1), st.booleans()), unique_by=lambda end: end[:2]
)


def after(ends: list[tuple[str, int, bool]]) -> dict[str, RoleTally]:
    return {
        role: RoleTally(
            SIZE,
            {index for name, index, good in ends if name == role and good},
            {index for name, index, good in ends if name == role and not good},
        )
        for role in ROLES
    }


@given(RULES, ENDS)
def test_once_decided_a_rule_never_changes_its_mind(rule: Rule, ends: list[tuple[str, int, bool]]) -> None:
    judged = [evaluate(rule, after(ends[:many])) for many in range(len(ends) + 1)]
    truths = [one.truth for one in judged]
    decided = [truth for truth in truths if truth is not OPEN]

    assert len(set(decided)) <= 1
    assert [OPEN] * (len(truths) - len(decided)) + decided == truths
    # A decision rests on a replica that has ended, or on one that cannot be.
    assert all((one.role, one.index) in {end[:2] for end in ends} for one in judged if one.index >= 0)


def hollow(rule: Rule) -> bool:
    """It speaks, somewhere, of nothing."""
    if isinstance(rule, Atom):
        return rule.which == ()
    return not rule.rules or any(hollow(part) for part in rule.rules)


@given(RULES)
def test_once_everything_has_ended_a_rule_over_something_is_decided(rule: Rule) -> None:
    everything = after([(role, index, index != 1) for role in ROLES for index in range(SIZE)])

    assert hollow(rule) or evaluate(rule, everything).truth is not OPEN


@given(st.recursive(st.just(NEVER), lambda parts: st.builds(AllOf, st.lists(parts).map(tuple)), max_leaves=5), ENDS)
def test_rules_over_nothing_never_decide(rule: Rule, ends: list[tuple[str, int, bool]]) -> None:
    assert evaluate(rule, after(ends)) == UNDECIDED
