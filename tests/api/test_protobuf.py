# SPDX-License-Identifier: Apache-2.0
"""Protobuf bodies: what kubectl 1.36.4 sent, decoded, and damaged bodies."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.api.protobuf import decode

#: Each entry has the command, the body that kubectl sent, and what `--dry-run=client -o json` printed, if it can.
RECORDED = json.loads((Path(__file__).parent / "data" / "kubectl_protobuf.json").read_text())
BODIES = {one["name"]: b64decode(one["body"]) for one in RECORDED}
NOT_READ = ("quota", "token")
READ = [one for one in RECORDED if one["name"] not in NOT_READ]


def review(kind: str, **spec: Any) -> dict[str, Any]:
    group = "authentication" if kind == "SelfSubjectReview" else "authorization"
    return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, **({"spec": spec} if spec else {})}


def can_i(**attributes: str) -> dict[str, Any]:
    return review("SelfSubjectAccessReview", resourceAttributes=attributes)


REVIEWS = {
    "can-i": can_i(namespace="team-a", verb="create", resource="pods"),
    "can-i-name": can_i(namespace="default", verb="get", resource="pods", subresource="log", name="web"),
    "can-i-url": review("SelfSubjectAccessReview", nonResourceAttributes={"path": "/healthz", "verb": "get"}),
    "can-i-list": review("SelfSubjectRulesReview", namespace="team-a"),
    "whoami": review("SelfSubjectReview"),
}


@pytest.mark.parametrize("one", [one for one in READ if "json" in one], ids=lambda one: one["command"])
def test_an_object_is_what_kubectl_would_print(one: dict[str, Any]) -> None:
    expected = {name: value for name, value in one["json"].items() if name != "status" and value != {}}
    assert decode(b64decode(one["body"])) == expected


@pytest.mark.parametrize("name", REVIEWS)
def test_a_review(name: str) -> None:
    assert decode(BODIES[name]) == REVIEWS[name]


def test_every_recorded_body_is_tested() -> None:
    assert {one["name"] for one in READ if "json" not in one} == REVIEWS.keys()


@pytest.mark.parametrize("name", NOT_READ)
def test_other_kinds_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"kind '(ResourceQuota|TokenRequest)', which this server reads only as JSON"):
        decode(BODIES[name])


# -- bodies that kubectl does not send --------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def body(api_version: str, kind: str, raw: bytes, more: bytes = b"") -> bytes:
    return b"k8s\0" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + more


def test_delete_options_keep_a_zero() -> None:
    raw = field(1, 0) + field(2, field(1, "uid-1")) + field(3, 0) + field(4, "Orphan") + field(5, "All")
    assert decode(body("kubeflow.org/v1", "DeleteOptions", raw)) == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "uid-1"},
        "orphanDependents": False,
        "propagationPolicy": "Orphan",
        "dryRun": ["All"],
    }


def test_selectors_in_a_review() -> None:
    requirement = field(1, "a") + field(2, "In") + field(3, "b") + field(3, "c")
    raw = field(2, field(1, field(2, "list") + field(9, field(1, "") + field(2, requirement)) + field(8, b"")))
    review = decode(body("authorization.k8s.io/v1", "SelfSubjectAccessReview", raw))
    assert review["spec"]["resourceAttributes"] == {
        "verb": "list",
        "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b", "c"]}]},
        "fieldSelector": {},
    }


def test_metadata() -> None:
    owner = field(1, "Pod") + field(3, "p") + field(4, "u") + field(5, "v1") + field(6, 1) + field(7, 0)
    metadata = (
        field(1, "n")
        + field(7, -2)
        + field(8, field(1, 1_700_000_000) + field(2, 0))
        + field(11, field(1, "a") + field(2, "1"))
        + field(11, field(1, "b"))
        + field(13, owner)
        + field(14, "x")
        + field(14, "y")
        + field(99, "unknown fields are skipped")
        + varint(98 << 3 | 1)
        + bytes(8)
        + varint(97 << 3 | 5)
        + bytes(4)
    )
    assert decode(body("v1", "ConfigMap", field(1, metadata) + field(4, 0))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "n",
            "generation": -2,
            "creationTimestamp": "2023-11-14T22:13:20Z",
            "labels": {"a": "1", "b": ""},
            "ownerReferences": [
                {"kind": "Pod", "name": "p", "uid": "u", "apiVersion": "v1", "controller": True}
                | {"blockOwnerDeletion": False}
            ],
            "finalizers": ["x", "y"],
        },
        "immutable": False,
    }


DEEP = b""
for _ in range(2_000):
    DEEP = field(1, DEEP)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "does not begin", id="empty"),
        pytest.param(b'{"kind": "ConfigMap"}', "does not begin", id="JSON"),
        pytest.param(b"k8s\0", "kind ''", id="no kind"),
        pytest.param(body("v2", "ConfigMap", b""), "'v2'", id="another version"),
        pytest.param(body("v1", "ObjectMeta", b""), "'ObjectMeta'", id="a message that is no kind"),
        pytest.param(body("v1", "ConfigMap", b"", field(3, "gzip")), "another encoding", id="compressed"),
        pytest.param(body("v1", "ConfigMap", b"", field(4, "application/json")), "another encoding", id="JSON inside"),
        pytest.param(body("v1", "ConfigMap", b"\x0a"), "ends inside of a number", id="no length"),
        pytest.param(
            body("v1", "ConfigMap", b"\x0a" + b"\xff" * 9 + b"\x01"), "bytes, which are not", id="huge length"
        ),
        pytest.param(body("v1", "ConfigMap", b"\x0a\x05abc"), "has 5 bytes, which are not", id="too short"),
        pytest.param(body("v1", "ConfigMap", b"\xff" * 11), "more than 64 bits", id="long number"),
        pytest.param(body("v1", "ConfigMap", b"\xff" * 9 + b"\x7f"), "more than 64 bits", id="large number"),
        pytest.param(body("v1", "ConfigMap", b"\x02\x00"), "number 0", id="field 0"),
        pytest.param(body("v1", "ConfigMap", b"\x0b\x0c"), "wire type 3", id="group"),
        pytest.param(body("v1", "ConfigMap", field(1, 1)), "wire type 0", id="number for a message"),
        pytest.param(body("v1", "ConfigMap", field(4, "x")), "wire type 2", id="text for a truth value"),
        pytest.param(body("v1", "ConfigMap", field(2, field(1, 1))), "an entry of a map", id="number as a key"),
        pytest.param(body("v1", "ConfigMap", field(2, field(1, b"\xff"))), "not UTF-8", id="no UTF-8"),
        pytest.param(body("v1", "ConfigMap", field(1, field(8, field(1, 1 << 60)))), "out of range", id="far time"),
        pytest.param(body("v1", "ConfigMap", b"\x0a\x00" * 200_000), "more than 200,000 fields", id="many fields"),
        pytest.param(body("v1", "ConfigMap", DEEP), "protobuf|UTF-8", id="deep nesting"),
    ],
)
def test_a_damaged_body_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_a_changed_body_is_decoded_or_refused(name: str, data: st.DataObject) -> None:
    damaged = bytearray(BODIES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        damaged = damaged or bytearray(b"k")
    try:
        found = bool(decode(bytes(damaged)))
    except ValueError as error:
        found = type(error) is ValueError and bool(str(error))
    assert found
