# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions, one for each kind, made from what `kinds.registry` lists.

`trainwright crds` prints them; the engines compare them with what is installed. Plain dicts in the order people write.
"""

from collections.abc import Iterable

from trainwright import __version__
from trainwright.crd.schema import schema
from trainwright.kinds.base import Column, Kind, Version
from trainwright.model.job import Body
from trainwright.model.meta import PREFIX

#: Annotation on a CRD: the version of Trainwright that it is of.
VERSION = f"{PREFIX}/version"


def crds(kinds: Iterable[Kind]) -> tuple[Body, ...]:
    """One CRD for each kind."""
    return tuple(crd(kind) for kind in kinds)


def crd(kind: Kind) -> Body:
    """The CRD of a kind. All its versions are served; nothing is converted between them, since their fields agree."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", "annotations": {VERSION: __version__}},
        "spec": {
            "group": kind.group,
            "names": _names(kind),
            "scope": "Namespaced",
            "versions": [_version(kind, one) for one in kind.versions or (Version(kind.version, {}),)],
        },
    }


def _names(kind: Kind) -> Body:
    names: Body = {"plural": kind.plural, "singular": kind.singular, "kind": kind.name, "listKind": f"{kind.name}List"}
    return names | ({"shortNames": list(kind.short_names)} if kind.short_names else {})


def _version(kind: Kind, version: Version) -> Body:
    return {
        "name": version.name,
        "served": True,
        "storage": version.name == kind.version,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _checked(schema(kind.wire, version.stamps), kind.cel)},
    }


def _column(column: Column) -> Body:
    shown: Body = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return shown | ({"priority": column.priority} if column.priority else {})


def _checked(whole: Body, rules: tuple[tuple[str, str], ...]) -> Body:
    """The schema with the kind's rules on `spec`: the whole of it, so that rules see fields that come and go."""
    if rules:
        validations = [{"rule": rule, "message": message} for rule, message in rules]
        whole["properties"]["spec"]["x-kubernetes-validations"] = validations
    return whole
