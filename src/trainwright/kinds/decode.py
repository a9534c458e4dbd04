# SPDX-License-Identifier: Apache-2.0
"""What stands in a document for a value that cannot be read, or that is written under a misspelt name.

`decode` puts the marks into the document, and `examine` has them replaced by values of the right shape: by several
different ones in turn, since only what is wrong with all of them does not depend on the value that is missing.

A manifest's shape against its wire type: all problems at once, and what can be read of it.

msgspec stops at the first mistake and speaks to programmers; this walk over the same types collects every mistake, and
msgspec converts only what has none. `null` counts as absent and unknown fields warn, as on an API server. Where a value
cannot be read, the walk leaves an `Unreadable` in its place, so that `examine` can still check the rest.

All problems of a manifest at once: of its shape, and of what one field demands of another, also where the shape of
some part is wrong.

Checks that compare fields need a document of the right shape. Where a value cannot be read they get stand-ins: several
different ones in turn, and only what they find with each of them is told. What depends on the value itself is not known
before that value is right. So a mistake hides no other mistake, and one mistake makes one message.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import replace

from trainwright.kinds.scalars import bare, choices, expected, fault, item, takes, under, words
from trainwright.model.job import Body
from trainwright.model.meta import Meta
from trainwright.model.problem import Problem, nearest

#: A small and a large number are tried; and not more than so many words, however many there are to choose from.
_LEAST, _MOST = 2, 8
_LARGE = 2**31 - 1


class Unreadable(Struct, frozen=True):
    """The place of a value that has not the shape of its type."""

    kind: inspect.Type


class Respelt(Struct, frozen=True):
    """The value of a misspelt field, under the name that was probably meant, and the path of the field."""

    value: Any
    path: str


def tries(kinds: Iterable[inspect.Type]) -> int:
    """How many different values must be tried in place of those that cannot be read."""
    return min(max([_LEAST, *(len(choices(kind)) for kind in kinds)]), _MOST)


def filled(part: Any, turn: int, left_out: frozenset[str] = frozenset()) -> Any:
    """The part with values in place of its marks, and without these misspelt fields."""
    match part:
        case Unreadable(kind):
            return stand_in(kind, turn)
        case Respelt(value):
            return filled(value, turn, left_out)
        case dict():
            kept = ((key, inner) for key, inner in part.items() if not _left_out(inner, left_out))
            return {key: filled(inner, turn, left_out) for key, inner in kept}
        case list():
            return [filled(inner, turn, left_out) for inner in part]
        case _:
            return part


def _left_out(part: Any, left_out: frozenset[str]) -> bool:
    return isinstance(part, Respelt) and part.path in left_out


def stand_in(kind: inspect.Type, turn: int) -> Any:
    """A value of that type: another one in each turn, where the type has several."""
    match bare(kind)[0]:
        case inspect.UnionType(types=types):
            members = [one for one in types if not isinstance(one, inspect.NoneType)]
            return stand_in(members[turn % len(members)], turn)
        case inspect.StructType(fields=fields):
            # Numbers too, from the second turn on: how many replicas an unreadable role has is not known.
            kept = (one for one in fields if one.required or (turn and isinstance(bare(one.type)[0], inspect.IntType)))
            return {field.encode_name: stand_in(field.type, turn) for field in kept}
        case inspect.DictType(value_type=inner, min_length=least):
            return {_name(turn, place): stand_in(inner, turn) for place in range(max(least or 0, turn % 2))}
        case (
            inspect.ListType(item_type=inner, min_length=least)
            | inspect.VarTupleType(item_type=inner, min_length=least)
        ):
            return [stand_in(inner, turn) for _ in range(max(least or 0, turn % 2))]
        case inspect.TupleType(item_types=inners):
            return [stand_in(inner, turn) for inner in inners]
        case plain:
            return _scalar(plain, turn)


def _scalar(kind: inspect.Type, turn: int) -> Any:
    match kind:
        case inspect.BoolType():
            return turn % 2 == 0
        case inspect.IntType() | inspect.FloatType():
            most = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else _LARGE
            least = kind.ge if kind.ge is not None else kind.gt + 1 if kind.gt is not None else 1
            few = min(max(least, 1), most)  # not 0: nobody means no replicas
            return (few, most)[turn % 2]
        case inspect.LiteralType() | inspect.EnumType():
            known = choices(kind)
            return known[turn % len(known)]
        case inspect.DecimalType():
            return ("1", str(_LARGE))[turn % 2]
        case inspect.DateTimeType():
            return f"20{turn:02}-01-01T00:00:00Z"
        case inspect.StrType():
            texts = (_name(turn, 0), str(turn))
            return next((text for text in texts if not fault(kind, text)), texts[0][: kind.max_length])
        case _:
            return {}  # anything will do


def _name(turn: int, place: int) -> str:
    """A name that no manifest has."""
    return f"unreadable-{turn}-{place}"


T = TypeVar("T", bound=msgspec.Struct)

#: More problems of one sort than this are not listed: nobody reads them, and finding near spellings takes time.
MOST = 100
#: Metadata that API servers and tools write and we do not read.
_METADATA = frozenset({"generateName", "managedFields", "selfLink", "clusterName"})


class DecodeProblems:
    """The problems of one walk, in document order, and where the walk had to put something in a value's place."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.errors = 0
        self.warnings = 0
        #: What cannot be read: the path, and what was expected there.
        self.unreadable: list[tuple[str, inspect.Type]] = []
        #: Unknown fields whose value was taken for that of a known one: the known path -> the path as it is written.
        self.respelt: dict[str, str] = {}
        self._required: set[str] = set()

    @property
    def sound(self) -> bool:
        """Every value was read, and under its own name."""
        return not self.errors and not self.respelt

    @property
    def misspelt(self) -> frozenset[str]:
        """The paths of misspelt fields without which the manifest can be read."""
        return frozenset(self.respelt.values()) - self._required

    def error(self, path: str, message: str, kind: inspect.Type, near: str = "") -> Unreadable:
        """Keep an error; what to put in the place of the value."""
        self._error(Problem(path, message, near))
        self.unreadable.append((path, kind))
        return Unreadable(kind)

    def unknown(self, path: str, key: str, known: Iterable[str], *, respelt: str = "") -> None:
        """Keep a warning about an unknown field; an error if it is `respelt`, the misspelling of a required one."""
        if respelt:
            self._required.add(under(path, key))
            self._error(Problem(under(path, key), f"unknown field, and the required {respelt} is missing", respelt))
            return
        self.warnings += 1
        if self.warnings <= MOST:
            self.problems.append(Problem(under(path, key), "unknown field", nearest(key, known), warning=True))

    def _error(self, problem: Problem) -> None:
        self.errors += 1
        if self.errors <= MOST:
            self.problems.append(problem)

    def listed(self) -> tuple[Problem, ...]:
        """All of them, with a word on what was left out."""
        beyond = max(self.errors - MOST, 0) + max(self.warnings - MOST, 0)
        more = (Problem("", f"{beyond} more problems are not listed", warning=True),) if beyond else ()
        return (*self.problems, *more)


