# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S108 - paths inside of pods
"""Problems that preflight reports before a run starts."""

import socket
from pathlib import Path
from typing import Any

import pytest

from trainwright.kinds.template import FIELDS
from trainwright.local.checks.preflight import check
from trainwright.model.problem import Problem

MAIN: dict[str, Any] = {"name": "main", "image": "x", "command": ["true"]}
AT = "spec.replicaSpecs[0].template.spec"
SECRET = {"kind": "Secret", "metadata": {"name": "token"}, "data": {"key": "YQ=="}, "stringData": {"user": "x"}}
CONFIG = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a.yaml": "x"}}
CLAIM = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}}
FOREIGN = {"kind": "Secret", "metadata": {"name": "tokens", "namespace": "elsewhere"}}
OBJECTS = (SECRET, CONFIG, CLAIM, FOREIGN)


def node(name: str = "node-0", **has: str) -> dict[str, Any]:
    allocatable = {"cpu": "2", "memory": "4Gi", "pods": "1000"} | has
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def job(*containers: dict[str, Any], replicas: int = 1, spec: Any = None, **template: Any) -> dict[str, Any]:
    containers = containers or (MAIN,)
    pod = {"containers": [MAIN | one | {"name": f"c{index}"} for index, one in enumerate(containers)]} | template
    roles = [{"type": "worker", "replicas": replicas, "template": {"spec": pod}}]
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": "j"},
        "spec": {"replicaSpecs": roles} | (spec or {}),
    }


def found(document: dict[str, Any], runtime: str = "sandbox", nodes: Any = None) -> tuple[Problem, ...]:
    return check(document, OBJECTS, [node()] if nodes is None else nodes, runtime)


def said(document: dict[str, Any], runtime: str = "sandbox", nodes: Any = None) -> list[str]:
    problems = found(document, runtime, nodes)
    return [("warning: " if one.warning else "") + str(one).replace(AT, "…") for one in problems]


def env(**source: Any) -> dict[str, Any]:
    return {"env": [{"name": "A", "valueFrom": source}]}


def mounting(path: str, **source: Any) -> dict[str, Any]:
    return job({"volumeMounts": [{"name": "v", "mountPath": path}]}, volumes=[{"name": "v"} | source])


