# SPDX-License-Identifier: Apache-2.0
"""A kind becomes one CRD, its versions share it, and what is in the kind is in there."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from trainwright import __version__
from trainwright.crd.schema import crd, crds, schema
from trainwright.kinds.base import MESSAGE, REASON, Column, Kind, Version
from trainwright.kinds.genericjob.wire import GenericJob, GenericJobStatus
from trainwright.kinds.registry import KINDS
from trainwright.kinds.writing import Writer
from trainwright.model.job import Body


def _never(*_: Any) -> Any:  # pragma: no cover - a CRD asks nothing of a kind's functions
    raise AssertionError


PLAIN = Kind(
    group="example.org",
    version="v2",
    name="Thing",
    plural="things",
    short_names=(),
    wire=GenericJob,
    status=GenericJobStatus,
    columns=(Column("Phase", "string", ".status.phase"), Column("Ready", "integer", ".status.ready", priority=1)),
    default=_never,
    check=_never,
    check_edit=lambda *_: (),
    translate=_never,
    render=_never,
    writer=Writer(_never, {}),
    suspend=_never,
    scale=_never,
)
SEVERAL = msgspec.structs.replace(
    PLAIN,
    versions=(Version("v2", {"spec.cleanUpPolicy": "All"}), Version("v1", {"spec.replicaSpecs": "odd"})),
)
OTHER = msgspec.structs.replace(PLAIN, name="Other", plural="others", short_names=("o", "ot"))
RULED = msgspec.structs.replace(PLAIN, cel=(("self.a", "a is missing"), ("self.b", "b is missing")))


#: Which Trainwright a definition is of.
MARK = {"trainwright.dev/version": __version__}


def with_open_status(whole: Body) -> Body:
    """The schema of a type in a CRD, where only the two descriptions of the status are left."""
    status = whole["properties"]["status"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    ledger = {"description": status["properties"]["trainwright"]["description"], **anything}
    opened = {"description": status["description"], **anything, "x-kubernetes-map-type": "atomic"}
    return whole | {"properties": whole["properties"] | {"status": opened | {"properties": {"trainwright": ledger}}}}


def test_a_kind_becomes_a_crd() -> None:
    assert crd(PLAIN) == {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org", "annotations": MARK},
        "spec": {
            "group": "example.org",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v2",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                        {"name": "Ready", "type": "integer", "jsonPath": ".status.ready", "priority": 1},
                    ],
                    "schema": {"openAPIV3Schema": with_open_status(schema(GenericJob))},
                }
            ],
        },
    }


def test_short_names_are_given_when_there_are_some() -> None:
    assert crd(OTHER)["spec"]["names"]["shortNames"] == ["o", "ot"]


def test_rules_sit_on_the_spec() -> None:
    properties = crd(RULED)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

    assert properties["spec"]["x-kubernetes-validations"] == [
        {"rule": "self.a", "message": "a is missing"},
        {"rule": "self.b", "message": "b is missing"},
    ]


def test_versions_of_a_kind_share_a_crd_and_its_own_is_stored() -> None:
    things, others = crds([SEVERAL, OTHER])

    found = [(one["name"], one["served"], one["storage"]) for one in things["spec"]["versions"]]
    assert found == [("v2", True, True), ("v1", True, False)]
    assert [one["name"] for one in others["spec"]["versions"]] == ["v2"]
    assert others["metadata"] == {"name": "others.example.org", "annotations": MARK}


def test_versions_differ_in_what_they_stamp_and_in_nothing_else() -> None:
    new, old = (one["schema"]["openAPIV3Schema"]["properties"]["spec"] for one in crd(SEVERAL)["spec"]["versions"])

    assert new["properties"].pop("cleanUpPolicy")["default"] == "All"
    assert old["properties"].pop("cleanUpPolicy")["default"] == "None"
    assert old["properties"]["replicaSpecs"].pop("default") == "odd"
    assert new == old


#: The kinds that have a scale subresource in the original, and the name of their replica specs.
SCALED = {
    "pytorchjob": "pytorchReplicaSpecs",
    "jaxjob": "jaxReplicaSpecs",
    "paddlejob.kubeflow.org": "paddleReplicaSpecs",
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.id in SCALED], ids=lambda kind: kind.id)
def test_the_scale_subresource_has_the_paths_of_the_original(kind: Kind) -> None:
    (version,) = crd(kind)["spec"]["versions"]

    assert version["subresources"]["scale"] == {
        "specReplicasPath": f".spec.{SCALED[kind.id]}.Worker.replicas",
        "statusReplicasPath": ".status.replicaStatuses.Worker.active",
        "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_every_version_of_a_kind_reports_in_the_shared_ledger_and_shows_where_its_job_is(kind: Kind) -> None:
    first = {
        "kubeflow.org": ("State", ".status.conditions[-1:].type"),
        "batch.paddlepaddle.org": ("Status", ".status.phase"),
    }.get(kind.group, ("Phase", ".status.phase"))
    for version in crd(kind)["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]

        assert "trainwright" in status
        assert version["subresources"].keys() == {"status", "scale"} if kind.id in SCALED else {"status"}
        shown = {"name": first[0], "type": "string", "jsonPath": first[1]}
        assert version["additionalPrinterColumns"][0] == shown


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.singular)
def test_every_column_shows_a_field_that_exists(kind: Kind) -> None:
    """In the schema of its type: the status of a definition is open, so the API server accepts any path."""
    shown = [column for version in crd(kind)["spec"]["versions"] for column in version["additionalPrinterColumns"]]
    assert len(shown) == len(kind.columns) * len(crd(kind)["spec"]["versions"])
    for column in shown:
        path, node = column["jsonPath"], schema(kind.wire)
        for step in path.removeprefix(".").split(".") if not path.startswith(".metadata.") else ():
            node = node["properties"][step.removesuffix("[-1:]")]
            node = node["items"] if step.endswith("[-1:]") else node
        found = "date" if node.get("format") == "date-time" else node["type"]
        assert path.startswith(".metadata.") or found == column["type"], path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.singular)
def test_every_kind_shows_why_a_job_failed_and_the_sentence_only_in_a_wide_table(kind: Kind) -> None:
    """The column is the next after those of the original controllers, which end with the age."""
    shown = [column.name for column in kind.columns if not column.priority]

    assert shown[-2:] == ["Age", "Reason"]
    assert (REASON in kind.columns, kind.columns[-1]) == (True, MESSAGE)


def _unbounded(node: Body, path: str) -> Iterator[str]:
    """The parts of a schema whose size nothing limits."""
    limit = {"string": "maxLength", "array": "maxItems"}.get(node.get("type", ""))
    inner = node.get("additionalProperties")
    if isinstance(inner, dict):
        limit = "maxProperties"
        yield from _unbounded(inner, f"{path}.*")
    if limit and limit not in node and not {"enum", "format"} & node.keys():
        yield path
    for name, part in (node.get("properties") or {}).items():
        yield from _unbounded(part, f"{path}.{name}")
    if "items" in node:
        yield from _unbounded(node["items"], f"{path}[]")


def test_what_a_job_remembers_of_its_failures_is_bounded_and_explained() -> None:
    ledger = schema(KINDS[0].wire)["properties"]["status"]["properties"]["trainwright"]["properties"]
    parts = {name: ledger[name] for name in ("verdict", "history", "budgets")}

    assert [path for name, part in parts.items() for path in _unbounded(part, name)] == []
    told = parts["verdict"]["properties"] | parts["history"]["properties"]
    assert [name for name, part in told.items() if "description" not in part] == ["at", "attempts"]
