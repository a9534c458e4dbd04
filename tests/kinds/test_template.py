# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501, S108 - tables, one case a line; paths inside of pods
"""Pod templates: shape, then meaning. A right one passes without a word."""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.kinds.decode import DecodeProblems, examine, with_stand_ins
from trainwright.kinds.podtable import TYPES
from trainwright.kinds.template import check as check_fields
from trainwright.kinds.template import read
from trainwright.model.problem import Problem

#: The machine may be busy with other tests.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

MAIN: dict[str, Any] = {"name": "main", "image": "x"}


def check(template: dict[str, Any], path: str) -> tuple[Problem, ...]:
    found = DecodeProblems()
    clean = read(template, path, found)
    return examine(found, lambda turn, left_out: check_fields(with_stand_ins(clean, turn, left_out), path))


def said(template: dict[str, Any]) -> list[str]:
    return [("warning: " if problem.warning else "") + str(problem) for problem in check(template, "t")]


def pod(*containers: dict[str, Any], **spec: object) -> dict[str, Any]:
    return {
        "spec": {"containers": [{**MAIN, "name": f"c{index}", **one} for index, one in enumerate(containers)], **spec}
    }


RIGHT: dict[str, dict[str, Any]] = {
    "least": {"spec": {"containers": [{"name": "a"}]}},
    "nulls": {"metadata": {"creationTimestamp": None}, "spec": {"containers": [MAIN], "volumes": None, "nodeName": None}},
    "labels": {"metadata": {"labels": {"a/b": "c"}, "annotations": {}, "name": "x"}, "spec": {"containers": [MAIN]}},
    "restart policy": pod(MAIN, restartPolicy="Always"),
    "resources": pod({"resources": {"limits": {"cpu": 2, "memory": "2Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": "1500m"}}}),
    "equal": pod({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": "1000m"}}}),
    "environment": pod({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}}]}),
    "ports": pod({"ports": [{"containerPort": 80}], "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3}}),
    "shared memory": pod(
        {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}], "resources": {"limits": {"memory": "1Gi"}}},
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    ),
    "shared memory without a limit": pod(
        {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]},
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
    ),
    "large disk volume": pod(
        {"volumeMounts": [{"name": "big", "mountPath": "/dev/shm"}], "resources": {"limits": {"memory": "1Gi"}}},
        volumes=[{"name": "big", "emptyDir": {"sizeLimit": "64Gi"}}],
    ),
    "open ends": pod(MAIN, tolerations=[{"operator": "Exists"}], affinity={}, dnsConfig={"options": [{"name": "ndots"}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_template_passes(name: str) -> None:
    assert said(RIGHT[name]) == []


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown field": (
        pod({"commands": ["x"]}),
        ["warning: t.spec.containers[0].commands: unknown field; did you mean `command`?"],
    ),
    "number in env": (
        pod({"env": [{"name": "A", "value": 1}]}),
        ["t.spec.containers[0].env[0].value: expected text, found the number 1; put it in quotes"],
    ),
    "boolean in env": (
        pod({"env": [{"name": "A", "value": True}]}),
        ["t.spec.containers[0].env[0].value: expected text, found true; put it in quotes"],
    ),
    "number in args": (
        pod({"args": ["--epochs", 3]}),
        ["t.spec.containers[0].args[1]: expected text, found the number 3; put it in quotes"],
    ),
    "command as text": (
        pod({"command": "python x.py"}),
        [
            "t.spec.containers[0].command: expected a list, found the text 'python x.py'; "
            "a list is written [a, b] or with one `- ` per entry"
        ],
    ),
    "nothing": ({}, ["t.spec: missing; expected a mapping with a list of containers"]),
    "no spec": ({"spec": None}, ["t.spec: missing; expected a mapping with a list of containers"]),
    "spec of text": ({"spec": "x"}, ["t.spec: expected a mapping, found the text 'x'"]),
    "no containers": ({"spec": {}}, ["t.spec.containers: missing; expected a list"]),
    "empty containers": (pod(), ["t.spec.containers: may not be empty: a pod needs at least one container"]),
    "no name": ({"spec": {"containers": [{"image": "x"}]}}, ["t.spec.containers[0].name: missing; expected text"]),
    "empty name": (pod({"name": ""}), ["t.spec.containers[0].name: may not be empty"]),
    "same name": (
        pod({"name": "a"}, {"name": "a"}),
        [
            "t.spec.containers[1].name: 'a' is already the name of t.spec.containers[0]; each container needs its own",
        ],
    ),
    "same name as an init container": (
        pod({"name": "a"}, initContainers=[{"name": "a"}]),
        [
            "t.spec.containers[0].name: 'a' is already the name of t.spec.initContainers[0]; each container needs its own",
        ],
    ),
    "name that is no label": (
        pod({"name": "../x"}, volumes=[{"name": "Data"}]),
        [
            "t.spec.containers[0].name: '../x' cannot be a name here: use at most 63 lower-case letters, digits and "
            "dashes, with a letter or digit at both ends",
            "t.spec.volumes[0].name: 'Data' cannot be a name here: use at most 63 lower-case letters, digits and "
            "dashes, with a letter or digit at both ends",
        ],
    ),
    "no mount path": (
        pod({"volumeMounts": [{"name": "v", "mountPath": ""}]}, volumes=[{"name": "v"}]),
        ["t.spec.containers[0].volumeMounts[0].mountPath: may not be empty: expected a path such as /data"],
    ),
    "out of the volume": (
        pod(
            {"volumeMounts": [{"name": "v", "mountPath": "/d", "subPath": "a/../../x"}]},
            volumes=[{"name": "v", "secret": {"items": [{"key": "a", "path": "/x"}, {"key": "b", "path": "a..b/c"}]}}],
        ),
        [
            "t.spec.containers[0].volumeMounts[0].subPath: 'a/../../x' leads out of the volume: "
            "expected a relative path without `..`",
            "t.spec.volumes[0].secret.items[0].path: '/x' leads out of the volume: expected a relative path without `..`",
        ],
    ),
    "unknown field of a pod": (
        pod({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIp"}}}]}),
        [
            "t.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: 'status.podIp' is not known; expected "
            "metadata.name, metadata.namespace, metadata.uid, metadata.labels['…'], metadata.annotations['…'], "
            "spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, status.podIP, status.podIPs; "
            "did you mean `status.podIP`?"
        ],
    ),
    "quantity": (
        pod({"resources": {"limits": {"memory": "16GB"}}}),
        [
            "t.spec.containers[0].resources.limits.memory: "
            "expected a quantity such as 2, 500m, 16Gi or 100M, found the text '16GB'"
        ],
    ),
    "limit below request": (
        pod({"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}, "requests": {"nvidia.com/gpu": "2", "cpu": 1}}}),
        [
            't.spec.containers[0].resources.limits["nvidia.com/gpu"]: '
            "limits may not be below requests: the limit is 1, the request 2"
        ],
    ),
    "a part of a device": (
        pod({"resources": {"limits": {"nvidia.com/gpu": "0.5", "cpu": "0.5"}, "requests": {"nvidia.com/gpu": 1}}}),
        ['t.spec.containers[0].resources.limits["nvidia.com/gpu"]: expected a whole number of devices, found 0.5'],
    ),
    "another limit than request of devices": (
        pod({"resources": {"limits": {"amd.com/gpu": 2, "cpu": 2}, "requests": {"amd.com/gpu": 1, "cpu": 1}}}),
        [
            't.spec.containers[0].resources.limits["amd.com/gpu"]: '
            "limit and request of a device must be equal: the limit is 2, the request 1"
        ],
    ),
    "two volumes of one name": (
        pod({}, volumes=[{"name": "d", "emptyDir": {}}, {"name": "d", "hostPath": {"path": "/d"}}]),
        ["t.spec.volumes[1].name: 'd' is already the name of t.spec.volumes[0]; each volume needs its own"],
    ),
    "limit below request in other units": (
        pod({}, initContainers=[{"name": "a", "resources": {"limits": {"memory": "1G"}, "requests": {"memory": "1Gi"}}}]),
        [
            "t.spec.initContainers[0].resources.limits.memory: "
            "limits may not be below requests: the limit is 1G, the request 1Gi"
        ],
    ),
    "no such volume": (
        pod({"volumeMounts": [{"name": "dta", "mountPath": "/d"}]}, volumes=[{"name": "data"}, {"name": "shm"}]),
        [
            "t.spec.containers[0].volumeMounts[0].name: "
            "there is no volume 'dta'; the template has data, shm; did you mean `data`?"
        ],
    ),
    "no volumes at all": (
        pod({"volumeMounts": [{"name": "data", "mountPath": "/d"}]}),
        ["t.spec.containers[0].volumeMounts[0].name: there is no volume 'data'; the template has no volumes"],
    ),
    "shared memory above the limit": (
        pod(
            {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}], "resources": {"limits": {"memory": "1Gi"}}},
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}],
        ),
        [
            "warning: t.spec.volumes[0].emptyDir.sizeLimit: 2Gi of shared memory is more than the container's "
            "memory limit of 1Gi, against which it counts"
        ],
    ),
    "label of a number": (
        {"metadata": {"labels": {"version": 2}}, **pod(MAIN)},
        ["t.metadata.labels.version: expected text, found the number 2; put it in quotes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_template_is_told_why(name: str) -> None:
    template, expected = WRONG[name]

    assert said(template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param(
            {"spec": {"containers": ["x"]}}, "t.spec.containers[0]: expected a mapping", id="container of text"
        ),
        pytest.param(
            {"spec": {"containers": {"name": "x"}}}, "t.spec.containers: expected a list", id="container alone"
        ),
        pytest.param(
            pod({"volumeMounts": [{"name": 5, "mountPath": "/d"}]}),
            "t.spec.containers[0].volumeMounts[0].name: expected text",
            id="volume of a number",
        ),
        pytest.param(
            pod({"resources": {"limits": {"cpu": "x"}, "requests": {"cpu": 1}}}),
            "t.spec.containers[0].resources.limits.cpu: expected a quantity",
            id="limit that is none",
        ),
    ],
)
def test_the_meaning_of_a_wrong_shape_is_not_asked(template: dict[str, Any], expected: str) -> None:
    (message,) = said(template)

    assert message.startswith(expected)


def test_shape_and_meaning_at_once() -> None:
    template = pod({"name": "a", "env": [{"name": "A", "value": 1}]}, {"name": "a"})

    assert len(said(template)) == 2


KINDS = ("PodTemplateSpec", "PodSpec", "Container", "Volume", "VolumeMount")
NAMES = st.sampled_from(sorted({name for kind in KINDS for name in TYPES[kind]}))
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["/dev/shm", "1Gi"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=30,
)


@CALM
@given(st.dictionaries(NAMES, TREES), st.dictionaries(NAMES, TREES), st.dictionaries(NAMES, TREES))
def test_no_template_raises(template: dict[str, Any], spec: dict[str, Any], container: dict[str, Any]) -> None:
    check(template, "t")
    check({"spec": spec}, "t")
    check({"spec": {"containers": [container], **spec}}, "t")


def test_absurd_templates_take_no_time() -> None:
    mounts = [{"name": f"m{number}", "mountPath": "/d"} for number in range(5_000)]
    volumes = [{"name": f"v{number}"} for number in range(5_000)]
    start = time.process_time()

    problems = check(pod({"volumeMounts": mounts}, volumes=volumes), "t")

    assert len(problems) == 100
    assert max(len(str(problem)) for problem in problems) < 1000
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (pod({"imagePullPolicy": "always"}), "containers[0].imagePullPolicy: expected one of Always, IfNotPresent, Never, found the text 'always'; did you mean `Always`?"),
        (pod({"terminationMessagePolicy": "file"}), "containers[0].terminationMessagePolicy: expected one of File, FallbackToLogsOnError, found the text 'file'; did you mean `File`?"),
        (pod({"ports": [{"containerPort": 80, "protocol": "tcp"}]}), "containers[0].ports[0].protocol: expected one of TCP, UDP, SCTP, found the text 'tcp'; did you mean `TCP`?"),
        (pod({}, dnsPolicy="ClusterFrist"), "dnsPolicy: expected one of ClusterFirst, ClusterFirstWithHostNet, Default, None, found the text 'ClusterFrist'; did you mean `ClusterFirst`?"),
        (pod({}, volumes=[{"name": "v", "hostPath": {"path": "/", "type": "Fil"}}]), "volumes[0].hostPath.type: expected one of DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice, found the text 'Fil'; did you mean `File`?"),
        (pod({}, tolerations=[{"operator": "exists"}]), "tolerations[0].operator: expected one of Exists, Equal, Gt, Lt, found the text 'exists'; did you mean `Exists`?"),
    ],
)  # fmt: skip
def test_words_that_an_api_server_does_not_take(template: dict[str, Any], problem: str) -> None:
    assert said(template) == [f"t.spec.{problem}"]


def test_an_empty_word_is_one_that_is_not_set() -> None:
    assert said(pod({"imagePullPolicy": "", "ports": [{"containerPort": 80, "protocol": ""}]}, dnsPolicy="")) == []
