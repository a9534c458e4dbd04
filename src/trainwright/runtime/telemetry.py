# SPDX-License-Identifier: Apache-2.0
"""The plain counters from which `metrics` makes metrics, and the structured log message.

Plain counters are cheap. Importing prometheus_client takes longer than running a small job, so `metrics` is imported
only when metrics are requested. No metric has the name of a job as a label.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import Any

import msgspec

#: Bucket bounds in seconds: a pass over a small job takes 0.1 ms, a pass over 10,000 pods takes 0.1 s.
BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
#: Bucket bounds in seconds: from a pod that starts at once to a gang that waits one day for free nodes.
LONG = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)


class Histogram:
    """The number of values in each bucket, and the sum of all values."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Occupancy:
    """The number of jobs in one phase, and the total time that jobs have spent in it.

    The class keeps only sums of times, so a request for metrics does not need to read every job.
    """

    def __init__(self) -> None:
        self.count = 0
        self._began = self._seconds = 0.0

    def enter(self, at: float) -> None:
        """Record that a job enters the phase at the time `at`."""
        self.count += 1
        self._began += at

    def leave(self, began: float, at: float) -> None:
        """Record that a job, which entered the phase at `began`, leaves the phase at `at`."""
        self.count -= 1
        self._began -= began
        self._seconds += at - began

    def seconds(self, at: float) -> float:
        """The total time that all jobs have spent in the phase."""
        return max(self._seconds + self.count * at - self._began, 0.0)


_WRITE_VERBS = frozenset({"create", "update", "patch", "delete"})
#: Seconds until a pass that only updates counts in the status: at least, per second that a write takes, and at most.
_MINOR_SECONDS, _MINOR_PER_LATENCY_SECOND, _MAX_MINOR_SECONDS = 1.0, 50.0, 10.0
#: The weight of the newest write in the average duration of writes.
_LATENCY_WEIGHT = 0.05
#: A write that took longer counts with this duration, because one slow write does not mean that the server is slow.
_MAX_LATENCY_SECONDS = 0.5


class JobCounter(StrEnum):
    """What is counted for each namespace; the values are parts of the names of Kubeflow's metrics."""

    CREATED = "created"
    DELETED = "deleted"
    SUCCESSFUL = "successful"
    FAILED = "failed"
    RESTARTED = "restarted"


class Telemetry:
    """The metrics of one controller."""

    def __init__(self, time: Callable[[], float] = monotonic) -> None:
        self.time = time
        self.leads = False
        #: Whether the controller manages a kind: false for kinds whose CRDs are not installed.
        self.kinds: dict[str, bool] = {}
        self.queue_depth = 0
        #: The time from the due time of a job to the start of its pass, and the duration of the pass with its writes.
        self.queue_seconds = Histogram()
        self.pass_seconds = Histogram()
        #: The number of passes by result: `done`, `conflict`, `retry`, `error`.
        self.passes: Counter[str] = Counter()
        #: The number of writes by verb, resource and result.
        self.writes: Counter[tuple[str, str, str]] = Counter()
        #: The number of requests by verb, resource and HTTP code, and their durations by verb and resource.
        self.api_calls: Counter[tuple[str, str, str]] = Counter()
        self.api_seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
        #: The duration of the last writes: a moving average, in seconds.
        self.write_seconds = 0.0
        #: The numbers of lists and of watch events, by resource.
        self.lists: Counter[str] = Counter()
        self.watch_events: Counter[str] = Counter()
        #: The jobs in each phase, by kind and phase, and the time until a job runs, by kind.
        self.jobs: dict[tuple[str, str], Occupancy] = {}
        self.time_to_running: dict[str, Histogram] = {}
        #: The number of unfinished jobs that another controller manages, by kind.
        self.foreign: Counter[str] = Counter()
        #: The number of restarts by kind and cause.
        self.restarts: Counter[tuple[str, str]] = Counter()
        #: The number of ended jobs by kind and result.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        #: What happened to jobs, by kind and namespace; None unless `kubeflow_metrics` needs it.
        self.by_namespace: Counter[tuple[JobCounter, str, str]] | None = None

    def count_job(self, counter: JobCounter, kind: str, namespace: str, times: int = 1) -> None:
        """Count something that happened to a job, if these metrics are exposed."""
        if self.by_namespace is not None:
            self.by_namespace[counter, kind, namespace] += times

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server. The code is 0 if there was no answer."""
        self.api_calls[verb, resource, str(code) if code else "none"] += 1
        self.api_seconds[verb, resource].observe(seconds)
        if verb in _WRITE_VERBS and code:
            self.write_seconds += _LATENCY_WEIGHT * (min(seconds, _MAX_LATENCY_SECONDS) - self.write_seconds)

    @property
    def minor_delay(self) -> float:
        """Seconds until a pass after changes that only change counts in the status. More important changes come soon.

        If the API server is slow, pods need longer to start, and such a pass would only use up CPU time.
        """
        return min(_MINOR_SECONDS + _MINOR_PER_LATENCY_SECOND * self.write_seconds, _MAX_MINOR_SECONDS)

    def expose(self) -> str:
        """All metrics in the Prometheus text format."""
        from trainwright.runtime.metrics import expose  # noqa: PLC0415 - slow to import

        return expose(self)


#: Text that needs no quotes in `key=value`.
_PLAIN = re.compile(r"[^\s\"=\\]+")


class LogMessage:
    """A log message: a constant text and named values. Formatters can read the values; `str` appends `key=value`."""

    __slots__ = ("about", "text")

    def __init__(self, text: str, /, **about: Any) -> None:
        self.text = text
        self.about = about

    def __str__(self) -> str:
        return " ".join((self.text, *(f"{key}={quoted(value)}" for key, value in self.about.items())))


def quoted(value: Any) -> str:
    """A value as text in one line, with quotes if it needs them."""
    text = str(value)
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()
    encoded = msgspec.json.encode(text).decode()
    return "".join(character if character.isprintable() else _escaped(character) for character in encoded)


def _escaped(character: str) -> str:
    """Escape a character that JSON allows but that could change the state of a terminal."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
