# SPDX-License-Identifier: Apache-2.0
"""What a version's schema writes into a manifest that does not say it: the same values, where there is no API server.

`base.stored` calls it. A document may be of any shape still; what has not the shape for a default gets none.
"""

from collections.abc import Mapping
from typing import Any

from trainwright.model.job import Body


def stamped(document: Body, stamps: Mapping[str, str]) -> Body:
    """The document with these defaults where it says nothing (or null); shared where nothing differs."""
    for path, value in stamps.items():
        document = _stamped(document, path.split("."), value)
    return document


def _stamped(part: Any, steps: list[str], value: str) -> Any:
    """A mapping with the default at the end of the steps."""
    if not isinstance(part, dict):
        return part
    step, *rest = steps
    changed: Body = {}
    for key in part if step == "*" else (step,):
        before = part.get(key)
        after = value if not rest and before is None else before
        if rest:
            # The object right around a default is made for it; larger parts, and entries of mappings, are the user's.
            made = before is None and len(rest) == 1 and step != "*"
            after = _stamped({} if made else before, rest, value)
        if after is not before:
            changed[key] = after
    return part | changed if changed else part