class Reading(msgspec.Struct, Generic[T]):
    """What a walk made of a document."""

    #: The document as a value of its wire type; None if its shape is wrong.
    value: T | None
    #: The document without nulls and unknown fields; `standins` says what is in the place of the rest.
    clean: Body
    found: DecodeProblems


def read(wire: type[T], document: Body) -> Reading[T]:
    """Read a document as a value of its wire type."""
    found = DecodeProblems()
    clean = walk(_info(wire), document, "", found)
    # The status is the controller's: what somebody else's controller left in it is no mistake of the user's.
    found.problems = [one for one in found.problems if not (one.warning and one.path.startswith("status."))]
    if found.errors:
        return Reading(None, clean, found)
    try:
        value = msgspec.convert(clean if found.sound else filled(clean, 0, found.misspelt), wire)
    except msgspec.ValidationError as error:  # what msgspec checks and the walk does not
        found.error("", str(error), _info(wire))
        return Reading(None, clean, found)
    return Reading(value, clean, found)


@lru_cache(maxsize=32)
def _info(wire: type[Any]) -> inspect.Type:
    return inspect.type_info(wire)


def walk(kind: inspect.Type, value: Any, path: str, found: DecodeProblems) -> Any:
    """The value without its nulls, `Unreadable` where it is wrong; what is wrong goes to `found`."""
    match kind:
        case inspect.Metadata(type=inner) if not isinstance(inner, inspect.StrType):
            return walk(inner, value, path, found)
        case inspect.AnyType():
            return value
        case inspect.UnionType():
            return _union(kind, value, path, found)
    if not takes(kind, value):
        return found.error(path, expected(kind, value), kind, _near(kind, value))
    match kind:
        case inspect.StructType():
            return _struct(kind, value, path, found)
        case inspect.DictType():
            return _dict(kind, value, path, found)
        case inspect.ListType() | inspect.VarTupleType():
            return _list(kind, value, path, found)
        case inspect.TupleType():
            return _tuple(kind, value, path, found)
    if message := fault(kind, value):
        return found.error(path, message, kind, _near(kind, value))
    return value


