# SPDX-License-Identifier: Apache-2.0
"""Our definitions do not describe the status field by field, and definitions that do are still accepted.

`data/closed-crds.yaml` is deploy/v1/crd.yaml of commit 70f9c4a (2026-11-17), the last one that described every field.
Leave the file as it is. A field that the ledger gets later is missing there: list it in `ADDED_SINCE`.
"""

from pathlib import Path

import pytest
import yaml

from closed_crds import closed_crd, ledger_of, status_of
from trainwright.crd.compare import CrdOrigin, installed, ledger_losses, losses, schema_of, unusable
from trainwright.crd.schema import crd, schema
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

DATA = Path(__file__).parent / "data"
ANY = "x-kubernetes-preserve-unknown-fields"
#: Paths of the fields of the ledger that are newer than the stored definitions.
ADDED_SINCE: frozenset[str] = frozenset()

#: Kinds that are newer than the stored definitions.
NEW_KINDS = frozenset({"xgboostjob", "jaxjob", "pytorchjob", "paddlejob.kubeflow.org"})

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
each_stored_kind = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.id not in NEW_KINDS], ids=lambda kind: kind.id
)


@pytest.fixture(scope="module")
def previous() -> dict[str, Body]:
    """The stored definitions by name."""
    text = (DATA / "closed-crds.yaml").read_text(encoding="utf-8")
    return {body["metadata"]["name"]: body for body in yaml.safe_load_all(text)}


def of(kind: Kind, definitions: dict[str, Body]) -> Body:
    return definitions[f"{kind.plural}.{kind.group}"]


@each_kind
def test_every_version_has_exactly_the_open_status(kind: Kind) -> None:
    whole = schema(kind.wire)["properties"]["status"]
    ledger = {"description": whole["properties"]["trainwright"]["description"], "type": "object", ANY: True}
    for version in crd(kind)["spec"]["versions"]:
        assert status_of(version) == {
            "description": whole["description"],
            "type": "object",
            ANY: True,
            "x-kubernetes-map-type": "atomic",
            "properties": {"trainwright": ledger},
        }


@each_kind
def test_the_descriptions_of_the_open_status_are_sentences(kind: Kind) -> None:
    """`kubectl explain` shows them."""
    for version in crd(kind)["spec"]["versions"]:
        for node in (status_of(version), ledger_of(version)):
            assert node["description"].endswith("."), node["description"]


@each_kind
def test_the_schema_of_a_type_still_describes_every_field_of_the_ledger(kind: Kind) -> None:
    """`ledger_losses` compares installed definitions with it."""
    status = schema(kind.wire)["properties"]["status"]
    ledger = status["properties"]["trainwright"]

    assert {"phase", "roles", "outcome", "times", "failures"} <= set(ledger["properties"])
    assert (ANY in status, ANY in ledger) == (False, False)


@each_stored_kind
def test_the_definitions_of_the_previous_version_are_closed(kind: Kind, previous: dict[str, Body]) -> None:
    """Otherwise the tests below would test nothing."""
    for version in of(kind, previous)["spec"]["versions"]:
        assert ANY not in status_of(version)
        assert "roles" in ledger_of(version)["properties"]


@each_stored_kind
def test_the_definitions_of_the_previous_version_keep_every_field_that_they_know(
    kind: Kind, previous: dict[str, Body]
) -> None:
    definition = of(kind, previous)
    lost = {version: {str(one) for one in found} for version, found in ledger_losses(kind, definition).items()}

    assert lost == {version["name"]: ADDED_SINCE for version in definition["spec"]["versions"]}
    assert bool(unusable(kind, definition)) == bool(ADDED_SINCE)


@each_stored_kind
def test_the_definitions_of_the_previous_version_without_a_field_are_refused(
    kind: Kind, previous: dict[str, Body]
) -> None:
    definition = yaml.safe_load(yaml.safe_dump(of(kind, previous)))
    for version in definition["spec"]["versions"]:
        del ledger_of(version)["properties"]["roles"]["items"]["properties"]["retries"]

    said = unusable(kind, definition)
    for version in definition["spec"]["versions"]:
        assert f"status.trainwright.roles[].retries in {version['name']}" in said


@each_stored_kind
def test_an_install_over_the_previous_version_drops_nothing(kind: Kind, previous: dict[str, Body]) -> None:
    for definition in (of(kind, previous), closed_crd(kind)):
        found = installed(kind, definition)

        assert (found.origin, found.pruned, found.vanish, found.stored) == (CrdOrigin.OURS, (), (), ())


@each_stored_kind
def test_an_install_of_the_previous_version_over_this_one_would_drop_fields(
    kind: Kind, previous: dict[str, Body]
) -> None:
    """`preflight` of the previous version makes this comparison, and warns of every path in `status.trainwright`."""
    for version in crd(kind)["spec"]["versions"]:
        ours, theirs = (schema_of(body, version["name"]) for body in (crd(kind), of(kind, previous)))

        assert {"status.*", "status.trainwright.*"} <= {one.path for one in losses(ours, theirs)}
