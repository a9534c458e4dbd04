# SPDX-License-Identifier: Apache-2.0
"""JSON patches (RFC 6902), with the deviations of a Kubernetes API server that clients can see.

As there, `replace` may set a member that does not exist, negative indexes count from the end of a list, and members
that are null in the result are not stored. Unlike there, `copy` needs a source that exists, and a path must begin with
`/`: the API server would write null, or ignore the first part of the path.

The target is not changed. The result shares the parts that no operation changes.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from trainwright.api.untrusted import check_levels, shown
from trainwright.errors import BadRequestError, InvalidError, TooLargeError
from trainwright.local.storage.metadata import same, without_nulls
from trainwright.model.job import Body

MAX_OPERATIONS = 10_000
#: All values that `copy` operations of one patch duplicate, as JSON. Without a limit, 30 copies make a document of
#: gigabytes, because each can double it.
MAX_COPIED_BYTES = 3 * 1024 * 1024
_INDEX = re.compile(r"[+-]?[0-9]{1,18}")
_EXPECTED = "expected a list of operations such as [{'op': 'replace', 'path': '/metadata/labels/a', 'value': 'b'}]"
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class PatchError(InvalidError):
    """The patch does not apply to this object, or one of its operations is not valid."""


def apply_json_patch(target: Body, operations: Any) -> Body:
    """The target after all operations; the target itself if they change nothing. One bad operation refuses all.

    Raises BadRequestError if this is not a list of operations, TooLargeError for too many operations, and PatchError
    for the first operation that fails.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise BadRequestError(f"the body is not a JSON patch; {_EXPECTED}")
    if len(operations) > MAX_OPERATIONS:
        raise TooLargeError(f"the JSON patch has {len(operations):,} operations; {MAX_OPERATIONS:,} are allowed")
    draft = _Draft(target)
    for index, operation in enumerate(operations):
        _apply(draft, index, operation)
    if not isinstance(draft.root, dict):
        raise PatchError("the result of the JSON patch is not an object")
    if draft.root is not target:
        check_levels(draft.root, "the result of the JSON patch")
    result: Body = without_nulls(draft.root)
    return target if same(target, result) else result


def _apply(draft: "_Draft", index: int, operation: Body) -> None:
    name = operation.get("op")
    apply = _OPERATIONS.get(name) if isinstance(name, str) else None
    if apply is None:
        raise PatchError(f"operation {index}: op is {shown(name)}; expected one of {', '.join(_OPERATIONS)}")
    try:
        apply(draft, operation)
    except PatchError as error:
        raise PatchError(f"operation {index}, {name}: {error}") from None
    except RecursionError:
        raise PatchError(f"operation {index}, {name}: the value is nested too deep") from None


class _Draft:
    """A document that operations change. It copies each container once, before the first change inside of it."""

    def __init__(self, target: Body) -> None:
        self.root: Any = target
        self.copied_bytes = 0
        #: The containers that belong to the draft alone. They are kept, so that no other object can get their id.
        self._owned: dict[int, Any] = {}

    def parent(self, path: list[str], text: str) -> Any:
        """The container of the last part of the path, to read."""
        part = self.root
        for name in path[:-1]:
            part = _member(part, name, text)
        return _container(part, text)

    def writable_parent(self, path: list[str], text: str) -> Any:
        """The same container, to change. The containers above it are copied, too, if the draft does not own them."""
        self.parent(path, text)  # refuses a wrong path before anything is copied
        self.root = part = self._own(self.root)
        for name in path[:-1]:
            key = _position(part, name, text) if isinstance(part, list) else name
            part[key] = self._own(part[key])
            part = part[key]
        return part

    def _own(self, container: Any) -> Any:
        if id(container) in self._owned:
            return container
        copy = container.copy()
        self._owned[id(copy)] = copy
        return copy


def _container(part: Any, text: str) -> Any:
    if not isinstance(part, dict | list):
        raise PatchError(f"path {shown(text)} does not exist")
    return part


