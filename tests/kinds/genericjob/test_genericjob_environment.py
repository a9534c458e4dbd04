# SPDX-License-Identifier: Apache-2.0
"""The five `$(…)` variables: where they are filled in, and what is left as written."""

from typing import Any

import pytest
from genericjob_driver import Driver, container, manifest, replicas

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.genericjob.environment import ReplicaVariables, fill
from trainwright.model.meta import Key
from trainwright.model.site import Site

PORTS = {"ports": [{"name": "http", "port": 2222}, {"name": "rdzv", "port": 29500}]}
HTTP = "$(service.port[http])"


def filled(text: str, name: str = "worker-1") -> str:
    """The text as that replica's argument."""
    pod = {"containers": [container(args=[text])]}
    driver = Driver(manifest(replicas("master", 2, pod=pod), replicas("worker", 4, pod=pod), service=PORTS))
    driver.go()
    value: str = driver.pod_spec(name)["containers"][0]["args"][0]
    return value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("$(type)", "worker", id="type"),
        pytest.param("$(rank)", "1", id="rank"),
        pytest.param("$(replicas[worker])", "4", id="replicas of its own type"),
        pytest.param("$(replicas[master])", "2", id="replicas of another type"),
        pytest.param("$(service.worker[0].host)", "demo-worker-0", id="host of a peer"),
        pytest.param("$(service.master[1].host)", "demo-master-1", id="host of another type"),
        pytest.param("$(service.port[http])", "2222", id="port"),
        pytest.param("$(service.port[rdzv])", "29500", id="another port"),
        pytest.param(
            "$(type)-$(rank)/$(replicas[worker]) at $(service.worker[3].host):$(service.port[http])",
            "worker-1/4 at demo-worker-3:2222",
            id="all five in one text",
        ),
        pytest.param("$(rank)$(rank)", "11", id="twice, side by side"),
        pytest.param("$(OTHER)", "$(OTHER)", id="the kubelet's"),
        pytest.param("$(MASTER_ADDR):$(rank)", "$(MASTER_ADDR):1", id="the kubelet's and ours"),
        pytest.param("$$(rank)", "$$(rank)", id="an escape"),
        pytest.param("$$$(rank)", "$$1", id="an escaped dollar, then a variable"),
        pytest.param("$$$$(rank)", "$$$$(rank)", id="two escapes"),
        pytest.param("$$(rank) $(rank)", "$$(rank) 1", id="an escape, then a variable"),
        pytest.param("$(Rank) $(TYPE)", "$(Rank) $(TYPE)", id="case matters"),
        pytest.param("$( rank )", "$( rank )", id="no spaces"),
        pytest.param("$rank ${rank} $(rank", "$rank ${rank} $(rank", id="the shell's"),
        pytest.param("$(service.worker[$(rank)].host)", "$(service.worker[$(rank)].host)", id="no nesting"),
        pytest.param("中文 $(rank) 文", "中文 1 文", id="other letters around"),
        pytest.param("$(service.worker[0].port)", "$(service.worker[0].port)", id="almost a variable"),
        pytest.param("", "", id="empty"),
    ],
)
def test_a_text_is_filled_in(text: str, expected: str) -> None:
    assert filled(text) == expected


def test_each_replica_has_its_own() -> None:
    assert [filled("$(type) $(rank)", name) for name in ("master-0", "master-1", "worker-3")] == [
        "master 0",
        "master 1",
        "worker 3",
    ]


def test_tf_config() -> None:
    """The canonical example, of the tutorial."""
    hosts = ",".join(f'"$(service.worker[{rank}].host):{HTTP}"' for rank in range(4))
    value = f'{{"cluster":{{"worker":[{hosts}]}},"task":{{"type":"$(type)","index":$(rank)}}}}'

    assert filled(value, "worker-2") == (
        '{"cluster":{"worker":["demo-worker-0:2222","demo-worker-1:2222","demo-worker-2:2222","demo-worker-3:2222"]},'
        '"task":{"type":"worker","index":2}}'
    )


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_where_variables_are_filled_in(group: str) -> None:
    """Command, args and env values, of every container and init container; nothing else."""
    reference = {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "$(rank)", "key": "a"}}}
    given = container(
        "first",
        command=["sh", "$(rank)"],
        args=["$(type)"],
        env=[{"name": "$(rank)", "value": "$(rank)"}, reference, {"name": "EMPTY"}, {"name": "NONE", "value": None}],
        workingDir="/$(rank)",
        image="image:$(rank)",
    )
    second = container("second", args=["$(replicas[worker])"])
    pod: dict[str, Any] = {"containers": [container()]}
    pod[group] = [given, second]
    driver = Driver(manifest(replicas(pod=pod)))
    driver.go()

    assert driver.pod_spec("worker-2")[group] == [
        given
        | {
            "command": ["sh", "2"],
            "args": ["worker"],
            "env": [{"name": "$(rank)", "value": "2"}, reference, {"name": "EMPTY"}, {"name": "NONE", "value": None}],
        },
        second | {"args": ["4"]},
    ]


