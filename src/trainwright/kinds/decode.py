# SPDX-License-Identifier: Apache-2.0
"""Decode a manifest into its wire type, and collect all of its problems at once.

msgspec stops at the first error. `read` therefore walks the document along the same types, collects every error, and
lets msgspec convert only a document without errors. Like an API server it treats `null` as absent and warns about
unknown fields.

Checks that compare fields need a document of the right shape. If a value cannot be read, `examine` runs the checks
several times. Each time it replaces the value by another stand-in: an invented value of the right type. It reports only
the problems that occur every time, because these problems do not depend on the value. So one mistake causes one message
and hides no other mistake.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import replace

from trainwright.kinds.scalars import choices, expected, expected_text, has_shape, item, under, unwrapped, value_error
from trainwright.model.job import Body
from trainwright.model.meta import Meta
from trainwright.model.problem import Problem, nearest

T = TypeVar("T", bound=msgspec.Struct)

#: Maximum number of errors, and of warnings, in a list: more do not help, and the search for near spellings takes time.
MAX_PROBLEMS = 100
#: Metadata that API servers and tools write and we do not read.
_IGNORED_METADATA = frozenset({"generateName", "managedFields", "selfLink", "clusterName"})
#: The number of stand-ins for a value: at least two (a small and a large number), at most eight, even for long enums.
_MIN_VARIANTS, _MAX_VARIANTS = 2, 8


class Unreadable(Struct, frozen=True):
    """Marks the place of a value that does not have the shape of its type."""

    kind: inspect.Type


class Misspelt(Struct, frozen=True):
    """The value of a misspelt field, and the path that the user wrote. In `Reading.clean` its key is the right name."""

    value: Any
    path: str


class DecodeProblems:
    """The problems of one walk in document order, and the places of unreadable and misspelt fields."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.errors = 0
        self.warnings = 0
        #: Path and expected type of each value that cannot be read.
        self.unreadable: list[tuple[str, inspect.Type]] = []
        #: Unknown fields whose value was used for a known field: the known path -> the path as it is written.
        self.respelt: dict[str, str] = {}
        self._required: set[str] = set()

    @property
    def sound(self) -> bool:
        """Whether every value was read and no field is misspelt."""
        return not self.errors and not self.respelt

    @property
    def misspelt(self) -> frozenset[str]:
        """The paths, as the user wrote them, of misspelt optional fields."""
        return frozenset(self.respelt.values()) - self._required

    def error(self, path: str, message: str, kind: inspect.Type, near: str = "") -> Unreadable:
        """Add an error; return the mark for the place of the value."""
        self._error(Problem(path, message, near))
        self.unreadable.append((path, kind))
        return Unreadable(kind)

    def unknown(self, path: str, key: str, known: Iterable[str], *, required: str = "") -> None:
        """Add a warning about an unknown field. With `required`: an error, as the user misspelt this required field."""
        if required:
            self._required.add(under(path, key))
            self._error(Problem(under(path, key), f"unknown field, and the required {required} is missing", required))
            return
        self.warnings += 1
        if self.warnings <= MAX_PROBLEMS:
            self.problems.append(Problem(under(path, key), "unknown field", nearest(key, known), warning=True))

    def _error(self, problem: Problem) -> None:
        self.errors += 1
        if self.errors <= MAX_PROBLEMS:
            self.problems.append(problem)

    def listed(self) -> tuple[Problem, ...]:
        """The problems up to the limit, then one warning with the number of the other problems."""
        beyond = max(self.errors - MAX_PROBLEMS, 0) + max(self.warnings - MAX_PROBLEMS, 0)
        more = (Problem("", f"{beyond} more problems are not listed", warning=True),) if beyond else ()
        return (*self.problems, *more)


class Reading(msgspec.Struct, Generic[T]):
    """The result of `read`."""

    #: The document as a value of its wire type; None if its shape is wrong.
    value: T | None
    #: The document without nulls and unknown fields, with marks in the places of unreadable and misspelt fields.
    clean: Body
    found: DecodeProblems


