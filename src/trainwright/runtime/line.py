# SPDX-License-Identifier: Apache-2.0
"""One line of a log: a text that is always the same, and what it is about as named values.

The machinery hands these to the standard library's loggers. Whoever formats a log may take the values apart
(`cli.journal` does, for the operator); anybody else gets them behind the text, as `key=value`.
"""

import re
from typing import Any

import msgspec

#: What needs no quotes.
_PLAIN = re.compile(r"[^\s\"=\\]+")


class Line:
    """What `logging` calls a message."""

    __slots__ = ("about", "text")

    def __init__(self, text: str, /, **about: Any) -> None:
        self.text = text
        self.about = about

    def __str__(self) -> str:
        return " ".join((self.text, *(f"{key}={word(value)}" for key, value in self.about.items())))


def word(value: Any) -> str:
    """A value as one word, in quotes where it needs them; nothing in it can begin a line."""
    text = str(value)
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()
    quoted = msgspec.json.encode(text).decode()
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in quoted)


def _escaped(letter: str) -> str:
    """What JSON need not escape and a terminal should not see."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
