# SPDX-License-Identifier: Apache-2.0
"""Single values against their types, in words a newcomer understands: what was expected, what was found, what to do.

`decode` asks `fault` about every leaf of a manifest and `words` about everything else it did not find as expected.

How the place of a field is written: `spec.replicaSpecs[0].type`, `metadata.labels["a/b"]`.

`decode` and `template` write such paths into problems; `manifest` takes them apart again to find the line.

Limits and types of fields that all kinds share, and what is said of a manifest that exceeds a limit.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, inspect

from trainwright.model.meta import Key
from trainwright.model.problem import Problem, shown
from trainwright.model.units import quantity

_NUMBER = re.compile(r"\s*[-+]?\d{1,30}(\.\d{0,30})?\s*")
_SHAPES: tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...] = (
    ((inspect.BoolType,), (bool,), "true or false"),
    ((inspect.IntType,), (int,), "a whole number"),
    ((inspect.FloatType,), (int, float), "a number"),
    ((inspect.StrType,), (str,), "text"),
    ((inspect.DateTimeType,), (str,), "a time such as 2026-01-31T12:00:00Z"),
    ((inspect.DecimalType,), (int, float, str), "a quantity such as 2, 500m, 16Gi or 100M"),
    ((inspect.LiteralType, inspect.EnumType), (str, int), "one of"),
    ((inspect.StructType, inspect.DictType), (dict,), "a mapping"),
    ((inspect.ListType, inspect.VarTupleType, inspect.TupleType), (list, tuple), "a list"),
)


def bare(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without its annotations, and the description they hold."""
    note = ""
    while isinstance(kind, inspect.Metadata):
        note = (kind.extra_json_schema or {}).get("description", note)
        kind = kind.type
    return kind, note


def takes(kind: inspect.Type, value: object) -> bool:
    """Whether the value is of the right sort for this type, whatever its content."""
    kind = bare(kind)[0]
    accepted = next((kinds for types, kinds, _ in _SHAPES if isinstance(kind, types)), (object,))
    return isinstance(value, accepted) and (not isinstance(value, bool) or bool in accepted or object in accepted)


def words(kind: inspect.Type) -> str:
    """What this type expects, as a phrase that follows "expected"."""
    kind = bare(kind)[0]
    if isinstance(kind, inspect.UnionType):
        return " or ".join(words(one) for one in kind.types if not isinstance(one, inspect.NoneType))
    word = next((word for types, _, word in _SHAPES if isinstance(kind, types)), "something else")
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return f"{word} {', '.join(str(choice) for choice in choices(kind) if choice != '')}"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return word + _range(kind)
    return word


def choices(kind: inspect.Type) -> tuple[object, ...]:
    """The values an enumeration allows; nothing for other types."""
    match bare(kind)[0]:
        case inspect.LiteralType(values=values):
            return tuple(values)
        case inspect.EnumType(cls=cls):
            return tuple(member.value for member in cls)
        case _:
            return ()


def fault(kind: inspect.Type, value: object) -> str:
    """What is wrong with a single value that the type `takes`; empty if nothing is."""
    plain, note = bare(kind)
    match plain:
        case inspect.IntType() if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"expected a whole number that fits in 64 bits, found {shown(value)}"
        case inspect.IntType() | inspect.FloatType():
            return "" if _within(plain, value) else expected(plain, value)
        case inspect.StrType():
            return _text(plain, str(value), note)
        case inspect.LiteralType() | inspect.EnumType():
            return "" if value in choices(plain) else expected(plain, value)
        case inspect.DecimalType():
            return "" if quantity(value) is not None else expected(plain, value)
        case inspect.DateTimeType():
            return "" if _moment(value) else expected(plain, value)
        case _:
            return ""  # pragma: no cover - the wire types hold no others; msgspec has the last word on them


def expected(kind: inspect.Type, value: object) -> str:
    """The message for a value that is not what the type wants."""
    return f"expected {words(kind)}, found {shown(value)}{_advice(bare(kind)[0], value)}"


def _advice(kind: inspect.Type, value: object) -> str:
    """How to write it, where the reason is one of those that everybody meets once."""
    match kind, value:
        case inspect.StrType(), bool() | int() | float():
            return "; put it in quotes"
        case inspect.IntType() | inspect.FloatType(), str() if _NUMBER.fullmatch(value):
            return "; write it without quotes"
        case inspect.BoolType(), "true" | "false" | "yes" | "no" | "on" | "off":
            return "; write it without quotes"
        case inspect.ListType() | inspect.VarTupleType(), dict() | str():
            return "; a list is written [a, b] or with one `- ` per entry"
    return ""


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    bounds = ((" of at least", kind.ge), (" above", kind.gt), (" of at most", kind.le), (" below", kind.lt))
    return " and".join(f"{word} {bound}" for word, bound in bounds if bound is not None)


