# SPDX-License-Identifier: Apache-2.0
"""The schemas are structural, say everything the types say, and mean what the types mean."""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from apiserver import EITHER, OPEN, admit, errors
from msgspec import UNSET, Meta, Struct, UnsetType, field

from trainwright.crd.schema import schema
from trainwright.kinds.genericjob import wire
from trainwright.kinds.genericjob.checks import CEL_RULES
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.ledger import Failure, Hold, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.rule import Result

GENERICJOB = schema(wire.GenericJob)
SPEC = GENERICJOB["properties"]["spec"]
STATUS = GENERICJOB["properties"]["status"]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(Struct, frozen=True, omit_defaults=True):
    """A part. It has more to say."""

    size: int = 3


class Sample(Struct, rename="camel"):
    needed: int
    may_be_null: str | None
    word: Literal["b", "a"] = "a"
    colour: Colour = Colour.BLUE
    either: int | str = 0
    open_map: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    counts: dict[str, int] = field(default_factory=dict)
    part: Part = Part()
    other_part: Part = Part(5)
    maybe_part: Part | None = None
    at: datetime | UnsetType = UNSET
    ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    port: Annotated[int, Meta(ge=1, le=65535, description="A port.")] = 80
    large: Annotated[int, Meta(ge=0, le=2**40)] = 0
    steps: Annotated[int, Meta(multiple_of=8)] = 8
    names: Annotated[list[Annotated[str, Meta(pattern=r"^a\Z", min_length=1)]], Meta(max_length=2)] = field(
        default_factory=list
    )
    bounded: Annotated[dict[str, bool], Meta(min_length=1, max_length=2)] | None = None
    nulls: tuple[int | None, ...] = ()
    text: str = ""
    flag: bool = False
    listed: Annotated[tuple[str, ...], Meta(extra_json_schema={"x-kubernetes-list-type": "set"})] = ()


class Holder(Struct):
    """The whole."""

    spec: Sample
    status: Part = Part()


PART = {"description": "A part.", "type": "object", "properties": {"size": {"type": "integer", "format": "int64"}}}


