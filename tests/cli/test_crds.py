# SPDX-License-Identifier: Apache-2.0
"""`trainwright crds` prints what can be piped into kubectl."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from trainwright.cli.install import crds_command
from trainwright.crd.schema import crds
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS


def run(*args: str) -> Result:
    return CliRunner().invoke(crds_command, list(args))


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_all_kinds_are_printed_as_yaml_documents() -> None:
    result = run()

    assert (result.exit_code, list(yaml.safe_load_all(result.stdout))) == (0, plain(crds(KINDS)))


def test_yaml_reads_as_a_person_would_write_it() -> None:
    text = run().stdout
    lines = text.splitlines()

    assert lines[0].startswith("# Run `trainwright preflight` first")
    assert lines[1:3] == ["apiVersion: apiextensions.k8s.io/v1", "kind: CustomResourceDefinition"]
    assert json.dumps(list(yaml.safe_load_all(text))) == json.dumps(crds(KINDS))  # the order of the keys, too
    assert [line for line in lines if "&id" in line or "*id" in line or "!!" in line] == []


def test_json_is_one_list() -> None:
    result = run("-o", "json")

    assert result.stdout.endswith("}\n")
    assert json.loads(result.stdout) == {"apiVersion": "v1", "kind": "List", "items": plain(crds(KINDS))}


@pytest.mark.parametrize("word", ["GenericJob", "genericjob", "genericjobs", "gj", "genericjobs.batch.tensorstack.dev"])
def test_a_kind_is_known_by_every_name_kubectl_has_for_it(word: str) -> None:
    (only,) = yaml.safe_load_all(run(word, "GenericJob").stdout)

    assert only["metadata"]["name"] == "genericjobs.batch.tensorstack.dev"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("genricjob", "there is no kind `genricjob`; did you mean `GenericJob`?"),
        ("GenericJbos", "there is no kind `GenericJbos`; did you mean `GenericJob`?"),
        ("Deployment", f"there is no kind `Deployment`; known are {', '.join(kind.title for kind in KINDS)}"),
    ],
)
def test_an_unknown_kind_is_refused_with_the_nearest_known_one(word: str, expected: str) -> None:
    result = run("gj", word)

    assert isinstance(result.exception, UsageError)
    assert (str(result.exception), result.stdout) == (expected, "")


def test_help_shows_how_to_install() -> None:
    assert "trainwright crds | kubectl apply --server-side -f -" in run("--help").stdout
