# SPDX-License-Identifier: Apache-2.0
"""The parser's events to plain objects, in one pass that is bounded in depth and size. Called by `documents.read`.

Working on events instead of PyYAML's own constructor is what lets us refuse duplicate keys, foreign tags and expanding
aliases while they are met, and keep the line of every field: a tree of marks is built next to the tree of values.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml import AliasEvent, DocumentStartEvent, Event, ScalarEvent, SequenceStartEvent

from trainwright.manifest.syntax import explain
from trainwright.manifest.text import MalformedError
from trainwright.manifest.values import foreign, key_of, value_of

DEEPEST = 64
#: Values in one file, each alias counted with all it stands for.
MOST = 50_000

#: The line of a value, and the marks of what is in it.
Mark = tuple[int, Any]
Node = tuple[Any, Mark]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COLLECTIONS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_OPEN: Node = (None, (0, None))
_MERGE = "<<"


class Builder:
    """One file's worth of documents."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        #: Of the object that is being read; `documents.read` counts, since a List holds several.
        self.number = 1
        self._left = MOST
        self._anchors: dict[str, Node] = {}
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=_LOADER))

    def documents(self) -> Iterator[Node]:
        """Every document that is not empty."""
        try:
            for event in self._events:
                if isinstance(event, DocumentStartEvent):
                    self._anchors = {}
                    node = self._node(next(self._events), 0)
                    if node[0] is not None:
                        yield node
        except yaml.YAMLError as error:
            self.fail(*explain(error))

    def fail(self, mark: Any, what: str) -> NoReturn:
        """Refuse the file."""
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        raise MalformedError(self.file, what, line, column, document=self.number)

    def _node(self, event: Any, depth: int) -> Node:
        self._spend(event, depth)
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = _OPEN
        node = self._scalar(event) if isinstance(event, ScalarEvent) else self._collection(event, depth + 1)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _spend(self, event: Any, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            self.fail(event.start_mark, f"the file holds more than {MOST:,} values, aliases counted in full")
        if depth > DEEPEST:
            self.fail(event.start_mark, f"nested more than {DEEPEST} levels deep")

    def _scalar(self, event: ScalarEvent) -> Node:
        try:
            return value_of(event), (_line(event), None)
        except ValueError as error:
            self.fail(event.start_mark, str(error))

    def _collection(self, event: Any, depth: int) -> Node:
        if event.tag not in _COLLECTIONS:
            self.fail(event.start_mark, foreign(event.tag))
        return self._sequence(event, depth) if isinstance(event, SequenceStartEvent) else self._mapping(event, depth)

    def _sequence(self, start: Event, depth: int) -> Node:
        values, marks = [], []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, mark = self._node(event, depth)
            values.append(value)
            marks.append((_line(event), mark[1]))
        return values, (_line(start), marks)

    def _mapping(self, start: Event, depth: int) -> Node:
        body: dict[str, Any] = {}
        marks: dict[str, Mark] = {}
        sources: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, marks, depth)
            value, mark = self._node(next(self._events), depth)
            if key == _MERGE and isinstance(event, ScalarEvent) and event.implicit[0]:
                sources = self._sources((value, mark), event)
            else:
                body[key] = value
            marks[key] = (_line(event), mark[1])
        return _merged(body, marks, sources), (_line(start), marks)

    def _key(self, event: Any, marks: dict[str, Mark], depth: int) -> str:
        value, _ = self._node(event, depth)
        self._left += 1  # a key and its value count as one
        try:
            key = key_of(value)
        except ValueError as error:
            self.fail(event.start_mark, str(error))
        if key in marks:
            both = f"on lines {marks[key][0]} and {_line(event)}"
            self.fail(event.start_mark, f"key {key[:60]!r} is given twice, {both}")
        return key

    def _sources(self, node: Node, event: Event) -> list[Node]:
        """The mappings that `<<` takes keys from; of several, the first that has a key gives it."""
        value, (_, marks) = node
        sources = list(zip(value, marks, strict=True)) if isinstance(value, list) else [node]
        if not all(isinstance(source, dict) for source, _ in sources):
            self.fail(event.start_mark, "`<<` takes a mapping or a list of mappings, usually `<<: *name`")
        return sources

    def _alias(self, event: Any, depth: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            self.fail(event.start_mark, f"there is no anchor `&{event.anchor[:60]}` above this alias")
        if node is _OPEN:
            self.fail(event.start_mark, f"alias `*{event.anchor[:60]}` stands inside of what it stands for")
        return self._copy(node[0], event, depth), node[1]

    def _copy(self, value: Any, event: Any, depth: int) -> Any:
        """Each alias has a copy of its own, so that an edit in one place stays there; it counts like the original."""
        self._spend(event, depth)
        if isinstance(value, dict):
            return {key: self._copy(inner, event, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._copy(inner, event, depth + 1) for inner in value]
        return value


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _merged(body: dict[str, Any], marks: dict[str, Mark], sources: list[Node]) -> dict[str, Any]:
    """What is written out wins over what is merged in."""
    for source, (_, lines) in sources:
        for key in source:
            if key not in body:
                body[key] = source[key]
                marks[key] = lines[key]
    return body