# -- read: the shape -------------------------------------------------------------------------------------------------


def read(wire: type[T], document: Body) -> Reading[T]:
    """Read a document as a value of its wire type."""
    found = DecodeProblems()
    clean = walk(_info(wire), document, "", found)
    if found.errors:
        return Reading(None, clean, found)
    try:
        value = msgspec.convert(clean if found.sound else with_stand_ins(clean, 0, found.misspelt), wire)
    except msgspec.ValidationError as error:  # msgspec checks some limits that `walk` does not check
        found.error("", str(error), _info(wire))
        return Reading(None, clean, found)
    return Reading(value, clean, found)


@lru_cache(maxsize=32)
def _info(wire: type[Any]) -> inspect.Type:
    return inspect.type_info(wire)


def walk(kind: inspect.Type, value: Any, path: str, found: DecodeProblems) -> Any:
    """The value without its nulls, with `Unreadable` in place of wrong parts; problems are added to `found`."""
    match kind:
        case inspect.Metadata(type=inner) if not isinstance(inner, inspect.StrType):
            return walk(inner, value, path, found)
        case inspect.AnyType():
            return value
        case inspect.UnionType():
            return _union(kind, value, path, found)
    if not has_shape(kind, value):
        return found.error(path, expected(kind, value), kind, _near(kind, value))
    match kind:
        case inspect.StructType():
            return _struct(kind, value, path, found)
        case inspect.DictType():
            return _dict(kind, value, path, found)
        case inspect.ListType() | inspect.VarTupleType():
            return _list(kind, value, path, found)
    if message := value_error(kind, value):
        return found.error(path, message, kind, _near(kind, value))
    return value


def _near(kind: inspect.Type, value: object) -> str:
    if isinstance(value, str) and isinstance(kind, inspect.StructType):
        return _in_a_field(kind, value)
    return nearest(value, [str(choice) for choice in choices(kind)]) if isinstance(value, str) else ""


def _in_a_field(kind: inspect.StructType, value: str) -> str:
    """The user wrote a text in place of a mapping: propose `{field: text}`. Empty if no field or several fields fit."""
    near = {field.encode_name: nearest(value, [str(one) for one in choices(field.type)]) for field in kind.fields}
    found = [f"{{{name}: {word}}}" for name, word in near.items() if word]
    return found[0] if len(found) == 1 else ""


def _union(kind: inspect.UnionType, value: Any, path: str, found: DecodeProblems) -> Any:
    """Walk the value by the first type of the union that fits it, or by the only type that is not `null`."""
    members = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    fitting = members if len(members) == 1 else [one for one in members if has_shape(one, value)]
    if fitting:
        return walk(fitting[0], value, path, found)
    return found.error(path, expected(kind, value), kind)


def _struct(kind: inspect.StructType, value: Body, path: str, found: DecodeProblems) -> Body:
    fields = {field.encode_name: field for field in kind.fields}
    ignored = _IGNORED_METADATA if issubclass(kind.cls, Meta) else ()
    clean: Body = {}
    for key, inner in value.items():
        if key in fields and inner is not None:
            clean[key] = walk(fields[key].type, inner, under(path, key), found)
        elif key not in fields and key not in ignored:
            _unknown(fields, value, key, path, found, clean)
    for name, field in fields.items():
        if field.required and name not in clean:
            clean[name] = found.error(under(path, name), f"missing; expected {expected_text(field.type)}", field.type)
    return clean


def _unknown(
    fields: dict[str, inspect.Field], value: Body, key: str, path: str, found: DecodeProblems, clean: Body
) -> None:
    """Handle an unknown field. If it is a misspelt known field, the checks use its value as if its name were right.

    The value of a required field is used even if there are errors inside it. The value of an optional field is used
    only without errors: an API server drops the field, so errors inside it do not matter.
    """
    name = nearest(key, fields) if found.warnings < MAX_PROBLEMS else ""
    field = fields.get(name)
    if field is None or value.get(name) is not None or name in clean or not has_shape(field.type, value[key]):
        found.unknown(path, key, fields)
        return
    found.unknown(path, key, fields, required=name if field.required else "")
    inner = found if field.required else DecodeProblems()
    walked = walk(field.type, value[key], under(path, key), inner)
    if field.required or inner.sound:
        clean[name] = Misspelt(walked, under(path, key))
        found.respelt[under(path, name)] = under(path, key)


