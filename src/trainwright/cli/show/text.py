# SPDX-License-Identifier: Apache-2.0
"""Texts for people: log lines that are safe for a terminal, their labels, and the summary at the end of a run.

A log line can contain anything: escape sequences that move the cursor or change the title of the terminal, progress
bars, bytes that are not text. This code removes everything that would damage the screen, but it can keep colours. It
runs for every log line, so it must be fast.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

from trainwright.cli.show.news import JobEnding
from trainwright.model.units import spell

# A complete escape sequence, or the beginning of a sequence at the end of the line. Neither is shown as text.
_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI sequences: cursor, colours, modes
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS and similar sequences: titles, clipboards
    r"|[ -/]*(?:[0-~]|$)"  # sequences of two characters
    r")"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: Control characters: C0 without tab, DEL, C1, and characters that reverse or hide text.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_TAB_WIDTH = 8


def line(text: str) -> str:
    """One line without escape sequences and control characters. Of a progress bar, only the last state stays."""
    if text.isprintable():
        return text
    text = last_state(text)
    if "\x1b" in text:
        text = _SEQUENCE.sub("", text)
    return _CONTROL.sub("", text).expandtabs(_TAB_WIDTH)


def coloured(text: str) -> str:
    """Like `line`, but with colours, which are reset at the end of the line."""
    if text.isprintable() or "\x1b[" not in text:
        return line(text)
    text = _SEQUENCE.sub(_only_colour, last_state(text))
    head, *rest = text.split("\x1b")
    parts = (_clean_after_colour(f"\x1b{part}") for part in rest)
    return _CONTROL.sub("", head) + "".join(parts) + "\x1b[0m"


def _only_colour(match: re.Match[str]) -> str:
    return match[0] if _COLOUR.fullmatch(match[0]) else ""


def _clean_after_colour(part: str) -> str:
    """A colour sequence and the cleaned text after it. Without a colour, the escape character is removed, too."""
    found = _COLOUR.match(part)
    end = found.end() if found else 0
    return part[:end] + _CONTROL.sub("", part[end:])


def last_state(text: str) -> str:
    """The visible text of a line that uses carriage returns to overwrite itself."""
    if "\r" not in text:
        return text
    return next((state for state in reversed(text.split("\r")) if state), "")


_INDEX = re.compile(r"-(\d{1,9})(?=/|$)")
#: Colour codes that every terminal supports. Red is left out, because red means an error.
_PALETTE = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


@lru_cache(maxsize=4096)
def prefix(label: str, *, colour: bool) -> str:
    """The label before a log line, for example `worker-0 |`. Replicas with neighbouring indexes differ in colour."""
    if not colour:
        return f"{label} |"
    found = _INDEX.search(label)
    number = crc32(label[: found.start()].encode()) + int(found[1]) if found else 0
    return f"\x1b[{_PALETTE[number % len(_PALETTE)]}m{label} |\x1b[0m"


#: Maximum number of failed jobs that are shown with details.
_MAX_DETAILED = 3
#: At most this many succeeded jobs, and at most this many other jobs, have their own line.
_MAX_JOBS = 20
#: Maximum number of replicas that are named in one line.
_MAX_NAMES = 8
_OUTCOME_TEXTS = {
    "TimedOut": "timed out",
    "Interrupted": "was interrupted",
    "Deleted": "was deleted",
    "Broken": "was lost",
}


def summary(endings: list[JobEnding], folder: str) -> Iterator[str]:
    """The lines at the end of a run: the outcome of each job, details of the first failures, the folder."""
    yield ""
    failed = [one for one in endings if one.outcome != "Succeeded"]
    succeeded = [one for one in endings if one.outcome == "Succeeded"]
    for one in succeeded[:_MAX_JOBS]:
        yield headline(one)
        yield from (f"  {line}" for line in ended_by_run(one))
    if len(succeeded) > _MAX_JOBS:
        yield f"… and {len(succeeded) - _MAX_JOBS} more jobs succeeded"
    for place, one in enumerate(failed[:_MAX_JOBS]):
        yield headline(one)
        if place < _MAX_DETAILED:
            yield from (f"  {line}" for line in details(one))
    if len(failed) > _MAX_JOBS:
        yield f"… and {len(failed) - _MAX_JOBS} more jobs did not succeed"
    yield f"logs and final status: {folder}"


def headline(one: JobEnding) -> str:
    """The first line about a job, for example `demo failed after 3.2s: rule {"worker":[0]} …`."""
    outcome = _OUTCOME_TEXTS.get(one.outcome, one.outcome.lower())
    restarts = f", {one.restarts} restart{'s' * (one.restarts != 1)}" if one.restarts else ""
    because = f": {line(one.because)}" if one.because else ""
    return f"{one.name} {outcome} after {spell(one.duration)}{restarts}{because}"


def details(one: JobEnding) -> Iterator[str]:
    """The explanation of an outcome that is not success."""
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


def ended_by_run(one: JobEnding) -> Iterator[str]:
    """A line about the replicas that were still running when the run ended. On a cluster they would still run."""
    if one.terminated:
        keeps = " that the job's clean-up policy keeps" if one.outcome in ("Succeeded", "Failed") else ""
        plural = "s" * (len(one.terminated) != 1)
        yield f"the end of the run ended {len(one.terminated)} replica{plural}{keeps}: {named(one.terminated)}"


def named(names: Sequence[str]) -> str:
    """The names in one text, for example `worker-0, worker-1, … and 7 more`."""
    more = f", … and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