ABOUT = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
CPU = {"containerName": "c0", "resource": "limits.cpu"}
GPUS = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
NO_COMMAND = "missing; the image is not used here, so its entrypoint is not known: name the program to run"
RIGHT: dict[str, dict[str, Any]] = {
    "plain": job(),
    "secret key": job(env(secretKeyRef={"name": "token", "key": "key"})),
    "secret key as text": job(env(secretKeyRef={"name": "token", "key": "user"})),
    "optional": job(env(secretKeyRef={"name": "none", "key": "x", "optional": True})),
    "optional key": job(env(configMapKeyRef={"name": "settings", "key": "x", "optional": True})),
    "field": job(env(fieldRef={"fieldPath": "metadata.name"})),
    "all of them": job({"envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "token"}}]}),
    "secret files": mounting("/x", secret={"secretName": "token", "items": [{"key": "key", "path": "k"}]}),
    "optional files": mounting("/x", configMap={"name": "none", "optional": True}),
    "claim": mounting("/data", persistentVolumeClaim={"claimName": "data"}),
    "empty": mounting("/x", emptyDir={}),
    "about the pod": mounting("/x", downwardAPI={"items": [ABOUT, {"path": "cpu", "resourceFieldRef": CPU}]}),
    "projected": mounting(
        "/x",
        projected={
            "sources": [
                {"configMap": {"name": "settings", "items": [{"key": "a.yaml", "path": "a"}]}},
                {"secret": {"name": "token"}},
                {"secret": {"name": "none", "optional": True}},
                {"downwardAPI": {"items": [ABOUT]}},
            ]
        },
    ),
    "made if missing": mounting("/x", hostPath={"path": "/nowhere/at/all", "type": "DirectoryOrCreate"}),
    "a volume that nobody mounts": job(volumes=[{"name": "v", "nfs": {"path": "/", "server": "s"}}]),
    "all there is": job({"resources": {"requests": {"cpu": 2, "memory": "4Gi"}}}),
    "exec probe": job({"livenessProbe": {"exec": {"command": ["true"]}}}),
    "debug mode brings a command": job(
        {"command": []}, spec={"runMode": {"debug": {"enabled": True}}, "cleanUpPolicy": "None"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_job_that_can_work_passes(name: str) -> None:
    assert said(RIGHT[name]) == []


IGNORED = "`trainwright run` ignores queues: the job starts as soon as its replicas fit, and no quota is counted"


def queued(kind: str, spec: Any, **meta: Any) -> dict[str, Any]:
    """A job of a kind, with one worker."""
    pod = {"spec": {"containers": [MAIN | {"name": {"TFJob": "tensorflow", "PaddleJob": "paddle"}.get(kind, "main")}]}}
    group, roles = {
        "TFJob": ("kubeflow.org/v1", {"tfReplicaSpecs": {"Worker": {"template": pod}}}),
        "PaddleJob": ("batch.paddlepaddle.org/v1", {"worker": {"replicas": 1, "template": pod}}),
        "GenericJob": ("batch.tensorstack.dev/v1beta1", {"replicaSpecs": [{"type": "worker", "template": pod}]}),
    }[kind]
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "j", **meta}, "spec": roles | spec}


QUEUES: dict[str, tuple[dict[str, Any], str]] = {
    "t9k": (
        queued("GenericJob", {"scheduler": {"t9kScheduler": {"queue": "gpu"}}}),
        "spec.scheduler.t9kScheduler.queue",
    ),
    "tfjob": (
        queued("TFJob", {"runPolicy": {"schedulingPolicy": {"queue": "gpu"}}}),
        "spec.runPolicy.schedulingPolicy.queue",
    ),
    "paddlejob": (queued("PaddleJob", {"schedulingPolicy": {"queue": "gpu"}}), "spec.schedulingPolicy.queue"),
    "kueue": (
        queued("GenericJob", {}, labels={"kueue.x-k8s.io/queue-name": "gpu"}),
        'metadata.labels["kueue.x-k8s.io/queue-name"]',
    ),
}


@pytest.mark.parametrize("name", QUEUES)
def test_a_queue_is_ignored_and_that_is_said_once(name: str) -> None:
    document, path = QUEUES[name]
    assert said(document) == [f"warning: {path}: queue 'gpu': {IGNORED}"]


def test_a_gang_without_a_queue_needs_no_warning() -> None:
    assert said(queued("GenericJob", {"scheduler": {"t9kScheduler": {"priority": 5}}})) == []


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no command": (
        job({"command": None, "args": ["x"]}, initContainers=[{"name": "i", "image": "x"}]),
        [f"….initContainers[0].command: {NO_COMMAND}", f"….containers[0].command: {NO_COMMAND}"],
    ),
    "paused without a command": (
        job({"command": []}, spec={"runMode": {"pause": {"enabled": True}}}),
        [f"warning: ….containers[0].command: {NO_COMMAND}"],
    ),
    "sidecar": (
        job(initContainers=[MAIN | {"restartPolicy": "Always"}]),
        [
            "….initContainers[0].restartPolicy: Always is not supported here:"
            " an init container must end before the next one begins"
        ],
    ),
    "secret": (
        job(env(secretKeyRef={"name": "tokens", "key": "key"})),
        [
            "….containers[0].env[0].valueFrom.secretKeyRef.name: there is no Secret 'tokens';"
            " the files have token; did you mean `token`?"
        ],
    ),
    "key": (
        job(env(configMapKeyRef={"name": "settings", "key": "a.yml"})),
        [
            "….containers[0].env[0].valueFrom.configMapKeyRef.key: ConfigMap 'settings' has no key 'a.yml';"
            " it has a.yaml; did you mean `a.yaml`?"
        ],
    ),
    "all of one that is not there": (
        job({"envFrom": [{"configMapRef": {"name": "nothing"}}]}),
        ["….containers[0].envFrom[0].configMapRef.name: there is no ConfigMap 'nothing'; the files have settings"],
    ),
    "claim": (
        mounting("/data", persistentVolumeClaim={"claimName": "date"}),
        [
            "….volumes[0].persistentVolumeClaim.claimName: there is no PersistentVolumeClaim 'date';"
            " the files have data; did you mean `data`?"
        ],
    ),
    "file of a secret": (
        mounting("/x", secret={"secretName": "token", "items": [{"key": "no", "path": "k"}]}),
        ["….volumes[0].secret.items[0].key: Secret 'token' has no key 'no'; it has key, user"],
    ),
    "volume": (
        mounting("/x", nfs={"path": "/", "server": "s"}),
        [
            "….volumes[0]: nfs is not supported here;"
            " expected one of emptyDir, hostPath, configMap, secret, persistentVolumeClaim, projected, downwardAPI"
        ],
    ),
    "source of a projected volume": (
        mounting(
            "/x",
            projected={
                "sources": [
                    {"configMap": {"name": "setting"}},
                    {"secret": {"name": "token", "items": [{"key": "no", "path": "k"}]}},
                    {"clusterTrustBundle": {"path": "ca"}},
                    {"serviceAccountToken": {"path": "jwt"}},
                    {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.nam"}}]}},
                ]
            },
        ),
        [
            "….volumes[0].projected.sources[0].configMap.name: there is no ConfigMap 'setting';"
            " the files have settings; did you mean `settings`?",
            "….volumes[0].projected.sources[1].secret.items[0].key: Secret 'token' has no key 'no'; it has key, user",
            "….volumes[0].projected.sources[2]: clusterTrustBundle is not supported here; expected one of"
            " serviceAccountToken, configMap, secret, downwardAPI",
            "warning: ….volumes[0].projected.sources[3].serviceAccountToken:"
            " there are no service accounts here: the file 'jwt' is left out",
            "….volumes[0].projected.sources[4].downwardAPI.items[0].fieldRef.fieldPath:"
            f" 'metadata.nam' is not known; expected {', '.join(FIELDS)}; did you mean `metadata.name`?",
        ],
    ),
    "about another container": (
        mounting("/x", downwardAPI={"items": [{"path": "cpu", "resourceFieldRef": CPU | {"containerName": "c1"}}]}),
        [
            "….volumes[0].downwardAPI.items[0].resourceFieldRef.containerName:"
            " there is no container 'c1'; the pod has c0"
        ],
    ),
    "relative path": (
        mounting("/x", hostPath={"path": "data"}),
        ["….volumes[0].hostPath.path: expected an absolute path, found 'data'"],
    ),
    "too much": (
        job({"resources": {"requests": {"cpu": 64}}}),
        [
            "….containers[0].resources: can never fit: node-0: cpu: needs 64, this node has 2",
        ],
    ),
    "too much in two containers": (
        job({"resources": {"requests": {"cpu": 1}}}, {"resources": {"limits": {"cpu": 2}}}),
        [
            "….containers: can never fit: node-0: cpu: needs 3, this node has 2",
        ],
    ),
    "no GPU": (
        job(GPUS),
        [
            "….containers[0].resources: can never fit: node-0: nvidia.com/gpu: needs 1, this node has none;"
            " `--gpus N` pretends that there are N GPUs",
        ],
    ),
    "no such device": (
        job({"resources": {"limits": {"huawei.com/Ascend910": 8}}}),
        [
            "….containers[0].resources: can never fit: node-0: huawei.com/Ascend910: needs 8, this node has none;"
            " `--device huawei.com/Ascend910=N` declares N of them",
        ],
    ),
    "too much of one thing for a pod, of another for all": (
        job({"resources": {"requests": {"cpu": 1}, "limits": GPUS["resources"]["limits"]}}, replicas=4),
        [
            "warning: spec: not all 4 replicas can run at the same time: cpu: needs 4 together, all nodes have 2",
            "….containers[0].resources: can never fit: node-0: nvidia.com/gpu: needs 1, this node has none;"
            " `--gpus N` pretends that there are N GPUs",
        ],
    ),
    "too much for a gang of one": (
        job({"resources": {"requests": {"cpu": 64}}}, spec={"scheduler": {"t9kScheduler": {}}}),
        ["….containers[0].resources: can never fit: node-0: cpu: needs 64, this node has 2"],
    ),
    "not all at once": (
        job({"resources": {"requests": {"cpu": 1}}}, replicas=4),
        ["warning: spec: not all 4 replicas can run at the same time: cpu: needs 4 together, all nodes have 2"],
    ),
    "gang": (
        job({"resources": {"requests": {"cpu": 1}}}, replicas=4, spec={"scheduler": {"t9kScheduler": {}}}),
        ["spec: can never fit: gang needs 4 pods at once: cpu: needs 4 together, all nodes have 2"],
    ),
    "selector": (
        job(nodeSelector={"zone": "a"}),
        ["….nodeSelector: no node here accepts such a pod: node-0: without the label zone=a"],
    ),
    "unsupported": (
        job(
            affinity={
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "hostname"}]}
            }
        ),
        ["…: required podAntiAffinity is not supported here"],
    ),
    "passed over": (
        job(
            {"readinessProbe": {"httpGet": {"port": 80}}, "securityContext": {"runAsUser": 0}},
            securityContext={"runAsUser": 1000},
        ),
        [
            "warning: ….containers[0].readinessProbe: only exec probes are run here; this one counts as passed",
            "warning: ….containers[0].securityContext.runAsUser: not used here:"
            " every process runs as the user who started the engine",
            "warning: ….securityContext.runAsUser: not used here:"
            " every process runs as the user who started the engine",
        ],
    ),
}