def _dict(kind: inspect.DictType, value: Body, path: str, found: DecodeProblems) -> Any:
    if isinstance(kind.value_type, inspect.AnyType):
        return value
    if message := _size_error(kind, value):
        return found.error(path, message, kind)
    # An API server refuses null in the place of an object, and ignores null in the place of a scalar.
    struct = isinstance(kind.value_type, inspect.StructType)
    present = {key: inner for key, inner in value.items() if inner is not None or struct}
    return {key: walk(kind.value_type, inner, under(path, key), found) for key, inner in present.items()}


def _list(kind: inspect.ListType | inspect.VarTupleType, value: list[Any], path: str, found: DecodeProblems) -> Any:
    if message := _size_error(kind, value):
        return found.error(path, message, kind)
    return [walk(kind.item_type, inner, item(path, index), found) for index, inner in enumerate(value)]


def _size_error(kind: inspect.ListType | inspect.VarTupleType | inspect.DictType, value: Any) -> str:
    least, most = kind.min_length or 0, kind.max_length
    if len(value) < least:
        return "may not be empty" if not value else f"expected at least {least} entries, found {len(value)}"
    if most is not None and len(value) > most:
        return f"expected at most {most} entries, found {len(value)}"
    return ""


# -- examine: the checks between fields ------------------------------------------------------------------------------

#: Runs the checks: (variant of the stand-ins, paths of misspelt fields to omit) -> problems.
Checks = Callable[[int, frozenset[str]], Iterable[Problem]]
_NONE: frozenset[str] = frozenset()
#: If the checks find new errors without all misspelt fields, they run again for each of these fields, without this one
#: field, to find which misspellings are errors. With more misspelt fields than this, all misspellings are errors.
_MAX_MISSPELT_TRIED = 8


def examine(found: DecodeProblems, checks: Checks) -> tuple[Problem, ...]:
    """The problems in `found`, then the problems that the checks find. After too many errors, the checks do not run."""
    if found.sound:
        return (*found.listed(), *checks(0, _NONE))
    if found.errors > MAX_PROBLEMS:
        return found.listed()
    respelt = _agreed(found, checks, _NONE)
    misspelt = found.misspelt
    if not misspelt:
        return (*found.listed(), *respelt)
    # An API server drops misspelt fields. A problem that exists only because a field was dropped is not reported;
    # instead the misspelling, which is otherwise a warning, becomes an error.
    dropped = _agreed(found, checks, misspelt)
    errors = {one for one in dropped if not one.warning and one not in respelt}
    needed = _needed(found, checks, respelt) if errors else _NONE
    shape = (replace(one, warning=one.warning and one.path not in needed) for one in found.listed())
    return (*shape, *(respelt if found.errors or errors else (one for one in dropped if one in respelt)))


def _needed(found: DecodeProblems, checks: Checks, respelt: list[Problem]) -> frozenset[str]:
    """The misspelt fields whose absence causes an error; all of them, if no single absence causes one."""
    if len(found.misspelt) > _MAX_MISSPELT_TRIED:
        return found.misspelt
    alone = {path: _agreed(found, checks, frozenset({path})) for path in sorted(found.misspelt)}
    needed = {path for path, dropped in alone.items() if any(not one.warning and one not in respelt for one in dropped)}
    return frozenset(needed) or found.misspelt


