# SPDX-License-Identifier: Apache-2.0
"""The JSONPaths of printer columns, and the text of what they find, as the API server of Kubernetes evaluates them.

Supported are fields (`.status.phase`, `['key']`, a dot in a name as `\\.`), indexes, slices, `[*]`, and the filter
`[?(@.field=="value")]`. A field that is missing finds nothing. A list that is no list or is too short makes
the whole path fail; both mean an empty cell.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET, UnsetType

#: A step gets the values that the steps before it found. It raises LookupError if the path fails.
_Step = Callable[[list[Any]], list[Any]]
_TOKEN = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\]\\])+)
    | \[(?P<index>-?[0-9]+)\]
    | \[(?P<first>-?[0-9]*):(?P<last>-?[0-9]*)\]
    | \[(?P<every>\*)\]
    | \['(?P<key>(?:\\.|[^'\\])+)'\]
    | \[\?\(@(?P<left>(?:\.[A-Za-z0-9_-]+)+)\s*==\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')\)\]""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\(.)")


class JsonPath:
    """A compiled path. Raises ValueError if the path uses syntax that we do not support."""

    def __init__(self, text: str) -> None:
        self._steps = tuple(_compiled(text))

    def find(self, body: Any) -> list[Any]:
        """All values at the path. Raises LookupError if the path fails."""
        found = [body]
        for step in self._steps:
            found = step(found)
        return found

    def first(self, body: Any) -> Any | UnsetType:
        """The first value at the path; UNSET if there is none."""
        try:
            found = self.find(body)
        except LookupError:
            return UNSET
        return found[0] if found else UNSET


def _compiled(text: str) -> Iterable[_Step]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} has unsupported syntax at {text[position:]!r}")
        yield _step(match)
        position = match.end()


def _step(match: re.Match[str]) -> _Step:
    part = match.groupdict()
    if (name := part["field"] or part["key"]) is not None:
        return _field(_ESCAPED.sub(r"\1", name))
    if part["every"]:
        return _every
    if part["index"] is not None:
        index = int(part["index"])
        return _slice(index, index + 1 or None)
    if part["left"] is not None:
        return _filter(JsonPath(part["left"]), part["double"] if part["single"] is None else part["single"])
    return _slice(int(part["first"] or 0), int(part["last"]) if part["last"] else None)


def _field(name: str) -> _Step:
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _every(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (value.values() if isinstance(value, dict) else _items(value))]


def _slice(first: int, last: int | None) -> _Step:
    """The items from `first` to before `last`. Negative positions count from the end of a list."""

    def step(values: list[Any]) -> list[Any]:
        found = []
        for items in map(_items, values):
            size = len(items)
            start = first + size if first < 0 else first
            end = size if last is None else last + size if last < 0 else last
            if not (0 <= start < size and end <= size):
                raise LookupError(f"a list of {size} items has no items {first}:{last}")
            found += items[start:end]
        return found

    return step


def _filter(left: JsonPath, right: str) -> _Step:
    """The items whose value at the path `left` is the text `right`. A value that is no text makes the path fail."""

    def step(values: list[Any]) -> list[Any]:
        found = []
        for item in (item for value in values for item in _items(value)):
            compared = left.first(item)
            if compared is not UNSET and not isinstance(compared, str):
                raise LookupError(f"{compared!r} is not comparable to {right!r}")
            if compared == right:
                found.append(item)
        return found

    return step


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise LookupError(f"{value!r} is not a list")
    return value


def printed(value: Any) -> str:
    """The text of a value in a column of type `string`."""
    match value:
        case str():
            return value
        case None:
            return "<no value>"
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return _html_safe(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
        case float() if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
        case _:
            return str(value)


def _html_safe(text: str) -> str:
    """JSON as Go writes it: with escapes instead of the characters that are special in HTML."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
