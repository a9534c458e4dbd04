# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a Secret or a ConfigMap. `admission` refuses it; `run` says it, with the line, before that."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from typing import Any

from trainwright.kinds.paths import under
from trainwright.model.job import Body
from trainwright.model.problem import Problem, shown

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def problems(body: Body) -> Iterator[Problem]:
    """All that is wrong with what it holds."""
    if body.get("kind") == "Secret":
        yield from _texts(body.get("stringData"), "stringData")
        yield from _base64(body.get("data"), "data")
    elif body.get("kind") == "ConfigMap":
        yield from _texts(body.get("data"), "data")
        yield from _base64(body.get("binaryData"), "binaryData")


def misnamed(body: Body) -> Iterator[Problem]:
    """What is wrong with its name."""
    name = (body.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        yield Problem("metadata.name", "missing; expected a name")
    elif not _NAME.fullmatch(name):
        expected = "expected lower-case letters, digits, `-` and `.`, with a letter or digit at both ends"
        yield Problem("metadata.name", f"{name[:60]!r} cannot be a name; {expected}, at most 253")


def _texts(data: Any, path: str) -> Iterator[Problem]:
    """Everything that is not a text under a key that can be a file's name."""
    if data is None:
        return
    if not isinstance(data, dict):
        yield Problem(path, f"expected a mapping, found {shown(data)}")
        return
    for key, value in data.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            yield Problem(under(path, str(key)), "a key may have letters, digits, `-`, `_` and `.`")
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            yield Problem(under(path, str(key)), f"expected text, found {shown(value)}{quotes}")


def _base64(data: Any, path: str) -> Iterator[Problem]:
    yield from _texts(data, path)
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, str) and not _decodes(value):
            message = "expected text in base64; `stringData` takes it as it is"
            yield Problem(under(path, str(key)), message if path == "data" else "expected text in base64")


def _decodes(text: str) -> bool:
    try:
        b64decode("".join(text.split()), validate=True)
    except (NotBase64, ValueError):
        return False
    return True
