# SPDX-License-Identifier: Apache-2.0
"""All problems of a manifest at once: of its shape, and of what one field demands of another, also where the shape of
some part is wrong.

Checks that compare fields need a document of the right shape. Where a value cannot be read they get stand-ins: several
different ones in turn, and only what they find with each of them is told. What depends on the value itself is not known
before that value is right. So a mistake hides no other mistake, and one mistake makes one message.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from trainwright.kinds.decode import MOST, Found
from trainwright.kinds.standins import tries
from trainwright.model.problem import Problem

#: What the checks find: (turn, the misspelt fields that are left out) -> problems. All others count as if spelt right.
Checks = Callable[[int, frozenset[str]], Iterable[Problem]]
_NONE: frozenset[str] = frozenset()
#: Of more misspelt fields than this it is not found out which of them matter.
_MOST_TRIED = 8


def examine(found: Found, checks: Checks) -> tuple[Problem, ...]:
    """The problems of the shape, in `found`, and those that `checks` find besides; unless it is full of mistakes."""
    if found.sound:
        return (*found.listed(), *checks(0, _NONE))
    if found.errors > MOST:
        return found.listed()
    told = _agreed(found, checks, _NONE)
    misspelt = found.misspelt
    if not misspelt:
        return (*found.listed(), *told)
    # An API server leaves misspelt fields out. What is wrong only for that reason is not told besides the misspelling,
    # which is an error then, and otherwise only warned of.
    real = _agreed(found, checks, misspelt)
    errors = {one for one in real if not one.warning and one not in told}
    grave = _grave(found, checks, told) if errors else _NONE
    shape = (replace(one, warning=one.warning and one.path not in grave) for one in found.listed())
    return (*shape, *(told if found.errors or errors else (one for one in real if one in told)))


def _grave(found: Found, checks: Checks, told: list[Problem]) -> frozenset[str]:
    """The misspelt fields without which something is wrong that is right with them."""
    if len(found.misspelt) > _MOST_TRIED:
        return found.misspelt
    alone = {path: _agreed(found, checks, frozenset({path})) for path in sorted(found.misspelt)}
    grave = {path for path, real in alone.items() if any(not one.warning and one not in told for one in real)}
    return frozenset(grave) or found.misspelt


def _agreed(found: Found, checks: Checks, left_out: frozenset[str]) -> list[Problem]:
    """What is wrong whatever the values are that cannot be read."""
    broken = {path for path, _ in found.unreadable}
    if "" in broken:
        return []
    turns = tries(kind for _, kind in found.unreadable) if broken else 1
    first, *others = [[*checks(turn, left_out)] for turn in range(turns)]
    agreed = set(first).intersection(*others)
    written = (_as_written(one, found) for one in first if one in agreed)
    return [one for one in written if broken.isdisjoint(_outer(one.path))]


def _as_written(problem: Problem, found: Found) -> Problem:
    """With the path as the manifest spells it."""
    for known in _outer(problem.path):
        if known in found.respelt:
            return replace(problem, path=found.respelt[known] + problem.path[len(known) :])
    return problem


def _outer(path: str) -> Iterator[str]:
    """The path itself, and those of everything that it is in."""
    yield path
    yield from (path[:place] for place, letter in enumerate(path) if letter in ".[")
