# SPDX-License-Identifier: Apache-2.0
"""The CRD of AITrainingJob: what it leaves open, what it stamps, and rules that say what `checks` says."""

from typing import Any

import msgspec
import pytest
from apiserver import EITHER, OPEN, admit, errors
from cel_expr_python import cel
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.crd.schema import crd, schema
from trainwright.kinds.aitrainingjob import AITRAININGJOB, wire
from trainwright.kinds.aitrainingjob.checks import CEL_RULES
from trainwright.kinds.base import load

Body = dict[str, Any]
SCHEMA: Body = crd(AITRAININGJOB)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TEMPLATE: Body = {"spec": {"containers": [{"name": "aitj-main", "image": "x"}]}}


def replica(count: int | None = None, **more: Any) -> Body:
    return {"template": TEMPLATE} | ({} if count is None else {"replicas": count}) | more


def job(**spec: Any) -> Body:
    head = {"apiVersion": "elasticdeeplearning.ai/v1", "kind": "AITrainingJob", "metadata": {"name": "j"}}
    return {**head, "spec": {"replicaSpecs": {"trainer": replica(2)}, **spec}}


def nodes(node: Body, path: str = "") -> dict[str, Body]:
    found = {path: node}
    for name, inner in node.get("properties", {}).items():
        found |= nodes(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            found |= nodes(node[name], f"{path}[]")
    return found


def test_every_node_is_structural() -> None:
    for path, node in nodes(SCHEMA).items():
        assert not {"$ref", "anyOf", "oneOf", "allOf", "not"} & set(node), path
        open_or_either = node.get(EITHER) or node.get(OPEN)
        assert "type" in node or open_or_either, path
        if "default" in node:
            assert errors(admit(node["default"], node), node) == [], path


def test_only_templates_exit_codes_and_the_status_are_open() -> None:
    assert [path for path, node in nodes(SCHEMA).items() if node.get(OPEN)] == [
        ".spec.replicaSpecs[].template",
        ".spec.restartingExitCode",
        ".status",
        ".status.trainwright",
    ]


@pytest.mark.parametrize("value", [137, "137,128", [137, 128], ["137"]])
def test_exit_codes_of_every_shape_survive_storage(value: Any) -> None:
    stored = admit(job(restartingExitCode=value), SCHEMA)

    assert errors(stored, SCHEMA) == []
    assert stored["spec"]["restartingExitCode"] == value


def test_what_is_stamped() -> None:
    spec = admit(job(), SCHEMA)["spec"]
    trainer = spec.pop("replicaSpecs")["trainer"]

    assert trainer == replica(2, restartPolicy="Never", restartScope="All", failPolicy="Any", completePolicy="All")
    assert spec == {
        "faultTolerant": False,
        "cleanPodPolicy": "All",
        "failPolicy": "Any",
        "completePolicy": "All",
        "suspend": False,
    }
    assert load(AITRAININGJOB, admit(job(), SCHEMA)).job.roles == load(AITRAININGJOB, job()).job.roles


def test_a_status_of_every_sort_survives_storage() -> None:
    condition = {
        "type": "Pending",
        "status": "True",
        "reason": "TrainingJobPending",
        "message": "m",
        "lastProbeTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "phase": "Succeed",
        "conditions": [condition],
        "replicaStatuses": {
            "trainer": {"pending": 1, "scheduled": 1, "active": 1, "succeeded": 1, "failed": 1, "restarting": 1}
        },
        "RestartCount": {"trainer": 1},
        "RestartReplicaName": "trainer",
        "startTime": "2026-01-01T00:00:00Z",
        "startRunningTime": "2026-01-01T00:00:00Z",
        "endTime": "2026-01-01T00:00:00Z",
        "lastReconcileTime": "2026-01-01T00:00:00Z",
        "restarts": 1,
        "trainwright": {"phase": "Running"},
    }
    for whole in (SCHEMA, schema(AITRAININGJOB.wire)):
        node = whole["properties"]["status"]
        assert admit(status, node) == status
        assert errors(status, node) == []
    read = msgspec.convert(status, wire.AITrainingJobStatus)
    assert msgspec.json.decode(msgspec.json.encode(read)) == status


# -- rules -----------------------------------------------------------------------------------------------------------

_ENV = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
PROGRAMS = [(_ENV.compile(rule), "oldSelf" in rule, message) for rule, message in CEL_RULES]
NAMES = "replicaSpecs may only have names of letters, digits and dashes, with a letter first and no dash at the end"
ALIKE = "replicaSpecs may not have names that differ only in case"
NONE = "replicaSpecs must have at least one replica in all"
LESS, MORE = "replicas may not be less than minReplicas", "replicas may not be more than maxReplicas"
BOUNDS = "minReplicas may not be more than maxReplicas"
NEVER = "replicas cannot be changed while edlPolicy is Never"


def refusals(new: Body, old: Body | None = None) -> list[str]:
    """What a server would answer to creating `new`, or to updating `old` to it."""
    node = SCHEMA["properties"]["spec"]
    new, old = admit(new, node), admit(old, node)
    assert errors(new, node) == []
    asked = [(program, message) for program, transition, message in PROGRAMS if old is not None or not transition]
    answers = [(program.eval(data={"self": new, "oldSelf": old or {}}), message) for program, message in asked]
    assert [answer.value() for answer, _ in answers if not isinstance(answer.value(), bool)] == []
    return [message for answer, message in answers if not answer.value()]


def one(count: int | None = None, **more: Any) -> Body:
    return {"replicaSpecs": {"trainer": replica(count, **more)}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (one(2), []),
        (one(), []),
        ({"replicaSpecs": {"PServer": replica(), "trainer-2": replica()}}, []),
        ({"replicaSpecs": {"a/b": replica()}}, [NAMES]),
        ({"replicaSpecs": {"1a": replica()}}, [NAMES]),
        ({"replicaSpecs": {"a-": replica()}}, [NAMES]),
        ({"replicaSpecs": {"a(": replica()}}, [NAMES]),
        ({"replicaSpecs": {"ps": replica(), "PS": replica()}}, [ALIKE]),
        ({"replicaSpecs": {"ps": replica(), "ps-a": replica()}}, []),
        (one(0), [NONE]),
        (one(0, minReplicas=1), [NONE, LESS]),
        (one(None, minReplicas=3), []),
        (one(None, maxReplicas=0), [MORE]),
        (one(1, minReplicas=2), [LESS]),
        (one(3, maxReplicas=2), [MORE]),
        (one(2, minReplicas=3, maxReplicas=1), [BOUNDS, LESS, MORE]),
        (one(2, minReplicas=2, maxReplicas=2), []),
        (one(1) | {"priority": "high"}, []),
        (one(1) | {"priority": "very high"}, ["priority must be able to be the value of a label"]),
    ],
    ids=str,
)
def test_what_a_server_says_to_a_new_job(spec: Body, expected: list[str]) -> None:
    assert refusals(spec) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (one(2, edlPolicy="Never"), one(3, edlPolicy="Never"), [NEVER]),
        (one(edlPolicy="Never"), one(1, edlPolicy="Never"), []),
        (one(2, edlPolicy="Never"), one(2, edlPolicy="Never", restartLimit=2), []),
        (one(2, edlPolicy="Never"), one(3, edlPolicy="Manual"), []),
        (one(2), one(3), []),
        (one(2, edlPolicy="Auto"), one(3, edlPolicy="Auto"), []),
        (one(2, edlPolicy="Never"), {"replicaSpecs": {"other": replica(1)}}, []),
        (one(2), one(9, maxReplicas=4), [MORE]),
    ],
    ids=str,
)
def test_what_a_server_says_to_a_changed_job(before: Body, after: Body, expected: list[str]) -> None:
    assert refusals(after, before) == expected


