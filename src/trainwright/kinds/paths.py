# SPDX-License-Identifier: Apache-2.0
"""How the place of a field is written: `spec.replicaSpecs[0].type`, `metadata.labels["a/b"]`.

`decode` and `template` write such paths into problems; `manifest` takes them apart again to find the line.
"""

import re

import msgspec

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PART = re.compile(r'\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]|\.?([^.\[\]"]+)')
#: A longer key is cut: a path is for reading.
_LONGEST = 80


def under(path: str, key: str) -> str:
    """The path of a key of the mapping at `path`."""
    key = key if len(key) <= _LONGEST else key[: _LONGEST - 3] + "..."
    if not _WORD.fullmatch(key):
        return f"{path}[{msgspec.json.encode(key).decode()}]"
    return f"{path}.{key}" if path else key


def item(path: str, index: int) -> str:
    """The path of an entry of the list at `path`."""
    return f"{path}[{index}]"


def parts(path: str) -> tuple[str | int, ...]:
    """The keys and indexes that lead to a path; what cannot be read as one ends it."""
    found: list[str | int] = []
    at = 0
    while (match := _PART.match(path, at)) is not None:
        index, quoted, word = match.groups()
        found.append(int(index) if index else msgspec.json.decode(quoted, type=str) if quoted else word)
        at = match.end()
    return tuple(found)
