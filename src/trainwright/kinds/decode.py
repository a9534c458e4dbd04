# SPDX-License-Identifier: Apache-2.0
"""A manifest's shape against its wire type: all problems at once, or the decoded value. Called by `base.load`.

msgspec stops at the first mistake and speaks to programmers; this walk over the same types collects every mistake, and
msgspec converts only what has none. `null` counts as absent and unknown fields warn, as on an API server.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from trainwright.kinds.paths import item, under
from trainwright.kinds.scalars import choices, expected, fault, takes, words
from trainwright.model.job import Body
from trainwright.model.meta import Meta
from trainwright.model.problem import Problem, nearest

T = TypeVar("T", bound=msgspec.Struct)

#: More problems of one sort than this are not listed: nobody reads them, and finding near spellings takes time.
MOST = 100
#: Metadata that API servers and tools write and we do not read.
_METADATA = frozenset({"generateName", "managedFields", "selfLink", "clusterName"})


class Found:
    """The problems of one walk, in document order."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.errors = 0
        self.warnings = 0

    def error(self, path: str, message: str, near: str = "") -> None:
        """Keep an error."""
        self.errors += 1
        if self.errors <= MOST:
            self.problems.append(Problem(path, message, near))

    def unknown(self, path: str, key: str, known: Iterable[str]) -> None:
        """Keep a warning about a field that nobody knows."""
        self.warnings += 1
        if self.warnings <= MOST:
            self.problems.append(Problem(under(path, key), "unknown field", nearest(key, known), warning=True))

    def listed(self) -> tuple[Problem, ...]:
        """All of them, with a word on what was left out."""
        beyond = max(self.errors - MOST, 0) + max(self.warnings - MOST, 0)
        more = (Problem("", f"{beyond} more problems are not listed", warning=True),) if beyond else ()
        return (*self.problems, *more)


def decode(wire: type[T], document: Body) -> tuple[T | None, tuple[Problem, ...]]:
    """The document as a value of its wire type, or None, and everything that is wrong with its shape."""
    found = Found()
    clean = walk(_info(wire), document, "", found)
    # The status is the controller's: what somebody else's controller left in it is no mistake of the user's.
    problems = tuple(one for one in found.listed() if not (one.warning and one.path.startswith("status.")))
    if found.errors:
        return None, problems
    try:
        return msgspec.convert(clean, wire), problems
    except msgspec.ValidationError as error:  # what msgspec checks and the walk does not
        return None, (*problems, Problem("", str(error)))


@lru_cache(maxsize=32)
def _info(wire: type[Any]) -> inspect.Type:
    return inspect.type_info(wire)


def walk(kind: inspect.Type, value: Any, path: str, found: Found) -> Any:
    """The value without its nulls; what is wrong with it goes to `found`."""
    match kind:
        case inspect.Metadata(type=inner) if not isinstance(inner, inspect.StrType):
            return walk(inner, value, path, found)
        case inspect.AnyType():
            return value
        case inspect.UnionType():
            return _union(kind, value, path, found)
    if not takes(kind, value):
        found.error(path, expected(kind, value), _near(kind, value))
        return value
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
        found.error(path, message, _near(kind, value))
    return value


def _near(kind: inspect.Type, value: object) -> str:
    return nearest(value, [str(choice) for choice in choices(kind)]) if isinstance(value, str) else ""


def _union(kind: inspect.UnionType, value: Any, path: str, found: Found) -> Any:
    """By the member whose sort the value is of; a lone member besides `null` answers for itself."""
    members = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    fitting = members if len(members) == 1 else [one for one in members if takes(one, value)]
    if fitting:
        return walk(fitting[0], value, path, found)
    found.error(path, expected(kind, value))
    return value


def _struct(kind: inspect.StructType, value: Body, path: str, found: Found) -> Body:
    fields = {field.encode_name: field for field in kind.fields}
    ignored = _METADATA if issubclass(kind.cls, Meta) else ()
    clean: Body = {}
    for key, inner in value.items():
        if key in fields and inner is not None:
            clean[key] = walk(fields[key].type, inner, under(path, key), found)
        elif key not in fields and key not in ignored:
            found.unknown(path, key, fields)
    for name, field in fields.items():
        if field.required and name not in clean:
            found.error(under(path, name), f"missing; expected {words(field.type)}")
    return clean


def _dict(kind: inspect.DictType, value: Body, path: str, found: Found) -> Body:
    if isinstance(kind.value_type, inspect.AnyType):
        return value
    if not _sized(kind, value, path, found):
        return value
    # Nothing in the place of a whole object is a mistake, which a server refuses too; of a scalar it means nothing.
    struct = isinstance(kind.value_type, inspect.StructType)
    present = {key: inner for key, inner in value.items() if inner is not None or struct}
    return {key: walk(kind.value_type, inner, under(path, key), found) for key, inner in present.items()}


def _list(kind: inspect.ListType | inspect.VarTupleType, value: list[Any], path: str, found: Found) -> list[Any]:
    if not _sized(kind, value, path, found):
        return value
    return [walk(kind.item_type, inner, item(path, index), found) for index, inner in enumerate(value)]


def _tuple(kind: inspect.TupleType, value: list[Any], path: str, found: Found) -> list[Any]:
    if len(value) != len(kind.item_types):
        found.error(path, f"expected a list of exactly {len(kind.item_types)}, found a list of {len(value)}")
        return value
    pairs = zip(kind.item_types, value, strict=True)
    return [walk(inner, one, item(path, index), found) for index, (inner, one) in enumerate(pairs)]


def _sized(
    kind: inspect.ListType | inspect.VarTupleType | inspect.DictType, value: Any, path: str, found: Found
) -> bool:
    """Whether the entries are worth a look; more than there may be are not."""
    least, most = kind.min_length or 0, kind.max_length
    if len(value) < least:
        found.error(path, "may not be empty" if not value else f"expected at least {least} entries, found {len(value)}")
    if most is not None and len(value) > most:
        found.error(path, f"expected at most {most} entries, found {len(value)}")
        return False
    return True
