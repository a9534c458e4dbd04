# SPDX-License-Identifier: Apache-2.0
"""Field selectors, and what an API server says about them. `tests/cluster` asks a real one."""

_META = ["metadata.name", "metadata.namespace"]
_PLAIN = (
    "configmaps",
    "persistentvolumeclaims",
    "leases.coordination.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
)
SUPPORTED: dict[str, list[str]] = {
    "pods": [
        *_META,
        "spec.nodeName",
        "spec.host",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    "events": [
        *_META,
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    "nodes": ["metadata.name", "spec.unschedulable"],
    "namespaces": ["metadata.name", "status.phase"],
    "secrets": [*_META, "type"],
    "services": [*_META, "spec.clusterIP", "spec.type"],
    **dict.fromkeys(_PLAIN, _META),
    "genericjobs.batch.tensorstack.dev": _META,
}
REFUSED = [
    ("pods", "spec.priority=1", "field label not supported: spec.priority"),
    ("pods", "metadata.name=a,x!=b", "field label not supported: x"),
    ("pods", "metadata.name =a", "field label not supported: metadata.name "),
    ("pods", "=a", "field label not supported: "),
    ("nodes", "metadata.namespace=a", "field label not supported: metadata.namespace"),
    ("namespaces", "metadata.namespace=a", "field label not supported: metadata.namespace"),
    ("secrets", "data=a", "field label not supported: data"),
    ("services", "spec.ports=a", "field label not supported: spec.ports"),
    ("events", "message=a", "field label not supported: message"),
    ("genericjobs.batch.tensorstack.dev", "status.phase=a", "field label not supported: status.phase"),
    *((plain, "data=a", f'"data" is not a known field selector: only "{_META[0]}", "{_META[1]}"') for plain in _PLAIN),
    ("pods", "metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
    ("pods", "metadata.name=a,b", "invalid selector: 'metadata.name=a,b'; can't understand 'b'"),
    (
        "pods",
        "metadata.name in (a)",
        "invalid selector: 'metadata.name in (a)'; can't understand 'metadata.name in (a)'",
    ),
]