def test_a_variable_that_is_given_needs_no_secret() -> None:
    document = job(env(secretKeyRef={"name": "elsewhere", "key": "key"}))
    assert check(document, OBJECTS, [node()], "sandbox", ["A"]) == ()
    assert len(check(document, OBJECTS, [node()], "sandbox", ["B"])) == 1


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_work_is_said_with_its_place(name: str) -> None:
    document, expected = WRONG[name]
    assert said(document) == expected


@pytest.mark.parametrize("nodes", [[], [node(), node("node-1", cpu="64")]], ids=["no node", "a larger one"])
def test_what_some_node_can_hold_is_no_problem(nodes: Any) -> None:
    assert said(job({"resources": {"requests": {"cpu": 64}}}), nodes=nodes) == []


def test_of_many_nodes_the_nearest_is_named() -> None:
    nodes = [node(), node("node-1", cpu="8")]
    assert said(job({"resources": {"requests": {"cpu": 9}}}), nodes=nodes) == [
        "….containers[0].resources: can never fit: nearest is node-1: cpu: needs 9, this node has 8"
    ]


def test_a_job_that_is_wrong_in_itself_is_left_to_validation() -> None:
    assert found(job({"command": "x"})) == ()
    assert found({"kind": "Unknown"}) == ()


def test_roles_of_the_same_template_are_each_named() -> None:
    document = job({"command": []})
    first = document["spec"]["replicaSpecs"][0]
    document["spec"]["replicaSpecs"].append(first | {"type": "master"})
    assert [one.path for one in found(document)] == [
        f"spec.replicaSpecs[{index}].template.spec.containers[0].command" for index in (0, 1)
    ]


