# SPDX-License-Identifier: Apache-2.0
"""What `trainwright node` needs on a cluster beyond what every node has. `trainwright manifests --nodes` prints it.

Each agent is a user of its own, `system:node:NAME` in the group `system:nodes`, with a client certificate. The API
server's Node authorizer and NodeRestriction limit that user to its own Node, to the pods on it, and to what these pods
refer to. What is added here is harmless for every node, kubelets included: no secret, no token, no pod of others.
"""

from trainwright.crd.rights import RBAC
from trainwright.model.job import Body

NAME = "trainwright-node"
#: Requests the first certificate of a node, and can do nothing else.
BOOTSTRAP = f"{NAME}-bootstrap"
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
        _binding("ClusterRoleBinding", {"name": NAME}, _NODES, "ClusterRole", NAME),
        _binding("ClusterRoleBinding", {"name": f"{NAME}-renewal"}, _NODES, "ClusterRole", _RENEWALS),
        _binding("RoleBinding", {"name": NAME, "namespace": "kube-system"}, _NODES, "Role", _CLIENT_CA),
    )


def cluster_role() -> Body:
    """The names of Services and of the pods behind them lead to these addresses."""
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": [slices]}


def _binding(kind: str, metadata: Body, subject: Body, role_kind: str, role: str) -> Body:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
    }
