# SPDX-License-Identifier: Apache-2.0
"""The objects of a manifest file, each with the line of every field.

A `v1 List` is replaced by its items, as in kubectl. Every object must be a mapping.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.scalars import parts
from trainwright.manifest.builder import Builder, MalformedError, Mark, decoded
from trainwright.model.problem import shown


class Document(Struct, frozen=True):
    """One object of a file. `number` counts from 1; empty documents do not count."""

    file: str
    number: int
    body: dict[str, Any]
    mark: Mark
    #: The errors for duplicate keys in this object. `read` raises them; `examine` uses the last value of such a key.
    repeated: tuple[MalformedError, ...] = ()

    def line(self, path: str) -> int | None:
        """The line of the field at a path like `spec.replicaSpecs[0].type`, or of the nearest field around it."""
        line, inner = self.mark
        for part in parts(path):
            if not _has(inner, part):
                break
            line, inner = inner[part]
        return line


def read(file: str, text: bytes) -> tuple[Document, ...]:
    """All documents of a file. Raises the first MalformedError; its message is one line."""
    found: list[Document] = []
    for part in examine(file, text):
        for error in errors_of(part):
            raise error
        if isinstance(part, Document):
            found.append(part)
    return tuple(found)


def errors_of(part: Document | MalformedError) -> tuple[MalformedError, ...]:
    """The errors of a part that `examine` yields: the part itself, or the errors for duplicate keys of a document."""
    return part.repeated if isinstance(part, Document) else (part,)


def examine(file: str, text: bytes) -> Iterator[Document | MalformedError]:
    """All parts of a file in the order of their lines: documents, and an error for each part that is not a document.

    The reader cannot continue after text that is not YAML, so the error for it is the last part.
    """
    builder: Builder | None = None
    try:
        builder = Builder(file, decoded(file, text))
        for body, mark in builder.documents():
            yield from _with_repeated(builder, _numbered(builder, body, mark))
    except MalformedError as error:
        if builder is not None:
            yield from _with_repeated(builder, [])
        yield error
        return
    if builder.number == 1:
        yield MalformedError(file, "the file has no documents; a manifest begins with `apiVersion:` and `kind:`")


def _numbered(builder: Builder, body: Any, mark: Mark) -> list[Document | MalformedError]:
    """The objects of one YAML document, with their numbers."""
    found: list[Document | MalformedError] = []
    for part in _objects(builder, body, mark):
        found.append(part if isinstance(part, MalformedError) else Document(builder.file, builder.number, *part))
        builder.number += 1
    return found


def _with_repeated(builder: Builder, found: list[Document | MalformedError]) -> Iterator[Document | MalformedError]:
    """The objects of one YAML document, each with the errors for its duplicate keys."""
    repeated, builder.repeated = builder.repeated, []
    for position, part in enumerate(found):
        is_last = position + 1 == len(found)
        end = (
            len(repeated) if is_last else sum(mark.line + 1 < _first_line(found[position + 1]) for mark, _ in repeated)
        )
        number = part.number if isinstance(part, Document) else part.document
        errors = tuple(builder.error(mark, what, number) for mark, what in repeated[:end])
        repeated = repeated[end:]
        if isinstance(part, Document):
            yield replace(part, repeated=errors)
        else:
            yield from (*errors, part)
    yield from (builder.error(mark, what, builder.number) for mark, what in repeated)


def _first_line(part: Document | MalformedError) -> int:
    return (part.mark[0] if isinstance(part, Document) else part.line) or 0


def _objects(builder: Builder, body: Any, mark: Mark) -> Iterator[tuple[dict[str, Any], Mark] | MalformedError]:
    """The object itself, or the items of a List."""
    line, inner = mark
    if not isinstance(body, dict):
        what = f"expected a mapping that begins with `apiVersion:`, found {shown(body)}"
        yield MalformedError(builder.file, what, line, document=builder.number)
        return
    if body.get("apiVersion") != "v1" or body.get("kind") != "List":
        yield body, mark
        return
    items = body.get("items") or []
    if not isinstance(items, list):
        what = "`items` of a List must be a list"
        yield MalformedError(builder.file, what, inner["items"][0], document=builder.number)
        return
    for item, item_mark in zip(items, inner["items"][1] if items else (), strict=True):
        yield from _objects(builder, item, item_mark)


def _has(inner: Any, part: str | int) -> bool:
    if isinstance(inner, list):
        return isinstance(part, int) and part < len(inner)
    return isinstance(inner, dict) and part in inner
