# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads, by its own parser."""

import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from trainwright.runtime.telemetry import BOUNDS, Telemetry

METRICS = {
    "trainwright_queue_depth": ("gauge", set()),
    "trainwright_reconciles": ("counter", {"result"}),
    "trainwright_writes": ("counter", {"verb", "resource", "result"}),
    "trainwright_lists": ("counter", {"resource"}),
    "trainwright_watch_events": ("counter", {"resource"}),
    "trainwright_jobs_finished": ("counter", {"kind", "result"}),
    "trainwright_reconcile_seconds": ("histogram", {"le"}),
}


def busy() -> Telemetry:
    telemetry = Telemetry()
    telemetry.depth = 3
    telemetry.passes["done"] += 5
    telemetry.writes["create", "pods", "done"] += 4
    telemetry.writes["create", "pods", "Forbidden"] += 1
    telemetry.lists["pods"] += 1
    telemetry.changes["pods"] += 7
    telemetry.outcomes["genericjob", "Succeeded"] += 2
    for seconds in (0.00005, 0.0001, 0.002, 99.0):
        telemetry.took(seconds)
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
        assert used == labels


def test_the_numbers_are_those_that_were_counted() -> None:
    found = samples(busy())
    assert found["trainwright_queue_depth", frozenset()] == 3
    assert found["trainwright_reconciles_total", frozenset({("result", "done")})] == 5
    created = {("verb", "create"), ("resource", "pods")}
    assert found["trainwright_writes_total", frozenset(created | {("result", "done")})] == 4
    assert found["trainwright_writes_total", frozenset(created | {("result", "Forbidden")})] == 1
    assert found["trainwright_watch_events_total", frozenset({("resource", "pods")})] == 7
    ended = {("kind", "genericjob"), ("result", "Succeeded")}
    assert found["trainwright_jobs_finished_total", frozenset(ended)] == 2


def test_the_buckets_add_up() -> None:
    found = samples(busy())
    buckets = {
        bound: found["trainwright_reconcile_seconds_bucket", frozenset({("le", bound)})]
        for bound in ("0.0001", "0.005", "5.0", "+Inf")
    }
    assert buckets == {"0.0001": 2, "0.005": 3, "5.0": 3, "+Inf": 4}
    assert found["trainwright_reconcile_seconds_count", frozenset()] == 4
    assert found["trainwright_reconcile_seconds_sum", frozenset()] == 99.00215
    assert len([key for key in found if key[0].endswith("_bucket")]) == len(BOUNDS) + 1


def test_nothing_has_happened_yet() -> None:
    assert samples(Telemetry())["trainwright_reconcile_seconds_count", frozenset()] == 0


def test_counting_does_not_load_the_prometheus_client() -> None:
    program = "import sys, trainwright.runtime.controller; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
