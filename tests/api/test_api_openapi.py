# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI documents have what kubectl looks for, and describe built-in kinds as a real API server does.

`data/builtin_fields.json` has the fields of built-in types in the documents of kube-apiserver 1.36.4, in the notation
of `kinds.podtable`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwright import __version__
from trainwright.api import openapi, resources
from trainwright.api.builtin_types import DESCRIPTIONS, TYPES
from trainwright.api.resources import SERVED, ServedResource
from trainwright.api.schemas import component_name
from trainwright.crd.schema import crd
from trainwright.kinds.registry import KINDS

REAL: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "data" / "builtin_fields.json").read_text())
GROUP_VERSIONS = [(group, version) for group, versions in resources.groups().items() for version in versions]
PATCHED = [one for one in SERVED if "patch" in one.verbs]
REFERENCE = "#/components/schemas/"


def document(group: str, version: str) -> dict[str, Any]:
    content = openapi.document(group, version)
    assert content is not None
    found: dict[str, Any] = json.loads(content)
    return found


def test_the_document_of_version_2_is_empty_in_both_encodings() -> None:
    about = {"title": "Trainwright", "version": __version__}
    assert json.loads(openapi.second_version(protobuf=False)) == {"swagger": "2.0", "info": about, "paths": {}}
    version = __version__.encode()
    info = b"\x0a\x0bTrainwright\x12" + bytes([len(version)]) + version
    expected = b"\x0a\x032.0" + b"\x12" + bytes([len(info)]) + info + b"\x42\x00"
    assert openapi.second_version(protobuf=True) == expected


def served_id(served: ServedResource) -> str:
    return f"{served.resource.version}-{served.resource.id}"


def schema_of(served: ServedResource) -> dict[str, Any]:
    whole = document(served.resource.group, served.resource.version)
    found: dict[str, Any] = whole["components"]["schemas"][component_name(served)]
    return found


def references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for inner in node:
            yield from references(inner)
    elif isinstance(node, dict):
        for name, inner in node.items():
            if name == "$ref":
                assert list(node) == ["$ref"], "OpenAPI 3.0 ignores what stands beside a reference"
                yield inner
            else:
                yield from references(inner)


def test_root_has_the_address_of_every_document() -> None:
    paths = openapi.root()["paths"]
    assert paths["api/v1"]["serverRelativeURL"] == f"/openapi/v3/api/v1?hash={openapi.digest('', 'v1')}"
    assert "apis/kubeflow.org/v1alpha2" in paths
    assert len(paths) == len(GROUP_VERSIONS)
    assert len({path["serverRelativeURL"].partition("=")[2] for path in paths.values()}) == len(paths)


@pytest.mark.parametrize(("group", "version"), [("", "v2"), ("apps", "v1"), ("kubeflow.org", "v2"), ("", "")])
def test_there_is_no_document_for_what_is_not_served(group: str, version: str) -> None:
    assert openapi.document(group, version) is None
    with pytest.raises(KeyError):
        openapi.digest(group, version)


def test_document_is_encoded_once() -> None:
    assert openapi.document("", "v1") is openapi.document("", "v1")


@pytest.mark.parametrize(("group", "version"), GROUP_VERSIONS)
def test_every_reference_leads_to_a_schema(group: str, version: str) -> None:
    whole = document(group, version)
    assert whole["openapi"] == "3.0.0"
    found = set(references(whole))
    assert found
    assert {name.removeprefix(REFERENCE) for name in found} <= set(whole["components"]["schemas"])


@pytest.mark.parametrize("served", PATCHED, ids=served_id)
def test_kubectl_finds_that_the_server_validates_fields(served: ServedResource) -> None:
    """kubectl searches all paths for a patch of the kind, and the first one decides."""
    resource = served.resource
    wanted = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    operations = [
        path["patch"] for path in document(resource.group, resource.version)["paths"].values() if "patch" in path
    ]
    found = [one for one in operations if one["x-kubernetes-group-version-kind"] == wanted]
    assert len(found) == 1
    assert {"fieldValidation", "dryRun"} <= {one["name"] for one in found[0]["parameters"]}
    # With a strategic merge patch in this list, kubectl would compute patches from our schemas, without merge keys.
    assert set(found[0]["requestBody"]["content"]) == {"application/json-patch+json", "application/merge-patch+json"}


