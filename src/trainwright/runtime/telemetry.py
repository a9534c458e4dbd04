# SPDX-License-Identifier: Apache-2.0
"""What the machinery counts, as plain numbers; `expose` words them for Prometheus.

The numbers cost nothing to keep and importing prometheus_client takes longer than a small job: it is loaded when
somebody asks. No metric is labelled with a job's name.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Seconds; a pass over a small job takes a tenth of a millisecond, one over 10,000 pods a tenth of a second.
BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Telemetry:
    """The counts of one controller."""

    def __init__(self) -> None:
        self.depth = 0
        #: By result: `done`, `conflict`, `retry`, `error`.
        self.passes: Counter[str] = Counter()
        #: By verb, resource and result.
        self.writes: Counter[tuple[str, str, str]] = Counter()
        #: By resource: lists that had to be made, events that came.
        self.lists: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        #: By kind and result of a job.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def took(self, seconds: float) -> None:
        """A pass took this long, decision and writes."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def collect(self) -> Iterator["Metric"]:
        """Everything, as prometheus_client wants it."""
        from prometheus_client.core import (  # noqa: PLC0415 - see above
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        yield GaugeMetricFamily("trainwright_queue_depth", "Jobs that wait to be looked at.", self.depth)
        for name, text, labels, counts in self._counters():
            family = CounterMetricFamily(name, text, labels=labels)
            for values, count in sorted(counts.items()):
                family.add_metric([values] if isinstance(values, str) else list(values), count)
            yield family
        duration = HistogramMetricFamily("trainwright_reconcile_seconds", "How long one look at a job takes.")
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        duration.add_metric([], buckets, self._seconds)
        yield duration

    def _counters(self) -> tuple[tuple[str, str, list[str], "Counter[str] | Counter[tuple[str, ...]]"], ...]:
        return (
            ("trainwright_reconciles", "Looks at a job, by result.", ["result"], self.passes),
            ("trainwright_writes", "Requests that change something.", ["verb", "resource", "result"], self.writes),  # type: ignore[return-value]
            ("trainwright_lists", "Lists that were fetched.", ["resource"], self.lists),
            ("trainwright_watch_events", "Watch events received.", ["resource"], self.changes),
            ("trainwright_jobs_finished", "Jobs that ended.", ["kind", "result"], self.outcomes),
        )

    def expose(self) -> str:
        """The Prometheus text format."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - see above

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()
