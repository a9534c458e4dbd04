# SPDX-License-Identifier: Apache-2.0
"""`--set PATH=VALUE`: edits of a manifest before it is judged. Called by `intake` for every job.

A path is written as problems write it, `spec.replicaSpecs[0].replicas`; an entry of a list may also be called by its
type or name, `spec.replicaSpecs[worker]`. Keys that are not there yet are made; the check that follows knows them all.
"""

import re
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.errors import UsageError
from trainwright.kinds.scalars import under
from trainwright.manifest import MalformedError
from trainwright.manifest.builder import Builder
from trainwright.model.job import Body
from trainwright.model.problem import nearest, shown

_PART = re.compile(
    r'\[(?:(?P<index>\d{1,6})|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>[^\]"=]+))\]|\.?(?P<key>[^.\[\]"=]+)'
)
#: What entries of lists are called by.
_NAMES = ("type", "name")


class EntryName(str):
    """The name of a list's entry, as opposed to a mapping's key."""

    __slots__ = ()


class FieldEdit(Struct, frozen=True):
    """One edit: the way to a field, and what to put there; None takes it away."""

    text: str
    path: str
    way: tuple[str | int | EntryName, ...]
    value: Any


def parse(text: str) -> FieldEdit:
    """`spec.cleanUpPolicy=All`. Raises UsageError."""
    way: list[str | int | EntryName] = []
    at = 0
    while (match := _PART.match(text, at)) is not None:
        way.append(_step(match))
        at = match.end()
    if not way or text[at : at + 1] != "=":
        raise UsageError(
            f"--set {text}: expected PATH=VALUE with a path such as spec.replicaSpecs[0].replicas"
            + (f"; this one cannot be read from {text[at : at + 20]!r} on" if way and at < len(text) else "")
        )
    return FieldEdit(text, text[:at], tuple(way), _value(text, text[at + 1 :]))


def _step(match: re.Match[str]) -> str | int | EntryName:
    if match["index"]:
        return int(match["index"])
    if match["quoted"]:
        return msgspec.json.decode(match["quoted"], type=str)
    return EntryName(match["word"]) if match["word"] else match["key"]


def _value(whole: str, text: str) -> Any:
    """What the text means in YAML; no text is empty text, `null` takes the field away."""
    if not text:
        return ""
    try:
        builder = Builder("VALUE", text)
        values = [value for value, _ in builder.documents()]
        for mark, what in builder.repeated:
            builder.fail(mark, what)
    except MalformedError as error:
        raise UsageError(f"--set {whole}: the value is {error.what}") from None
    if len(values) > 1:
        raise UsageError(f"--set {whole}: the value is {len(values)} documents; expected one")
    return values[0] if values else None


def apply(document: Body, change: FieldEdit) -> Body:
    """The document with the edit; the old one is left alone. Raises UsageError where the way leads nowhere."""
    edited: Body = _put(document, change, 0, "")
    return edited


def where(document: Body, change: FieldEdit) -> tuple[str | int, ...]:
    """The way of an edit that was made, with the entries of lists by their number."""
    node: Any = document
    way: list[str | int] = []
    for depth, step in enumerate(change.way):
        if isinstance(node, list):
            place = _place(node, change, depth, "")
            way.append(place)
            node = node[place]
        else:
            way.append(step)
            node = node.get(step) if isinstance(node, dict) else None
    return tuple(way)


def _put(node: Any, change: FieldEdit, depth: int, path: str) -> Any:
    if depth == len(change.way):
        return change.value
    step = change.way[depth]
    last = depth + 1 == len(change.way)
    if isinstance(step, int | EntryName):
        return _in_list(node, change, depth, path)
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise _nowhere(change, f"{path or 'the document'} is {shown(node)}, which has no key {step!r}")
    if last and change.value is None:
        return {key: value for key, value in node.items() if key != step}
    if step not in node and not last and isinstance(change.way[depth + 1], int | EntryName):
        raise _nowhere(change, f"{path or 'the document'} has no {step!r}; it has {_some(node)}", step, node)
    return node | {step: _put(node.get(step), change, depth + 1, under(path, step))}


def _in_list(node: Any, change: FieldEdit, depth: int, path: str) -> Any:
    if not isinstance(node, list):
        raise _nowhere(change, f"{path} is {shown(node)}, not a list")
    place = _place(node, change, depth, path)
    if depth + 1 == len(change.way) and change.value is None:
        return node[:place] + node[place + 1 :]
    new = _put(node[place], change, depth + 1, f"{path}[{place}]")
    return [*node[:place], new, *node[place + 1 :]]


def _place(node: list[Any], change: FieldEdit, depth: int, path: str) -> int:
    step = change.way[depth]
    if isinstance(step, int):
        if step < len(node):
            return step
        raise _nowhere(
            change,
            f"{path} has {len(node)} {'entry' if len(node) == 1 else 'entries'}, counted from 0; there is no [{step}]",
        )
    names = [next((one[key] for key in _NAMES if key in one), None) for one in node if isinstance(one, dict)]
    if step in names:
        return names.index(step)
    texts = [name for name in names if isinstance(name, str)]
    raise _nowhere(change, f"{path} has no entry called {step!r}; it has {', '.join(texts) or 'none'}", step, texts)


def _nowhere(change: FieldEdit, why: str, word: str = "", known: Any = ()) -> UsageError:
    meant = nearest(word, known) if word else ""
    return UsageError(f"--set {change.text}: {why}" + (f"; did you mean `{meant}`?" if meant else ""))


def _some(node: Body) -> str:
    return ", ".join(list(node)[:12]) or "nothing"
