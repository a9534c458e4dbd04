# SPDX-License-Identifier: Apache-2.0
"""The last block of a run: how it ended, what decided, the last words of whoever failed, where everything is kept.

Called by the views for people. Of many jobs each has one line, and only the first failures are told in full.
"""

from collections.abc import Iterator, Sequence

from trainwright.cli.duration import spell
from trainwright.cli.show.clean import line as clean
from trainwright.cli.show.news import Ending

#: Failures told in full.
_FULL = 3
#: Jobs that have a line of their own.
_MOST = 20
#: Replicas that are named in one line.
_NAMED = 8
_WORDS = {"TimedOut": "timed out", "Interrupted": "was interrupted", "Deleted": "was deleted", "Broken": "was lost"}


def summary(endings: list[Ending], folder: str) -> Iterator[str]:
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


def headline(one: Ending) -> str:
    """`demo failed after 3.2s: rule {"worker":[0]} …`."""
    word = _WORDS.get(one.outcome, one.outcome.lower())
    restarts = f", {one.restarts} restart{'s' * (one.restarts != 1)}" if one.restarts else ""
    because = f": {clean(one.because)}" if one.because else ""
    return f"{one.name} {word} after {spell(one.duration)}{restarts}{because}"


def details(one: Ending) -> Iterator[str]:
    """What explains an end that was not success."""
    if one.rule:
        yield f"rule:    {one.rule}"
    if one.replica:
        yield f"replica: {one.replica} (pod {one.pod})"
    if one.cause:
        yield f"cause:   {clean(one.cause)}"
    yield from (f"{'state:' if not place else '':8} {clean(text)}" for place, text in enumerate(one.unsettled))
    if one.last_lines:
        yield f"last lines of {one.replica}:"
        yield from (f"  | {clean(text)}" for text in one.last_lines)
    if one.hint:
        yield f"hint:    {one.hint}"
    yield from ended_by_run(one)


def ended_by_run(one: Ending) -> Iterator[str]:
    """What the end of the run itself terminated: on a cluster those pods would still run."""
    if one.terminated:
        keeps = " that the job's clean-up policy keeps" if one.outcome in ("Succeeded", "Failed") else ""
        many = "s" * (len(one.terminated) != 1)
        yield f"run ended {len(one.terminated)} replica{many}{keeps}: {named(one.terminated)}"


def named(names: Sequence[str]) -> str:
    """`worker-0, worker-1, … and 7 more`."""
    more = f", … and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