def _near(kind: inspect.Type, value: object) -> str:
    if isinstance(value, str) and isinstance(kind, inspect.StructType):
        return _in_a_field(kind, value)
    return nearest(value, [str(choice) for choice in choices(kind)]) if isinstance(value, str) else ""


def _in_a_field(kind: inspect.StructType, value: str) -> str:
    """The mapping that was probably meant by a word: the one field that takes it, and the word."""
    near = {field.encode_name: nearest(value, [str(one) for one in choices(field.type)]) for field in kind.fields}
    found = [f"{{{name}: {word}}}" for name, word in near.items() if word]
    return found[0] if len(found) == 1 else ""


def _union(kind: inspect.UnionType, value: Any, path: str, found: DecodeProblems) -> Any:
    """By the member whose sort the value is of; a lone member besides `null` answers for itself."""
    members = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    fitting = members if len(members) == 1 else [one for one in members if takes(one, value)]
    if fitting:
        return walk(fitting[0], value, path, found)
    return found.error(path, expected(kind, value), kind)


def _struct(kind: inspect.StructType, value: Body, path: str, found: DecodeProblems) -> Body:
    fields = {field.encode_name: field for field in kind.fields}
    ignored = _METADATA if issubclass(kind.cls, Meta) else ()
    clean: Body = {}
    for key, inner in value.items():
        if key in fields and inner is not None:
            clean[key] = walk(fields[key].type, inner, under(path, key), found)
        elif key not in fields and key not in ignored:
            _unknown(fields, value, key, path, found, clean)
    for name, field in fields.items():
        if field.required and name not in clean:
            clean[name] = found.error(under(path, name), f"missing; expected {words(field.type)}", field.type)
    return clean


def _unknown(
    fields: dict[str, inspect.Field], value: Body, key: str, path: str, found: DecodeProblems, clean: Body
) -> None:
    """An unknown field. If it is a known one misspelt, the rest of the manifest is checked as if it were spelt right.

    A required field is taken as it is. Any other only if its value has the right shape: an API server drops the field,
    so a mistake in it would not count.
    """
    name = nearest(key, fields) if found.warnings < MOST else ""
    field = fields.get(name)
    if field is None or value.get(name) is not None or name in clean or not takes(field.type, value[key]):
        found.unknown(path, key, fields)
        return
    found.unknown(path, key, fields, respelt=name if field.required else "")
    inner = found if field.required else DecodeProblems()
    taken = walk(field.type, value[key], under(path, key), inner)
    if field.required or inner.sound:
        clean[name] = Respelt(taken, under(path, key))
        found.respelt[under(path, name)] = under(path, key)


