# SPDX-License-Identifier: Apache-2.0
"""Manifests at a real API server: examples and everything to install are taken, what rules can see is refused."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_install import trainwright
from cluster_plane import ControlPlane

from trainwright.kinds.registry import find

pytest_plugins = ("cluster_fixtures",)
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
BROKEN = ROOT / "tests" / "cli" / "broken"
#: What the server answers.
REFUSED = {
    "clean-up-policy": 'spec.cleanUpPolicy: Unsupported value: "Running"',
    "missing-name": "metadata.name: Required value",
    "missing-spec": "spec: Required value",
    "misspelt-replica-specs": 'unknown field "spec.replicaSpec"',
    "no-replicas": "replicaSpecs must have at least one replica in all",
    "rank-out-of-range": "failureRules may only name ranks that their type has, counted from 0",
    "replica-specs-mapping": 'unknown field "spec.replicaSpecs.worker"',
    "replicas-negative": "should be greater than or equal to 0",
    "replicas-text": "must be of type integer",
    "restart-policy": 'Unsupported value: "OnFailed"',
    "same-type-twice": "replicaSpecs may have each type once",
    "second-document": "should be less than or equal to 65535",
    "unknown-role-in-rule": "successRules may only name types that replicaSpecs has",
    "upper-case-name": 'metadata.name: Invalid value: "My_Job"',
    "wrong-apiversion": 'no matches for kind "GenericJob" in version "batch.tensorstack.dev/v1"',
    "wrong-kind": 'no matches for kind "GenericJobs"',
}
#: What kubectl does not even send.
UNREADABLE = {"empty", "missing-apiversion", "not-a-mapping", "tab", "unclosed-quote", "unfilled-template"}
#: Mistakes in a template, which the schema leaves open, or that kubectl's YAML overlooks: ours to find later.
SLIP_PAST = {
    "command-text",
    "duplicate-key",
    "env-number",
    "limit-below-request",
    "no-containers",
    "no-such-volume",
    "quantity",
    "variable-without-service",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_examples_are_taken_without_a_warning_and_stay_as_they_are(
    plane: ControlPlane, namespace: str, path: Path
) -> None:
    *_, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    kind = find(job["apiVersion"], job["kind"])
    assert kind is not None
    jobs = f"/apis/{kind.api_version}/namespaces/{namespace}/{kind.plural}"

    done = plane.kubectl("apply", "-n", namespace, "-f", str(path))
    before = plane.call("GET", jobs)["items"]
    again = plane.kubectl("apply", "-n", namespace, "-f", str(path))

    assert f"{kind.singular}.{kind.group}/" in done.stdout
    assert len(before) == 1
    assert done.stderr + again.stderr == ""
    assert plane.call("GET", jobs)["items"] == before


@pytest.mark.usefixtures("lease_namespace")
def test_the_server_takes_everything_that_is_to_be_installed(plane: ControlPlane, namespace: str) -> None:
    printed = trainwright("manifests", "-n", namespace).stdout

    done = plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=printed)

    assert len(done.stdout.splitlines()) == len(list(yaml.safe_load_all(printed)))
    assert done.stderr == ""


def test_the_base_is_what_the_files_are(plane: ControlPlane) -> None:
    base = yaml.safe_load_all(plane.kubectl("kustomize", str(ROOT / "deploy" / "v1")).stdout)
    files = yaml.safe_load_all(trainwright("manifests").stdout)

    assert sorted(map(_name, base)) == sorted(map(_name, files))


def _name(body: Any) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def test_an_overlay_says_where_the_image_is_and_may_move_the_operator(plane: ControlPlane, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (overlay,) = re.findall(r"^```yaml\n(# overlay/kustomization.yaml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")

    bodies = list(yaml.safe_load_all(plane.kubectl("kustomize", str(tmp_path / "overlay")).stdout))

    (pod,) = [body["spec"]["template"]["spec"] for body in bodies if body["kind"] == "Deployment"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["containers"][0]["image"] == "registry.example/trainwright:0.1.0"
    assert {body["metadata"].get("namespace") for body in bodies} == {None, "ml-system"}
    assert [body["subjects"][0]["namespace"] for body in bodies if "subjects" in body] == ["ml-system"] * 2
    assert "trainwright" not in {body["metadata"]["name"] for body in bodies}


def test_every_broken_manifest_is_spoken_for() -> None:
    assert {path.stem for path in BROKEN.glob("*.yaml")} == REFUSED.keys() | UNREADABLE | SLIP_PAST


@pytest.mark.parametrize(("name", "text"), REFUSED.items(), ids=REFUSED)
def test_the_server_refuses_what_it_can_see(plane: ControlPlane, namespace: str, name: str, text: str) -> None:
    path = str(BROKEN / f"{name}.yaml")

    done = plane.kubectl("create", "-n", namespace, "--dry-run=server", "-f", path, check=False)

    assert done.returncode == 1
    assert text in done.stderr


@pytest.mark.parametrize("name", sorted(SLIP_PAST))
def test_what_slips_past_the_server_is_found_by_validate(plane: ControlPlane, namespace: str, name: str) -> None:
    path = str(BROKEN / f"{name}.yaml")

    plane.kubectl("create", "-n", namespace, "--dry-run=server", "-f", path)

    assert trainwright("validate", path, check=False).returncode == 2
