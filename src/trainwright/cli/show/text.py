# SPDX-License-Identifier: Apache-2.0
"""What replicas print, made fit for a screen or a line of text. Called by `tail` for every line, so it must be quick.

A log may hold anything: escape sequences that move the cursor or retitle the terminal, progress bars, bytes that are no
text. Colours may stay where they are shown; whatever would wreck the screen is dropped.

The names before log lines, each replica in a colour that stays its own. Used by `live` and by `logs`.

The last block of a run: how it ended, what decided, the last words of whoever failed, where everything is kept.

Called by the views for people. Of many jobs each has one line, and only the first failures are told in full.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

from trainwright.cli.flags import spell
from trainwright.cli.show.news import JobVerdict

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


_INDEX = re.compile(r"-(\d{1,9})(?=/|$)")
#: Codes of the sixteen that every terminal has; none that means something, as red does.
_PALETTE = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


@lru_cache(maxsize=4096)
def prefix(label: str, *, colour: bool) -> str:
    """`worker-0 |`; neighbours differ in colour."""
    if not colour:
        return f"{label} |"
    found = _INDEX.search(label)
    number = crc32(label[: found.start()].encode()) + int(found[1]) if found else 0
    return f"\x1b[{_PALETTE[number % len(_PALETTE)]}m{label} |\x1b[0m"


#: Failures told in full.
_FULL = 3
#: Jobs that have a line of their own.
_MOST = 20
#: Replicas that are named in one line.
_NAMED = 8
_WORDS = {"TimedOut": "timed out", "Interrupted": "was interrupted", "Deleted": "was deleted", "Broken": "was lost"}


def summary(endings: list[JobVerdict], folder: str) -> Iterator[str]:
    """All lines."""
    yield ""
    bad = [one for one in endings if one.outcome != "Succeeded"]
    good = [one for one in endings if one.outcome == "Succeeded"]
    for one in good[:_MOST]:
        yield headline(one)
        yield from (f"  {line}" for line in ended_by_run(one))
    if len(good) > _MOST:
        yield f"… and {len(good) - _MOST} more jobs succeeded"
    for place, one in enumerate(bad[:_MOST]):
        yield headline(one)
        if place < _FULL:
            yield from (f"  {line}" for line in details(one))
    if len(bad) > _MOST:
        yield f"… and {len(bad) - _MOST} more jobs did not succeed"
    yield f"logs and final status: {folder}"


def headline(one: JobVerdict) -> str:
    """`demo failed after 3.2s: rule {"worker":[0]} …`."""
    word = _WORDS.get(one.outcome, one.outcome.lower())
    restarts = f", {one.restarts} restart{'s' * (one.restarts != 1)}" if one.restarts else ""
    because = f": {line(one.because)}" if one.because else ""
    return f"{one.name} {word} after {spell(one.duration)}{restarts}{because}"


def details(one: JobVerdict) -> Iterator[str]:
    """What explains an end that was not success."""
    if one.rule:
        yield f"rule:    {one.rule}"
    if one.replica:
        yield f"replica: {one.replica} (pod {one.pod})"
    if one.cause:
        yield f"cause:   {line(one.cause)}"
    yield from (f"{'state:' if not place else '':8} {line(text)}" for place, text in enumerate(one.unsettled))
    if one.last_lines:
        yield f"last lines of {one.replica}:"
        yield from (f"  | {line(text)}" for text in one.last_lines)
    if one.hint:
        yield f"hint:    {one.hint}"
    yield from ended_by_run(one)


def ended_by_run(one: JobVerdict) -> Iterator[str]:
    """What the end of the run itself terminated: on a cluster those pods would still run."""
    if one.terminated:
        keeps = " that the job's clean-up policy keeps" if one.outcome in ("Succeeded", "Failed") else ""
        many = "s" * (len(one.terminated) != 1)
        yield f"run ended {len(one.terminated)} replica{many}{keeps}: {named(one.terminated)}"


def named(names: Sequence[str]) -> str:
    """`worker-0, worker-1, … and 7 more`."""
    more = f", … and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
