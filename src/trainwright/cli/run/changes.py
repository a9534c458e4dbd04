# SPDX-License-Identifier: Apache-2.0
"""`--set PATH=VALUE`: edit a manifest before it is checked.

A path has the same form as in messages about problems, for example `spec.replicaSpecs[0].replicas`. The type or name of
a list entry can replace its index: `spec.replicaSpecs[worker]`. Missing keys are created; later, the check of the
manifest refuses unknown keys.
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
#: The keys whose value can select an entry of a list.
_NAME_KEYS = ("type", "name")


class EntryName(str):
    """The name that selects an entry of a list. (A plain `str` is a key of a mapping.)"""

    __slots__ = ()


class FieldEdit(Struct, frozen=True):
    """One edit: the path to a field, and its new value; None removes the field."""

    text: str
    path: str
    steps: tuple[str | int | EntryName, ...]
    value: Any


def parse(text: str) -> FieldEdit:
    """Read an edit such as `spec.cleanUpPolicy=All`. Raises UsageError."""
    steps: list[str | int | EntryName] = []
    at = 0
    while (match := _PART.match(text, at)) is not None:
        steps.append(_step(match))
        at = match.end()
    if not steps or text[at : at + 1] != "=":
        raise UsageError(
            f"--set {text}: expected PATH=VALUE with a path such as spec.replicaSpecs[0].replicas"
            + (f"; the path is wrong from {text[at : at + 20]!r} on" if steps and at < len(text) else "")
        )
    return FieldEdit(text, text[:at], tuple(steps), _value(text, text[at + 1 :]))


def _step(match: re.Match[str]) -> str | int | EntryName:
    if match["index"]:
        return int(match["index"])
    if match["quoted"]:
        return msgspec.json.decode(match["quoted"], type=str)
    return EntryName(match["word"]) if match["word"] else match["key"]


def _value(whole: str, text: str) -> Any:
    """The value of a YAML text. An empty text is an empty string, and `null` removes the field."""
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
    """A copy of the document with the edit. Raises UsageError if the path does not exist."""
    edited: Body = _replace(document, change, 0, "")
    return edited


def where(document: Body, change: FieldEdit) -> tuple[str | int, ...]:
    """The path of an applied edit, with the index of each list entry instead of its name."""
    node: Any = document
    path: list[str | int] = []
    for depth, step in enumerate(change.steps):
        if isinstance(node, list):
            index = _index(node, change, depth, "")
            path.append(index)
            node = node[index]
        else:
            path.append(step)
            node = node.get(step) if isinstance(node, dict) else None
    return tuple(path)


def _replace(node: Any, change: FieldEdit, depth: int, path: str) -> Any:
    if depth == len(change.steps):
        return change.value
    step = change.steps[depth]
    last = depth + 1 == len(change.steps)
    if isinstance(step, int | EntryName):
        return _replace_entry(node, change, depth, path)
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise _no_such_path(change, f"{path or 'the document'} is {shown(node)}, which has no key {step!r}")
    if last and change.value is None:
        return {key: value for key, value in node.items() if key != step}
    if step not in node and not last and isinstance(change.steps[depth + 1], int | EntryName):
        raise _no_such_path(
            change,
            f"{path or 'the document'} has no {step!r}; it has {', '.join(list(node)[:12]) or 'nothing'}",
            step,
            node,
        )
    return node | {step: _replace(node.get(step), change, depth + 1, under(path, step))}


def _replace_entry(node: Any, change: FieldEdit, depth: int, path: str) -> Any:
    if not isinstance(node, list):
        raise _no_such_path(change, f"{path} is {shown(node)}, not a list")
    index = _index(node, change, depth, path)
    if depth + 1 == len(change.steps) and change.value is None:
        return node[:index] + node[index + 1 :]
    new = _replace(node[index], change, depth + 1, f"{path}[{index}]")
    return [*node[:index], new, *node[index + 1 :]]


def _index(node: list[Any], change: FieldEdit, depth: int, path: str) -> int:
    step = change.steps[depth]
    if isinstance(step, int):
        if step < len(node):
            return step
        entries = "entry" if len(node) == 1 else "entries"
        raise _no_such_path(change, f"{path} has {len(node)} {entries}, counted from 0; there is no [{step}]")
    names = [next((one[key] for key in _NAME_KEYS if key in one), None) for one in node if isinstance(one, dict)]
    if step in names:
        return names.index(step)
    texts = [name for name in names if isinstance(name, str)]
    raise _no_such_path(
        change, f"{path} has no entry with the name {step!r}; it has {', '.join(texts) or 'none'}", step, texts
    )


def _no_such_path(change: FieldEdit, why: str, word: str = "", known: Any = ()) -> UsageError:
    meant = nearest(word, known) if word else ""
    return UsageError(f"--set {change.text}: {why}" + (f"; did you mean `{meant}`?" if meant else ""))
