# SPDX-License-Identifier: Apache-2.0
"""What replicas print, made fit for a screen or a line of text. Called by `tail` for every line, so it must be quick.

A log may hold anything: escape sequences that move the cursor or retitle the terminal, progress bars, bytes that are no
text. Colours may stay where they are shown; whatever would wreck the screen is dropped.
"""

import re

# The whole of a sequence, also one that was cut off by the end of the line: its tail must not be shown as text.
_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI: cursor, colours, modes
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS and their like: titles, clipboards
    r"|[ -/]*(?:[0-~]|$)"  # two characters
    r")"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: C0 but tab, DEL, C1, and what turns text around or hides it.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_TAB = 8


def line(text: str) -> str:
    """One line, without sequences and control characters; a bar that redraws itself is shown as it last was."""
    if text.isprintable():
        return text
    text = last_state(text)
    if "\x1b" in text:
        text = _SEQUENCE.sub("", text)
    return _CONTROL.sub("", text).expandtabs(_TAB)


def coloured(text: str) -> str:
    """The same, but colours stay, and end with the line."""
    if text.isprintable() or "\x1b[" not in text:
        return line(text)
    text = _SEQUENCE.sub(_only_colour, last_state(text))
    head, *rest = text.split("\x1b")
    parts = (f"\x1b{_split(part)}" for part in rest)
    return _CONTROL.sub("", head) + "".join(parts) + "\x1b[0m"


def _only_colour(match: re.Match[str]) -> str:
    return match[0] if _COLOUR.fullmatch(match[0]) else ""


def _split(part: str) -> str:
    """A colour as it is, and the text behind it cleaned; all that follows an escape here begins with a colour."""
    end = part.index("m") + 1
    return part[:end] + _CONTROL.sub("", part[end:])


def last_state(text: str) -> str:
    """What stays visible of a line that returns to its beginning."""
    if "\r" not in text:
        return text
    return next((state for state in reversed(text.split("\r")) if state), "")
