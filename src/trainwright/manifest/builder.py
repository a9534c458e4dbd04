# SPDX-License-Identifier: Apache-2.0
"""The parser's complaints in words that help, with the place to look at. Called by `builder` for what is not YAML.

Bytes to text that the YAML parser can be trusted with, and the error that everything in this package raises.

Called by `documents.read` before anything is parsed: size, encoding, control characters, and what makes libyaml slow.

Single words of YAML to values, by kubectl's rules: 1.1 booleans, no base-60 numbers, times left as text.

Called by `builder` for every scalar. A word that has no value in JSON raises ValueError, whose text says what to do.

The parser's events to plain objects, in one pass that is bounded in depth and size. Called by `documents.read`.

Working on events instead of PyYAML's own constructor is what lets us refuse duplicate keys, foreign tags and expanding
aliases while they are met, and keep the line of every field: a tree of marks is built next to the tree of values.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml import AliasEvent, DocumentStartEvent, Event, ScalarEvent, SequenceStartEvent

from trainwright.errors import ManifestError

#: What libyaml says, in words that help.
_HELP = {
    "found character that cannot start any token": "nothing may begin with this character: indent with spaces, not "
    "tabs, and put text that begins with @, % or ` in quotes",
    "mapping values are not allowed in this context": "a second `: ` on one line, or a line that is indented too far; "
    "put text that contains `: ` in quotes",
    "did not find expected key": "this line does not fit the ones above it; check its indentation and quotes",
    "could not find expected ':'": "expected `key: value`; is a colon or a space after it missing?",
    "found a tab character that violates indentation": "indent with spaces, not tabs",
    "found unexpected end of stream": "the quotes that are opened here are never closed",
}


def explain(error: yaml.YAMLError) -> tuple[Any, str]:
    """The mark of the mistake, if there is one, and what to say about it."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, f"not valid YAML: {' '.join(str(error).split())}"
    problem = str(error.problem or error.context)
    # What was never closed is noticed at the end of the file; where it was opened is what people need.
    mark = error.context_mark if "end of stream" in problem else error.problem_mark
    return mark or error.problem_mark, f"not valid YAML: {_HELP.get(problem, problem)}"


#: Twice what an API server stores; a job is a few kilobytes.
LARGEST = 3 * 1024 * 1024
#: libyaml compares each %TAG line with all before it.
_MOST_DIRECTIVES = 16
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class MalformedError(ManifestError):
    """Text that is not a manifest: `where` is FILE[:LINE[:COLUMN]], `what` the reason.

    `document` counts from 1, as in `Document`; 0: the reason is not in one of the documents.
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
    """The text, if it is one."""
    if len(data) > LARGEST:
        raise MalformedError(file, f"larger than {LARGEST // 1024**2} MiB, which no manifest is")
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise MalformedError(file, "this is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(
            file, f"not UTF-8 text (byte 0x{data[error.start]:02x}); is this a manifest?", line
        ) from None
    return _clean(file, text)


def _clean(file: str, text: str) -> str:
    if (found := _UNPRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        what = f"control character U+{ord(found.group()):04X}, which YAML does not allow; is this a manifest?"
        raise MalformedError(file, what, line, column)
    if text.count("\n%") > _MOST_DIRECTIVES:
        raise MalformedError(file, f"more than {_MOST_DIRECTIVES} lines begin with `%`; is this a manifest?")
    return text


Scalar = str | int | float | bool | None

_CORE = "tag:yaml.org,2002:"
_SIGNS = frozenset("+-.0123456789")
_LONGEST_NUMBER = 100


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


def value_of(event: ScalarEvent) -> Scalar:
    """What a scalar means: by its tag if it has one, by its looks if it is neither tagged nor quoted."""
    text = str(event.value)
    if not text.isascii():
        text.encode()  # raises for half a surrogate pair, which PyYAML's own scanner lets pass
    if event.tag is None or event.tag == "!":
        return _plain(text) if event.implicit[0] else text
    wanted = _TAGS.get(event.tag.removeprefix(_CORE) if event.tag.startswith(_CORE) else "")
    if wanted is None:
        raise ValueError(foreign(event.tag))
    value = text if wanted == (str,) else _plain(text)
    if type(value) not in wanted:
        raise ValueError(f"{text[:60]!r} is not of the type that its tag !!{event.tag[len(_CORE) :]} gives it")
    return value


_TAGS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


def foreign(tag: str) -> str:
    """The message for a tag that is not one of YAML's own simple types."""
    return f"tag {tag.replace(_CORE, '!!')[:60]!r} is not allowed in a manifest"


def key_of(value: object) -> str:
    """A mapping's key, which JSON wants to be text; kubectl turns whole numbers and booleans into it."""
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
            raise ValueError("a key must be text, not a list or a mapping; `{{ }}` of an unfilled template looks so")


def _plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if not text or text[0] not in _SIGNS:
        return text
    if text in _NOT_JSON:
        raise ValueError(f"{text} is not a number that a manifest can hold; put it in quotes if it is text")
    return _number(text)


def _number(text: str) -> Scalar:
    digits = text.replace("_", "")
    whole = _INT.fullmatch(digits)
    if whole is None and not _FLOAT.fullmatch(digits):
        return text
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} characters is too long; put it in quotes if it is text")
    return _integer(*whole.groups()) if whole is not None else _fraction(text, float(digits))


def _integer(sign: str, hexa: str | None, binary: str | None, octal: str | None, decimal: str | None) -> int:
    digits, base = next((d, b) for d, b in ((hexa, 16), (binary, 2), (octal, 8), (decimal, 10)) if d is not None)
    value = int(sign + digits, base)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} does not fit in 64 bits; put it in quotes if it is text")
    return value


def _fraction(text: str, value: float) -> Scalar:
    """As it comes out of kubectl's way through JSON: 2.0 is 2 there, and what overflows stays text."""
    if abs(value) == float("inf"):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


DEEPEST = 64
#: Duplicate keys in one file that are reported one by one; the next one ends the reading.
_MOST_REPEATED = 100
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
        #: Keys that are given again in their mapping: the mark and the message of each. The last value counts.
        self.repeated: list[tuple[Any, str]] = []
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
        raise self.error(mark, what, self.number)

    def error(self, mark: Any, what: str, number: int) -> MalformedError:
        """What to say about this place in document `number`."""
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        return MalformedError(self.file, what, line, column, document=number)

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
            self._repeat(event.start_mark, f"key {key[:60]!r} is given twice, {both}")
        return key

    def _repeat(self, mark: Any, what: str) -> None:
        if len(self.repeated) == _MOST_REPEATED:
            self.fail(mark, what)
        self.repeated.append((mark, what))

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
