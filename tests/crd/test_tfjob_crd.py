# SPDX-License-Identifier: Apache-2.0
"""The CRD of TFJob: two versions that keep each other's jobs as they are, and rules that say what `checks` says."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from apiserver import EITHER, OPEN, admit, errors
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.crd.schema import crd, schema
from trainwright.kinds.base import load, stored
from trainwright.kinds.tfjob import TFJOB, wire
from trainwright.kinds.tfjob.wire import TYPES

Body = dict[str, Any]
HERE = Path(__file__).parent
CRD = crd(TFJOB)
SCHEMAS: dict[str, Body] = {one["name"]: one["schema"]["openAPIV3Schema"] for one in CRD["spec"]["versions"]}
TEMPLATE: Body = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
VERSIONS = ("v1", "v1alpha2")


def replica(count: int | None = None, **more: Any) -> Body:
    return {"template": TEMPLATE} | ({} if count is None else {"replicas": count}) | more


def spec(types: Body | None = None, **more: Any) -> Body:
    return {"tfReplicaSpecs": types or {"Worker": replica(2), "PS": replica()}, **more}


def job(version: str = "v1", **more: Any) -> Body:
    return {"apiVersion": f"kubeflow.org/{version}", "kind": "TFJob", "metadata": {"name": "j"}, "spec": spec(**more)}


def test_both_versions_are_served_one_is_stored_and_nothing_is_converted() -> None:
    served = [(one["name"], one["served"], one["storage"]) for one in CRD["spec"]["versions"]]

    assert served == [("v1", True, True), ("v1alpha2", True, False)]
    assert "conversion" not in CRD["spec"]
    assert CRD["metadata"]["name"] == "tfjobs.kubeflow.org"
    assert CRD["spec"]["names"] == {"plural": "tfjobs", "singular": "tfjob", "kind": "TFJob", "listKind": "TFJobList"}
    for one in CRD["spec"]["versions"]:
        assert [(column["name"], column["jsonPath"]) for column in one["additionalPrinterColumns"]][:2] == [
            ("State", ".status.conditions[-1:].type"),
            ("Age", ".metadata.creationTimestamp"),
        ]


def nodes(node: Body, path: str = "") -> dict[str, Body]:
    found = {path: node}
    for name, inner in node.get("properties", {}).items():
        found |= nodes(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            found |= nodes(node[name], f"{path}[]")
    return found


def test_the_versions_have_one_set_of_fields_and_differ_in_two_defaults() -> None:
    new, old = (nodes(SCHEMAS[version]) for version in VERSIONS)

    assert new.keys() == old.keys()
    differ = [path for path in new if new[path].get("default") != old[path].get("default")]
    assert differ == [".spec.tfReplicaSpecs[].restartPolicy", ".spec.trainwright.defaults"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_node_is_structural(version: str) -> None:
    for path, node in nodes(SCHEMAS[version]).items():
        assert not {"$ref", "anyOf", "oneOf", "allOf", "not"} & set(node), path
        assert ("type" in node) != bool(node.get(EITHER)), path
        assert ("items" in node) == (node.get("type") == "array"), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        if "default" in node:
            assert errors(admit(node["default"], node), node) == [], path


def _open(whole: Body) -> list[str]:
    return [path for path, node in nodes(whole).items() if node.get(OPEN)]


def test_only_templates_and_the_status_are_open() -> None:
    assert _open(SCHEMAS["v1"]) == [".spec.tfReplicaSpecs[].template", ".status", ".status.trainwright"]


def test_of_the_fields_of_a_status_only_one_that_nobody_fills_is_open() -> None:
    assert _open(schema(TFJOB.wire)) == [
        ".spec.tfReplicaSpecs[].template",
        ".status.replicaStatuses[].labelSelector",
        ".status.tfReplicaStatuses[].labelSelector",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_api_server_stamps_what_the_embedded_engine_stamps(version: str) -> None:
    written = job(version, types={"Worker": replica(2), "PS": replica(1, restartPolicy="OnFailure")})
    mine = stored(TFJOB, written)["spec"]
    servers = admit(written, SCHEMAS[version])["spec"]

    assert servers["trainwright"] == mine["trainwright"] == {"defaults": version}
    assert {name: one["restartPolicy"] for name, one in servers["tfReplicaSpecs"].items()} == {
        name: one["restartPolicy"] for name, one in mine["tfReplicaSpecs"].items()
    }


@pytest.mark.parametrize("other", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_label_through_the_other_version_changes_nothing(version: str, other: str) -> None:
    """A patch is decoded, and stamped, in the version it is sent in; reading stamps as the stored version does."""
    full = job(version, cleanPodPolicy="All", runPolicy={"schedulingPolicy": {"minResources": {"cpu": "1"}}})
    first = admit(admit(full, SCHEMAS[version]), SCHEMAS["v1"])

    assert admit(first, SCHEMAS[other]) == first
    assert load(TFJOB, first).problems == load(TFJOB, full).problems


def test_suspend_is_stamped_where_there_is_a_run_policy_as_ever() -> None:
    assert admit(job(runPolicy={}), SCHEMAS["v1"])["spec"]["runPolicy"] == {"suspend": False}
    assert "runPolicy" not in admit(job(), SCHEMAS["v1"])["spec"]


def test_a_status_of_every_sort_survives_storage() -> None:
    status = {
        "conditions": [{"type": "Created", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}],
        "replicaStatuses": {"Worker": {"active": 1, "selector": "a=b", "labelSelector": {"matchLabels": {"a": "b"}}}},
        "tfReplicaStatuses": {"Worker": {}},
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:00:00Z",
        "lastReconcileTime": "2026-01-01T00:00:00Z",
        "trainwright": {"phase": "Running"},
    }
    for whole in (*SCHEMAS.values(), schema(TFJOB.wire)):
        node = whole["properties"]["status"]
        assert admit(status, node) == status
        assert errors(status, node) == []
    assert (
        msgspec.to_builtins(msgspec.convert(status, wire.TFJobStatus))["replicaStatuses"] == status["replicaStatuses"]
    )


# -- rules -----------------------------------------------------------------------------------------------------------

_ENV = cel.NewEnv(
    variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN},
    extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
)


class Rules:
    """The rules of a CRD."""

    def __init__(self, definition: Body) -> None:
        stored = next(one for one in definition["spec"]["versions"] if one["storage"])
        rules = stored["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
        self._rules = [(_ENV.compile(one["rule"]), "oldSelf" in one["rule"], self._message(one)) for one in rules]

    @staticmethod
    def _message(rule: Body) -> Any:
        return _ENV.compile(rule["messageExpression"] if "messageExpression" in rule else f'"{rule["message"]}"')

    def refusals(self, new: Body, old: Body | None = None) -> list[str]:
        """What a server would answer to creating `new`, or to updating `old` to it."""
        node = SCHEMAS["v1"]["properties"]["spec"]
        new, old = admit(new, node), admit(old, node)
        assert errors(new, node) == []
        data = {"self": new, "oldSelf": old or {}}
        asked = [(program, text) for program, transition, text in self._rules if old is not None or not transition]
        answers = [(program.eval(data=data).value(), text) for program, text in asked]
        assert [answer for answer, _ in answers if not isinstance(answer, bool)] == []
        return [one for answer, text in answers if not answer for one in text.eval(data=data).value().split("; ")]


refusals = Rules(CRD).refusals
#: The same rules as they were before they were combined: each one separate, without a shortcut.
SEPARATE = Rules(
    next(
        one
        for one in yaml.safe_load_all((HERE / "data" / "closed-crds.yaml").read_text(encoding="utf-8"))
        if one["metadata"]["name"] == CRD["metadata"]["name"]
    )
).refusals


ONE = replica(1)
UNKNOWN = f"tfReplicaSpecs may only have the types {', '.join(TYPES)}"
MANAGED = "spec.runPolicy.managedBy is immutable"
QUEUE = "spec.runPolicy.schedulingPolicy.queue is immutable"


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"Worker": ONE}, []),
        ({"worker": ONE, "PS": ONE, "CHIEF": ONE, "eval": ONE}, []),
        ({"Wroker": ONE}, [UNKNOWN]),
        ({"Workers": ONE}, [UNKNOWN]),
        ({"Worker": ONE, "worker": ONE}, ["tfReplicaSpecs may have Worker once"]),
        ({"Eval": ONE, "Evaluator": ONE}, ["tfReplicaSpecs may have Evaluator once"]),
        ({"Chief": ONE, "master": ONE}, ["must not have more than 1 Chief or Master role"]),
        ({"Worker": replica(0)}, ["tfReplicaSpecs must have at least one replica in all"]),
        ({"Worker": replica(0), "PS": replica()}, []),
        ({"Master": ONE, "Worker": ONE}, []),
        ({"Chief": ONE, "Master": ONE}, ["must not have more than 1 Chief or Master role"]),
        (
            {"Wroker": replica(0), "PS": replica(0), "ps": replica(0)},
            [UNKNOWN, "tfReplicaSpecs may have PS once", "tfReplicaSpecs must have at least one replica in all"],
        ),
    ],
    ids=str,
)
def test_what_a_server_says_to_a_new_job(types: Body, expected: list[str]) -> None:
    assert refusals({"tfReplicaSpecs": types}) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, []),
        ({}, {"runPolicy": {"suspend": True}}, []),
        ({}, {"runPolicy": {"managedBy": "kubeflow.org/training-operator"}}, [MANAGED]),
        ({"runPolicy": {"managedBy": "kubeflow.org/training-operator"}}, {}, [MANAGED]),
        (
            {"runPolicy": {"schedulingPolicy": {"queue": "a"}}},
            {"runPolicy": {"schedulingPolicy": {"queue": "b"}}},
            [QUEUE],
        ),
        ({"runPolicy": {"schedulingPolicy": {"queue": "a"}}}, {"runPolicy": {"schedulingPolicy": {}}}, []),
        ({"runPolicy": {}}, {"runPolicy": {"schedulingPolicy": {"queue": "a"}}}, []),
    ],
    ids=str,
)
def test_what_a_server_says_to_a_changed_job(before: Body, after: Body, expected: list[str]) -> None:
    assert refusals(spec(**after), spec(**before)) == expected


keys = st.sampled_from(
    ["Worker", "worker", "PS", "Chief", "Master", "MASTER", "Eval", "Evaluator", "Other", "work", ""]
)
specs = st.dictionaries(keys, st.builds(replica, st.none() | st.integers(0, 2)), min_size=1, max_size=4)


@settings(deadline=None)
@given(specs)
def test_a_server_refuses_exactly_what_the_checks_refuse(types: Body) -> None:
    refused = refusals({"tfReplicaSpecs": types})
    errors = load(TFJOB, job(types=types)).errors

    assert bool(refused) == bool(errors), (refused, errors)


managers = st.sampled_from(["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"])
queues = st.fixed_dictionaries({}, optional={"queue": st.sampled_from(["", "a", "b"])})
policies = st.fixed_dictionaries({}, optional={"managedBy": managers, "schedulingPolicy": queues})
edited = st.fixed_dictionaries({"tfReplicaSpecs": specs}, optional={"runPolicy": policies})


@settings(deadline=None, max_examples=300)
@given(edited, st.none() | edited)
def test_combined_rules_say_what_separate_rules_say(new: Body, old: Body | None) -> None:
    assert refusals(new, old) == SEPARATE(new, old)


def test_everything_that_a_rule_walks_over_is_bounded() -> None:
    """An API server multiplies what may be there by what looking at it costs, and refuses a CRD beyond its budget."""
    properties = SCHEMAS["v1"]["properties"]["spec"]["properties"]

    assert properties["tfReplicaSpecs"]["maxProperties"] <= 16
    assert properties["runPolicy"]["properties"]["schedulingPolicy"]["properties"]["queue"]["maxLength"] <= 253
    assert "enum" in properties["runPolicy"]["properties"]["managedBy"]
