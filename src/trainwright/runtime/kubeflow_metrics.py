# SPDX-License-Identifier: Apache-2.0
"""The metrics of Kubeflow's training-operator, with its names and labels, for existing dashboards and alerts.

The operator exposes them only on request (`--kubeflow-metrics`), because their number grows with the namespaces.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import PODS, SERVICES
from trainwright.runtime.telemetry import JobCounter, Telemetry

_LABELS = ("job_namespace", "framework")
_TEXTS = {
    JobCounter.CREATED: "Jobs that the operator accepted.",
    JobCounter.DELETED: "Jobs that the operator deleted after their time to live.",
    JobCounter.SUCCESSFUL: "Jobs that succeeded.",
    JobCounter.FAILED: "Jobs that failed.",
    JobCounter.RESTARTED: "Restarts that count against restart budgets.",
}
#: The value of the label `framework` by kind; jobs of other kinds are not counted.
_FRAMEWORKS = {kind.id: kind.framework for kind in KINDS if kind.framework}


def kubeflow_metrics(telemetry: Telemetry) -> Iterator[Metric]:
    """All metrics. Those without labels count the objects of all kinds, as there is one counter for all."""
    counts = telemetry.by_namespace if telemetry.by_namespace is not None else Counter[tuple[JobCounter, str, str]]()
    for counter, text in _TEXTS.items():
        family = CounterMetricFamily(f"training_operator_jobs_{counter.value}", text, labels=_LABELS)
        for (counted, kind, namespace), count in sorted(counts.items()):
            if counted is counter and kind in _FRAMEWORKS:
                family.add_metric((namespace, _FRAMEWORKS[kind]), count)
        yield family
    failed = telemetry.restarts.total() + sum(n for (_, result), n in telemetry.outcomes.items() if result == "Failed")
    yield CounterMetricFamily("failed_pods", "Restarts and failed jobs.", float(failed))
    yield _written(telemetry, "created_pods", "Pods that the operator created.", "create", PODS.id)
    yield _written(telemetry, "deleted_pods", "Pods that the operator deleted.", "delete", PODS.id)
    text = "Services that the operator created."
    yield _written(telemetry, "succeeded_service_creation", text, "create", SERVICES.id)
    text = "Requests to create a Service that failed."
    yield _written(telemetry, "failed_service_creation", text, "create", SERVICES.id, done=False)
    yield _written(telemetry, "created_pod_groups", "PodGroups that the operator created.", "create", "podgroups.")
    yield _written(telemetry, "deleted_pod_groups", "PodGroups that the operator deleted.", "delete", "podgroups.")


def _written(telemetry: Telemetry, name: str, text: str, verb: str, resource: str, *, done: bool = True) -> Metric:
    """The number of writes with this verb of a resource, or of all resources whose names begin so (`podgroups.`)."""
    total = sum(
        count
        for (each, id_, result), count in telemetry.writes.items()
        if each == verb and (id_ == resource or (resource[-1:] == "." and id_.startswith(resource)))
        if (result == "done") is done
    )
    return CounterMetricFamily(name, text, float(total))
