# SPDX-License-Identifier: Apache-2.0
"""The numbers of `telemetry` in Prometheus' words. Loaded when somebody asks; `docs/operator.md` has the table."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from trainwright.core.observe import FINAL_PHASES
from trainwright.model.ledger import Phase
from trainwright.runtime.telemetry import Histogram, Telemetry

_Labels = tuple[str, ...]
#: Which labels there are depends on the metric.
_Some = TypeVar("_Some", bound=_Labels)


def expose(telemetry: Telemetry) -> str:
    """The text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(telemetry))
    return generate_latest(registry).decode()


class _Collector:
    """What a registry wants to have."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._told = telemetry

    def collect(self) -> Iterator[Metric]:
        """Everything."""
        told = self._told
        yield GaugeMetricFamily("trainwright_leader", "Whether this operator leads.", float(told.leads))
        yield GaugeMetricFamily("trainwright_queue_depth", "Jobs that wait to be looked at.", told.depth)
        yield from self._histograms()
        yield from self._counters()
        yield from self._jobs()

    def _histograms(self) -> Iterator[Metric]:
        told = self._told
        yield _histogram("queue_seconds", "From when a job is due until it is looked at.", (), {(): told.waits})
        yield _histogram("reconcile_seconds", "How long one look at a job takes.", (), {(): told.reconciles})
        text = "How long the API server takes to answer; of a watch, to begin it."
        yield _histogram("api_seconds", text, ("verb", "resource"), told.answers)
        text = "From a job's creation until it first ran as a whole; not of jobs that were suspended before."
        yield _histogram(
            "time_to_running_seconds", text, ("kind",), {(kind,): one for kind, one in told.starts.items()}
        )

    def _counters(self) -> Iterator[Metric]:
        told, call = self._told, ("verb", "resource")
        yield _counter("reconciles", "Looks at a job, by result.", ("result",), _single(told.passes))
        yield _counter("writes", "What was to be changed, by result.", (*call, "result"), told.writes)
        yield _counter("api_calls", "Requests to the API server; code `none`: no answer.", (*call, "code"), told.calls)
        yield _counter("lists", "Lists that were fetched.", ("resource",), _single(told.lists))
        yield _counter("watch_events", "Watch events received.", ("resource",), _single(told.changes))
        yield _counter("restarts", "Restarts, as budgets count them.", ("kind", "cause"), told.restarts)
        yield _counter("jobs_finished", "Jobs that ended.", ("kind", "result"), told.outcomes)

    def _jobs(self) -> Iterator[Metric]:
        told, at = self._told, self._told.time()
        jobs = GaugeMetricFamily("trainwright_jobs", "Jobs that are there now.", labels=("kind", "phase"))
        text = "Seconds that jobs have been in a phase while this operator led."
        stays = CounterMetricFamily("trainwright_job_seconds", text, labels=("kind", "phase"))
        for (kind, phase), stay in sorted(told.jobs.items()):
            jobs.add_metric((kind, phase), stay.count)
            if Phase(phase) not in FINAL_PHASES:
                stays.add_metric((kind, phase), stay.seconds(at))
        yield jobs
        text = "Unfinished jobs that are left alone: another controller wrote their status."
        foreign = GaugeMetricFamily("trainwright_foreign_jobs", text, labels=("kind",))
        for kind, count in sorted(told.foreign.items()):
            foreign.add_metric((kind,), count)
        yield foreign
        yield stays
        yield self._goodput(at)

    def _goodput(self, at: float) -> Metric:
        text = (
            "Of the time that jobs which once ran as a whole have lived while this operator led, the share in which "
            "all their replicas were up: seconds in Running / seconds in Running and Restarting."
        )
        family = GaugeMetricFamily("trainwright_goodput_ratio", text, labels=("kind",))
        for kind in sorted({kind for kind, _ in self._told.jobs}):
            up, down = (self._seconds(kind, phase, at) for phase in (Phase.RUNNING, Phase.RESTARTING))
            if up + down > 0:
                family.add_metric((kind,), up / (up + down))
        return family

    def _seconds(self, kind: str, phase: Phase, at: float) -> float:
        stay = self._told.jobs.get((kind, phase.value))
        return stay.seconds(at) if stay is not None else 0.0


def _single(counts: Counter[str]) -> dict[_Labels, int]:
    return {(label,): count for label, count in counts.items()}


def _counter(name: str, text: str, labels: _Labels, counts: Mapping[_Some, int]) -> Metric:
    family = CounterMetricFamily(f"trainwright_{name}", text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, labels: _Labels, histograms: Mapping[_Some, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"trainwright_{name}", text, labels=labels)
    for values, one in sorted(histograms.items(), key=lambda pair: pair[0]):
        total, buckets = 0, []
        for bound, count in zip((*map(str, one.bounds), "+Inf"), one.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(values, buckets, one.sum)
    return family