NOT_THERE = (
    "….containers[0].volumeMounts[0].mountPath: nothing can be mounted at /data in the process runtime, where pods see"
    " this machine's files as they are; use `--runtime sandbox`, or a hostPath of that same path"
)


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("/dev/shm", {"emptyDir": {"medium": "Memory"}}, []),
        ("/dev/shm/", {"emptyDir": {"medium": "Memory"}}, []),
        ("/var/run/secrets/kubernetes.io/serviceaccount", {"projected": {"sources": []}}, []),
        ("/", {"hostPath": {"path": "/"}}, []),
        ("/data", {"emptyDir": {}}, [NOT_THERE]),
        ("/data/", {"hostPath": {"path": "/other"}}, [NOT_THERE]),
        ("/data", {"persistentVolumeClaim": {"claimName": "data"}}, [NOT_THERE]),
    ],
)
def test_the_process_runtime_mounts_nothing(path: str, source: dict[str, Any], expected: list[str]) -> None:
    assert said(mounting(path, **source), "process") == expected


def test_a_part_of_the_same_path_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    document = mounting(f"{tmp_path}/sub", hostPath={"path": str(tmp_path)})
    document["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = "sub"
    assert said(document, "process") == []


def test_a_path_on_this_machine_must_be_there_and_what_it_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))

    def about(name: str, kind: str) -> list[str]:
        told = said(mounting("/x", hostPath={"path": f"{tmp_path}/{name}", "type": kind}))
        return [one.replace(str(tmp_path), "").removeprefix("….volumes[0].hostPath.path: ") for one in told]

    assert [about("data", "Directory"), about("file", "File"), about("socket", "Socket"), about("data", "")] == [[]] * 4
    assert about("file", "FileOrCreate") == []
    assert about("dat", "") == [
        "there is no /dat on this machine; `type: DirectoryOrCreate` makes it; did you mean `/data`?"
    ]
    assert about("zzzz", "Directory") == ["there is no /zzzz on this machine"]
    assert about("none/at/all", "File") == ["there is no /none/at/all on this machine"]
    assert about("file", "Directory") == ["/file is not a folder, as its type Directory asks"]
    assert about("data", "FileOrCreate") == ["/data is not a file, as its type FileOrCreate asks"]


def test_a_config_map_that_the_job_makes_itself_need_not_be_there_and_must_not_be_somebody_elses() -> None:
    template = {"spec": {"containers": [{"name": "paddle", "image": "x", "command": ["true"]}]}}
    document = {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "demo"},
        "spec": {"worker": {"replicas": 1, "template": template}},
    }
    mine = {"kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {}}
    others = [{"kind": "ConfigMap", "metadata": {"name": "demo", "namespace": "elsewhere"}}, mine | {"kind": "Secret"}]

    assert check(document, others, [], "sandbox") == ()
    (problem,) = check(document, [mine], [], "sandbox")
    assert (problem.path, problem.warning) == ("metadata.name", False)
    assert "the files have one, too" in problem.message
