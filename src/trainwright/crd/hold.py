# SPDX-License-Identifier: Apache-2.0
"""The hold: an admission policy that keeps new jobs of Kubeflow's kinds from starting while operators are exchanged.

The API server accepts a new job only if it is suspended, and refuses to resume a suspended job. Jobs that run are not
affected. Nothing has to run on the cluster for this: API servers from Kubernetes 1.30 on have such policies.
"""

from collections.abc import Sequence

from trainwright.kinds.base import Kind
from trainwright.model.job import Body

HOLD_NAME = "trainwright-hold"
#: The API group of the policy and of its binding.
ADMISSION_GROUP = "admissionregistration.k8s.io"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_MESSAGE = (
    "jobs are held while the operator of this kind is replaced: create the job with spec.runPolicy.suspend: true,"
    " and resume it when the hold is over"
)


def hold(kinds: Sequence[Kind], namespaces: Sequence[str] = ()) -> tuple[Body, Body]:
    """The policy and its binding. Without namespaces, the hold applies to the whole cluster."""
    held = [kind for kind in kinds if is_held(kind)]
    rule = {
        "apiGroups": sorted({kind.group for kind in held}),
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [kind.plural for kind in held],
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {"expression": f"{_suspended('object')} || oldObject != null && !{_suspended('oldObject')}"}
            | {"message": _MESSAGE, "reason": "Forbidden"}
        ],
    }
    binding: Body = {"policyName": HOLD_NAME, "validationActions": ["Deny"]}
    if namespaces:
        chosen = {"key": _NAMESPACE_LABEL, "operator": "In", "values": list(namespaces)}
        binding["matchResources"] = {"namespaceSelector": {"matchExpressions": [chosen]}}
    return _object("ValidatingAdmissionPolicy", policy), _object("ValidatingAdmissionPolicyBinding", binding)


def is_held(kind: Kind) -> bool:
    """Whether the policy can hold jobs of the kind: those of Kubeflow have `spec.runPolicy.suspend`."""
    return kind.group == "kubeflow.org"


def _suspended(name: str) -> str:
    """A CEL expression: whether the job in this variable is suspended."""
    policy = f"{name}.spec.runPolicy"
    return f"(has({policy}) && has({policy}.suspend) && {policy}.suspend == true)"


def _object(kind: str, spec: Body) -> Body:
    return {"apiVersion": f"{ADMISSION_GROUP}/v1", "kind": kind, "metadata": {"name": HOLD_NAME}, "spec": spec}