def _member(container: Any, name: str, text: str) -> Any:
    """One member of a map or one item of a list; PatchError if it does not exist."""
    if isinstance(container, list):
        return container[_position(container, name, text)]
    if not isinstance(container, dict) or name not in container:
        raise PatchError(f"path {shown(text)} does not exist")
    return container[name]


def _position(container: list[Any], name: str, text: str, extra: int = 0) -> int:
    """The index of an item that exists. With `extra` 1 the index may also be the one after the last item."""
    size = len(container) + extra
    index = int(name) if _INDEX.fullmatch(name) else None
    if index is None or not -size <= index < size:
        raise PatchError(f"path {shown(text)}: the list has {len(container)} items, and no index {shown(name)}")
    return index % size


# -- the operations -----------------------------------------------------------------------------------------------


def _test(draft: _Draft, operation: Body) -> None:
    path, text = _pointer(operation, "path")
    expected = operation.get("value")
    if not path:
        found = draft.root
    else:
        parent = draft.parent(path, text)
        found = parent.get(path[-1]) if isinstance(parent, dict) else _member(parent, path[-1], text)
    if not same(found, expected):
        raise PatchError(f"the value at {shown(text)} is not the expected one")


def _add(draft: _Draft, operation: Body) -> None:
    path, text = _pointer(operation, "path", root=False)
    _insert(draft, path, text, operation.get("value"))


def _insert(draft: _Draft, path: list[str], text: str, value: Any) -> None:
    parent, name = draft.writable_parent(path, text), path[-1]
    if isinstance(parent, dict):
        parent[name] = value
    elif name == "-":
        parent.append(value)
    else:
        parent.insert(_position(parent, name, text, extra=1), value)


def _replace(draft: _Draft, operation: Body) -> None:
    path, text = _pointer(operation, "path")
    value = operation.get("value")
    if not path:
        draft.root = value
        return
    parent, name = draft.writable_parent(path, text), path[-1]
    parent[_position(parent, name, text) if isinstance(parent, list) else name] = value


def _remove(draft: _Draft, operation: Body) -> None:
    path, text = _pointer(operation, "path", root=False)
    _take(draft, path, text)


def _take(draft: _Draft, path: list[str], text: str) -> Any:
    """Remove a value and return it."""
    parent, name = draft.writable_parent(path, text), path[-1]
    if isinstance(parent, list):
        return parent.pop(_position(parent, name, text))
    if name not in parent:
        raise PatchError(f"path {shown(text)} does not exist")
    return parent.pop(name)


def _move(draft: _Draft, operation: Body) -> None:
    source, source_text = _pointer(operation, "from", root=False)
    path, text = _pointer(operation, "path", root=False)
    _insert(draft, path, text, _take(draft, source, source_text))


def _copy(draft: _Draft, operation: Body) -> None:
    source, source_text = _pointer(operation, "from", root=False)
    path, text = _pointer(operation, "path", root=False)
    encoded = _encode(_member(draft.parent(source, source_text), source[-1], source_text))
    draft.copied_bytes += len(encoded)
    if draft.copied_bytes > MAX_COPIED_BYTES:
        raise PatchError(f"the copies of this patch have more than {MAX_COPIED_BYTES:,} bytes")
    # The copy must not share containers that the draft owns: a later operation may change one of the two.
    _insert(draft, path, text, _decode(encoded))


def _pointer(operation: Body, member: str, *, root: bool = True) -> tuple[list[str], str]:
    """A JSON pointer (RFC 6901) as its parts and as text. It is empty for the whole document, if that is allowed."""
    text = operation.get(member)
    if not isinstance(text, str):
        raise PatchError(f"{member!r} is {shown(text)}; expected a path such as '/metadata/labels/a'")
    if not text and root:
        return [], text
    if not text.startswith("/"):
        raise PatchError(f"{member!r} is {shown(text)}; expected a path that begins with `/`")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")], text


_OPERATIONS: dict[str, Callable[[_Draft, Body], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