def _agreed(found: DecodeProblems, checks: Checks, omitted: frozenset[str]) -> list[Problem]:
    """The problems that the checks find with every stand-in, except problems of or inside an unreadable value."""
    broken = {path for path, _ in found.unreadable}
    if "" in broken:
        return []
    wanted = [_MIN_VARIANTS, *(len(choices(kind)) for _, kind in found.unreadable)]
    variants = min(max(wanted), _MAX_VARIANTS) if broken else 1
    first, *others = [[*checks(variant, omitted)] for variant in range(variants)]
    agreed = set(first).intersection(*others)
    written = (_as_written(one, found) for one in first if one in agreed)
    return [one for one in written if broken.isdisjoint(_outer(one.path))]


def _as_written(problem: Problem, found: DecodeProblems) -> Problem:
    """The problem with the path as the manifest spells it."""
    for known in _outer(problem.path):
        if known in found.respelt:
            return replace(problem, path=found.respelt[known] + problem.path[len(known) :])
    return problem


def _outer(path: str) -> Iterator[str]:
    """The path itself, and the paths of all objects and lists around it."""
    yield path
    yield from (path[:place] for place, letter in enumerate(path) if letter in ".[")


# -- stand-ins: values in place of fields that cannot be read --------------------------------------------------------

_LARGE = 2**31 - 1


def with_stand_ins(part: Any, variant: int, omitted: frozenset[str] = frozenset()) -> Any:
    """The part with stand-ins for `Unreadable`, and values for `Misspelt` unless its path is in `omitted`."""
    match part:
        case Unreadable(kind):
            return stand_in(kind, variant)
        case Misspelt(value):
            return with_stand_ins(value, variant, omitted)
        case dict():
            dropped = {key for key, inner in part.items() if isinstance(inner, Misspelt) and inner.path in omitted}
            return {key: with_stand_ins(part[key], variant, omitted) for key in part if key not in dropped}
        case list():
            return [with_stand_ins(inner, variant, omitted) for inner in part]
        case _:
            return part


def stand_in(kind: inspect.Type, variant: int) -> Any:
    """An invented value of this type. Different variants give different values, if the type has several values."""
    match unwrapped(kind)[0]:
        case inspect.UnionType(types=types):
            members = [one for one in types if not isinstance(one, inspect.NoneType)]
            return stand_in(members[variant % len(members)], variant)
        case inspect.StructType(fields=fields):
            # The first variant has only required fields. The others also set optional numbers, such as `replicas`.
            numbers = [one for one in fields if variant and isinstance(unwrapped(one.type)[0], inspect.IntType)]
            kept = [one for one in fields if one.required or one in numbers]
            return {field.encode_name: stand_in(field.type, variant) for field in kept}
        case inspect.DictType(value_type=inner, min_length=least):
            return {_name(variant, place): stand_in(inner, variant) for place in range(max(least or 0, variant % 2))}
        case (
            inspect.ListType(item_type=inner, min_length=least)
            | inspect.VarTupleType(item_type=inner, min_length=least)
        ):
            return [stand_in(inner, variant) for _ in range(max(least or 0, variant % 2))]
        case plain:
            return _scalar(plain, variant)


def _scalar(kind: inspect.Type, variant: int) -> Any:
    match kind:
        case inspect.BoolType():
            return variant % 2 == 0
        case inspect.IntType():
            most = _LARGE if kind.le is None else kind.le
            small = min(max(kind.ge or 1, 1), most)  # not 0: users do not ask for 0 replicas
            return (small, most)[variant % 2]
        case inspect.LiteralType():
            known = choices(kind)
            return known[variant % len(known)]
        case inspect.DecimalType():
            return ("1", str(_LARGE))[variant % 2]
        case inspect.DateTimeType():
            return f"20{variant:02}-01-01T00:00:00Z"
        case inspect.StrType():
            texts = (_name(variant, 0), str(variant))
            return next((text for text in texts if not value_error(kind, text)), texts[0][: kind.max_length])
        case _:
            return {}  # the type accepts any value


def _name(variant: int, place: int) -> str:
    """A name that does not occur in manifests."""
    return f"unreadable-{variant}-{place}"
