# SPDX-License-Identifier: Apache-2.0
"""What is installed: in an order that can be applied, with rights that are counted out."""

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from trainwright.crd.install import manifests
from trainwright.crd.rights import cluster_role, lease_role
from trainwright.kinds.registry import KINDS

ALL = manifests(KINDS, "example/trainwright:1", "tools")


def one(kind: str) -> dict[str, Any]:
    return next(body for body in ALL if body["kind"] == kind)


def test_everything_is_there_before_it_is_needed() -> None:
    kinds = [body["kind"] for body in ALL]

    assert kinds == [
        *["CustomResourceDefinition"] * len(KINDS),
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "Role",
        "ClusterRoleBinding",
        "RoleBinding",
        "Deployment",
        "PodDisruptionBudget",
    ]
    placed = {body["metadata"]["namespace"] for body in ALL if "namespace" in body["metadata"]}
    assert placed == {"tools"}


def test_no_right_is_a_wildcard_and_secrets_are_nobodys_business() -> None:
    rules = cluster_role(KINDS)["rules"] + lease_role("tools")["rules"]
    words = {word for rule in rules for part in ("apiGroups", "resources", "verbs") for word in rule[part]}

    assert not words & {"*", "secrets", "pods/exec", "bind", "escalate", "impersonate"}
    assert [rule["resources"] for rule in rules if "update" in rule["verbs"]] == [
        [f"{kind.plural}/finalizers"] for kind in KINDS
    ]


def test_two_operators_run_as_nobody_in_particular() -> None:
    spec = one("Deployment")["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]

    assert (spec["replicas"], one("PodDisruptionBudget")["spec"]["minAvailable"]) == (2, 1)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["args"] == ["operator", "--run-in-cluster", "--lease=tools/operator", "--address=:8080"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_command_prints_it(form: str) -> None:
    argv = [
        sys.executable,
        "-m",
        "trainwright",
        "manifests",
        "--image",
        "example/trainwright:1",
        "-n",
        "tools",
        "-o",
        form,
    ]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = list(yaml.safe_load_all(text)) if form == "yaml" else json.loads(text)["items"]

    assert found == list(ALL)
    assert "&id" not in text
