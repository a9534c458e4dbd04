# SPDX-License-Identifier: Apache-2.0
"""Find the line of a program's output that shows why it failed.

A sign is a known pattern of an error. The last line with a sign counts, because the last error that a program reports
is usually the one that ends it. There are four exceptions: errors that Python ignores, lines that only report the
failure of another process, an error that another error caused, and the output of several ranks in one log, in which
the first rank counts whose failure is not a consequence of another one.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from trainwright.core.signs import EXCEPTION, SIGNS, WORDS, Sign
from trainwright.model.verdict import FailureClass

#: Longest line that a diagnosis quotes, in characters.
LONGEST_LINE = 300
#: Classes that usually follow from the failure of another replica.
CONSEQUENCES = frozenset({FailureClass.RENDEZVOUS, FailureClass.NAME_RESOLUTION})

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: What launchers put before each line of a rank: `[rank1]: `, `[default1]:`, `[1,31]<stderr>:`.
_RANK = re.compile(r"^\[(?:rank|default|\d+,)(\d+)\](?:<\w+>)?:? ?")
#: What Python draws before the lines of an exception group.
_GROUP = re.compile(r"^\s*(?:\+[-+ ]*|\| )")
_TRACEBACK = "Traceback (most recent call last):"
_IGNORED = "Exception ignored in"
_CAUSED = "The above exception was the direct cause of the following exception:"
_MEANWHILE = "During handling of the above exception, another exception occurred:"
#: Maximum number of causes that are followed in one chain of exceptions.
_MOST_CAUSES = 16


class FoundSign(Struct, frozen=True, gc=False):
    """The sign that an output shows, and the text that shows it."""

    sign: Sign
    text: str


def find_sign(lines: Iterable[str], code: int = 0) -> FoundSign | None:
    """Return the sign that shows the failure; None if no line shows one. `code` is the exit code of the program."""
    ranks: dict[str, list[str]] = {}
    for line in lines:
        rank, text = _clean(line)
        if text.strip():
            ranks.setdefault(rank, []).append(text)
    if not ranks:
        return None
    found = [one for texts in ranks.values() if (one := _find(_without_ignored(texts), code)) is not None]
    own = [one for one in found if not one.sign.report] or found
    first = next((one for one in own if one.sign.failure_class not in CONSEQUENCES), None)
    return first if first is not None and len(ranks) > 1 else next(reversed(own), None)


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    if not lines:
        return ""
    texts = (_clean(line)[1].strip() for line in reversed(lines))
    return next((text[:LONGEST_LINE] for text in texts if text), "")


def ends_with_own_error(lines: Sequence[str]) -> bool:
    """Return whether the very last line shows an error that neither another replica nor a signal has caused."""
    found, last = find_sign(lines), last_line(lines)
    if found is None or found.sign.report or found.sign.failure_class in CONSEQUENCES:
        return False
    return found.text.startswith(_shown(last)) and not last.startswith(("KeyboardInterrupt", "SystemExit"))


def _clean(line: str) -> tuple[str, str]:
    """Return the rank that wrote the line, and what a terminal shows of it: no colours, no overwritten progress bar."""
    text = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    text = _ESCAPE.sub("", text)
    found = _RANK.match(text)
    return (found[1], text[found.end() :]) if found is not None else ("", text)


def _without_ignored(texts: Sequence[str]) -> list[str]:
    """Return the lines without the errors that Python ignores (`Exception ignored in`): they end no program."""
    kept: list[str] = []
    ignoring = False
    for text in texts:
        if text.startswith(_IGNORED):
            ignoring = True
        elif not ignoring:
            kept.append(text)
        elif text != _TRACEBACK and not text.startswith(" "):
            ignoring = False  # this line ends the ignored traceback
    return kept


def _find(texts: Sequence[str], code: int) -> FoundSign | None:
    """Return the last sign. A report of another process counts only if there is nothing else."""
    report = None
    for place in range(len(texts) - 1, -1, -1):
        sign = _sign_of(texts, place, code)
        if sign is not None and not sign.report:
            return _with_cause(texts, place, FoundSign(sign, _shown(texts[place])), code)
        if sign is not None and report is None:
            report = FoundSign(sign, _shown(texts[place]))
    return report


def _sign_of(texts: Sequence[str], place: int, code: int) -> Sign | None:
    text = _shown(texts[place])
    lower = text.lower()
    for sign in SIGNS if any(word in lower for word in WORDS) else ():
        if (not sign.codes or code in sign.codes) and sign.pattern.search(text):
            return sign
    return SIGNS[-1] if _ends_traceback(texts, place) else None


def _ends_traceback(texts: Sequence[str], place: int) -> bool:
    """Return whether the line is the error of a Python traceback, whatever its name is: `StopIteration`."""
    begin = place - 1
    while begin > 0 and texts[begin].startswith("  "):
        begin -= 1
    return 0 <= begin < place - 1 and texts[begin] == _TRACEBACK and not texts[place].startswith(" ")


def _shown(text: str) -> str:
    return _GROUP.sub("", text).strip()[:LONGEST_LINE]


def _with_cause(texts: Sequence[str], place: int, found: FoundSign, code: int) -> FoundSign:
    """Add the error that caused this one. An error without a class of its own gets the class of its cause."""
    text, sign, direct = found.text, found.sign, True
    for _ in range(_MOST_CAUSES):
        begin = next((at for at in range(place, -1, -1) if texts[at].strip() == _TRACEBACK), 0)
        link = texts[begin - 1].strip() if begin else ""
        if link not in (_CAUSED, _MEANWHILE):
            break
        direct = direct and link == _CAUSED
        before = next((at for at in range(begin - 2, -1, -1) if EXCEPTION.match(_shown(texts[at]))), None)
        if before is None:
            break
        place, text = before, _shown(texts[before])
        earlier = _sign_of(texts, place, code)
        general = sign.failure_class is FailureClass.PROGRAM_ERROR
        if direct and general and earlier is not None and not earlier.report:
            sign = earlier
    if text == found.text:
        return found
    link = "caused by" if direct else "raised while it handled"
    return FoundSign(sign, f"{found.text}, {link} {text}"[:LONGEST_LINE])
