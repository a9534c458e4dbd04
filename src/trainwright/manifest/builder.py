# SPDX-License-Identifier: Apache-2.0
"""Parses the bytes of a file into plain objects in one pass, with limits on size, depth and the number of values.

The builder reads the events of the YAML parser instead of using PyYAML's constructor. So it can report duplicate keys,
refuse foreign tags and expanding aliases as soon as they occur, and keep the line of every field: it builds a tree of
marks beside the tree of values. Scalars follow the rules of kubectl: YAML 1.1 booleans, no base-60 numbers, times stay
text.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml import AliasEvent, DocumentStartEvent, Event, ScalarEvent, SequenceStartEvent

from trainwright.errors import ManifestError

#: Maximum size of a file in bytes: twice the limit of an API server. A job has a few kilobytes.
LARGEST = 3 * 1024 * 1024
#: Maximum number of directives: libyaml compares each %TAG line with all previous lines, so more would be slow.
_MAX_DIRECTIVES = 16
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class MalformedError(ManifestError):
    """Text that is not a manifest: `where` is FILE[:LINE[:COLUMN]], `what` is the reason.

    `document` counts from 1, as in `Document`; 0 means that the error belongs to no document.
    """

    def __init__(
        self, file: str, what: str, line: int | None = None, column: int | None = None, *, document: int = 0
    ) -> None:
        self.file = file
        self.document = document
        self.line = line
        self.where = ":".join(str(part) for part in (file, line, column) if part is not None)
        self.what = what
        super().__init__(f"{self.where}: {f'document {document}: ' if document else ''}{what}")


def decoded(file: str, data: bytes) -> str:
    """The text of a file. Raises MalformedError if it is too large, not UTF-8, or has control characters."""
    if len(data) > LARGEST:
        raise MalformedError(file, f"larger than {LARGEST // 1024**2} MiB, the maximum size of a manifest")
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise MalformedError(file, "this is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"not UTF-8 text (byte 0x{data[error.start]:02x}); is this a manifest?"
        raise MalformedError(file, what, line) from None
    if (found := _UNPRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        what = f"control character U+{ord(found.group()):04X}, which YAML does not allow; is this a manifest?"
        raise MalformedError(file, what, line, column)
    if text.count("\n%") > _MAX_DIRECTIVES:
        raise MalformedError(file, f"more than {_MAX_DIRECTIVES} lines begin with `%`; is this a manifest?")
    return text


#: Maximum nesting of values.
DEEPEST = 64
#: Maximum number of duplicate keys in one file that are reported. The reader stops at the next duplicate key.
_MAX_REPEATED = 100
#: Maximum number of values in one file. An alias counts as many values as its anchor contains.
MOST = 50_000

#: The line of a value, and the marks of the values inside it.
Mark = tuple[int, Any]
Node = tuple[Any, Mark]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COLLECTIONS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
#: The value in `_anchors` while the value of the anchor is still being built. An alias to it is an error.
_INCOMPLETE: Node = (None, (0, None))
_MERGE = "<<"


class Builder:
    """Builds the documents of one file."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        #: The number of the current object, for errors. `documents.examine` sets it: a List contains several objects.
        self.number = 1
        #: The duplicate keys, each with its mark and message. In the document, the last value of such a key is used.
        self.repeated: list[tuple[Any, str]] = []
        self._remaining = MOST
        self._anchors: dict[str, Node] = {}
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=_LOADER))

    def documents(self) -> Iterator[Node]:
        """All documents that are not empty."""
        try:
            for event in self._events:
                if isinstance(event, DocumentStartEvent):
                    self._anchors = {}
                    node = self._node(next(self._events), 0)
                    if node[0] is not None:
                        yield node
        except yaml.YAMLError as error:
            self.fail(*_explain(error))

    def fail(self, mark: Any, what: str) -> NoReturn:
        """Raise MalformedError for the position of the mark."""
        raise self.error(mark, what, self.number)

    def error(self, mark: Any, what: str, number: int) -> MalformedError:
        """The error for the position of the mark, in the object with this number."""
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        return MalformedError(self.file, what, line, column, document=number)

    def _node(self, event: Any, depth: int) -> Node:
        self._check_limits(event, depth)
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = _INCOMPLETE
        node = self._scalar(event) if isinstance(event, ScalarEvent) else self._collection(event, depth + 1)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _check_limits(self, event: Any, depth: int) -> None:
        self._remaining -= 1
        if self._remaining < 0:
            self.fail(event.start_mark, f"the file has more than {MOST:,} values, with every alias expanded")
        if depth > DEEPEST:
            self.fail(event.start_mark, f"nested more than {DEEPEST} levels deep")

    def _scalar(self, event: ScalarEvent) -> Node:
        try:
            return _scalar_value(event), (_line(event), None)
        except ValueError as error:
            self.fail(event.start_mark, str(error))

    def _collection(self, event: Any, depth: int) -> Node:
        if event.tag not in _COLLECTIONS:
            self.fail(event.start_mark, _foreign_tag(event.tag))
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
        self._remaining += 1  # a key and its value count as one
        try:
            key = _mapping_key(value)
        except ValueError as error:
            self.fail(event.start_mark, str(error))
        if key in marks:
            both = f"on lines {marks[key][0]} and {_line(event)}"
            what = f"key {key[:60]!r} is given twice, {both}"
            if len(self.repeated) == _MAX_REPEATED:
                self.fail(event.start_mark, what)
            self.repeated.append((event.start_mark, what))
        return key

    def _sources(self, node: Node, event: Event) -> list[Node]:
        """The mappings from which `<<` takes keys. If several mappings have a key, the first mapping wins."""
        value, (_, marks) = node
        sources = list(zip(value, marks, strict=True)) if isinstance(value, list) else [node]
        if not all(isinstance(source, dict) for source, _ in sources):
            self.fail(event.start_mark, "`<<` takes a mapping or a list of mappings, usually `<<: *name`")
        return sources

    def _alias(self, event: Any, depth: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            self.fail(event.start_mark, f"there is no anchor `&{event.anchor[:60]}` above this alias")
        if node is _INCOMPLETE:
            self.fail(event.start_mark, f"alias `*{event.anchor[:60]}` is inside the value of its own anchor")
        return self._copy(node[0], event, depth), node[1]

    def _copy(self, value: Any, event: Any, depth: int) -> Any:
        """Copy the value of an anchor for an alias, so that a later change of one copy does not change the others."""
        self._check_limits(event, depth)
        if isinstance(value, dict):
            return {key: self._copy(inner, event, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._copy(inner, event, depth + 1) for inner in value]
        return value


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _merged(body: dict[str, Any], marks: dict[str, Mark], sources: list[Node]) -> dict[str, Any]:
    """Add the keys of the mappings in `sources`. If `body` already has a key, its own value stays."""
    for source, (_, lines) in sources:
        for key in source:
            if key not in body:
                body[key] = source[key]
                marks[key] = lines[key]
    return body


Scalar = str | int | float | bool | None

_CORE = "tag:yaml.org,2002:"
#: The first characters of a number.
_NUMBER_STARTS = frozenset("+-.0123456789")
_MAX_NUMBER_LENGTH = 100


def _spellings(words: str, value: Scalar) -> dict[str, Scalar]:
    return {form: value for word in words.split() for form in (word, word.capitalize(), word.upper())}


_WORDS: dict[str, Scalar] = {
    **_spellings("y yes true on", value=True),
    **_spellings("n no false off", value=False),
    **_spellings("null", value=None),
    "": None,
    "~": None,
}
_NOT_JSON = frozenset(
    sign + word for sign in ("", "+", "-") for word in (".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF")
)
_INT = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def _scalar_value(event: ScalarEvent) -> Scalar:
    """The value of a scalar. Its tag decides the type; without a tag and without quotes, the spelling decides."""
    text = str(event.value)
    if not text.isascii():
        text.encode()  # raises for a lone surrogate, which PyYAML's scanner accepts
    if event.tag is None or event.tag == "!":
        return _plain(text) if event.implicit[0] else text
    wanted = _TAGS.get(event.tag.removeprefix(_CORE) if event.tag.startswith(_CORE) else "")
    if wanted is None:
        raise ValueError(_foreign_tag(event.tag))
    value = text if wanted == (str,) else _plain(text)
    if type(value) not in wanted:
        raise ValueError(f"{text[:60]!r} is not a value of the type !!{event.tag[len(_CORE) :]} in its tag")
    return value


_TAGS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


def _foreign_tag(tag: str) -> str:
    """The message for a tag that is not one of YAML's own simple types."""
    return f"tag {tag.replace(_CORE, '!!')[:60]!r} is not allowed in a manifest"


def _mapping_key(value: object) -> str:
    """The key of a mapping as text, because JSON has no other keys. kubectl converts integers and booleans."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case None:
            raise ValueError("a key is missing before the colon, or is null; put it in quotes if it is text")
        case float():
            raise ValueError(f"key {value} is a number with a fraction; put it in quotes")
        case _:
            raise ValueError("a key must be text, not a list or a mapping; is this a template with `{{ }}`?")


def _plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if not text or text[0] not in _NUMBER_STARTS:
        return text
    if text in _NOT_JSON:
        raise ValueError(f"{text} is not a number that a manifest can hold; put it in quotes if it is text")
    return _number(text)


def _number(text: str) -> Scalar:
    digits = text.replace("_", "")
    whole = _INT.fullmatch(digits)
    if whole is None and not _FLOAT.fullmatch(digits):
        return text
    if len(digits) > _MAX_NUMBER_LENGTH:
        raise ValueError(f"a number of {len(digits)} characters is too long; put it in quotes if it is text")
    return _integer(*whole.groups()) if whole is not None else _fraction(text, float(digits))


def _integer(sign: str, hexa: str | None, binary: str | None, octal: str | None, decimal: str | None) -> int:
    digits, base = next((d, b) for d, b in ((hexa, 16), (binary, 2), (octal, 8), (decimal, 10)) if d is not None)
    value = int(sign + digits, base)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} does not fit in 64 bits; put it in quotes if it is text")
    return value


def _fraction(text: str, value: float) -> Scalar:
    """A number as kubectl converts it through JSON: 2.0 becomes 2, and a number that overflows stays text."""
    if abs(value) == float("inf"):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


#: Explanations for the messages of libyaml.
_EXPLANATIONS = {
    "found character that cannot start any token": "a value cannot begin with this character: indent with spaces, "
    "not tabs, and put text that begins with @, % or ` in quotes",
    "mapping values are not allowed in this context": "a second `: ` in one line, or a line that is indented too far; "
    "put text that contains `: ` in quotes",
    "did not find expected key": "this line does not fit the ones above it; check its indentation and quotes",
    "could not find expected ':'": "expected `key: value`; is a colon or a space after it missing?",
    "found a tab character that violates indentation": "indent with spaces, not tabs",
    "found unexpected end of stream": "the quotes that are opened here are never closed",
}


def _explain(error: yaml.YAMLError) -> tuple[Any, str]:
    """The position of a syntax error, if it is known, and its explanation."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, f"not valid YAML: {' '.join(str(error).split())}"
    problem = str(error.problem or error.context)
    # The parser notices a missing closing quote at the end of the file. Users need the position of the opening quote.
    mark = error.context_mark if "end of stream" in problem else error.problem_mark
    return mark or error.problem_mark, f"not valid YAML: {_EXPLANATIONS.get(problem, problem)}"