def test_the_manifest_itself_is_not_touched() -> None:
    driver = Driver(manifest(replicas(pod={"containers": [container(args=["$(rank)"])]})))
    driver.go()

    assert driver.document["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["args"] == ["$(rank)"]


def test_hosts_are_written_as_the_place_asks() -> None:
    """Where names do not resolve, a table has the addresses."""
    pod = {"containers": [container(args=["$(service.worker[0].host) $(service.worker[1].host)"])]}
    driver = Driver(manifest(replicas(pod=pod), service=PORTS))
    driver.site = Site(names_resolve=False, hosts={(Key("lab", "demo"), "demo-worker-1"): "127.0.0.7"})
    driver.go()

    assert driver.pod_spec("worker-0")["containers"][0]["args"] == ["demo-worker-0 127.0.0.7"]


def test_counts_follow_an_edit_for_new_pods() -> None:
    spec = replicas(pod={"containers": [container(args=["$(replicas[worker])"])]})
    driver = Driver(manifest(spec)).running()
    driver.edit(replicaSpecs=[spec | {"replicas": 6}])
    driver.go()

    assert [driver.pod_spec(f"worker-{rank}")["containers"][0]["args"] for rank in (0, 5)] == [["4"], ["6"]]


@pytest.mark.parametrize(
    "text",
    ["$(replicas[ps])", "$(service.ps[0].host)", "$(service.worker[2].host)", "$(service.port[ssh])"],
)
def test_what_points_at_nothing_is_left_as_written(text: str) -> None:
    """Checks refuse it; a job that was running when an edit took its target away must not stumble."""
    facts = ReplicaVariables("worker", 0, {"worker": 2}, {"http": 80}, lambda kind, rank: f"{kind}-{rank}")

    assert fill(f"$(rank) {text}", facts) == f"0 {text}"


def test_without_services_there_are_no_hosts() -> None:
    text = "$(service.worker[0].host)"

    assert fill(text, ReplicaVariables("worker", 0, {"worker": 2}, {}, None)) == text


@pytest.mark.parametrize(
    ("text", "more", "near"),
    [
        pytest.param("--rank=$(rnk)", {}, "$(rank)", id="a misspelt variable"),
        pytest.param("$(RANK)", {}, "$(rank)", id="another case"),
        pytest.param("$(replica[worker])", {}, "$(replicas[worker])", id="a misspelt variable with a type"),
        pytest.param("$(servce.port[a])", {}, "$(service.port[a])", id="a misspelt service"),
        pytest.param("$(DATA_DRI)", {"env": [{"name": "DATA_DIR", "value": "a"}]}, "$(DATA_DIR)", id="environment"),
        pytest.param("$(RANK)", {"env": [{"name": "RANK", "value": "a"}]}, "", id="the container has it"),
        pytest.param("$(rnk)", {"envFrom": [{"configMapRef": {"name": "a"}}]}, "", id="a ConfigMap may have it"),
        pytest.param("$$(rnk)", {}, "", id="an escape"),
        pytest.param("$(A99)", {"env": [{"name": f"A{i}", "value": "a"} for i in range(100)]}, "", id="many"),
        pytest.param("$(LOGDIR)", {}, "", id="nothing is near"),
        pytest.param("echo $(nproc) $(cat rank)", {"env": [{"name": "NPROC", "value": "a"}]}, "", id="a shell's"),
    ],
)
def test_a_reference_that_nobody_fills_in(text: str, more: dict[str, Any], near: str) -> None:
    pod = {"containers": [container(command=["sh", "-c", text], **more)]}
    problems = load(GENERICJOB, manifest(replicas(pod=pod))).problems

    assert [one.nearest for one in problems] == ([near] if near else [])
    assert all(one.warning and one.path.endswith("containers[0].command[2]") for one in problems)
