# SPDX-License-Identifier: Apache-2.0
"""Our patches make of an object what a real API server makes of it: the cases of `tests/api`, on both."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from cluster_client import RefusedError
from cluster_plane import ControlPlane
from patch_cases import JSON, STRATEGIC, Body, PatchCase

from trainwright.api.jsonpatch import apply_json_patch
from trainwright.api.strategic import _LISTS, _METADATA_LISTS, KINDS, strategic_merge
from trainwright.errors import InvalidError

#: The server sets these members in new items of lists.
DEFAULTED = ("imagePullPolicy", "protocol", "targetPort", "terminationMessagePath", "terminationMessagePolicy")
SERVER_FIELDS = ("managedFields", "resourceVersion", "generation")
CASES = [
    *(pytest.param(case, "json-patch", id=f"json {case.name}") for case in JSON if case.same_as_real),
    *(pytest.param(case, "strategic-merge-patch", id=case.name) for case in STRATEGIC if case.same_as_real),
]
_numbers = count()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server alone: nothing else changes the objects."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), controllers=False, scheduler=False) as plane:
        yield plane


@pytest.mark.parametrize(("case", "patch_type"), CASES)
def test_the_same_patch_has_the_same_result(plane: ControlPlane, case: PatchCase, patch_type: str) -> None:
    stored, path = create(plane, case)
    ours = result(lambda: apply(case, patch_type, stored))
    real = result(lambda: part(case, send(plane, path, f"application/{patch_type}+json", wrapped(case, patch_type))))
    assert ours == real


def test_the_merge_keys_are_those_of_the_server(plane: ControlPlane) -> None:
    core = plane.call("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    leases = plane.call("GET", "/openapi/v3/apis/coordination.k8s.io/v1")["components"]["schemas"]
    for kind in KINDS:
        schemas, package = (leases, "coordination") if kind == "Lease" else (core, "core")
        found = dict(merge_keys(schemas, f"io.k8s.api.{package}.v1.{kind}", ""))
        assert found == {**_METADATA_LISTS, **_LISTS.get(kind, {})}, kind


def merge_keys(schemas: Body, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Path and merge key of every merged list that can be reached from a type."""
    for member, schema in schemas[name].get("properties", {}).items():
        at = f"{path}.{member}" if path else member
        merged = "merge" in schema.get("x-kubernetes-patch-strategy", "")
        if merged:
            yield at, schema.get("x-kubernetes-patch-merge-key", "")
        elif schema.get("type") == "array":
            continue
        value = schema["items"] if merged else schema
        for one in (value, *value.get("allOf", ())):
            if "$ref" in one:
                yield from merge_keys(schemas, one["$ref"].rpartition("/")[2], at)


def create(plane: ControlPlane, case: PatchCase) -> tuple[Body, str]:
    """The object of the case as the server stores it, and its path. A pod becomes the template in a PodTemplate."""
    plural = "podtemplates" if case.kind == "Pod" else f"{case.kind.lower()}s"
    at = "/api/v1/nodes" if case.kind == "Node" else f"/api/v1/namespaces/default/{plural}"
    body = {"template": case.target} if case.kind == "Pod" else case.target
    name = f"case-{next(_numbers)}"
    metadata = {**body.get("metadata", {}), "name": name}
    return part(case, plane.call("POST", at, {**body, "metadata": metadata})), f"{at}/{name}"


def part(case: PatchCase, body: Body) -> Body:
    found: Body = body["template"] if case.kind == "Pod" else body
    return found


def wrapped(case: PatchCase, patch_type: str) -> Any:
    return {"template": case.patch} if case.kind == "Pod" and patch_type != "json-patch" else case.patch


def apply(case: PatchCase, patch_type: str, stored: Body) -> Body:
    if patch_type == "json-patch":
        return apply_json_patch(stored, case.patch)
    return strategic_merge(case.kind, stored, case.patch)


def send(plane: ControlPlane, path: str, content_type: str, patch: Any) -> Body:
    headers = {"Authorization": f"Bearer {plane.tokens['admin']}", "Content-Type": content_type}
    request = urllib.request.Request(  # noqa: S310 - a URL of our own
        plane.server + path, json.dumps(patch).encode(), headers, method="PATCH"
    )
    try:
        with urllib.request.urlopen(request, timeout=30, context=plane._tls()) as answer:  # noqa: S310
            found: Body = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        with error:
            raise RefusedError(error.code, error.read().decode()) from None


def result(made: Callable[[], Body]) -> Any:
    """What can be compared: the object without server fields and empty members, or that it was refused."""
    try:
        body = made()
    except (InvalidError, RefusedError) as error:
        print(type(error).__name__, error)
        return "refused"
    metadata = {name: value for name, value in body.get("metadata", {}).items() if name not in SERVER_FIELDS}
    return without_empty({**body, "metadata": metadata})


def without_empty(value: Any) -> Any:
    """The real server omits empty maps and lists of most fields when it encodes an object."""
    if isinstance(value, dict):
        members = {name: without_empty(member) for name, member in value.items() if name not in DEFAULTED}
        return {name: member for name, member in members.items() if member not in ({}, [], None)}
    return [without_empty(item) for item in value] if isinstance(value, list) else value
