# SPDX-License-Identifier: Apache-2.0
"""The CRD of PaddleJob: every field of the original, and rules that say what `checks` says."""

from typing import Any

import msgspec
import pytest
from apiserver import OPEN, admit, errors
from cel_expr_python import cel
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.crd.schema import crd, schema
from trainwright.kinds.base import load
from trainwright.kinds.paddlejob import PADDLEJOB, wire
from trainwright.kinds.paddlejob.checks import CEL_RULES

Body = dict[str, Any]
CRD = crd(PADDLEJOB)
(VERSION,) = CRD["spec"]["versions"]
SCHEMA: Body = VERSION["schema"]["openAPIV3Schema"]
SPEC: Body = SCHEMA["properties"]["spec"]
TEMPLATE: Body = {"spec": {"containers": [{"name": "paddle", "image": "x"}]}}
_ENV = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
PROGRAMS = [(_ENV.compile(rule), "oldSelf" in rule, message) for rule, message in CEL_RULES]


def role(count: int = 1, **more: Any) -> Body:
    return {"replicas": count, "template": TEMPLATE, **more}


def job(spec: Body) -> Body:
    return {"apiVersion": "batch.paddlepaddle.org/v1", "kind": "PaddleJob", "metadata": {"name": "j"}, "spec": spec}


def refusals(new: Body, old: Body | None = None) -> list[str]:
    """What a server would answer to creating `new`, or to updating `old` to it."""
    new, old = admit(new, SPEC), admit(old, SPEC)
    assert errors(new, SPEC) == []
    asked = [(program, message) for program, transition, message in PROGRAMS if old is not None or not transition]
    answers = [(program.eval(data={"self": new, "oldSelf": old or {}}), message) for program, message in asked]
    assert [answer.value() for answer, _ in answers if not isinstance(answer.value(), bool)] == []
    return [message for answer, message in answers if not answer.value()]


def test_its_identity_is_the_originals() -> None:
    assert CRD["metadata"]["name"] == "paddlejobs.batch.paddlepaddle.org"
    assert CRD["spec"]["names"] == {
        "plural": "paddlejobs",
        "singular": "paddlejob",
        "kind": "PaddleJob",
        "listKind": "PaddleJobList",
        "shortNames": ["pdj"],
    }
    assert (VERSION["name"], VERSION["served"], VERSION["storage"], VERSION["subresources"]) == (
        "v1",
        True,
        True,
        {"status": {}},
    )
    assert [(one["name"], one["type"], one["jsonPath"]) for one in VERSION["additionalPrinterColumns"]][:3] == [
        ("Status", "string", ".status.phase"),
        ("Mode", "string", ".status.mode"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]


def test_it_has_every_field_of_the_original_and_one_more() -> None:
    fields = "cleanPodPolicy schedulingPolicy intranet withGloo ps worker heter elastic runPolicy"
    assert set(SPEC["properties"]) == set(fields.split())
    assert set(SPEC["properties"]["ps"]["properties"]) == {"replicas", "requests", "limits", "template"}
    assert SPEC["properties"]["ps"]["required"] == ["replicas"]
    status = schema(PADDLEJOB.wire)["properties"]["status"]["properties"]
    assert set(status) == {
        *("phase", "mode", "ps", "worker", "heter", "elastic", "startTime", "completionTime", "observedGeneration"),
        *("conditions", "trainwright"),
    }
    assert SPEC["properties"]["ps"]["properties"]["template"][OPEN] is True, "labels and annotations survive"


@pytest.mark.parametrize("word", ["Nerver", "OnFailed", "OnCompletion", ""])
def test_words_that_the_original_took_are_not_refused(word: str) -> None:
    assert refusals({"worker": role(), "cleanPodPolicy": word}) == []


def test_a_status_of_every_sort_survives_storage() -> None:
    ref = {"kind": "Pod", "namespace": "a", "name": "b", "uid": "c", "apiVersion": "v1"}
    status = {
        "phase": "Running",
        "mode": "PS",
        "ps": {"pending": 1, "starting": 1, "running": 1, "failed": 1, "succeeded": 1, "unknown": 1, "refs": [ref]},
        "elastic": "DONE",
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 3,
        "conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "trainwright": {"phase": "Running", "ports": {"a": 1}},
    }
    for whole in (SCHEMA, schema(PADDLEJOB.wire)):
        node = whole["properties"]["status"]
        assert admit(status, node) == status
        assert errors(status, node) == []
    again = msgspec.json.encode(msgspec.convert(status, wire.PaddleJobStatus))
    assert msgspec.json.decode(again) == status


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, []),
        ({}, {"worker": role(3), "cleanPodPolicy": "Never", "runPolicy": {"suspend": True}}, []),
        ({}, {"ps": role()}, ["roles cannot be added or removed after the job was created"]),
        ({"intranet": "Host"}, {}, ["spec.intranet is immutable"]),
        ({}, {"withGloo": 0}, ["spec.withGloo is immutable"]),
        ({"elastic": 1}, {"elastic": 2}, []),
        ({"elastic": 1}, {}, ["spec.elastic cannot be added or removed after the job was created"]),
    ],
    ids=str,
)
def test_what_a_server_says_to_a_changed_job(before: Body, after: Body, expected: list[str]) -> None:
    old, new = ({"worker": role(), **one} for one in (before, after))

    assert refusals(new, old) == expected
    problems = PADDLEJOB.check_edit(load(PADDLEJOB, job(old)).wire, load(PADDLEJOB, job(new)).wire)
    assert len(problems) == len(expected)


sizes = st.none() | st.integers(0, 4)
roles = st.builds(
    lambda count, least, most, template: {
        "replicas": count,
        **({} if least is None else {"requests": least}),
        **({} if most is None else {"limits": most}),
        **({"template": TEMPLATE} if template else {}),
    },
    st.sampled_from([0, 1, 2, 9999, 10000]),
    sizes,
    sizes,
    st.booleans(),
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["ps", "worker", "heter"]), roles))
def test_a_server_refuses_exactly_what_the_checks_refuse(spec: Body) -> None:
    refused, found = refusals(spec), load(PADDLEJOB, job(spec)).errors

    assert bool(refused) == bool(found), (refused, found)
