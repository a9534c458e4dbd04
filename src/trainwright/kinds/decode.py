# SPDX-License-Identifier: Apache-2.0
"""A manifest's shape against its wire type: all problems at once, and what can be read of it.

msgspec stops at the first mistake and speaks to programmers; this walk over the same types collects every mistake, and
msgspec converts only what has none. `null` counts as absent and unknown fields warn, as on an API server. Where a value
cannot be read, the walk leaves an `Unreadable` in its place, so that `examine` can still check the rest.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from trainwright.kinds.paths import item, under
from trainwright.kinds.scalars import choices, expected, fault, takes, words
from trainwright.kinds.standins import Respelt, Unreadable, filled
from trainwright.model.job import Body
from trainwright.model.meta import Meta
from trainwright.model.problem import Problem, nearest

T = TypeVar("T", bound=msgspec.Struct)

#: More problems of one sort than this are not listed: nobody reads them, and finding near spellings takes time.
MOST = 100
#: Metadata that API servers and tools write and we do not read.
_METADATA = frozenset({"generateName", "managedFields", "selfLink", "clusterName"})


class Found:
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
    found: Found


def read(wire: type[T], document: Body) -> Reading[T]:
    """Read a document as a value of its wire type."""
    found = Found()
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


def walk(kind: inspect.Type, value: Any, path: str, found: Found) -> Any:
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
    return nearest(value, [str(choice) for choice in choices(kind)]) if isinstance(value, str) else ""


def _union(kind: inspect.UnionType, value: Any, path: str, found: Found) -> Any:
    """By the member whose sort the value is of; a lone member besides `null` answers for itself."""
    members = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    fitting = members if len(members) == 1 else [one for one in members if takes(one, value)]
    if fitting:
        return walk(fitting[0], value, path, found)
    return found.error(path, expected(kind, value), kind)


def _struct(kind: inspect.StructType, value: Body, path: str, found: Found) -> Body:
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


def _unknown(fields: dict[str, inspect.Field], value: Body, key: str, path: str, found: Found, clean: Body) -> None:
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
    inner = found if field.required else Found()
    taken = walk(field.type, value[key], under(path, key), inner)
    if field.required or inner.sound:
        clean[name] = Respelt(taken, under(path, key))
        found.respelt[under(path, name)] = under(path, key)


def _dict(kind: inspect.DictType, value: Body, path: str, found: Found) -> Any:
    if isinstance(kind.value_type, inspect.AnyType):
        return value
    if message := _size(kind, value):
        return found.error(path, message, kind)
    # Nothing in the place of a whole object is a mistake, which a server refuses too; of a scalar it means nothing.
    struct = isinstance(kind.value_type, inspect.StructType)
    present = {key: inner for key, inner in value.items() if inner is not None or struct}
    return {key: walk(kind.value_type, inner, under(path, key), found) for key, inner in present.items()}


def _list(kind: inspect.ListType | inspect.VarTupleType, value: list[Any], path: str, found: Found) -> Any:
    if message := _size(kind, value):
        return found.error(path, message, kind)
    return [walk(kind.item_type, inner, item(path, index), found) for index, inner in enumerate(value)]


def _tuple(kind: inspect.TupleType, value: list[Any], path: str, found: Found) -> Any:
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
