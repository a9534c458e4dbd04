# SPDX-License-Identifier: Apache-2.0
"""Single values, their paths and their limits: the parts of decoding and checking that all kinds share.

Messages about a value say what was expected, what was found and how to write the value. Examples of paths:
`spec.replicaSpecs[0].type` and `metadata.labels["a/b"]`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, inspect

from trainwright.model.meta import Key, ObjectMeta
from trainwright.model.problem import Problem, nearest, shown
from trainwright.model.units import quantity

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")
_NUMBER = re.compile(r"\s*[-+]?\d{1,30}(\.\d{0,30})?\s*")
_SHAPES: tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...] = (
    ((inspect.BoolType,), (bool,), "true or false"),
    ((inspect.IntType,), (int,), "a whole number"),
    ((inspect.StrType,), (str,), "text"),
    ((inspect.DateTimeType,), (str,), "a time such as 2026-01-31T12:00:00Z"),
    ((inspect.DecimalType,), (int, float, str), "a quantity such as 2, 500m, 16Gi or 100M"),
    ((inspect.LiteralType,), (str, int), "one of"),
    ((inspect.StructType, inspect.DictType), (dict,), "a mapping"),
    ((inspect.ListType, inspect.VarTupleType), (list, tuple), "a list"),
)


def unwrapped(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without its annotations, and the description in them."""
    note = ""
    while isinstance(kind, inspect.Metadata):
        note = (kind.extra_json_schema or {}).get("description", note)
        kind = kind.type
    return kind, note


def has_shape(kind: inspect.Type, value: object) -> bool:
    """Whether the value has the shape of this type: the right Python type, with any content."""
    kind = unwrapped(kind)[0]
    accepted = next((kinds for types, kinds, _ in _SHAPES if isinstance(kind, types)), (object,))
    return isinstance(value, accepted) and (not isinstance(value, bool) or bool in accepted or object in accepted)


def expected_text(kind: inspect.Type) -> str:
    """What this type accepts, as a phrase that follows "expected"."""
    kind = unwrapped(kind)[0]
    if isinstance(kind, inspect.UnionType):
        return " or ".join(expected_text(one) for one in kind.types if not isinstance(one, inspect.NoneType))
    text = next((text for types, _, text in _SHAPES if isinstance(kind, types)), "something else")
    if isinstance(kind, inspect.LiteralType):
        return f"{text} {', '.join(str(choice) for choice in choices(kind) if choice != '')}"
    if isinstance(kind, inspect.IntType) and kind.ge is not None:
        return f"{text} from {kind.ge} to {kind.le}" if kind.le is not None else f"{text} of at least {kind.ge}"
    return f"{text} of at most {kind.le}" if isinstance(kind, inspect.IntType) and kind.le is not None else text


def choices(kind: inspect.Type) -> tuple[object, ...]:
    """The values that an enumeration allows; empty for other types."""
    plain = unwrapped(kind)[0]
    return tuple(plain.values) if isinstance(plain, inspect.LiteralType) else ()


def value_error(kind: inspect.Type, value: object) -> str:
    """What is wrong with the content of a scalar for which `has_shape` is true; empty if nothing is wrong."""
    plain, note = unwrapped(kind)
    match plain:
        case inspect.IntType() if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"expected a whole number that fits in 64 bits, found {shown(value)}"
        case inspect.IntType(ge=least, le=most) if isinstance(value, int):
            within = (least is None or value >= least) and (most is None or value <= most)
            return "" if within else expected(plain, value)
        case inspect.StrType():
            return _text(plain, str(value), note)
        case inspect.LiteralType():
            return "" if value in choices(plain) else expected(plain, value)
        case inspect.DecimalType():
            return "" if quantity(value) is not None else expected(plain, value)
        case inspect.DateTimeType():
            return "" if _moment(value) else expected(plain, value)
        case _:
            return ""  # pragma: no cover - the wire types have no other scalars; msgspec would check them


def expected(kind: inspect.Type, value: object) -> str:
    """The message for a value that the type does not accept."""
    return f"expected {expected_text(kind)}, found {shown(value)}{_advice(unwrapped(kind)[0], value)}"


def _advice(kind: inspect.Type, value: object) -> str:
    """How to write the value, if the mistake is common."""
    match kind, value:
        case inspect.StrType(), bool() | int() | float():
            return "; put it in quotes"
        case inspect.IntType(), str() if _NUMBER.fullmatch(value):
            return "; write it without quotes"
        case inspect.BoolType(), "true" | "false" | "yes" | "no" | "on" | "off":
            return "; write it without quotes"
        case inspect.ListType() | inspect.VarTupleType(), dict() | str():
            return "; a list is written [a, b] or with one `- ` per entry"
    return ""


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
    """The pattern as an API server reads it: `$` is the end of the text. Python's `$` also matches before a newline."""
    return re.compile(text[:-1] + r"\Z" if text.endswith("$") else text)


def _moment(value: object) -> bool:
    try:
        msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return False
    return True


# -- paths -----------------------------------------------------------------------------------------------------------

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PATH_STEP = re.compile(r'\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]|\.?([^.\[\]"]+)')
#: Maximum number of characters of a key in a path; a longer key is cut, because people read the path.
_MAX_KEY_LENGTH = 80


def under(path: str, key: str) -> str:
    """The path of a key of the mapping at `path`."""
    key = key if len(key) <= _MAX_KEY_LENGTH else key[: _MAX_KEY_LENGTH - 3] + "..."
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{msgspec.json.encode(key).decode()}]"
    return f"{path}.{key}" if path else key


