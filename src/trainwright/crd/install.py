# SPDX-License-Identifier: Apache-2.0
"""The operator's pods and what goes with them: Deployment, Service, disruption budget. `install` puts them together.

The pods are what the Pod Security level `restricted` demands, and write to no disk.

What `trainwright node` needs on a cluster beyond what every node has. `trainwright manifests --nodes` prints it.

Each agent is a user of its own, `system:node:NAME` in the group `system:nodes`, with a client certificate. The API
server's Node authorizer and NodeRestriction limit that user to its own Node, to the pods on it, and to what these pods
refer to. What is added here is harmless for every node, kubelets included: no secret, no token, no pod of others.

Everything to install on a cluster, in the order in which it has to be there. `trainwright manifests` prints it.

Who may do what is in `rbac`.
"""

from collections.abc import Sequence

from msgspec import Struct

from trainwright.crd.rbac import LEASE, NAME, RBAC, lease_namespace, people, rights
from trainwright.crd.schema import crds
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

_LABELS = {"app.kubernetes.io/name": "trainwright", "app.kubernetes.io/component": "operator"}
_PORT = 8080
#: Nobody in particular; the image has no such user, and needs none.
_USER = 65532


def deployment(image: str, namespace: str, arguments: Sequence[str]) -> Body:
    """Two: one leads, the other takes over."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": _LABELS},
            "template": {
                "metadata": {
                    "labels": _LABELS,
                    "annotations": {"kubectl.kubernetes.io/default-container": "operator"},
                },
                "spec": _pod(image, arguments),
            },
        },
    }


def service(namespace: str) -> Body:
    """Where metrics are found: of each pod, since each has its own."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {
            "clusterIP": "None",
            "selector": _LABELS,
            "ports": [{"name": "metrics", "port": _PORT, "targetPort": "http"}],
        },
    }


def budget(namespace: str) -> Body:
    """A node may be emptied, both nodes at once may not.

    There is no `unhealthyPodEvictionPolicy`: API servers before Kubernetes 1.26 refuse an object with that field.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": namespace, "labels": _LABELS},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _LABELS}},
    }


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


def _spread(over: str) -> Body:
    """If it can be had: an operator on the same node is better than none."""
    return {
        "maxSkew": 1,
        "topologyKey": over,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _LABELS},
    }


def _container(image: str, arguments: Sequence[str]) -> Body:
    return {
        "name": "operator",
        "image": image,
        # The pod's own word for its namespace, so that the manifest may be moved to another one.
        "args": ["operator", "--run-in-cluster", *arguments, f"--address=:{_PORT}"],
        "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": _PORT}],
        # It answers from its start on: a minute without an answer is what nothing explains.
        "livenessProbe": _probe("/healthz", first=10, every=10, misses=6),
        "readinessProbe": _probe("/readyz", first=3, every=5, misses=3),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str, *, first: int, every: int, misses: int) -> Body:
    """Asked `first` seconds after the start, so that a container that only just starts is not told of as unhealthy."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "initialDelaySeconds": first,
        "periodSeconds": every,
        "failureThreshold": misses,
    }


NODE_NAME = "trainwright-node"
#: Requests the first certificate of a node, and can do nothing else.
BOOTSTRAP = f"{NODE_NAME}-bootstrap"
_NODES: Body = {"kind": "Group", "name": "system:nodes", "apiGroup": RBAC}
#: Roles that every API server has.
_REQUESTS = "system:node-bootstrapper"
_RENEWALS = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
_CLIENT_CA = "extension-apiserver-authentication-reader"


def agents(namespace: str) -> tuple[Body, ...]:
    """An account that requests certificates for nodes, and the few rights that all nodes get in addition."""
    account: Body = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": BOOTSTRAP, "namespace": namespace},
        "automountServiceAccountToken": False,
    }
    bootstrap: Body = {"kind": "ServiceAccount", "name": BOOTSTRAP, "namespace": namespace}
    return (
        account,
        _binding("ClusterRoleBinding", {"name": BOOTSTRAP}, bootstrap, "ClusterRole", _REQUESTS),
        *additions(),
    )


def additions() -> tuple[Body, ...]:
    """For the group of all nodes.

    Addresses behind Services, for the hosts files of pods; approval of a request in which a node asks for its own next
    certificate; and the CA of the API server's clients, which log requests are checked against.
    """
    return (
        cluster_role(),
        _binding("ClusterRoleBinding", {"name": NODE_NAME}, _NODES, "ClusterRole", NODE_NAME),
        _binding("ClusterRoleBinding", {"name": f"{NODE_NAME}-renewal"}, _NODES, "ClusterRole", _RENEWALS),
        _binding("RoleBinding", {"name": NODE_NAME, "namespace": "kube-system"}, _NODES, "Role", _CLIENT_CA),
    )


def cluster_role() -> Body:
    """The names of Services and of the pods behind them lead to these addresses."""
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NODE_NAME}, "rules": [slices]}


def _binding(kind: str, metadata: Body, subject: Body, role_kind: str, role: str) -> Body:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
    }


_RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}


class InstallOptions(Struct, frozen=True, kw_only=True):
    """What somebody wants to have installed."""

    image: str
    #: Where the operator runs.
    namespace: str
    #: Whose jobs it looks after; empty: those of all namespaces.
    watch: str = ""
    kinds: Sequence[Kind] = KINDS
    #: Whether the CRDs are part of it. Deleting them deletes all jobs, so that people may want them apart.
    definitions: bool = True
    #: Whether machines will be nodes by `trainwright node`, each with an identity that it requests.
    nodes: bool = False


def manifests(choice: InstallOptions) -> tuple[Body, ...]:
    """CRDs, namespace, rights, two operators of which one leads, their metrics and their disruption budget."""
    account: Body = {"kind": "ServiceAccount", "name": NAME, "namespace": choice.namespace}
    lease_in = lease_namespace(choice.namespace, choice.watch)
    return (
        *(crds(choice.kinds) if choice.definitions else ()),
        *_namespace(choice),
        _account(choice.namespace),
        *people(choice.kinds, choice.namespace if choice.watch else ""),
        *rights(choice.kinds, choice.namespace, choice.watch, account, lease_in),
        service(choice.namespace),
        deployment(choice.image, choice.namespace, _arguments(choice)),
        budget(choice.namespace),
        *(agents(choice.namespace) if choice.nodes else ()),
    )


def _namespace(choice: InstallOptions) -> tuple[Body, ...]:
    """The operator's own namespace, and that of the lease which all operators of a cluster share.

    An operator that runs in the namespace of its jobs makes no namespace: that one belongs to the users.
    """
    lease = lease_namespace(choice.namespace, choice.watch)
    names = dict.fromkeys([choice.namespace, lease] if choice.namespace != choice.watch else [])
    return tuple(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _RESTRICTED}} for name in names
    )


def _account(namespace: str) -> Body:
    """Its token goes to the pods that ask for it, and to no other one that may be started under its name."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


def _arguments(choice: InstallOptions) -> list[str]:
    """What this operator is told beyond what all are. `$(NAMESPACE)` lets a manifest be moved to another namespace."""
    lease = lease_namespace(choice.namespace, choice.watch)
    some = [kind.singular for kind in choice.kinds] if len(choice.kinds) < len(KINDS) else []
    return [
        f"--lease={'$(NAMESPACE)' if lease == choice.namespace else lease}/{LEASE}",
        *([f"--namespace={choice.watch}"] if choice.watch else []),
        *([f"--kinds={','.join(some)}"] if some else []),
    ]
