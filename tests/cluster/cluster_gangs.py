# SPDX-License-Identifier: Apache-2.0
"""As much of gang schedulers as there has to be: the definitions of their pod groups, without any scheduler."""

import json
from typing import Any

from cluster_client import until
from cluster_install import install_crds
from cluster_plane import ControlPlane

from trainwright.kinds.gangs import PLUGINS_API, T9K_API, VOLCANO_API

APIS = (T9K_API, VOLCANO_API, PLUGINS_API)


def definition(api: str) -> dict[str, Any]:
    """PodGroups of that API, in which everything may be."""
    group, version = api.split("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    one = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
            "scope": "Namespaced",
            "versions": [one],
        },
    }


def install(plane: ControlPlane) -> None:
    """All of them, and our own kinds."""
    items = [definition(api) for api in APIS]
    plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    install_crds(plane)


class Groups:
    """The pod groups of one API in one namespace."""

    def __init__(self, plane: ControlPlane, api: str, namespace: str) -> None:
        self.plane, self.api = plane, api
        self.path = f"/apis/{api}/namespaces/{namespace}/podgroups"

    def find(self, name: str) -> dict[str, Any]:
        """The group, or nothing."""
        return self.plane.find(f"{self.path}/{name}") or {}

    def until(self, name: str, *, there: bool = True) -> dict[str, Any]:
        """Wait until there is one, or none."""
        until(lambda: bool(self.find(name)) is there, f"{self.path}/{name} is there: {there}")
        return self.find(name)

    def make(self, name: str) -> None:
        """Somebody else's."""
        self.plane.call("POST", self.path, {"apiVersion": self.api, "kind": "PodGroup", "metadata": {"name": name}})

    def phase(self, name: str, word: str) -> None:
        """What its scheduler would say."""
        self.plane.call("PATCH", f"{self.path}/{name}/status", {"status": {"phase": word}})
