# SPDX-License-Identifier: Apache-2.0
"""What the operator says of itself on a real control plane, held against what the API server has on record."""

import json
import socket
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from cluster_client import until
from cluster_jobs import Jobs, job, role
from cluster_operator import account, holder, started
from cluster_plane import ControlPlane
from prometheus_client.parser import text_string_to_metric_families

pytest_plugins = ("cluster_fixtures",)
#: The originals' start line, but for its server: no real one is without TLS.
DOCUMENTED_FLAGS = (
    "--v",
    "4",
    "--thread-num",
    "1000",
    "--logtostderr",
    "--leader-elect=true",
    "--enable-creating-failed=true",
)
Labels = frozenset[tuple[str, str]]


class Probe:
    """Where one operator is asked."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.address = f"127.0.0.1:{one.getsockname()[1]}"

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def numbers(self) -> dict[tuple[str, Labels], float]:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {(one.name, frozenset(one.labels.items())): one.value for each in families for one in each.samples}


def of(**labels: str) -> Labels:
    return frozenset(labels.items())


@pytest.mark.usefixtures("nodes")
def test_the_operators_numbers_are_those_of_the_server(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    user, config = account(plane, namespace, "operator")
    probe, jobs, mark = Probe(), Jobs(plane, namespace), plane.mark()
    place = ("--namespace", namespace, "--lease", f"{namespace}/operator", "--address", probe.address)
    with started(config, tmp_path / "log", *place, "--log-format", "json", *DOCUMENTED_FLAGS) as process:
        until(lambda: probe.get("/readyz") == (200, "ok\n"), "it is ready")
        jobs.make(job("twice", role(replicas=2, limit=2, exit="1,0", runs="0.5")))
        jobs.make(job("never", role(exit="3", runs="0.5")))
        jobs.make(job("still", role(runs="forever")))
        jobs.until("twice", "Succeeded")
        jobs.until("never", "Failed")
        jobs.until("still", "Running")
        found, healthy = probe.numbers(), probe.get("/healthz")
        calls = plane.audit(mark).where(user=user)
        assert process.end() == 0
        until(lambda: holder(plane, namespace) == "", "the lease is given back")

    pods = [call for call in calls if (call.verb, call.resource, call.code) == ("create", "pods", 201)]
    assert found["trainwright_api_calls_total", of(verb="create", resource="pods", code="201")] == len(pods) == 6
    assert healthy == (200, "ok\n")
    for name, labels, value in (
        ("leader", {}, 1),
        ("jobs", {"kind": "genericjob", "phase": "Succeeded"}, 1),
        ("jobs", {"kind": "genericjob", "phase": "Failed"}, 1),
        ("jobs", {"kind": "genericjob", "phase": "Running"}, 1),
        ("jobs_finished_total", {"kind": "genericjob", "result": "Succeeded"}, 1),
        ("jobs_finished_total", {"kind": "genericjob", "result": "Failed"}, 1),
        ("restarts_total", {"kind": "genericjob", "cause": "Exit"}, 2),
        ("time_to_running_seconds_count", {"kind": "genericjob"}, 3),
    ):
        assert found[f"trainwright_{name}", of(**labels)] == value, (name, labels)
    assert 0 < found["trainwright_goodput_ratio", of(kind="genericjob")] <= 1
    logged = Counter(line["msg"] for line in lines(process.log) if line.get("job") == f"{namespace}/twice")
    assert logged["restarting"] >= 1
    assert logged["write"] >= 4


def lines(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]
