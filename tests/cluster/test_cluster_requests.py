# SPDX-License-Identifier: Apache-2.0
"""What our API reads in requests is what a real API server reads: protobuf bodies and field selectors."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from cluster_client import RefusedError, until
from cluster_install import install_crds
from cluster_plane import ControlPlane
from field_cases import REFUSED, SUPPORTED

from trainwright.api.protobuf import CONTENT_TYPE, decode

Body = dict[str, Any]
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True, "blockOwnerDeletion": False}
METADATA = {
    "name": "full",
    "labels": {"a": "1"},
    "annotations": {"b": "", "c": "ü"},
    "finalizers": ["example.com/x", "example.com/y"],
    "ownerReferences": [OWNER],
}
OBJECTS: dict[str, list[Body]] = {
    "configmaps": [{"data": {"a": "1", "b": ""}, "binaryData": {"c": "/wA="}, "immutable": True}],
    "secrets": [{"data": {"a": "/wA="}, "stringData": {"b": "text"}, "type": "example.com/x", "immutable": True}],
    "serviceaccounts": [{"secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "i"}]}],
    "services": [
        {
            "spec": {
                "type": "LoadBalancer",
                "ports": [
                    {"name": "a", "port": 80, "targetPort": "web", "nodePort": 30080, "appProtocol": "http"},
                    {"name": "b", "port": 53, "targetPort": 5353, "protocol": "UDP"},
                ],
                "selector": {"app": "x"},
                "externalIPs": ["192.0.2.1"],
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
                "loadBalancerIP": "192.0.2.2",
                "loadBalancerSourceRanges": ["192.0.2.0/24"],
                "loadBalancerClass": "example.com/lb",
                "allocateLoadBalancerNodePorts": False,
                "externalTrafficPolicy": "Local",
                "internalTrafficPolicy": "Local",
                "healthCheckNodePort": 30081,
                "publishNotReadyAddresses": True,
                "trafficDistribution": "PreferClose",
            }
        },
        {"spec": {"type": "ExternalName", "externalName": "example.com"}},
    ],
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server alone: nothing else changes the objects."""
    folder = tmp_path_factory.mktemp("plane")
    with ControlPlane(folder, controllers=False, scheduler=False, first=install_crds) as plane:
        yield plane


@pytest.mark.parametrize(("plural", "number"), [(plural, n) for plural in OBJECTS for n in range(len(OBJECTS[plural]))])
def test_an_object_in_both_encodings_is_the_same(plane: ControlPlane, plural: str, number: int) -> None:
    path, name = f"/api/v1/namespaces/default/{plural}", f"full-{number}"
    plane.call("POST", path, {**OBJECTS[plural][number], "metadata": {**METADATA, "name": name}})
    check(plane, f"{path}/{name}")


def test_a_namespace_in_both_encodings_is_the_same(plane: ControlPlane) -> None:
    check(plane, "/api/v1/namespaces/default")


def check(plane: ControlPlane, path: str) -> None:
    expected = plane.call("GET", path)
    expected.pop("status", None)
    expected["metadata"].pop("managedFields", None)
    assert decode(get(plane, path, CONTENT_TYPE)) == expected


def get(plane: ControlPlane, path: str, accept: str) -> bytes:
    headers = {"Authorization": f"Bearer {plane.tokens['admin']}", "Accept": accept}
    request = urllib.request.Request(plane.server + path, headers=headers)  # noqa: S310 - a URL of our own
    with urllib.request.urlopen(request, timeout=30, context=plane._tls()) as answer:  # noqa: S310
        data: bytes = answer.read()
        return data


@pytest.mark.parametrize("resource", SUPPORTED)
def test_supported_fields(plane: ControlPlane, resource: str) -> None:
    for name in SUPPORTED[resource]:
        until(lambda: lists(plane, selecting(resource, f"{name}=x")), f"{resource} can be listed")  # noqa: B023 - at once


def lists(plane: ControlPlane, path: str) -> bool:
    """False while the API server prepares the storage of a new custom resource."""
    try:
        plane.call("GET", path)
    except RefusedError as error:
        if error.code != 429:
            raise
        return False
    return True


@pytest.mark.parametrize(("resource", "text", "message"), REFUSED)
def test_other_selectors_are_refused(plane: ControlPlane, resource: str, text: str, message: str) -> None:
    with pytest.raises(RefusedError) as error:
        plane.call("GET", selecting(resource, text))
    status = json.loads(str(error.value).partition(": ")[2])
    assert (status["code"], status["reason"], status["message"]) == (400, "BadRequest", message)


def selecting(resource: str, text: str) -> str:
    plural, _, group = resource.partition(".")
    at = f"apis/{group}/{'v1' if group.endswith('k8s.io') else 'v1beta1'}" if group else "api/v1"
    return f"/{at}/{plural}?fieldSelector={quote(text)}"
