# SPDX-License-Identifier: Apache-2.0
"""What stands in a document for a value that cannot be read, or that is written under a misspelt name.

`decode` puts the marks into the document, and `examine` has them replaced by values of the right shape: by several
different ones in turn, since only what is wrong with all of them does not depend on the value that is missing.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, inspect

from trainwright.kinds.scalars import bare, choices, fault

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
