# SPDX-License-Identifier: Apache-2.0
"""The discovery documents are those of a real API server, but for what we do not serve.

`data/discovery.json` has the answers of kube-apiserver 1.36.4 with our CRDs, without the resources that we do not
serve.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainwright.api import discovery, resources
from trainwright.api.resources import SERVED, find
from trainwright.kinds.registry import KINDS

REAL_TEXT = (Path(__file__).parent / "data" / "discovery.json").read_text()
REAL: dict[str, dict[str, Any]] = json.loads(REAL_TEXT)
#: A real server has these too.
NOT_SERVED = {
    "namespaces/finalize",
    "nodes/proxy",
    "pods/ephemeralcontainers",
    "pods/eviction",
    "pods/portforward",
    "pods/proxy",
    "pods/resize",
    "services/proxy",
    "customresourcedefinitions/status",
}
#: Our CRDs are part of the program, so nobody may change them.
READ_ONLY = {"customresourcedefinitions": ["get", "list", "watch"]}
#: The resource of the embedded gang scheduler. No CRD of ours defines it.
OURS_ONLY = "scheduler.tensorstack.dev"


def expected_aggregated(document: dict[str, Any]) -> dict[str, Any]:
    for group in document["items"]:
        for version in group["versions"]:
            for entry in version["resources"]:
                name = entry["resource"]
                entry["verbs"] = READ_ONLY.get(name, entry["verbs"])
                subresources = [
                    one for one in entry.pop("subresources", ()) if f"{name}/{one['subresource']}" not in NOT_SERVED
                ]
                entry.update({"subresources": subresources} if subresources else {})
    return document


def in_order(resources: list[Any]) -> list[Any]:
    """The resources of one version by name. The order is not compared: ours is that of the registry of kinds."""
    return sorted(resources, key=lambda one: str(one.get("resource", one.get("name"))))


def by_name(groups: list[Any]) -> dict[str, Any]:
    named = {one.get("name", one.get("metadata", {}).get("name", "")): one for one in groups}
    named.pop(OURS_ONLY, None)
    for group in named.values():
        for version in group["versions"]:
            if "resources" in version:
                version["resources"] = in_order(version["resources"])
    return named


def test_aggregated_core_document_is_that_of_a_real_server() -> None:
    assert discovery.core(True) == expected_aggregated(REAL["aggregated"]["/api"])


def test_aggregated_groups_are_those_of_a_real_server() -> None:
    ours, real = discovery.groups(True), expected_aggregated(REAL["aggregated"]["/apis"])
    assert by_name(ours.pop("items")) == by_name(real.pop("items"))
    assert ours == real


def test_groups_of_jobs_have_the_order_of_a_real_server() -> None:
    """kubectl takes the first group that has a resource of that name, and two groups have `paddlejobs`."""
    jobs = {kind.group for kind in KINDS}
    ours, real = (
        [one["metadata"]["name"] for one in document["items"] if one["metadata"]["name"] in jobs]
        for document in (discovery.groups(True), json.loads(REAL_TEXT)["aggregated"]["/apis"])
    )

    assert ours == real


def test_legacy_roots_are_those_of_a_real_server() -> None:
    assert discovery.core(False, "127.0.0.1:6443") == REAL["legacy"]["/api"]
    ours, real = discovery.groups(False), dict(REAL["legacy"]["/apis"])
    assert by_name(ours.pop("groups")) == by_name(real.pop("groups"))
    assert ours == real


@pytest.mark.parametrize("path", [path for path in REAL["legacy"] if path not in ("/api", "/apis")])
def test_legacy_document_is_that_of_a_real_server(path: str) -> None:
    steps = path.strip("/").split("/")
    real = dict(REAL["legacy"][path])
    if len(steps) == 2 and steps[0] == "apis":
        assert discovery.group(steps[1]) == real
        return
    real["resources"] = [
        {**entry, "verbs": READ_ONLY.get(entry["name"], entry["verbs"])}
        for entry in real["resources"]
        if entry["name"] not in NOT_SERVED
    ]
    ours = discovery.group_version("" if steps[0] == "api" else steps[1], steps[-1])
    assert ours is not None
    assert ours | {"resources": in_order(ours["resources"])} == real | {"resources": in_order(real["resources"])}


@pytest.mark.parametrize(
    "found",
    [
        discovery.group(""),
        discovery.group("apps"),
        discovery.group_version("", "v2"),
        discovery.group_version("apps", "v1"),
        discovery.group_version("kubeflow.org", "v2"),
    ],
)
def test_what_is_not_served_has_no_document(found: object) -> None:
    assert found is None


def test_legacy_core_document_has_all_fields_that_the_python_client_requires() -> None:
    assert discovery.core(False)["serverAddressByClientCIDRs"] == []


def test_version_has_the_fields_of_a_real_server_and_names_the_program() -> None:
    found = discovery.version()
    required = [
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ]
    assert [type(found[name]) for name in required] == [str] * len(required)
    # kubectl parses it as a semantic version.
    assert re.fullmatch(r"v1\.36\.\d+\+trainwright\.[0-9A-Za-z.-]+", found["gitVersion"])
    assert re.fullmatch(r"[a-z]+/[a-z0-9_]+", found["platform"])


def test_every_version_of_every_kind_is_served() -> None:
    paths = [(*api_version.split("/"), kind.plural) for kind in KINDS for api_version in kind.served]
    entries = [find(*path) for path in paths]
    assert [entry and entry.resource.api_version for entry in entries] == ["/".join(path[:2]) for path in paths]
    assert len(paths) > len(KINDS)


def test_entries_have_objects_as_dicts_and_unique_names() -> None:
    assert {entry.resource.type for entry in SERVED} == {dict}
    for group, versions in resources.groups().items():
        for version in versions:
            listed = resources.in_group_version(group, version)
            names = [name for one in listed for name in (one.resource.plural, one.singular, *one.short_names)]
            assert len(names) == len(set(names))


def test_find_returns_none_for_what_is_not_served() -> None:
    assert find("", "v1", "replicationcontrollers") is None
    assert find("apps", "v1", "pods") is None


def test_subresource_by_name() -> None:
    pods = find("", "v1", "pods")
    assert pods is not None
    assert pods.list_kind == "PodList"
    log = pods.subresource("log")
    assert log is not None
    assert log.verbs == ("get",)
    assert pods.subresource("scale") is None
