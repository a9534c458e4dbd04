# SPDX-License-Identifier: Apache-2.0
"""The operator's options: as Go programs take them, from the environment, from a file, and which of these wins."""

import logging
from pathlib import Path
from typing import Any

import click
import pytest

from trainwright.cli.operator import _level, _site, command
from trainwright.errors import ManifestError, UsageError
from trainwright.model.site import CreationRules, DeviceRules, SizingRules


def parsed(*words: str) -> dict[str, Any]:
    return dict(command.make_context("operator", list(words), auto_envvar_prefix="TRAINWRIGHT_OPERATOR").params)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--leader-elect"], {"elect": True}),
        (["--leader-elect=true"], {"elect": True}),
        (["--leader-elect=false"], {"elect": False}),
        (["-leader-elect=f"], {"elect": False}),
        (["--leader-elect", "--v", "4"], {"elect": True, "verbosity": 4}),
        (["--run-in-cluster"], {"run_in_cluster": True}),
        (["--run-in-cluster=false"], {"run_in_cluster": False}),
        (["-run-in-cluster=true"], {"run_in_cluster": True}),
        (["--v=4"], {"verbosity": 4}),
        (["-v=4"], {"verbosity": 4}),
        (["-v", "4"], {"verbosity": 4}),
        (["-n", "a"], {"namespace": "a"}),
        (["-namespace=a"], {"namespace": "a"}),
        (["--logtostderr"], {}),
        (["-logtostderr=true", "--alsologtostderr"], {}),
        (["--leader-elect-resource-lock", "endpoints"], {}),
        (["--initImage", "alpine:3.10"], {"init_image": "alpine:3.10"}),
        (["--initImage=", "--leader-elect"], {"init_image": "", "elect": True}),
        (["-initImage=busybox:1"], {"init_image": "busybox:1"}),
        (["--zap-log-level=debug"], {"zap_level": logging.DEBUG}),
        (["--zap-log-level", "info"], {"zap_level": logging.INFO}),
        (["-zap-log-level=error"], {"zap_level": logging.ERROR}),
        (["--zap-log-level=panic"], {"zap_level": logging.CRITICAL}),
        (["--zap-log-level=1"], {"zap_level": logging.DEBUG}),
        (["--zap-log-level=20"], {"zap_level": logging.DEBUG}),
        (["--zap-encoder=json"], {"zap_encoder": "json"}),
        (["--zap-devel", "--zap-stacktrace-level=error", "--zap-time-encoding", "iso8601"], {}),
        (["--thread-num", "1000"], {"workers": 1000}),
        (["--controller-threads=4"], {"workers": 4}),
        (["--leader-elect-lease-duration=30s"], {"lease_duration": 30.0}),
        (["--leader-elect-renew-deadline", "1m30s"], {"renew_deadline": 90.0}),
        (["--leader-elect-retry-period=500ms"], {"retry_period": 0.5}),
        (["--enable-creating-failed"], {"creating_failed": True}),
        (["--creating-restart-period=0"], {"creating_restart_period": 0.0}),
        (["--creating-duration-period=1h30m"], {"creating_duration_period": 5400.0}),
        (["--kube-api-qps=20", "--kube-api-burst=30"], {"qps": 20.0, "burst": 30}),
        (["--enable-scheme", "genericjob", "--enable-scheme=x"], {"kinds": ("genericjob", "x")}),
        (["--port-range", "35000,65000"], {"port_range": (35000, 65000)}),
        (["--etcd-server", "http://a:2379/, etcd://b:1,c:65535"], {"etcd_server": "a:2379,b:1,c:65535"}),
        (["--etcd-server", ""], {"etcd_server": ""}),
        (["--metrics-bind-address=:8080", "--health-probe-bind-address", ":8081"], {"metrics": ":8080"}),
        (["--master", "http://a:1"], {"master": "http://a:1"}),
        (["--child-events"], {"child_events": True}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_are_taken_as_the_originals_take_them(words: list[str], expected: dict[str, Any]) -> None:
    found = parsed(*words)

    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--leader-elect=perhaps"], "'perhaps' is neither true nor false"),
        (["--port-range", "65000,35000"], "the lower one first"),
        (["--port-range", "many"], "write 35000,65000"),
        (["--etcd-server", "etcd"], "'etcd' is not a server; write host:port"),
        (["--etcd-server", "https://a:2379"], "write host:port"),
        (["--etcd-server", "a:2379,b:0"], "ports go from 1 to 65535"),
        (["--thread-num", "0"], "not in the range"),
        (["--creating-duration-period=1w"], "is not a duration"),
        (["--log-format", "xml"], "'xml' is not one of"),
        (["--enable-creating-faild"], "--enable-creating-failed"),
        (["--gpu-resources", ""], "expected words with commas between them"),
        (["--gpu-failure-taints", "a,none"], "`default` or `none`"),
        (["--gpu-failure-conditions", "GPUMissing=Yes"], "write GPUMissing or GPUReady=False"),
        (["--gpu-failure-conditions", "=True"], "'=True' is not a condition"),
    ],
)
def test_what_a_flag_cannot_be_is_told(words: list[str], told: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parsed(*words)
    assert told in caught.value.format_message()


def test_what_holds_for_all_jobs_is_the_site() -> None:
    words = ["--enable-creating-failed", "--creating-restart-period=1m", "--gang-scheduler-name=volcano"]
    site = _site(parsed(*words, "--etcd-server", "etcd:2379", "--port-range=1,9", "--cluster-domain=cluster.local"))

    assert (site.creating.fail, site.creating.restart_period, site.creating.duration_period) == (True, 60, 900)
    assert (site.gang_scheduler, site.elastic_server) == ("volcano", "etcd:2379")
    assert (site.host_ports, site.domain) == ((1, 9), "cluster.local")


def test_what_is_known_of_gpus_may_be_added_to_or_replaced() -> None:
    usual = DeviceRules()
    added = _site(parsed("--gpu-failure-conditions", "default,Broken,Fine=False", "--gpu-failure-taints=default, x/y"))
    other = _site(parsed("--gpu-resources=x.com/npu", "--gpu-failure-conditions=none", "--gpu-failure-taints", "a,b"))

    assert _site(parsed()).devices == usual
    assert added.devices.conditions == usual.conditions | {("Broken", "True"), ("Fine", "False")}
    assert added.devices.taints == usual.taints | {"x/y"}
    assert other.devices.resources == {"x.com/npu"}
    assert not other.devices.conditions
    assert other.devices.taints == {"a", "b"}


def test_times_of_faults_and_sizes() -> None:
    words = ["--gpu-grace=5", "--avoid-node-period=1h", "--elastic-patience=7s", "--elastic-cooldown=2m"]

    usual, site = _site(parsed()), _site(parsed(*words))

    assert (usual.devices, usual.node_quarantine, usual.sizing, usual.creating) == (
        DeviceRules(),
        120,
        SizingRules(30, 60),
        CreationRules(),
    )
    assert (site.devices.grace, site.node_quarantine, site.sizing) == (5, 3600, SizingRules(7, 120))


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "operator.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lease-duration: 30s", {"lease_duration": 30.0}),
        ("leaseDuration: 30", {"lease_duration": 30.0}),
        ("leaderElectLeaseDuration: 1m", {"lease_duration": 60.0}),
        ("kubeApiQps: 5", {"qps": 5.0}),
        ("leader-elect: false", {"elect": False}),
        ("kinds: [genericjob]", {"kinds": ("genericjob",)}),
        ("kinds: genericjob", {"kinds": ("genericjob",)}),
        ("port-range: [1, 9]", {"port_range": (1, 9)}),
        ("gpuFailureTaints: [a, b]", {"gpu_failure_taints": frozenset({"a", "b"})}),
        ("gpu-failure-conditions: Broken", {"gpu_failure_conditions": frozenset({("Broken", "True")})}),
        ("master: 127.0.0.1:6443", {"master": "127.0.0.1:6443"}),
        ("namespace:", {"namespace": ""}),
        ("v: 4", {"verbosity": 4}),
        ("initImage: alpine", {"init_image": "alpine"}),
        ("zapLogLevel: error", {"zap_level": logging.ERROR}),
        ("thread-num: 1000\nlog-format: json", {"workers": 1000, "log_format": "json"}),
    ],
)
def test_a_file_has_every_option(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found = parsed("--config", file(tmp_path, text))

    assert {key: found[key] for key in expected} == expected


def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = file(tmp_path, "qps: 1\nburst: 1\nthread-num: 1\n")
    monkeypatch.setenv("TRAINWRIGHT_OPERATOR_CONFIG", name)
    monkeypatch.setenv("TRAINWRIGHT_OPERATOR_BURST", "2")
    monkeypatch.setenv("TRAINWRIGHT_OPERATOR_THREAD_NUM", "2")
    found = parsed("--thread-num", "3")

    assert (found["qps"], found["burst"], found["workers"]) == (1.0, 2, 3)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LEADER_ELECT_LEASE_DURATION", "30s", {"lease_duration": 30.0}),
        ("LEASE_DURATION", "30", {"lease_duration": 30.0}),
        ("KINDS", "genericjob,tfjob", {"kinds": ("genericjob,tfjob",)}),
        ("RUN_IN_CLUSTER", "true", {"run_in_cluster": True}),
        ("LEADER_ELECT", "false", {"elect": False}),
        ("CLUSTER_DOMAIN", "a", {"domain": "a"}),
        ("V", "4", {"verbosity": 4}),
    ],
)
def test_every_option_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: dict[str, Any]
) -> None:
    monkeypatch.setenv(f"TRAINWRIGHT_OPERATOR_{name}", value)
    found = parsed()

    assert {key: found[key] for key in expected} == expected


