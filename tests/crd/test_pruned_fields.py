# SPDX-License-Identifier: Apache-2.0
"""A definition that would drop or refuse a single part of the ledger is not good enough for the operator."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from closed_crds import closed_crd, ledger_of
from trainwright.crd.compare import PrunedField, losses, unusable
from trainwright.crd.schema import crd
from trainwright.kinds.base import Kind
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.registry import KINDS
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Body

ANY = "x-kubernetes-preserve-unknown-fields"


def definition(kind: Kind = GENERICJOB) -> Body:
    """A definition as an older version installed it: with every field of the status."""
    return closed_crd(kind)


def ledger(definition: Body, version: int = 0) -> Body:
    return ledger_of(definition["spec"]["versions"][version])


def walk(schema: Body, path: str = "status.trainwright") -> Iterator[tuple[str, Body, str]]:
    """Every property below: its path, the schema that has it, and its name there."""
    for name, part in (schema.get("properties") or {}).items():
        yield f"{path}.{name}", schema, name
        yield from walk(part, f"{path}.{name}")
    if isinstance(part := schema.get("additionalProperties"), dict):
        yield from walk(part, f"{path}.*")
    if isinstance(part := schema.get("items"), dict):
        yield from walk(part, f"{path}[]")


PATHS = [path for path, *_ in walk(ledger(definition()))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_our_own_definitions_keep_everything(kind: Kind) -> None:
    assert unusable(kind, crd(kind)) == ""
    assert unusable(kind, closed_crd(kind)) == ""


def test_the_ledger_is_looked_at_to_its_last_leaf() -> None:
    assert {"status.trainwright.roles[].holds[].until", "status.trainwright.failures[].cause.why"} < set(PATHS)
    assert len(PATHS) > 50


@pytest.mark.parametrize("path", PATHS)
def test_every_property_that_a_definition_lacks_is_named(path: str) -> None:
    body = definition()
    (found,) = [(schema, name) for one, schema, name in walk(ledger(body)) if one == path]
    del found[0]["properties"][found[1]]
    found[0]["required"] = [name for name in found[0].get("required", ()) if name != found[1]]

    said = unusable(GENERICJOB, body)
    assert f"{path} in v1beta1;" in said
    assert "; install ours with `trainwright crds genericjob | kubectl apply --server-side -f -`" in said


def _without_values(body: Body) -> None:
    ledger(body)["properties"]["phase"]["enum"].remove("Resuming")


def _of_another_type(body: Body) -> None:
    ledger(body)["properties"]["resumes"]["type"] = "string"


def _with_less_room(body: Body) -> None:
    ledger(body)["properties"]["roles"]["maxItems"] = 3


def _with_a_demand(body: Body) -> None:
    ledger(body)["properties"]["times"]["required"] = ["started"]


def _without_any_key(body: Body) -> None:
    del ledger(body)["properties"]["ports"]["additionalProperties"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_values, "status.trainwright.phase (Resuming not allowed) in v1beta1"),
        (_of_another_type, "status.trainwright.resumes (its type is string, expected integer) in v1beta1"),
        (_with_less_room, "status.trainwright.roles (maxItems 3) in v1beta1"),
        (_with_a_demand, "status.trainwright.times (started required) in v1beta1"),
        (_without_any_key, "status.trainwright.ports.* in v1beta1"),
    ],
)
def test_a_value_that_a_definition_would_refuse_is_named_too(change: Callable[[Body], None], said: str) -> None:
    body = definition()
    change(body)

    assert said in unusable(GENERICJOB, body)


def test_a_definition_may_know_more_than_this_version() -> None:
    """The way back from a newer version: its definitions stay."""
    body = definition()
    ledger(body)["properties"]["newer"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    ledger(body)["properties"]["phase"]["enum"].append("Dreaming")
    ledger(body)["properties"]["roles"]["maxItems"] = 1000

    assert unusable(GENERICJOB, body) == ""


@pytest.mark.parametrize("where", ["the ledger", "the status", "the whole definition"])
def test_a_definition_that_keeps_whatever_it_is_told_keeps_the_ledger(where: str) -> None:
    body = definition()
    version = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    if where == "the whole definition":
        body["spec"]["preserveUnknownFields"] = True
        version["properties"] = {}
    elif where == "the status":
        version["properties"]["status"] = {"type": "object", ANY: True}
    else:
        version["properties"]["status"]["properties"]["trainwright"] = {"type": "object", ANY: True}

    assert unusable(GENERICJOB, body) == ""


def test_what_is_mentioned_below_is_pruned_all_the_same() -> None:
    body = definition()
    found = ledger(body)
    found[ANY] = True
    del found["properties"]["roles"]["items"]["properties"]["holds"]

    assert "status.trainwright.roles[].holds in v1beta1" in unusable(GENERICJOB, body)


@pytest.mark.parametrize("older", [0, 1])
def test_no_version_through_which_somebody_may_write_drops_anything(older: int) -> None:
    body = definition(TFJOB)
    del ledger(body, older)["properties"]["roles"]
    name = body["spec"]["versions"][older]["name"]

    assert f"status.trainwright.roles in {name};" in unusable(TFJOB, body)
    if older:
        body["spec"]["versions"][older]["served"] = False
        assert unusable(TFJOB, body) == ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_closed_status_without_a_ledger_is_another_operators(kind: Kind) -> None:
    closed, opened = closed_crd(kind), crd(kind)
    for body in (closed, opened):
        for version in body["spec"]["versions"]:
            del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["trainwright"]

    assert "belongs to another operator: its status has no `trainwright`" in unusable(kind, closed)
    assert unusable(kind, opened) == ""  # the API server keeps the ledger all the same


def test_the_version_that_the_operator_uses_must_be_served_with_a_status() -> None:
    gone, bare, theirs = definition(), definition(), definition()
    gone["spec"]["versions"][0]["name"] = "v2"
    del bare["spec"]["versions"][0]["subresources"]
    del theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]

    assert "belongs to another operator: it does not serve v1beta1" in unusable(GENERICJOB, gone)
    assert "has no status subresource in v1beta1" in unusable(GENERICJOB, bare)
    assert "belongs to another operator: its status has no `trainwright`" in unusable(GENERICJOB, theirs)


def test_of_many_losses_a_message_names_some() -> None:
    body = definition()
    lost = len(ledger(body)["properties"]) - 1
    ledger(body)["properties"] = {"phase": ledger(body)["properties"]["phase"]}

    said = unusable(GENERICJOB, body)
    assert said.count("status.trainwright.") == 5
    assert f"and {lost - 5} more;" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("wanted", "installed", "lost"),
    [
        ({"type": "array", "items": {"type": "object", ANY: True}}, {"type": "array", "items": {}}, ["a[].*"]),
        ({"type": "object", ANY: True}, {"type": "object", "additionalProperties": True}, []),
        ({"type": "object", ANY: True}, {"type": "object", ANY: True}, []),
        (
            {"type": "object", "properties": {"b": {"type": "string"}}},
            {"type": "object", "additionalProperties": {"type": "string"}},
            [],
        ),
        ({"type": "integer"}, {"type": "number"}, []),
        ({"type": "string"}, {"type": "string", "enum": ["x"]}, ["a (other values not allowed)"]),
    ],
)
def test_what_schemas_keep_of_each_other(wanted: Body, installed: Body, lost: list[str]) -> None:
    def of(part: Any) -> Body:
        return {"type": "object", "properties": {"a": part}}

    assert [str(one) for one in losses(of(wanted), of(installed))] == lost
    assert [*losses(of(wanted), {"type": "object"})] == [PrunedField("a")]
