# SPDX-License-Identifier: Apache-2.0
"""Which fields a field selector may name, per resource, as in an API server.

The store evaluates every path. An API server supports a few fields per resource and refuses the others, so that a
mistake in a selector does not look like an empty list. It also compares with defaults, where the store compares with
what is stored; `check_fields` translates such terms.
"""

import re
from typing import NamedTuple

from trainwright.errors import BadRequestError
from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import jobs_of

#: The field of all jobs that a selector may name, besides name and namespace. The CRDs of the engine list it.
JOB_PHASE = "status.trainwright.phase"
_NAME, _NAMESPACE = "metadata.name", "metadata.namespace"
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
#: The supported fields of resources that support more, or less, than name and namespace.
_FIELDS: dict[str, frozenset[str]] = {
    "pods": frozenset({
        _NAME, _NAMESPACE, "spec.nodeName", "spec.host", "spec.restartPolicy", "spec.schedulerName",
        "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs",
        "status.nominatedNodeName",
    }),
    "events": frozenset({
        _NAME, _NAMESPACE, "reason", "reportingComponent", "source", "type",
        *(f"involvedObject.{name}" for name in _INVOLVED),
    }),
    "nodes": frozenset({_NAME, "spec.unschedulable"}),
    "namespaces": frozenset({_NAME, "status.phase"}),
    "secrets": frozenset({_NAME, _NAMESPACE, "type"}),
    "services": frozenset({_NAME, _NAMESPACE, "spec.clusterIP", "spec.type"}),
    **{jobs_of(kind).id: frozenset({_NAME, _NAMESPACE, JOB_PHASE}) for kind in KINDS},
}  # fmt: skip
_DEFAULT_FIELDS = frozenset({_NAME, _NAMESPACE})
#: Built-in resources that support only these two. An API server words the error about another field differently.
_PLAIN = frozenset({
    "configmaps", "persistentvolumeclaims", "leases.coordination.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
})  # fmt: skip
#: Other names of fields in stored objects.
_STORED = {"spec.host": "spec.nodeName", "source": "source.component"}
#: Fields that are false if they are missing.
_FALSE_BY_DEFAULT = frozenset({"spec.hostNetwork", "spec.unschedulable"})
_TERM = re.compile(r"(?P<field>[^=!]*)(?P<sign>!=|==|=)(?P<value>.*)", re.DOTALL)


class _Term(NamedTuple):
    field: str
    equal: bool
    value: str

    @property
    def text(self) -> str:
        return f"{self.field}{'=' if self.equal else '!='}{self.value}"


def check_fields(resource_id: str, text: str) -> str:
    """The selector as the store evaluates it. Raises BadRequestError for a wrong selector or an unsupported field."""
    supported = _FIELDS.get(resource_id, _DEFAULT_FIELDS)
    terms = [_parse(part, text) for part in text.split(",") if part]
    for term in terms:
        if term.field not in supported and resource_id in _PLAIN:
            raise BadRequestError(f'"{term.field}" is not a known field selector: only "{_NAME}", "{_NAMESPACE}"')
        if term.field not in supported:
            raise BadRequestError(f"field label not supported: {term.field}")
    return ",".join(_stored(term).text for term in terms)


def _parse(part: str, text: str) -> _Term:
    found = _TERM.fullmatch(part)
    if found is None:
        raise BadRequestError(f"invalid selector: '{text}'; can't understand '{part}'")
    value = found["value"]
    if "\\" in text or "=" in value:
        raise BadRequestError(f"invalid selector: '{text}'; values with `,`, `=` or a backslash are not supported")
    return _Term(found["field"], found["sign"] != "!=", value)


def _stored(term: _Term) -> _Term:
    """The same term for objects as they are stored."""
    if term.field in _FALSE_BY_DEFAULT and term.value == "false":
        return _Term(term.field, not term.equal, "true")
    return term._replace(field=_STORED.get(term.field, term.field))
