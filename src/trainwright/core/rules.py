# SPDX-License-Identifier: Apache-2.0
"""Rules in three values: fulfilled, out of reach for good, still open. `verdict` asks, with what has ended for good.

A rule over nothing stays open: an AND over no replica must not fulfil, and an unknown role or rank can never be met.
"""

from collections.abc import Mapping, Set
from enum import Enum

from msgspec import Struct

from trainwright.model.rule import All, Any, Atom, Result, Rule, Which


class Truth(Enum):
    """The three values."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


class Tally(Struct, frozen=True, gc=False):
    """What has ended for good in one role."""

    replicas: int
    succeeded: Set[int] = frozenset()
    failed: Set[int] = frozenset()


class Judgement(Struct, frozen=True, gc=False):
    """A truth, and what decided it: the rule as its user wrote it, and the first replica it rests on."""

    truth: Truth
    text: str = ""
    role: str = ""
    index: int = -1


_OPEN = Judgement(Truth.OPEN)


def judge(rule: Rule, tallies: Mapping[str, Tally]) -> Judgement:
    """The truth of a rule, given what has ended."""
    match rule:
        case Atom():
            return _atom(rule, tallies.get(rule.role))
        case All(rules, text):
            return _many([judge(part, tallies) for part in rules], text, decides=Truth.NO)
        case Any(rules, text):  # pragma: no branch - there is no fourth
            return _many([judge(part, tallies) for part in rules], text, decides=Truth.YES)


def _many(parts: list[Judgement], text: str, *, decides: Truth) -> Judgement:
    """One part can decide alone (a NO under All, a YES under Any); the other value needs every part."""
    first = next((part for part in parts if part.truth is decides), None)
    if first is None and parts and all(part.truth is not Truth.OPEN for part in parts):
        first = parts[0]
    if first is None:
        return _OPEN
    return Judgement(first.truth, text or first.text, first.role, first.index)


def _atom(atom: Atom, tally: Tally | None) -> Judgement:
    if tally is None:
        return Judgement(Truth.NO, role=atom.role)
    hits, misses = tally.succeeded, tally.failed
    if atom.result is Result.FAILED:
        hits, misses = misses, hits
    truth = (
        _ranks(atom.which, tally, hits, misses)
        if isinstance(atom.which, tuple)
        else _which(atom.which, tally, hits, misses)
    )
    ended = hits if truth is Truth.YES else misses
    named = [rank for rank in atom.which if rank in ended] if isinstance(atom.which, tuple) else ended
    return Judgement(truth, role=atom.role, index=min(named, default=-1)) if truth is not Truth.OPEN else _OPEN


def _which(which: Which, tally: Tally, hits: Set[int], misses: Set[int]) -> Truth:
    if not tally.replicas:
        return Truth.OPEN
    if which is Which.EVERY:
        return Truth.NO if misses else Truth.YES if len(hits) >= tally.replicas else Truth.OPEN
    return Truth.YES if hits else Truth.NO if len(misses) >= tally.replicas else Truth.OPEN


def _ranks(ranks: tuple[int, ...], tally: Tally, hits: Set[int], misses: Set[int]) -> Truth:
    if any(rank in misses or not 0 <= rank < tally.replicas for rank in ranks):
        return Truth.NO
    return Truth.YES if ranks and all(rank in hits for rank in ranks) else Truth.OPEN