@pytest.mark.parametrize("served", SERVED, ids=served_id)
def test_explain_finds_the_schema_of_a_kind(served: ServedResource) -> None:
    """`kubectl explain` takes the kind from the operations at the path of the collection, then searches the schemas."""
    resource = served.resource
    whole = document(resource.group, resource.version)
    base = f"/apis/{resource.group}" if resource.group else "/api"
    place = "/namespaces/{namespace}" if resource.namespaced else ""
    operations = whole["paths"][f"{base}/{resource.version}{place}/{resource.plural}"]
    kind = next(iter(operations.values()))["x-kubernetes-group-version-kind"]
    schemas = whole["components"]["schemas"]
    found = [name for name, one in schemas.items() if kind in one.get("x-kubernetes-group-version-kind", ())]
    assert found == [component_name(served)]
    assert schemas[found[0]]["description"]
    assert {"apiVersion", "kind", "metadata"} <= set(schemas[found[0]]["properties"])


@pytest.mark.parametrize(
    ("group", "version", "operations"),
    [
        (
            "kubeflow.org",
            "v1",
            {
                path: operations
                for plural in ("tfjobs", "pytorchjobs", "xgboostjobs", "jaxjobs", "paddlejobs")
                for path, operations in {
                    f"/apis/kubeflow.org/v1/namespaces/{{namespace}}/{plural}": ["get", "post"],
                    f"/apis/kubeflow.org/v1/namespaces/{{namespace}}/{plural}/{{name}}": [
                        "get",
                        "put",
                        "patch",
                        "delete",
                    ],
                    f"/apis/kubeflow.org/v1/{plural}": ["get"],
                }.items()
            },
        ),
        (
            "apiextensions.k8s.io",
            "v1",
            {
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": ["get"],
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}": ["get"],
            },
        ),
        ("authentication.k8s.io", "v1", {"/apis/authentication.k8s.io/v1/selfsubjectreviews": ["post"]}),
    ],
)
def test_paths_have_the_operations_that_are_served(group: str, version: str, operations: dict[str, list[str]]) -> None:
    found = document(group, version)["paths"]
    assert {path: [name for name in found[path] if name != "parameters"] for path in found} == operations


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_schema_of_a_job_is_that_of_its_crd_with_the_whole_status(kind: Any) -> None:
    for version in crd(kind)["spec"]["versions"]:
        served = resources.find(kind.group, version["name"], kind.plural)
        assert served is not None
        ours, theirs = schema_of(served), version["schema"]["openAPIV3Schema"]
        assert set(ours["properties"]) == set(theirs["properties"])
        assert set(ours["properties"]["spec"]["properties"]) == set(theirs["properties"]["spec"]["properties"])
        assert len(ours["properties"]["status"]["properties"]) > 1


def test_default_of_a_version_is_in_its_document() -> None:
    found = {}
    for version in ("v1", "v1alpha2"):
        served = resources.find("kubeflow.org", version, "tfjobs")
        assert served is not None
        replicas = schema_of(served)["properties"]["spec"]["properties"]["tfReplicaSpecs"]
        found[version] = replicas["additionalProperties"]["properties"]["restartPolicy"].get("default")
    assert found["v1"] != found["v1alpha2"]


def test_pod_template_of_a_job_refers_to_the_schema_of_pods() -> None:
    served = resources.find("kubeflow.org", "v1", "tfjobs")
    assert served is not None
    replicas = schema_of(served)["properties"]["spec"]["properties"]["tfReplicaSpecs"]
    template = replicas["additionalProperties"]["properties"]["template"]
    assert template["allOf"] == [{"$ref": f"{REFERENCE}io.k8s.api.core.v1.PodTemplateSpec"}]
    assert "tensorflow" in template["description"]


@pytest.mark.parametrize("name", REAL)
def test_fields_of_a_built_in_type_are_those_of_a_real_server(name: str) -> None:
    """`any` is allowed: it means that we do not describe the content."""
    ours = {field: notation for field, notation in TYPES[name].items() if notation.rstrip("!") != "any"}
    assert {field: REAL[name].get(field) for field in ours} == ours
    assert set(TYPES[name]) <= set(REAL[name])


def test_descriptions_belong_to_types_and_fields() -> None:
    fields = {f"{name}.{field}" for name, found in TYPES.items() for field in found}
    assert set(DESCRIPTIONS) <= fields | set(TYPES)
    assert all(text.endswith(".") for text in DESCRIPTIONS.values())
