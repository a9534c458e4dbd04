# SPDX-License-Identifier: Apache-2.0
"""The discovery documents: which groups, versions and resources the API serves.

Clients that accept `AGGREGATED` get everything in two documents, `/api` and `/apis`. Other clients get the legacy
documents, one per group and version; the dynamic client of the Python library needs them. A server must send
an aggregated document with the content type `AGGREGATED`: under plain `application/json` kubectl sees no groups.
"""

import platform

from trainwright import __version__
from trainwright.api import resources
from trainwright.api.resources import ServedResource, Subresource
from trainwright.model.job import Body

#: The content type of the aggregated documents. Clients ask for it in `Accept`.
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#: The release of Kubernetes whose behaviour the API has. kubectl warns if its own version differs by more than one.
_MAJOR, _MINOR, _PATCH = "1", "36", "4"
#: The names of processor architectures in Go, by the names in Python.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def core(aggregated: bool, address: str = "") -> Body:
    """The document at `/api`. `address` is the host and port of the server, which only the legacy document contains."""
    if aggregated:
        return _aggregated_list([_aggregated_group("")])
    cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}] if address else []
    return {"kind": "APIVersions", "versions": list(resources.groups()[""]), "serverAddressByClientCIDRs": cidrs}


def groups(aggregated: bool) -> Body:
    """The document at `/apis`: every group but the core group."""
    names = [name for name in resources.groups() if name]
    if aggregated:
        return _aggregated_list([_aggregated_group(name) for name in names])
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_legacy_group(name) for name in names]}


def group(name: str) -> Body | None:
    """The document at `/apis/NAME`; None if there is no such group."""
    if not name or name not in resources.groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_legacy_group(name)}


def group_version(group: str, version: str) -> Body | None:
    """The document at `/apis/GROUP/VERSION`, or at `/api/VERSION` for the core group; None if there is no such version.

    The document of the core group has no `apiVersion`, as on the real server.
    """
    if version not in resources.groups().get(group, ()):
        return None
    listed = [entry for served in resources.in_group_version(group, version) for entry in _legacy_entries(served)]
    api_version = {"apiVersion": "v1"} if group else {}
    return {
        "kind": "APIResourceList",
        **api_version,
        "groupVersion": _group_version(group, version),
        "resources": listed,
    }


def version() -> Body:
    """The document at `/version`. The build metadata of `gitVersion` names the real server."""
    build = __version__.replace("+", ".")
    machine = platform.machine()
    return {
        "major": _MAJOR,
        "minor": _MINOR,
        "gitVersion": f"v{_MAJOR}.{_MINOR}.{_PATCH}+trainwright.{build}",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"{platform.system().lower()}/{_ARCHITECTURES.get(machine, machine)}",
    }


def _aggregated_list(items: list[Body]) -> Body:
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_group(name: str) -> Body:
    versions = [
        {
            "version": version,
            "resources": [_aggregated_entry(served) for served in resources.in_group_version(name, version)],
            "freshness": "Current",
        }
        for version in resources.groups()[name]
    ]
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _aggregated_entry(served: ServedResource) -> Body:
    resource = served.resource
    entry: Body = {
        "resource": resource.plural,
        "responseKind": _response_kind(served, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": served.singular,
        "verbs": list(served.verbs),
        **_names(served),
    }
    if served.subresources:
        entry["subresources"] = [
            {
                "subresource": one.name,
                "responseKind": _response_kind(served, one.kind, one),
                "verbs": list(one.verbs),
            }
            for one in served.subresources
        ]
    return entry


def _response_kind(served: ServedResource, kind: str, subresource: Subresource | None = None) -> Body:
    """The kind of an answer. Built-in resources leave out the group and version that the document already has."""
    if subresource is not None and subresource.version:
        return {"group": subresource.group, "version": subresource.version, "kind": kind}
    group, version = (served.resource.group, served.resource.version) if served.custom else ("", "")
    return {"group": group, "version": version, "kind": kind}


def _names(served: ServedResource) -> Body:
    """The short names and categories. Both documents leave out an empty list."""
    short_names: Body = {"shortNames": list(served.short_names)} if served.short_names else {}
    return short_names | ({"categories": list(served.categories)} if served.categories else {})


def _legacy_group(name: str) -> Body:
    versions = [
        {"groupVersion": _group_version(name, version), "version": version} for version in resources.groups()[name]
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _legacy_entries(served: ServedResource) -> list[Body]:
    """The entry of a resource, and one entry for each subresource."""
    resource = served.resource
    own = {
        "name": resource.plural,
        "singularName": served.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(served.verbs),
        **_names(served),
    }
    return [own, *(_legacy_subresource(served, one) for one in served.subresources)]


def _legacy_subresource(served: ServedResource, one: Subresource) -> Body:
    api: Body = {"group": one.group, "version": one.version} if one.version else {}
    name = f"{served.resource.plural}/{one.name}"
    return {
        "name": name,
        "singularName": "",
        "namespaced": served.resource.namespaced,
        **api,
        "kind": one.kind,
        "verbs": list(one.verbs),
    }


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
