# SPDX-License-Identifier: Apache-2.0
"""All manifests to install on a cluster, in the order in which they must be applied: `manifests` returns them.

The pods of the operator satisfy the Pod Security level `restricted` and write to no disk.

Each node agent (`trainwright node`) is a separate user, `system:node:NAME` in the group `system:nodes`, with a client
certificate. The Node authorizer and NodeRestriction of the API server limit this user to its own Node, to the pods on
it, and to the objects that these pods refer to. The rights that we add for agents apply to all nodes, kubelets
included, and are harmless: they give access to no secret, no token and no pod of another node.
"""

from collections.abc import Sequence

from msgspec import Struct

from trainwright.crd.rbac import LEASE, NAME, RBAC, binding, lease_namespace, people, rights
from trainwright.crd.schema import crds
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

NODE_NAME = "trainwright-node"
#: This service account may request the first certificate of a node and nothing else.
BOOTSTRAP = f"{NODE_NAME}-bootstrap"
_NODES: Body = {"kind": "Group", "name": "system:nodes", "apiGroup": RBAC}
#: Roles that exist in every API server.
_BOOTSTRAPPER_ROLE = "system:node-bootstrapper"
_RENEWAL_ROLE = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
_CLIENT_CA_ROLE = "extension-apiserver-authentication-reader"
_LABELS = {"app.kubernetes.io/name": "trainwright", "app.kubernetes.io/component": "operator"}
_RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}
_PORT = 8080
#: An unprivileged user ID. The image needs no user with this ID.
_USER = 65532


class InstallOptions(Struct, frozen=True, kw_only=True):
    """What to install."""

    image: str
    #: The namespace of the operator.
    namespace: str
    #: The namespace whose jobs the operator manages; empty means all namespaces.
    watch: str = ""
    kinds: Sequence[Kind] = KINDS
    #: Whether to include the CRDs. Deleting a CRD deletes all its jobs, so some users keep CRDs separate.
    definitions: bool = True
    #: Whether machines will join the cluster with `trainwright node` and request a certificate each.
    nodes: bool = False


def manifests(options: InstallOptions) -> tuple[Body, ...]:
    """CRDs, namespace, roles, the Service for metrics, the Deployment of the operator and its disruption budget."""
    account: Body = {"kind": "ServiceAccount", "name": NAME, "namespace": options.namespace}
    lease_in = lease_namespace(options.namespace, options.watch)
    return (
        *(crds(options.kinds) if options.definitions else ()),
        *_namespace(options),
        _account(NAME, options.namespace),
        *people(options.kinds, options.namespace if options.watch else ""),
        *rights(options.kinds, options.namespace, options.watch, account, lease_in),
        _service(options.namespace),
        _deployment(options.image, options.namespace, _arguments(options)),
        _disruption_budget(options.namespace),
        *(agents(options.namespace) if options.nodes else ()),
    )


def _namespace(options: InstallOptions) -> tuple[Body, ...]:
    """The namespace of the operator, and the namespace of the lease.

    If the operator manages the jobs of its own namespace, we neither create nor restrict it: it belongs to users.
    """
    lease_in = lease_namespace(options.namespace, options.watch)
    names = dict.fromkeys([options.namespace, lease_in] if options.namespace != options.watch else [])
    return tuple(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _RESTRICTED}} for name in names
    )


def _account(name: str, namespace: str) -> Body:
    """A service account. Only pods that ask for its token get the token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


def _arguments(options: InstallOptions) -> list[str]:
    """The arguments of the operator that depend on the options.

    `$(NAMESPACE)` is the namespace of the pod, so that users can change the namespace in the manifest.
    """
    lease_in = lease_namespace(options.namespace, options.watch)
    kinds = [kind.id for kind in options.kinds] if len(options.kinds) < len(KINDS) else []
    return [
        f"--lease={'$(NAMESPACE)' if lease_in == options.namespace else lease_in}/{LEASE}",
        *([f"--namespace={options.watch}"] if options.watch else []),
        *([f"--kinds={','.join(kinds)}"] if kinds else []),
    ]


def _deployment(image: str, namespace: str, arguments: Sequence[str]) -> Body:
    """Two replicas of the operator: one is the leader, the other takes over when the leader fails."""
    annotations = {"kubectl.kubernetes.io/default-container": "operator"}
    template = {"metadata": {"labels": _LABELS, "annotations": annotations}, "spec": _pod(image, arguments)}
    spec = {"replicas": 2, "selector": {"matchLabels": _LABELS}, "template": template}
    return _object("apps/v1", "Deployment", namespace, spec)


def _service(namespace: str) -> Body:
    """A headless Service, because each pod has its own metrics."""
    ports = [{"name": "metrics", "port": _PORT, "targetPort": "http"}]
    return _object("v1", "Service", namespace, {"clusterIP": "None", "selector": _LABELS, "ports": ports})


def _disruption_budget(namespace: str) -> Body:
    """The budget that allows the eviction of one operator at a time.

    There is no `unhealthyPodEvictionPolicy`: API servers before Kubernetes 1.26 refuse an object with that field.
    """
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _LABELS}}
    return _object("policy/v1", "PodDisruptionBudget", namespace, spec)


def _object(api_version: str, kind: str, namespace: str, spec: Body) -> Body:
    """An object of the operator itself."""
    metadata = {"name": NAME, "namespace": namespace, "labels": _LABELS}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _pod(image: str, arguments: Sequence[str]) -> Body:
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "topologySpreadConstraints": [_spread("kubernetes.io/hostname"), _spread("topology.kubernetes.io/zone")],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(image, arguments)],
    }


def _spread(topology_key: str) -> Body:
    """A soft constraint: two operators on the same node are better than one operator."""
    return {
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _LABELS},
    }


def _container(image: str, arguments: Sequence[str]) -> Body:
    return {
        "name": "operator",
        "image": image,
        "args": ["operator", "--run-in-cluster", *arguments, f"--address=:{_PORT}"],
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": _PORT}],
        # The operator answers as soon as it has started. One minute without an answer means that it hangs.
        "livenessProbe": _probe("/healthz", initial_delay=10, period=10, failures=6),
        "readinessProbe": _probe("/readyz", initial_delay=3, period=5, failures=3),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str, *, initial_delay: int, period: int, failures: int) -> Body:
    """A probe with times in seconds. The initial delay avoids events about a container that is still starting."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "initialDelaySeconds": initial_delay,
        "periodSeconds": period,
        "failureThreshold": failures,
    }


def agents(namespace: str) -> tuple[Body, ...]:
    """What node agents need: an account that requests their certificates, and additional rights for all nodes.

    Nodes may read the addresses behind Services (for the hosts files of pods), get their own next certificate without
    manual approval, and read the CA with which they check clients that request logs.
    """
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    bootstrap: Body = {"kind": "ServiceAccount", "name": BOOTSTRAP, "namespace": namespace}
    return (
        _account(BOOTSTRAP, namespace),
        binding({"name": BOOTSTRAP}, bootstrap, "ClusterRole", _BOOTSTRAPPER_ROLE),
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NODE_NAME}, "rules": [slices]},
        binding({"name": NODE_NAME}, _NODES, "ClusterRole", NODE_NAME),
        binding({"name": f"{NODE_NAME}-renewal"}, _NODES, "ClusterRole", _RENEWAL_ROLE),
        binding({"name": NODE_NAME, "namespace": "kube-system"}, _NODES, "Role", _CLIENT_CA_ROLE),
    )