def test_the_document_has_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")
    options = [name for param in command.params for name in param.opts if name.startswith("--")]

    assert [name for name in options if f"`{name}" not in text] == []


def test_the_domain_may_come_from_where_the_original_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUSTOM_CLUSTER_DOMAIN", "cluster.local")

    assert parsed()["domain"] == "cluster.local"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "\nleseDuration: 5s",
            r"operator.yaml:2: leseDuration: there is no such option; did you mean `lease-duration`\?",
        ),
        ("config: a", "config: there is no such option"),
        ("qps: many", "operator.yaml:1: qps: 'many' is not a valid float"),
        ("lease-duration: {a: 1}", "expected one value, found a mapping with 1 key"),
        ("a: 1\n---\nb: 2", "has 2 documents; expected one"),
        ("orphanPeriod: -1", "operator.yaml:1: orphanPeriod: -1 is not a duration"),
        ("leaseDuration: true", "leaseDuration: True is not a duration"),
        ("portRange: 35000", "portRange: 35000 is not a range of ports"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parsed("--config", file(tmp_path, text))


@pytest.mark.parametrize("text", ["- a", "a: [", "a: 1\na: 2", ""], ids=["a list", "no YAML", "twice", "empty"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ManifestError, match=r"operator\.yaml"):
        parsed("--config", file(tmp_path, text))


@pytest.mark.parametrize(
    ("verbosity", "zap", "level"),
    [(0, None, logging.INFO), (4, None, logging.DEBUG), (0, logging.ERROR, logging.ERROR), (4, logging.ERROR, 10)],
)
def test_the_option_that_asks_for_more_lines_wins(verbosity: int, zap: int | None, level: int) -> None:
    assert _level(verbosity, zap) == level


@pytest.mark.parametrize("word", ["loud", "0", "-1", ""])
def test_a_level_that_zap_does_not_have_is_refused(word: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a level; write debug, info, warn, error, panic or a number"):
        parsed(f"--zap-log-level={word}")