def _stamped(default: dict[str, int] | None) -> dict[str, Any]:
    size = {"type": "integer", "format": "int64", "default": 3}
    return PART | {"properties": {"size": size}} | ({} if default is None else {"default": default})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("needed", {"type": "integer", "format": "int64"}),
        ("mayBeNull", {"type": "string", "nullable": True}),
        ("word", {"type": "string", "enum": ["b", "a"], "default": "a"}),
        ("colour", {"type": "string", "enum": ["red", "blue"], "default": "blue"}),
        ("either", {EITHER: True, "default": 0}),
        ("openMap", {"type": "object", OPEN: True}),
        ("anything", {OPEN: True}),
        ("counts", {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}}),
        ("part", _stamped({})),
        ("otherPart", _stamped({"size": 5})),
        ("maybePart", _stamped(None)),
        ("at", {"type": "string", "format": "date-time"}),
        (
            "ratio",
            {
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "exclusiveMaximum": True,
                "default": 0.5,
            },
        ),
        (
            "port",
            {
                "description": "A port.",
                "type": "integer",
                "format": "int32",
                "minimum": 1,
                "maximum": 65535,
                "default": 80,
            },
        ),
        ("large", {"type": "integer", "format": "int64", "minimum": 0, "maximum": 2**40, "default": 0}),
        ("steps", {"type": "integer", "format": "int64", "multipleOf": 8, "default": 8}),
        ("names", {"type": "array", "maxItems": 2, "items": {"type": "string", "pattern": "^a$", "minLength": 1}}),
        (
            "bounded",
            {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
        ),
        ("nulls", {"type": "array", "items": {"type": "integer", "format": "int64", "nullable": True}}),
        ("text", {"type": "string"}),
        ("flag", {"type": "boolean", "default": False}),
        ("listed", {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
    ],
)
def test_each_annotation_has_its_schema(name: str, expected: dict[str, Any]) -> None:
    found = schema(Holder)["properties"]["spec"]["properties"][name]

    assert expected == found
    assert [type(value) for value in expected.values()] == [type(found[key]) for key in expected]  # no enum members


def test_the_root_has_what_every_object_has_in_the_order_people_write_it() -> None:
    whole = schema(Holder)

    assert list(whole) == ["description", "type", "required", "properties"]
    assert (whole["description"], whole["type"], whole["required"]) == ("The whole.", "object", ["spec"])
    assert list(GENERICJOB["properties"]) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert GENERICJOB["properties"]["metadata"] == {"type": "object"}
    assert whole["properties"]["spec"]["required"] == ["needed", "mayBeNull"]


def test_a_status_gets_no_defaults() -> None:
    assert schema(Holder)["properties"]["status"] == PART


@pytest.mark.parametrize("odd", [int | bool, complex, dict[str, int] | str], ids=str)
def test_what_no_structural_schema_can_say_is_refused(odd: Any) -> None:
    holder = msgspec.defstruct("Odd", [("spec", odd)])

    with pytest.raises(TypeError, match="has no structural schema"):
        schema(holder)


# ------------------------------------------------------------------ the rules of structural schemas

SAYABLE = {
    "description", "type", "format", "nullable", "enum", "default", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties", "required", "properties", "items", "additionalProperties", OPEN, EITHER,
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from nodes(node[name], f"{path}[]")


NODES = dict(nodes(GENERICJOB))


@pytest.mark.parametrize("path", NODES)
def test_every_node_is_structural(path: str) -> None:
    node = NODES[path]

    assert set(node) <= SAYABLE  # above all no $ref, anyOf, oneOf, allOf, not
    assert ("type" in node) != bool(node.get(EITHER))
    assert not {"properties", "additionalProperties"} <= set(node)
    assert ("items" in node) == (node.get("type") == "array")
    assert set(node.get("required", ())) <= set(node.get("properties", ()))
    if "default" in node:
        assert admit(node["default"], node) == admit(admit(node["default"], node), node)
        assert errors(admit(node["default"], node), node) == []


def test_only_the_pod_template_is_open() -> None:
    assert [path for path, node in NODES.items() if node.get(OPEN)] == [".spec.replicaSpecs[].template"]


def _bounded(node: dict[str, Any]) -> bool:
    match node.get("type"):
        case "array":
            return "maxItems" in node
        case "object" if "additionalProperties" in node:
            return "maxProperties" in node
        case "string":
            return "maxLength" in node or "enum" in node
        case None:
            return "maxLength" in node
        case _:
            return True


def test_everything_that_a_rule_may_walk_over_is_bounded() -> None:
    walked = [name for name in SPEC["properties"] if any(f"self.{name}" in rule for rule, _ in CEL_RULES)]

    assert walked == ["replicaSpecs", "successRules", "failureRules", "service", "runMode"]
    assert [path for name in walked for path, node in nodes(SPEC["properties"][name], name) if not _bounded(node)] == []


def test_the_rank_rules_stay_inside_the_cost_budget() -> None:
    """The server's estimate of `cel._ranks`, as its own estimator (1.36) made it: 7 a rank, 1,134 a list of ranks."""
    rules = SPEC["properties"]["successRules"]
    ranks = rules["items"]["additionalProperties"]

    assert rules["items"] == SPEC["properties"]["failureRules"]["items"]
    assert rules["maxItems"] == SPEC["properties"]["failureRules"]["maxItems"]
    assert rules["maxItems"] * rules["items"]["maxProperties"] * (7 * ranks["maxItems"] + 1134) <= 9_000_000


# ------------------------------------------------------------------ objects against the schema of GenericJob


def job(**spec: Any) -> dict[str, Any]:
    replica = {"type": "worker", "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": "j"},
        "spec": {"replicaSpecs": [replica]} | spec,
    }


def replica(**more: Any) -> list[dict[str, Any]]:
    return [{"type": "worker", "template": {}} | more]


#: name, object, the path at which it is wrong (none: it is fine).
OBJECTS: list[tuple[str, dict[str, Any], str | None]] = [
    ("the smallest", job(), None),
    ("ranks as numbers and as text", job(replicaSpecs=replica(replicas=2), successRules=[{"worker": [0, "1"]}]), None),
    ("nulls as Go clients send them", job(service=None, runMode={"pause": None}, successRules=None), None),
    ("the old spelling", job(runMode={"pause": {"enable": True}, "debug": {"enable": True}}), None),
    ("a port by name", job(service={"ports": [{"port": 80, "targetPort": "http"}]}), None),
    ("a port by number", job(service={"ports": [{"port": 80, "targetPort": 8080}]}), None),
    ("an unknown field is dropped", job(cleanUpPolcy="All"), None),
    ("10,000 replicas", job(replicaSpecs=replica(replicas=10_000)), None),
    ("1,024 ranks", job(replicaSpecs=replica(replicas=1024), failureRules=[{"worker": list(range(1024))}]), None),
    ("no replicas at all", job(replicaSpecs=[]), "spec.replicaSpecs"),
    ("no spec", {key: value for key, value in job().items() if key != "spec"}, ""),
    ("no template", job(replicaSpecs=[{"type": "worker"}]), "spec.replicaSpecs.0"),
    ("a template that is text", job(replicaSpecs=replica(template="x")), "spec.replicaSpecs.0.template"),
    ("upper-case type", job(replicaSpecs=replica(type="Worker")), "spec.replicaSpecs.0.type"),
    ("type with a newline", job(replicaSpecs=replica(type="worker\n")), "spec.replicaSpecs.0.type"),
    ("type of 64 letters", job(replicaSpecs=replica(type="a" * 64)), "spec.replicaSpecs.0.type"),
    ("negative replicas", job(replicaSpecs=replica(replicas=-1)), "spec.replicaSpecs.0.replicas"),
    (
        "a policy GenericJob does not have",
        job(replicaSpecs=replica(restartPolicy={"policy": "ExitCode"})),
        "spec.replicaSpecs.0.restartPolicy.policy",
    ),
    ("restartPolicy as text", job(replicaSpecs=replica(restartPolicy="Never")), "spec.replicaSpecs.0.restartPolicy"),
    ("a clean-up policy that is none", job(cleanUpPolicy="Running"), "spec.cleanUpPolicy"),
    ("a priority of 101", job(scheduler={"t9kScheduler": {"priority": 101}}), "spec.scheduler.t9kScheduler.priority"),
    ("a rule over nothing", job(successRules=[{}]), "spec.successRules.0"),
    ("a rule without ranks", job(successRules=[{"worker": []}]), "spec.successRules.0.worker"),
    ("a negative rank", job(successRules=[{"worker": [-1]}]), "spec.successRules.0.worker.0"),
    ("a rank that is a word", job(successRules=[{"worker": ["all"]}]), "spec.successRules.0.worker.0"),
    ("a rank that is a boolean", job(successRules=[{"worker": [True]}]), "spec.successRules.0.worker.0"),
    ("1,025 ranks", job(failureRules=[{"worker": list(range(1025))}]), "spec.failureRules.0.worker"),
    ("port 0", job(service={"ports": [{"port": 0}]}), "spec.service.ports.0.port"),
    ("enabled as text", job(runMode={"pause": {"enabled": "yes"}}), "spec.runMode.pause.enabled"),
    ("a phase that is no text", job() | {"status": {"phase": 1}}, "status.phase"),
    (
        "a time that is none",
        job() | {"status": {"trainwright": {"times": {"ended": "x"}}}},
        "status.trainwright.times.ended",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "where"), [row[1:] for row in OBJECTS], ids=[row[0] for row in OBJECTS])
def test_objects_are_accepted_or_refused_where_they_are_wrong(body: dict[str, Any], where: str | None) -> None:
    assert ([] if where is None else [where]) == errors(admit(body, GENERICJOB), GENERICJOB)


@pytest.mark.parametrize(("body", "where"), [row[1:] for row in OBJECTS], ids=[row[0] for row in OBJECTS])
def test_the_types_accept_what_the_schema_accepts(body: dict[str, Any], where: str | None) -> None:
    stored = admit(body, GENERICJOB) | {"metadata": {"name": "j"}}
    try:
        msgspec.convert(stored, wire.GenericJob)
    except msgspec.ValidationError:
        assert where is not None
    else:
        assert where is None


def test_defaults_are_stamped_where_people_expect_them() -> None:
    written = job(
        replicaSpecs=[{"type": "worker", "template": {"any": {"thing": None}}}],
        runMode={"pause": {}},
        scheduler={"t9kScheduler": {}},
    )

    assert admit(written, GENERICJOB)["spec"] == {
        "replicaSpecs": [
            {
                "type": "worker",
                "template": {"any": {"thing": None}},
                "replicas": 1,
                "restartPolicy": {"policy": "OnFailure", "limit": 0},
            }
        ],
        "runMode": {"pause": {"enabled": False}},
        "scheduler": {"t9kScheduler": {"priority": 0}},
        "cleanUpPolicy": "None",
    }


def test_the_whole_ledger_survives_storage() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    cause = Cause(CauseKind.EXIT, code=137, signal=9, reason="OOMKilled", message="m", container="c", node="n")
    failure = Failure("worker", 3, "j-worker-3", 2, now, cause)
    ledger = Ledger(
        phase=Phase.FAILED,
        generation=2,
        roles=(RoleLedger("worker", 1, "0-3:2,7:1", {"Exit": 2}, "1", "3", 8, (Hold(now, "1,2"),)),),
        outcome=Outcome(Result.FAILED, Reason.RULE, now, "{}", "m", "w", failure),
        times=Times(now, now, now, now),
        resumes=1,
        failures=(failure,),
        ports={"p": 1},
    )
    status = msgspec.to_builtins({"phase": "Failed", "trainwright": ledger})

    assert status == admit(status, STATUS)
    assert errors(status, STATUS) == []
    assert ledger == msgspec.convert(status, wire.GenericJobStatus).trainwright