def _dict(kind: inspect.DictType, value: Body, path: str, found: DecodeProblems) -> Any:
    if isinstance(kind.value_type, inspect.AnyType):
        return value
    if message := _size(kind, value):
        return found.error(path, message, kind)
    # Nothing in the place of a whole object is a mistake, which a server refuses too; of a scalar it means nothing.
    struct = isinstance(kind.value_type, inspect.StructType)
    present = {key: inner for key, inner in value.items() if inner is not None or struct}
    return {key: walk(kind.value_type, inner, under(path, key), found) for key, inner in present.items()}


def _list(kind: inspect.ListType | inspect.VarTupleType, value: list[Any], path: str, found: DecodeProblems) -> Any:
    if message := _size(kind, value):
        return found.error(path, message, kind)
    return [walk(kind.item_type, inner, item(path, index), found) for index, inner in enumerate(value)]


def _tuple(kind: inspect.TupleType, value: list[Any], path: str, found: DecodeProblems) -> Any:
    if len(value) != len(kind.item_types):
        message = f"expected a list of exactly {len(kind.item_types)}, found a list of {len(value)}"
        return found.error(path, message, kind)
    pairs = zip(kind.item_types, value, strict=True)
    return [walk(inner, one, item(path, index), found) for index, (inner, one) in enumerate(pairs)]


def _size(kind: inspect.ListType | inspect.VarTupleType | inspect.DictType, value: Any) -> str:
    """What is wrong with the number of entries."""
    least, most = kind.min_length or 0, kind.max_length
    if len(value) < least:
        return "may not be empty" if not value else f"expected at least {least} entries, found {len(value)}"
    if most is not None and len(value) > most:
        return f"expected at most {most} entries, found {len(value)}"
    return ""


#: What the checks find: (turn, the misspelt fields that are left out) -> problems. All others count as if spelt right.
Checks = Callable[[int, frozenset[str]], Iterable[Problem]]
_NONE: frozenset[str] = frozenset()
#: Of more misspelt fields than this it is not found out which of them matter.
_MOST_TRIED = 8


def examine(found: DecodeProblems, checks: Checks) -> tuple[Problem, ...]:
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


def _grave(found: DecodeProblems, checks: Checks, told: list[Problem]) -> frozenset[str]:
    """The misspelt fields without which something is wrong that is right with them."""
    if len(found.misspelt) > _MOST_TRIED:
        return found.misspelt
    alone = {path: _agreed(found, checks, frozenset({path})) for path in sorted(found.misspelt)}
    grave = {path for path, real in alone.items() if any(not one.warning and one not in told for one in real)}
    return frozenset(grave) or found.misspelt


def _agreed(found: DecodeProblems, checks: Checks, left_out: frozenset[str]) -> list[Problem]:
    """What is wrong whatever the values are that cannot be read."""
    broken = {path for path, _ in found.unreadable}
    if "" in broken:
        return []
    turns = tries(kind for _, kind in found.unreadable) if broken else 1
    first, *others = [[*checks(turn, left_out)] for turn in range(turns)]
    agreed = set(first).intersection(*others)
    written = (_as_written(one, found) for one in first if one in agreed)
    return [one for one in written if broken.isdisjoint(_outer(one.path))]


def _as_written(problem: Problem, found: DecodeProblems) -> Problem:
    """With the path as the manifest spells it."""
    for known in _outer(problem.path):
        if known in found.respelt:
            return replace(problem, path=found.respelt[known] + problem.path[len(known) :])
    return problem


def _outer(path: str) -> Iterator[str]:
    """The path itself, and those of everything that it is in."""
    yield path
    yield from (path[:place] for place, letter in enumerate(path) if letter in ".[")