def item(path: str, index: int) -> str:
    """The path of an entry of the list at `path`."""
    return f"{path}[{index}]"


def parts(path: str) -> tuple[str | int, ...]:
    """The keys and indexes of a path, up to the first part that cannot be read."""
    found: list[str | int] = []
    at = 0
    while (match := _PATH_STEP.match(path, at)) is not None:
        index, quoted, key = match.groups()
        found.append(int(index) if index else msgspec.json.decode(quoted, type=str) if quoted else key)
        at = match.end()
    return tuple(found)


def with_defaults(document: dict[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """The document with these defaults for fields that are absent or null. Parts without a change are not copied.

    The document may have any shape; a part that cannot hold a default is left as it is.
    """
    for path, value in defaults.items():
        document = _with_default(document, path.split("."), value)
    return document


def _with_default(part: Any, steps: list[str], value: str) -> Any:
    """The part with the default at the path `steps` inside it; a part that is not a mapping stays as it is."""
    if not isinstance(part, dict):
        return part
    step, *rest = steps
    changed: dict[str, Any] = {}
    for key in part if step == "*" else (step,):
        before = part.get(key)
        after = value if not rest and before is None else before
        if rest:
            # Create only the object that directly contains the default, and never an entry of a mapping (`*`).
            create = before is None and len(rest) == 1 and step != "*"
            after = _with_default({} if create else before, rest, value)
        if after is not before:
            changed[key] = after
    return part | changed if changed else part


# -- limits ----------------------------------------------------------------------------------------------------------

#: Maximum number of replicas of one job: the status of a larger job might exceed the size that an API server stores.
MAX_REPLICAS = 10_000
#: Maximum number of characters of a host name, and therefore of the name of a pod or service.
MAX_NAME_LENGTH = 63
#: Maximum size of one environment variable in bytes; Linux starts no program with a longer variable.
MAX_VARIABLE_BYTES = 131_072
#: The pattern for the name of a job whose name becomes part of host names.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]
ShortText = Annotated[str, Meta(max_length=253)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Spec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the structs in `spec` and `status`. They can contain dicts, so we do not set msgspec's `gc=False`."""


class Manifest(Struct, Generic[SpecT, StatusT], frozen=True, rename="camel"):
    """Base class of a complete job object: metadata, spec and status."""

    metadata: ObjectMeta
    spec: SpecT
    api_version: str = ""
    kind: str = ""
    status: StatusT | None = None


class Condition(Spec, frozen=True):
    """Base of a condition in the status of a kind."""

    type: Annotated[str, Meta(max_length=64)]
    status: Annotated[str, Meta(max_length=16)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    message: Annotated[str, Meta(max_length=8192)] = ""


def doc(text: str) -> Meta:
    """The description that `kubectl explain` shows for a field."""
    return Meta(description=text)


def check_name(name: str, *, hosts: str = "services") -> Iterator[Problem]:
    """Check the name of a job. `hosts`: what is named after the job; a name of "services" must start with a letter."""
    path, letter = "metadata.name", hosts == "services"
    if not name:
        yield Problem(path, "a job needs a name")
    elif not LABEL.fullmatch(name) or (letter and not name[0].isalpha()):
        first = "a letter first" if letter else "a letter or digit first"
        message = f"{name[:60]!r} becomes the name of {hosts}: use lower-case letters, digits and dashes"
        yield Problem(path, f"{message}, with {first} and no dash at the end")
    elif len(name) > MAX_NAME_LENGTH:
        yield Problem(path, f"expected at most {MAX_NAME_LENGTH} characters, found {len(name)}")


def check_replica_names(job: str, role: str, replicas: int, path: str, also: str = "") -> Iterator[Problem]:
    """Check the longest name of a replica. `also` extends the advice "shorten metadata.name", as in " or the type"."""
    longest = Key("", job).replica_name(role, max(replicas - 1, 0))
    if len(longest) > MAX_NAME_LENGTH:
        message = f"the replica's name {longest!r} has {len(longest)} characters; at most {MAX_NAME_LENGTH} are allowed"
        yield Problem(path, f"{message}: shorten metadata.name{also}")


def check_variable(name: str, size: int, path: str) -> Iterator[Problem]:
    """Check the size of a variable that contains the names of all replicas."""
    if size > MAX_VARIABLE_BYTES:
        message = f"{name} would have about {size} bytes to name every replica, and Linux starts no program with"
        yield Problem(path, f"{message} a variable of more than {MAX_VARIABLE_BYTES}", warning=True)


def check_gang(members: int | UnsetType, total: int, path: str) -> Iterator[Problem]:
    """Check the number of pods that must start together. A job without replicas is skipped: it has its own error."""
    if total and members is not UNSET and members > total:
        message = f"{members} is more than the job's {total} replica{'s' * (total != 1)}: the group is never admitted"
        yield Problem(path, message, warning=True)


def unknown_role(path: str, name: str, known: Collection[str], what: str = "replica type") -> Problem:
    """The problem of a name that no role of the job has."""
    return Problem(path, f"there is no {what} {name!r}; the job has {', '.join(known)}", nearest(name, known))


def unusable_count(path: str, count: int, least: int = 0, most: int = MAX_REPLICAS) -> Problem | None:
    """The problem of a wanted number of replicas outside its bounds."""
    if least <= count <= most:
        return None
    return Problem(path, f"expected a whole number from {least} to {most}, found the number {count}")


def check_total(total: int, path: str) -> Iterator[Problem]:
    """Check the number of replicas of a job."""
    if total > MAX_REPLICAS:
        yield Problem(path, f"a job may have {MAX_REPLICAS} replicas; this one has {total}")
