# SPDX-License-Identifier: Apache-2.0
"""Everything to install on a cluster, in the order in which it has to be there. `trainwright manifests` prints it.

Who may do what is in `rights`; the pods of the operator are in `deployment`.
"""

from collections.abc import Sequence

from msgspec import Struct

from trainwright.crd.agents import agents
from trainwright.crd.deployment import budget, deployment, service
from trainwright.crd.manifests import crds
from trainwright.crd.rights import NAME, people, rights
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

_RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}


class Choice(Struct, frozen=True, kw_only=True):
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


def manifests(choice: Choice) -> tuple[Body, ...]:
    """CRDs, namespace, rights, two operators of which one leads, their metrics and their disruption budget."""
    account: Body = {"kind": "ServiceAccount", "name": NAME, "namespace": choice.namespace}
    return (
        *(crds(choice.kinds) if choice.definitions else ()),
        *_namespace(choice),
        _account(choice.namespace),
        *people(choice.kinds, choice.namespace if choice.watch else ""),
        *rights(choice.kinds, choice.namespace, choice.watch, account),
        service(choice.namespace),
        deployment(choice.image, choice.namespace, _arguments(choice)),
        budget(choice.namespace),
        *(agents(choice.namespace) if choice.nodes else ()),
    )


def _namespace(choice: Choice) -> tuple[Body, ...]:
    """One for the operator alone. Where it lives with its jobs the namespace is theirs, and its rules are not ours."""
    if choice.namespace == choice.watch:
        return ()
    return ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": choice.namespace, "labels": _RESTRICTED}},)


def _account(namespace: str) -> Body:
    """Its token goes to the pods that ask for it, and to no other one that may be started under its name."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


def _arguments(choice: Choice) -> list[str]:
    """What this operator is told beyond what all are."""
    some = [kind.singular for kind in choice.kinds] if len(choice.kinds) < len(KINDS) else []
    return [
        *([f"--namespace={choice.watch}"] if choice.watch else []),
        *([f"--kinds={','.join(some)}"] if some else []),
    ]
