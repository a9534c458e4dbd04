# SPDX-License-Identifier: Apache-2.0
"""The policy that holds new jobs, as `trainwright preflight --hold` prints it. A real API server tries it elsewhere."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from trainwright.cli.install import preflight_command
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS


def printed(*words: str) -> list[Any]:
    result = CliRunner().invoke(preflight_command, ["--hold", *words])
    assert (result.exit_code, result.stderr) == (0, "")
    if "json" in words:
        items: list[Any] = json.loads(result.stdout)["items"]
        return items
    return list(yaml.safe_load_all(result.stdout))


def test_the_hold_covers_every_kind_of_kubeflow_and_the_whole_cluster() -> None:
    policy, binding = printed()

    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["apiGroups"] == ["kubeflow.org"]
    assert rule["resources"] == [kind.plural for kind in KINDS if kind.group == "kubeflow.org"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert printed("-o", "json") == [policy, binding]


def test_a_hold_of_some_namespaces_and_kinds() -> None:
    policy, binding = printed("-n", "lab", "-n", "research", "--kinds", "jaxjob")

    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    (chosen,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert rule["resources"] == ["jaxjobs"]
    assert chosen == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["lab", "research"]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "lab"], "--namespace: it applies to --hold; the report is about the whole cluster"),
        (
            ["--hold", "--kinds", "genericjob"],
            "--hold: GenericJob is not a kind of Kubeflow v1, so there is no hold for it",
        ),
    ],
)
def test_wrong_usage_is_told_in_a_line(words: list[str], told: str) -> None:
    error = CliRunner().invoke(preflight_command, words).exception

    assert isinstance(error, UsageError)
    assert str(error) == told
