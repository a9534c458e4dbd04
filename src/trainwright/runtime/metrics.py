# SPDX-License-Identifier: Apache-2.0
"""Exports the numbers of `telemetry` in the Prometheus text format. `docs/operator.md` describes each metric."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from trainwright.core.observe import FINAL_PHASES
from trainwright.model.ledger import Phase
from trainwright.runtime.kubeflow_metrics import kubeflow_metrics
from trainwright.runtime.telemetry import Histogram, Telemetry

_Labels = tuple[str, ...]
#: The labels of one metric as a tuple, or a string if the metric has only one label.
_L = TypeVar("_L", bound=_Labels | str)
_V = TypeVar("_V")


def expose(telemetry: Telemetry) -> str:
    """All metrics in the Prometheus text format."""
    return generate_latest(_Collector(telemetry)).decode()


class _Collector:
    """The collector that prometheus_client calls."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        telemetry = self._telemetry
        yield GaugeMetricFamily("trainwright_leader", "Whether this operator is the leader.", float(telemetry.leads))
        text = "Whether the operator manages a kind; 0 if the CRD of the kind is not installed."
        kinds = GaugeMetricFamily("trainwright_kind_managed", text, labels=("kind",))
        for labels, managed in _by_labels(telemetry.kinds):
            kinds.add_metric(labels, float(managed))
        yield kinds
        yield GaugeMetricFamily("trainwright_queue_depth", "Jobs that wait to be reconciled.", telemetry.queue_depth)
        yield from self._histograms()
        yield from self._counters()
        yield from self._jobs()
        if telemetry.by_namespace is not None:
            yield from kubeflow_metrics(telemetry)

    def _histograms(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        text = "Time from when a job is due until its pass begins."
        yield _histogram("queue_seconds", text, (), {(): telemetry.queue_seconds})
        yield _histogram("reconcile_seconds", "Duration of one pass over a job.", (), {(): telemetry.pass_seconds})
        text = "Time until the API server answers; for a watch, until it begins."
        yield _histogram("api_seconds", text, ("verb", "resource"), telemetry.api_seconds)
        text = "Time from a job's creation until all its replicas first ran, without jobs that were suspended before."
        yield _histogram("time_to_running_seconds", text, ("kind",), telemetry.time_to_running)

    def _counters(self) -> Iterator[Metric]:
        telemetry, call = self._telemetry, ("verb", "resource")
        yield _counter("reconciles", "Passes over jobs, by result.", ("result",), telemetry.passes)
        yield _counter("writes", "Writes for jobs, by result.", (*call, "result"), telemetry.writes)
        text = "Requests to the API server; code `none`: no answer."
        yield _counter("api_calls", text, (*call, "code"), telemetry.api_calls)
        yield _counter("lists", "Lists fetched.", ("resource",), telemetry.lists)
        yield _counter("watch_events", "Watch events received.", ("resource",), telemetry.watch_events)
        text = "Restarts that count against restart budgets."
        yield _counter("restarts", text, ("kind", "cause"), telemetry.restarts)
        yield _counter("jobs_finished", "Jobs that ended.", ("kind", "result"), telemetry.outcomes)

    def _jobs(self) -> Iterator[Metric]:
        telemetry, at = self._telemetry, self._telemetry.time()
        jobs = GaugeMetricFamily("trainwright_jobs", "Jobs that exist now.", labels=("kind", "phase"))
        text = "Seconds that jobs spent in a phase while this operator was the leader."
        seconds = CounterMetricFamily("trainwright_job_seconds", text, labels=("kind", "phase"))
        for (kind, phase), occupancy in sorted(telemetry.jobs.items()):
            jobs.add_metric((kind, phase), occupancy.count)
            if Phase(phase) not in FINAL_PHASES:
                seconds.add_metric((kind, phase), occupancy.seconds(at))
        yield jobs
        text = "Unfinished jobs that the operator ignores because another controller wrote their status."
        foreign = GaugeMetricFamily("trainwright_foreign_jobs", text, labels=("kind",))
        for labels, count in _by_labels(telemetry.foreign):
            foreign.add_metric(labels, count)
        yield foreign
        yield seconds
        yield self._goodput(at)

    def _goodput(self, at: float) -> Metric:
        text = (
            "The share of time in which all replicas of a job ran, counted from when they first did, while this "
            "operator was the leader: seconds in Running / seconds in Running and Restarting."
        )
        family = GaugeMetricFamily("trainwright_goodput_ratio", text, labels=("kind",))
        for kind in sorted({kind for kind, _ in self._telemetry.jobs}):
            up, down = (self._seconds(kind, phase, at) for phase in (Phase.RUNNING, Phase.RESTARTING))
            if up + down > 0:
                family.add_metric((kind,), up / (up + down))
        return family

    def _seconds(self, kind: str, phase: Phase, at: float) -> float:
        occupancy = self._telemetry.jobs.get((kind, phase.value))
        return occupancy.seconds(at) if occupancy is not None else 0.0


def _by_labels(values: Mapping[_L, _V]) -> list[tuple[_Labels, _V]]:
    """The values with their labels as tuples, in order."""
    pairs = [((key,) if isinstance(key, str) else key, value) for key, value in values.items()]
    return sorted(pairs, key=lambda pair: pair[0])


def _counter(name: str, text: str, labels: _Labels, counts: Mapping[_L, int]) -> Metric:
    family = CounterMetricFamily(f"trainwright_{name}", text, labels=labels)
    for values, count in _by_labels(counts):
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, labels: _Labels, histograms: Mapping[_L, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"trainwright_{name}", text, labels=labels)
    for values, histogram in _by_labels(histograms):
        total, buckets = 0, []
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(values, buckets, histogram.sum)
    return family