def _within(kind: inspect.IntType | inspect.FloatType, value: object) -> bool:
    assert isinstance(value, int | float)  # noqa: S101 - `takes` said so; for the type checker
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def _text(kind: inspect.StrType, value: str, note: str) -> str:
    if kind.min_length is not None and len(value) < kind.min_length:
        return (
            "may not be empty" if not value else f"expected at least {kind.min_length} characters, found {len(value)}"
        )
    if kind.max_length is not None and len(value) > kind.max_length:
        return f"expected at most {kind.max_length} characters, found {len(value)}"
    if kind.pattern is not None and not _pattern(kind.pattern).search(value):
        allowed = f"; expected: {note.rstrip('.')}" if note else f"; it must match {kind.pattern}"
        return f"{shown(value)} is not allowed here{allowed}"
    return ""


@lru_cache(maxsize=64)
def _pattern(text: str) -> re.Pattern[str]:
    """As the API server reads it: there `$` is the very end, while Python's lets a line break pass."""
    return re.compile(text[:-1] + r"\Z" if text.endswith("$") else text)


def _moment(value: object) -> bool:
    try:
        msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return False
    return True


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PART = re.compile(r'\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]|\.?([^.\[\]"]+)')
#: A longer key is cut: a path is for reading.
_LONGEST = 80


def under(path: str, key: str) -> str:
    """The path of a key of the mapping at `path`."""
    key = key if len(key) <= _LONGEST else key[: _LONGEST - 3] + "..."
    if not _WORD.fullmatch(key):
        return f"{path}[{msgspec.json.encode(key).decode()}]"
    return f"{path}.{key}" if path else key


def item(path: str, index: int) -> str:
    """The path of an entry of the list at `path`."""
    return f"{path}[{index}]"


def parts(path: str) -> tuple[str | int, ...]:
    """The keys and indexes that lead to a path; what cannot be read as one ends it."""
    found: list[str | int] = []
    at = 0
    while (match := _PART.match(path, at)) is not None:
        index, quoted, word = match.groups()
        found.append(int(index) if index else msgspec.json.decode(quoted, type=str) if quoted else word)
        at = match.end()
    return tuple(found)


#: Replicas of a job in all: what its status must remember of them stays within what an API server stores.
MOST_REPLICAS = 10_000
#: Characters of a host name, and so of a pod's or service's name.
LONGEST_NAME = 63
#: Bytes of one environment variable with which Linux still starts a program.
LONGEST_VARIABLE = 131_072
#: What a job may be called whose name becomes part of host names.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
Word = Annotated[str, Meta(max_length=253)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Spec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the parts of a manifest; they hold the user's dicts, so they are left to the garbage collector."""


def doc(text: str) -> Meta:
    """What `kubectl explain` says of a field."""
    return Meta(description=text)


def check_name(name: str, *, hosts: str = "services") -> Iterator[Problem]:
    """The name of a job whose replicas have `services`, which must start with a letter, or only `hosts`."""
    path, letter = "metadata.name", hosts == "services"
    if not name:
        yield Problem(path, "a job needs a name")
    elif not LABEL.fullmatch(name) or (letter and not name[0].isalpha()):
        first = "a letter first" if letter else "a letter or digit first"
        message = f"{name[:60]!r} becomes the name of {hosts}: use lower-case letters, digits and dashes"
        yield Problem(path, f"{message}, with {first} and no dash at the end")
    elif len(name) > LONGEST_NAME:
        yield Problem(path, f"expected at most {LONGEST_NAME} characters, found {len(name)}")


def check_replica_names(job: str, role: str, replicas: int, path: str, also: str = "") -> Iterator[Problem]:
    """The longest name of a replica; `also` is what else may be shortened besides the name of the job."""
    longest = Key("", job).replica_name(role, max(replicas - 1, 0))
    if len(longest) > LONGEST_NAME:
        message = f"the replica's name {longest!r} has {len(longest)} characters; at most {LONGEST_NAME} are allowed"
        yield Problem(path, f"{message}: shorten metadata.name{also}")


def check_total(total: int, path: str) -> Iterator[Problem]:
    """The number of replicas of a job."""
    if total > MOST_REPLICAS:
        yield Problem(path, f"a job may have {MOST_REPLICAS} replicas; this one has {total}")
