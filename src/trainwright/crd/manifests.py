# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions, one for each kind, made from what `kinds.registry` lists.

`trainwright crds` prints them; the engines compare them with what is installed. Plain dicts in the order people write.
"""

from collections.abc import Iterable

from trainwright.crd.schema import schema
from trainwright.kinds.base import Column, Kind
from trainwright.model.job import Body


def crds(kinds: Iterable[Kind]) -> tuple[Body, ...]:
    """One CRD for each group and name, in the order of their first version; that version is the one stored."""
    versions: dict[tuple[str, str], list[Kind]] = {}
    for kind in kinds:
        versions.setdefault((kind.group, kind.name), []).append(kind)
    return tuple(crd(*several) for several in versions.values())


def crd(kind: Kind, *older: Kind) -> Body:
    """The CRD of a kind. All versions are served, the first one is stored."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": _names(kind),
            "scope": "Namespaced",
            "versions": [_version(kind) | {"storage": True}, *(_version(other) for other in older)],
        },
    }


def _names(kind: Kind) -> Body:
    names: Body = {"plural": kind.plural, "singular": kind.singular, "kind": kind.name, "listKind": f"{kind.name}List"}
    return names | ({"shortNames": list(kind.short_names)} if kind.short_names else {})


def _version(kind: Kind) -> Body:
    return {
        "name": kind.version,
        "served": True,
        "storage": False,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _checked(schema(kind.wire), kind.cel)},
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
