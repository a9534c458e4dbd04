# SPDX-License-Identifier: Apache-2.0
"""What the machinery counts, as plain numbers; `metrics` words them for Prometheus.

The numbers cost nothing to keep and importing prometheus_client takes longer than a small job: it is loaded when
somebody asks. No metric is labelled with a job's name. What becomes of jobs is counted by `job_metrics`.

One line of a log: a text that is always the same, and what it is about as named values.

The machinery hands these to the standard library's loggers. Whoever formats a log may take the values apart
(`cli.journal` does, for the operator); anybody else gets them behind the text, as `key=value`.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec

#: Seconds; a pass over a small job takes a tenth of a millisecond, one over 10,000 pods a tenth of a second.
BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
#: Seconds; from a pod that starts at once to a gang that waits a day for its turn.
LONG = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)


class Histogram:
    """How often a value fell between two bounds, and the sum of all values."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Occupancy:
    """How many are in one place now, and for how long all that ever were there have been: by sums, not by a walk."""

    def __init__(self) -> None:
        self.count = 0
        self._began = self._seconds = 0.0

    def enter(self, at: float) -> None:
        """One comes."""
        self.count += 1
        self._began += at

    def leave(self, began: float, at: float) -> None:
        """One that came then goes."""
        self.count -= 1
        self._began -= began
        self._seconds += at - began

    def seconds(self, at: float) -> float:
        """All of them together."""
        return max(self._seconds + self.count * at - self._began, 0.0)


class Telemetry:
    """The counts of one controller."""

    def __init__(self, time: Callable[[], float] = monotonic) -> None:
        self.time = time
        self.leads = False
        self.depth = 0
        #: From when a job was due until it was looked at, and how long that look took.
        self.waits = Histogram()
        self.reconciles = Histogram()
        #: By result: `done`, `conflict`, `retry`, `error`.
        self.passes: Counter[str] = Counter()
        #: By verb, resource and result.
        self.writes: Counter[tuple[str, str, str]] = Counter()
        #: By verb, resource and HTTP code, and by verb and resource.
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.answers: dict[tuple[str, str], Histogram] = {}
        #: By resource: lists that had to be made, events that came.
        self.lists: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        #: By kind and phase, and by kind.
        self.jobs: dict[tuple[str, str], Occupancy] = {}
        self.starts: dict[str, Histogram] = {}
        #: By kind: unfinished jobs of another controller.
        self.foreign: Counter[str] = Counter()
        #: By kind and cause.
        self.restarts: Counter[tuple[str, str]] = Counter()
        #: By kind and result of a job.
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def took(self, seconds: float) -> None:
        """A pass took this long, decision and writes."""
        self.reconciles.observe(seconds)

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request was answered, or was not (0)."""
        self.calls[verb, resource, str(code) if code else "none"] += 1
        histogram = self.answers.get((verb, resource))
        if histogram is None:
            histogram = self.answers[verb, resource] = Histogram()
        histogram.observe(seconds)

    def expose(self) -> str:
        """The Prometheus text format."""
        from trainwright.runtime.metrics import expose  # noqa: PLC0415 - see above

        return expose(self)


#: What needs no quotes.
_PLAIN = re.compile(r"[^\s\"=\\]+")


class LogMessage:
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
