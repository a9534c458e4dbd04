# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads, by its own parser."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainwright.runtime.telemetry import BOUNDS, LONG, Histogram, Occupancy, Telemetry

METRICS = {
    "trainwright_leader": ("gauge", set()),
    "trainwright_kind_managed": ("gauge", {"kind"}),
    "trainwright_queue_depth": ("gauge", set()),
    "trainwright_queue_seconds": ("histogram", {"le"}),
    "trainwright_reconciles": ("counter", {"result"}),
    "trainwright_reconcile_seconds": ("histogram", {"le"}),
    "trainwright_writes": ("counter", {"verb", "resource", "result"}),
    "trainwright_api_calls": ("counter", {"verb", "resource", "code"}),
    "trainwright_api_seconds": ("histogram", {"verb", "resource", "le"}),
    "trainwright_lists": ("counter", {"resource"}),
    "trainwright_watch_events": ("counter", {"resource"}),
    "trainwright_jobs": ("gauge", {"kind", "phase"}),
    "trainwright_foreign_jobs": ("gauge", {"kind"}),
    "trainwright_job_seconds": ("counter", {"kind", "phase"}),
    "trainwright_goodput_ratio": ("gauge", {"kind"}),
    "trainwright_time_to_running_seconds": ("histogram", {"kind", "le"}),
    "trainwright_restarts": ("counter", {"kind", "cause"}),
    "trainwright_jobs_finished": ("counter", {"kind", "result"}),
}


def busy() -> Telemetry:
    telemetry = Telemetry(lambda: 100.0)
    telemetry.queue_depth = 3
    telemetry.leads = True
    telemetry.kinds = {"genericjob": True, "jaxjob": False}
    telemetry.queue_seconds.observe(0.02)
    telemetry.passes["done"] += 5
    telemetry.writes["create", "pods", "done"] += 4
    telemetry.writes["create", "pods", "Forbidden"] += 1
    telemetry.called("create", "pods", 201, 0.003)
    telemetry.called("create", "pods", 0, 5.0)
    telemetry.lists["pods"] += 1
    telemetry.watch_events["pods"] += 7
    telemetry.outcomes["genericjob", "Succeeded"] += 2
    telemetry.restarts["genericjob", "Exit"] += 1
    telemetry.foreign["tfjob"] += 1
    telemetry.time_to_running["genericjob"] = Histogram(LONG)
    telemetry.time_to_running["genericjob"].observe(42.0)
    for phase, began in (("Running", 40.0), ("Running", 90.0), ("Restarting", 70.0), ("Succeeded", 10.0)):
        telemetry.jobs.setdefault(("genericjob", phase), Occupancy()).enter(began)
    for seconds in (0.00005, 0.0001, 0.002, 99.0):
        telemetry.pass_seconds.observe(seconds)
    return telemetry


def samples(telemetry: Telemetry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(telemetry.expose())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_every_metric_of_the_table_is_there_with_its_type_and_labels() -> None:
    families = {family.name: family for family in text_string_to_metric_families(busy().expose())}
    assert {name: family.type for name, family in families.items()} == {
        name: kind for name, (kind, _) in METRICS.items()
    }
    for name, (_, labels) in METRICS.items():
        used = {label for sample in families[name].samples for label in sample.labels}
        assert used == labels, name


def test_the_document_has_every_metric_with_its_labels() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `trainwright_")}
    named = {name.removesuffix("_total"): row for name, row in rows.items()}

    assert named.keys() == METRICS.keys()
    for name, (kind, labels) in METRICS.items():
        assert kind in named[name]
        assert all(f"`{label}`" in named[name] for label in labels - {"le"}), name


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("leader", {}, 1),
        ("queue_depth", {}, 3),
        ("queue_seconds_sum", {}, 0.02),
        ("reconciles_total", {"result": "done"}, 5),
        ("writes_total", {"verb": "create", "resource": "pods", "result": "done"}, 4),
        ("writes_total", {"verb": "create", "resource": "pods", "result": "Forbidden"}, 1),
        ("api_calls_total", {"verb": "create", "resource": "pods", "code": "201"}, 1),
        ("api_calls_total", {"verb": "create", "resource": "pods", "code": "none"}, 1),
        ("api_seconds_count", {"verb": "create", "resource": "pods"}, 2),
        ("watch_events_total", {"resource": "pods"}, 7),
        ("jobs", {"kind": "genericjob", "phase": "Running"}, 2),
        ("jobs", {"kind": "genericjob", "phase": "Succeeded"}, 1),
        ("job_seconds_total", {"kind": "genericjob", "phase": "Running"}, 70),
        ("goodput_ratio", {"kind": "genericjob"}, 0.7),
        ("time_to_running_seconds_bucket", {"kind": "genericjob", "le": "60.0"}, 1),
        ("restarts_total", {"kind": "genericjob", "cause": "Exit"}, 1),
        ("jobs_finished_total", {"kind": "genericjob", "result": "Succeeded"}, 2),
    ],
)
def test_the_numbers_are_those_that_were_counted(name: str, labels: dict[str, str], value: float) -> None:
    assert samples(busy())[f"trainwright_{name}", frozenset(labels.items())] == value


def test_nobody_counts_how_long_a_job_has_been_over() -> None:
    over = {("kind", "genericjob"), ("phase", "Succeeded")}
    assert ("trainwright_job_seconds_total", frozenset(over)) not in samples(busy())


def test_the_buckets_add_up() -> None:
    found = samples(busy())
    buckets = {
        bound: found["trainwright_reconcile_seconds_bucket", frozenset({("le", bound)})]
        for bound in ("0.0001", "0.005", "5.0", "+Inf")
    }
    assert buckets == {"0.0001": 2, "0.005": 3, "5.0": 3, "+Inf": 4}
    assert found["trainwright_reconcile_seconds_count", frozenset()] == 4
    assert found["trainwright_reconcile_seconds_sum", frozenset()] == 99.00215
    assert len([key for key in found if key[0] == "trainwright_reconcile_seconds_bucket"]) == len(BOUNDS) + 1


def test_seconds_of_a_stay_are_those_of_all_who_were_there() -> None:
    stay = Occupancy()
    stay.enter(10.0)
    stay.enter(20.0)
    assert stay.seconds(30.0) == 30.0
    stay.leave(10.0, 40.0)
    assert (stay.count, stay.seconds(50.0)) == (1, 60.0)


def test_nothing_has_happened_yet() -> None:
    found = samples(Telemetry())
    assert found["trainwright_reconcile_seconds_count", frozenset()] == 0
    assert found["trainwright_leader", frozenset()] == 0
    assert not [key for key in found if key[0] == "trainwright_goodput_ratio"]


def test_counting_does_not_load_the_prometheus_client() -> None:
    program = "import sys, trainwright.runtime.controller; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
