# SPDX-License-Identifier: Apache-2.0
"""Documents: the objects of a manifest file, each with the line of every field. The command line's way in.

A `v1 List` is taken apart into its items, as kubectl does; whatever is left must be a mapping.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainwright.kinds.scalars import parts
from trainwright.manifest.builder import Builder, MalformedError, Mark, decoded
from trainwright.model.problem import shown


class Document(Struct, frozen=True):
    """One object of a file; `number` counts from 1 and skips empty documents."""

    file: str
    number: int
    body: dict[str, Any]
    mark: Mark
    #: Its duplicate keys. `read` refuses them; after `examine` the last value of such a key counts.
    repeated: tuple[MalformedError, ...] = ()

    def line(self, path: str) -> int | None:
        """The line of the field at a path such as `spec.replicaSpecs[0].type`, or of the nearest one around it."""
        line, inner = self.mark
        for part in parts(path):
            if not _has(inner, part):
                break
            line, inner = inner[part]
        return line


def read(file: str, text: bytes) -> tuple[Document, ...]:
    """All documents of a file. Raises ManifestError, with one complete line of text."""
    found: list[Document] = []
    for each in examine(file, text):
        for error in errors_of(each):
            raise error
        if isinstance(each, Document):
            found.append(each)
    return tuple(found)


def errors_of(each: Document | MalformedError) -> tuple[MalformedError, ...]:
    """Why one part of what `examine` yields is no manifest; empty if it is one."""
    return each.repeated if isinstance(each, Document) else (each,)


def examine(file: str, text: bytes) -> Iterator[Document | MalformedError]:
    """Everything in a file, in line order: its documents, and an error for each part that is none.

    Text that is not YAML ends the file: the error for it is the last.
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
        yield MalformedError(file, "no documents in it; a manifest begins with `apiVersion:` and `kind:`")


def _numbered(builder: Builder, body: Any, mark: Mark) -> list[Document | MalformedError]:
    """The objects in one YAML document, with their numbers."""
    found: list[Document | MalformedError] = []
    for each in _objects(builder, body, mark):
        found.append(each if isinstance(each, MalformedError) else Document(builder.file, builder.number, *each))
        builder.number += 1
    return found


def _with_repeated(builder: Builder, found: list[Document | MalformedError]) -> Iterator[Document | MalformedError]:
    """The objects in one YAML document, each with the duplicate keys that are in it."""
    repeated, builder.repeated = builder.repeated, []
    for place, each in enumerate(found):
        last = place + 1 == len(found)
        end = len(repeated) if last else sum(mark.line + 1 < _first_line(found[place + 1]) for mark, _ in repeated)
        number = each.number if isinstance(each, Document) else each.document
        errors = tuple(builder.error(mark, what, number) for mark, what in repeated[:end])
        repeated = repeated[end:]
        if isinstance(each, Document):
            yield replace(each, repeated=errors)
        else:
            yield from (*errors, each)
    yield from (builder.error(mark, what, builder.number) for mark, what in repeated)


def _first_line(each: Document | MalformedError) -> int:
    return (each.mark[0] if isinstance(each, Document) else each.line) or 0


def _objects(builder: Builder, body: Any, mark: Mark) -> Iterator[tuple[dict[str, Any], Mark] | MalformedError]:
    """The object itself, or the items of a list of objects."""
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
    for item, place in zip(items, inner["items"][1] if items else (), strict=True):
        yield from _objects(builder, item, place)


def _has(inner: Any, part: str | int) -> bool:
    if isinstance(inner, list):
        return isinstance(part, int) and part < len(inner)
    return isinstance(inner, dict) and part in inner