keys = st.sampled_from(["trainer", "Trainer", "ps", "PS", "a-b", "a_b", "-a", "1", "x1"])
small = st.integers(0, 3)
specs = st.dictionaries(
    keys,
    st.fixed_dictionaries(
        {"template": st.just(TEMPLATE)}, optional={"replicas": small, "minReplicas": small, "maxReplicas": small}
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None)
@given(specs, st.sampled_from(["", "a", "a.b", "-", "a b"]))
def test_a_server_refuses_exactly_what_the_checks_refuse(types: Body, priority: str) -> None:
    refused = refusals({"replicaSpecs": types, "priority": priority})
    found = load(AITRAININGJOB, job(replicaSpecs=types, priority=priority)).errors

    assert bool(refused) == bool(found), (refused, found)


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0, 2), *[st.sampled_from(["", "Never", "Manual"])] * 2)
def test_a_server_refuses_exactly_the_edits_that_the_checks_refuse(
    before: int, after: int, first: str, second: str
) -> None:
    specs = [
        {"replicaSpecs": {"a": replica(1), "trainer": replica(count, edlPolicy=policy)}}
        for count, policy in ((before, first), (after, second))
    ]
    stored, edited = (load(AITRAININGJOB, job(**spec)).wire for spec in specs)

    assert bool(refusals(specs[1], specs[0])) == bool(AITRAININGJOB.check_edit(stored, edited))


def test_everything_that_a_rule_walks_over_is_bounded() -> None:
    """An API server multiplies what may be there by what looking at it costs, and refuses a CRD beyond its budget."""
    properties = SCHEMA["properties"]["spec"]["properties"]

    assert properties["replicaSpecs"]["maxProperties"] <= 16
    assert properties["priority"]["maxLength"] <= 63
