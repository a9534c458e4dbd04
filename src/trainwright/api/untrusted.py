# SPDX-License-Identifier: Apache-2.0
"""Values that clients send: how deep they may be nested, and how an error shows them.

A limit on the nesting protects every recursive function that reads a body later. A value of any size or depth can be
given to `check_levels` and `shown`.
"""

import reprlib
from typing import Any

from trainwright.errors import InvalidError

#: A pod has about 12 levels; the deepest job about 20.
MAX_LEVELS = 64
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring = 3, 3, 3, 200


def shown(value: Any) -> str:
    """The value for an error message: as `repr` writes it, but short, and without recursion into deep values."""
    return _SHORT.repr(value)


def check_levels(value: Any, what: str) -> None:
    """Raise InvalidError if maps and lists are nested in more than MAX_LEVELS levels."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [child for part in level for child in _children(part)]
        if not level:
            return
    raise InvalidError(f"{what}: nested in more than {MAX_LEVELS} levels")


def _children(part: Any) -> list[Any]:
    """The maps and lists that are direct members of a map or a list."""
    if isinstance(part, dict):
        return [child for child in part.values() if isinstance(child, dict | list)]
    if isinstance(part, list):
        return [child for child in part if isinstance(child, dict | list)]
    return []
