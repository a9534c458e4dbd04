# SPDX-License-Identifier: Apache-2.0
"""What is checked in under deploy/ is what the commands print, and what the examples are."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from trainwright.cli.install import crds_command as crds
from trainwright.cli.install import manifests_command as manifests
from trainwright.cli.validate import command as validate
from trainwright.kinds.registry import KINDS, find

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STALE = "it is out of date: run `make deploy`"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_definitions_are_those_of_this_version() -> None:
    assert (DEPLOY / "v1" / "crd.yaml").read_text(encoding="utf-8") == CliRunner().invoke(crds, []).stdout, STALE


def test_the_operator_is_what_manifests_prints() -> None:
    printed = CliRunner().invoke(manifests, ["--no-crds"]).stdout

    assert (DEPLOY / "v1" / "operator.yaml").read_text(encoding="utf-8") == printed, STALE


def test_the_base_has_both_and_nothing_else() -> None:
    base = yaml.safe_load((DEPLOY / "v1" / "kustomization.yaml").read_text(encoding="utf-8"))

    assert base["resources"] == ["crd.yaml", "operator.yaml"]
    assert {path.name for path in (DEPLOY / "v1").iterdir()} == {"kustomization.yaml", *base["resources"]}


def test_the_examples_are_the_examples() -> None:
    examples, copies = ROOT / "examples", DEPLOY / "examples"
    wanted = {path.name: path for path in (examples / "quickstart.yaml", *(examples / "genericjob").glob("*.yaml"))}
    for kind in ("tfjob", "aitrainingjob", "paddlejob", "jaxjob", "xgboostjob", "pytorchjob", "kubeflow-paddlejob"):
        wanted |= {f"{kind}/{path.name}": path for path in (examples / kind).glob("*.yaml")}

    found = {str(path.relative_to(copies)): path.read_bytes() for path in _files(copies)}

    assert found == {name: path.read_bytes() for name, path in wanted.items()}, STALE


def test_every_example_is_valid() -> None:
    files = [str(path) for path in _files(DEPLOY / "examples")]

    assert CliRunner().invoke(validate, files).exit_code == 0


def test_nothing_is_of_an_api_that_kubernetes_has_removed() -> None:
    """The last v1beta1 of these groups went with 1.25; that of GenericJob is its own."""
    found = {
        body["apiVersion"]
        for name in ("crd.yaml", "operator.yaml")
        for body in yaml.safe_load_all((DEPLOY / "v1" / name).read_text(encoding="utf-8"))
    }

    assert found == {
        "apiextensions.k8s.io/v1",
        "v1",
        "rbac.authorization.k8s.io/v1",
        "apps/v1",
        "policy/v1",
    }


def test_the_page_lists_every_kind_with_its_examples() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    rows = {
        row[2].strip("`"): row for row in re.findall(r"^\| (`\w+`) \| (.*) \| (`.*`) \| `(.*)` \|$", page, re.MULTILINE)
    }

    assert rows.keys() == {f"{kind.plural}.{kind.group}" for kind in KINDS}
    for kind in KINDS:
        name, versions, _, examples = rows[f"{kind.plural}.{kind.group}"]
        assert name == f"`{kind.name}`"
        assert set(versions.replace("`", "").split(", ")) == set(kind.served)
        bodies = [body for path in DEPLOY.glob(examples) for body in yaml.safe_load_all(path.read_text())]
        kinds = [find(body["apiVersion"], body["kind"]) for body in bodies]
        assert {one.id for one in kinds if one is not None} == {kind.id}


def test_the_page_says_why_there_is_no_v1beta1() -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")

    assert not (DEPLOY / "v1beta1").exists()
    assert "Why there is no `deploy/v1beta1`" in page
    assert "removed `apiextensions.k8s.io/v1beta1` in 1.22" in page


def test_the_disruption_budget_has_no_field_that_older_servers_refuse() -> None:
    bodies = yaml.safe_load_all((DEPLOY / "v1" / "operator.yaml").read_text(encoding="utf-8"))
    (budget,) = [body for body in bodies if body["kind"] == "PodDisruptionBudget"]

    assert budget["spec"].keys() == {"maxUnavailable", "selector"}
