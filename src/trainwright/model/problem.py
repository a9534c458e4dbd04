# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a manifest, as values: path, found value, expected value, nearest valid value."""

from collections.abc import Iterable
from difflib import get_close_matches

from msgspec import Struct


class Problem(Struct, frozen=True, gc=False, order=True):
    """One problem. Warnings do not stop a job."""

    path: str
    message: str
    nearest: str = ""
    warning: bool = False

    def __str__(self) -> str:
        hint = f"; did you mean `{self.nearest}`?" if self.nearest else ""
        return f"{self.path or '(document)'}: {self.message}{hint}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, or an empty text."""
    if len(word) > 128:
        return ""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else ""


def shown(value: object) -> str:
    """Return a value as errors show it: short and on one line."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case str():
            text = value if len(value) <= 60 else value[:57] + "..."
            return f"the text {text!r}"
        case int() | float():
            text = str(value) if not isinstance(value, int) or abs(value) < 10**40 else "a very large number"
            return f"the number {text}"
        case dict():
            return f"a mapping with {len(value)} key{'s' * (len(value) != 1)}"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return f"a {type(value).__name__}"
