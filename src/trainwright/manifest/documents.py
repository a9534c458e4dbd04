# SPDX-License-Identifier: Apache-2.0
"""The objects of a manifest file, each with the line of every field.

A `v1 List` is replaced by its items, as in kubectl. Every object must be a mapping.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.kinds.scalars import parts
from trainwright.manifest.builder import Builder, MalformedError, Mark, decoded
from trainwright.model.problem import shown


class Document(Struct, frozen=True):
    """One object of a file. `number` counts from 1 without empty documents."""

    file: str
    number: int
    body: dict[str, Any]
    mark: Mark

    def line(self, path: str) -> int | None:
        """The line of the field at a path like `spec.replicaSpecs[0].type`, or of the nearest field around it."""
        line, inner = self.mark
        for part in parts(path):
            if not _has(inner, part):
                break
            line, inner = inner[part]
        return line


def read(file: str, text: bytes) -> tuple[Document, ...]:
    """All documents of a file. Raises a MalformedError with a text of one line."""
    builder = Builder(file, decoded(file, text))
    objects: list[tuple[dict[str, Any], Mark]] = []
    for body, mark in builder.documents():
        for found in _objects(builder, body, mark):
            objects.append(found)
            builder.number = len(objects) + 1
    if not objects:
        raise MalformedError(file, "the file has no documents; a manifest begins with `apiVersion:` and `kind:`")
    return tuple(Document(file, number, body, mark) for number, (body, mark) in enumerate(objects, 1))


def _objects(builder: Builder, body: Any, mark: Mark) -> Iterator[tuple[dict[str, Any], Mark]]:
    """The object itself, or the items of a List."""
    line, inner = mark
    if not isinstance(body, dict):
        what = f"expected a mapping that begins with `apiVersion:`, found {shown(body)}"
        raise MalformedError(builder.file, what, line, document=builder.number)
    if body.get("apiVersion") != "v1" or body.get("kind") != "List":
        yield body, mark
        return
    items = body.get("items") or []
    if not isinstance(items, list):
        what = "`items` of a List must be a list"
        raise MalformedError(builder.file, what, inner["items"][0], document=builder.number)
    for item, item_mark in zip(items, inner["items"][1] if items else (), strict=True):
        yield from _objects(builder, item, item_mark)


def _has(inner: Any, part: str | int) -> bool:
    if isinstance(inner, list):
        return isinstance(part, int) and part < len(inner)
    return isinstance(inner, dict) and part in inner
