# SPDX-License-Identifier: Apache-2.0
"""Variables and command lines of containers, as a kubelet makes them."""

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.node.environment import EnvironmentInput, PodFacts, command, expand, passed, variables
from trainwright.node.sources import CONFIG_MAP, SECRET, ContainerConfigError, referenced_by

FACTS = PodFacts("node-0", "10.129.0.5", "127.0.0.1", {"cpu": "3500m", "memory": "8Gi"})
POD: dict[str, Any] = {
    "metadata": {
        "name": "pod",
        "namespace": "space",
        "uid": "1-2-3",
        "labels": {"app": "x", "a.b/c": "y"},
        "annotations": {"note": "z"},
    },
    "spec": {"containers": [{"name": "main"}, {"name": "other", "resources": {"limits": {"cpu": "2"}}}]},
}
SOURCES = {
    (SECRET, "token"): {"data": {"key": b64encode(b"secret").decode(), "bytes": b64encode(b"\xff").decode()}},
    (CONFIG_MAP, "config"): {"data": {"a": "1", "b": "2", "no name": "3"}},
    (CONFIG_MAP, "empty"): {},
    (SECRET, "absent"): None,
    (CONFIG_MAP, "absent"): None,
}


def subject(container: dict[str, Any] | None = None, **more: Any) -> EnvironmentInput:
    return EnvironmentInput(POD, (container or {}) | more, "spec.containers[0]", FACTS, SOURCES)


EXPANSIONS = {
    "plain": ("text", "text"),
    "known": ("$(A)", "1"),
    "inside": ("x-$(A)-$(B)", "x-1-2"),
    "unknown stays": ("$(C)", "$(C)"),
    "escaped": ("$$(A)", "$(A)"),
    "escaped twice": ("$$$$(A)", "$$(A)"),
    "escaped, then known": ("$$$(A)", "$1"),
    "a lone dollar": ("$ and $", "$ and $"),
    "a shell's variable": ("$A ${A}", "$A ${A}"),
    "never closed": ("$(A", "$(A"),
    "never closed, then an escape": ("$(A $$", "$(A $"),
    "nested": ("$($(A))", "$($(A))"),
    "empty name": ("$()", "$()"),
    "at the end": ("x$", "x$"),
}


@pytest.mark.parametrize(("text", "expected"), EXPANSIONS.values(), ids=EXPANSIONS.keys())
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_variables_see_those_before_them_and_not_those_after() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "$(B)"}]
    assert variables(subject(env=env)) == {"A": "1", "B": "1$(C)", "C": "1$(C)"}


def test_a_later_variable_of_the_same_name_may_build_on_the_earlier_one() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]
    assert variables(subject(env=env)) == {"A": "12"}


def test_what_is_expanded_is_not_expanded_again() -> None:
    env = [{"name": "A", "value": "$$(B)"}, {"name": "B", "value": "x"}, {"name": "C", "value": "$(A)"}]
    assert variables(subject(env=env))["C"] == "$(B)"


def test_a_variable_without_a_value_is_empty() -> None:
    assert variables(subject(env=[{"name": "A"}, {"name": "B", "value": ""}])) == {"A": "", "B": ""}


def test_whole_config_maps_and_secrets_come_in_with_their_prefix_and_are_overridden() -> None:
    sources = [
        {"configMapRef": {"name": "config"}},
        {"configMapRef": {"name": "config"}, "prefix": "P_"},
        {"secretRef": {"name": "token"}},
        {"secretRef": {"name": "absent", "optional": True}},
    ]
    found = variables(subject(envFrom=sources, env=[{"name": "a", "value": "mine $(b)"}]))
    assert found == {"a": "mine 2", "b": "2", "P_a": "1", "P_b": "2", "key": "secret", "bytes": "\ufffd"}


def ref(word: str, name: str = "token", key: str = "key", **more: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {word: {"name": name, "key": key, **more}}}


FIELDS = {
    "metadata.name": "pod",
    "metadata.namespace": "space",
    "metadata.uid": "1-2-3",
    "metadata.labels['app']": "x",
    "metadata.labels['a.b/c']": "y",
    "metadata.labels['none']": "",
    "metadata.annotations['note']": "z",
    "spec.nodeName": "node-0",
    "spec.serviceAccountName": "default",
    "status.podIP": "10.129.0.5",
    "status.podIPs": "10.129.0.5",
    "status.hostIP": "127.0.0.1",
    "status.hostIPs": "127.0.0.1",
}


@pytest.mark.parametrize(("path", "expected"), FIELDS.items(), ids=FIELDS.keys())
def test_fields(path: str, expected: str) -> None:
    env = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    assert variables(subject(env=env)) == {"X": expected}


RESOURCES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rounded up": ({"limits": {"cpu": "1200m"}}, {"resource": "limits.cpu"}, "2"),
    "by a divisor": ({"limits": {"cpu": "1200m"}}, {"resource": "limits.cpu", "divisor": "1m"}, "1200"),
    "in Mi": ({"limits": {"memory": "1Gi"}}, {"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
    "in Gi, rounded up": ({"limits": {"memory": "1025Mi"}}, {"resource": "limits.memory", "divisor": "1Gi"}, "2"),
    "the node where there is no limit": ({}, {"resource": "limits.memory"}, str(8 << 30)),
    "the node's CPUs, rounded up": ({}, {"resource": "limits.cpu"}, "4"),
    "requests": ({"requests": {"cpu": "2"}}, {"resource": "requests.cpu"}, "2"),
    "no request is the limit": ({"limits": {"cpu": "3"}}, {"resource": "requests.cpu"}, "3"),
    "nothing asked": ({}, {"resource": "requests.memory"}, "0"),
    "of another container": ({}, {"resource": "limits.cpu", "containerName": "other"}, "2"),
}


@pytest.mark.parametrize(("resources", "given", "expected"), RESOURCES.values(), ids=RESOURCES.keys())
def test_resources(resources: dict[str, Any], given: dict[str, Any], expected: str) -> None:
    env = [{"name": "X", "valueFrom": {"resourceFieldRef": given}}]
    assert variables(subject(resources=resources, env=env)) == {"X": expected}


def test_keys_of_secrets_and_config_maps() -> None:
    assert variables(subject(env=[ref("secretKeyRef")])) == {"X": "secret"}
    assert variables(subject(env=[ref("configMapKeyRef", "config", "b")])) == {"X": "2"}


@pytest.mark.parametrize("word", ["secretKeyRef", "configMapKeyRef"])
def test_an_optional_source_that_is_missing_leaves_the_variable_out(word: str) -> None:
    name = "token" if word == "secretKeyRef" else "config"
    entries = [ref(word, "absent", optional=True), ref(word, name, "nokey", optional=True)]
    assert variables(subject(env=entries)) == {}


PATH = "spec.containers[0]"
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no such secret": (
        {"env": [{"name": "A", "value": "1"}, ref("secretKeyRef", "absent")]},
        f"{PATH}.env[1].valueFrom.secretKeyRef.name: there is no Secret 'absent' in namespace 'space'",
    ),
    "no such key": (
        {"env": [ref("secretKeyRef", "token", "keys")]},
        f"{PATH}.env[0].valueFrom.secretKeyRef.key: Secret 'token' has no key 'keys'; it has bytes, key;"
        " did you mean `key`?",
    ),
    "an empty object": (
        {"env": [ref("configMapKeyRef", "empty", "a")]},
        f"{PATH}.env[0].valueFrom.configMapKeyRef.key: ConfigMap 'empty' has no key 'a'; it has no keys",
    ),
    "a whole object": (
        {"envFrom": [{"configMapRef": {"name": "absent"}}]},
        f"{PATH}.envFrom[0].configMapRef.name: there is no ConfigMap 'absent' in namespace 'space'",
    ),
    "no such field": (
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIp"}}}]},
        f"{PATH}.env[0].valueFrom.fieldRef.fieldPath: 'status.podIp' is not known",
    ),
    "no such resource": (
        {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limit.cpu"}}}]},
        f"{PATH}.env[0].valueFrom.resourceFieldRef.resource: 'limit.cpu' is not known",
    ),
    "no such container": (
        {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "o"}}}]},
        f"{PATH}.env[0].valueFrom.resourceFieldRef.containerName: there is no container 'o'; the pod has main, other",
    ),
    "another kind of source": (
        {"env": [{"name": "X", "valueFrom": {"fileKeyRef": {}}}]},
        f"{PATH}.env[0].valueFrom: expected fieldRef, resourceFieldRef, secretKeyRef or configMapKeyRef, found",
    ),
}


@pytest.mark.parametrize(("container", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_had_is_refused_with_its_path(container: dict[str, Any], text: str) -> None:
    with pytest.raises(ContainerConfigError) as refusal:
        variables(subject(container))
    assert str(refusal.value).startswith(text)


def test_the_nearest_field_is_named() -> None:
    with pytest.raises(ContainerConfigError, match=r"did you mean `status\.podIP`"):
        variables(subject(env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIp"}}}]))


def test_what_is_given_replaces_what_the_pod_says_and_can_be_referred_to() -> None:
    env = [
        {"name": "A", "value": "pod"},
        {"name": "B", "value": "$(A)-$(a)-$(KEY)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "x"}}},
    ]
    one = replace(
        subject(env=env, envFrom=[{"configMapRef": {"name": "config"}}]), overrides={"A": "1$(B)", "KEY": "k", "a": "9"}
    )

    assert variables(one) == {"A": "1$(B)", "a": "9", "b": "2", "KEY": "k", "B": "1$(B)-9-k"}


def test_a_command_line_is_expanded_from_the_variables_alone() -> None:
    given = subject(command=["run", "$(A)"], args=["--home=$(HOME)", "$$(A)", 7])
    assert command(given, {"A": "1"}) == ["run", "1", "--home=$(HOME)", "$(A)", "7"]


@pytest.mark.parametrize("container", [{}, {"args": ["x"]}, {"command": []}], ids=["none", "args only", "empty"])
def test_a_missing_command_is_refused(container: dict[str, Any]) -> None:
    with pytest.raises(ContainerConfigError, match=r"^spec\.containers\[0\]\.command: missing"):
        command(subject(container), {})


def test_what_containers_get_of_the_engines_environment() -> None:
    given = {"PATH": "/bin", "HOME": "/root", "CUDA_HOME": "/cuda", "SECRET": "x", "LANG": "C", "CUDAX": "y"}
    assert passed(given) == {"PATH": "/bin", "HOME": "/root", "CUDA_HOME": "/cuda", "LANG": "C", "CUDAX": "y"}


def test_only_what_is_referred_to_is_asked_for() -> None:
    pod = {
        "spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}, {"name": "w", "configMap": {"name": "c"}}]}
    }
    container = {
        "env": [ref("secretKeyRef"), {"name": "A", "value": "1"}],
        "envFrom": [{"configMapRef": {"name": "config"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    assert referenced_by(pod, container) == {(SECRET, "token"), (CONFIG_MAP, "config"), (SECRET, "s")}
    assert referenced_by(pod, {"command": ["true"]}) == set()
