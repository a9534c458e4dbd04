# SPDX-License-Identifier: Apache-2.0
"""What in a cluster tells of another controller for our kinds, and what does not."""

from datetime import UTC, datetime
from typing import Any

import pytest

from trainwright.crd.install import InstallOptions, manifests
from trainwright.kinds.registry import KINDS
from trainwright.kube.survey import ControllerObjects, ControllerSign, held_leases, other_controllers, own_operators
from trainwright.model.job import Body

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)
#: The kinds of training-operator.
KUBEFLOW = ("TFJob", "PyTorchJob", "XGBoostJob", "JAXJob", "PaddleJob.kubeflow.org")


def deployment(name: str, image: str = "x", account: str = "", replicas: int | None = None, **more: Any) -> Body:
    pod = {"containers": [{"name": "main", "image": image, **more}]} | (
        {"serviceAccountName": account} if account else {}
    )
    spec: Body = {"template": {"spec": pod}} | ({} if replicas is None else {"replicas": replicas})
    return {"kind": "Deployment", "metadata": {"name": name, "namespace": "ml"}, "spec": spec}


def role(kind: str = "ClusterRole", **rule: Any) -> Body:
    whole = {"apiGroups": ["kubeflow.org"], "resources": ["tfjobs/status"], "verbs": ["patch"], **rule}
    space = {} if kind == "ClusterRole" else {"namespace": "ml"}
    return {"kind": kind, "metadata": {"name": "r", **space}, "rules": [whole]}


def binding(kind: str = "ClusterRoleBinding", of: str = "ClusterRole", account: str = "robot") -> Body:
    space = {} if kind == "ClusterRoleBinding" else {"namespace": "ml"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "ml"}
    return {
        "kind": kind,
        "metadata": {"name": "b", **space},
        "roleRef": {"kind": of, "name": "r"},
        "subjects": [{"kind": "User", "name": "anna"}, subject],
    }


def lease(name: str, renewed: str, holder: str = "pod_1") -> Body:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def found(**held: Any) -> list[ControllerSign]:
    return [*other_controllers(KINDS, ControllerObjects(**held), NOW)]


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (deployment("training-operator"), KUBEFLOW),
        (deployment("a", "registry.example/kubeflow/tf-operator:v1"), ("TFJob",)),
        (deployment("a", command=["/usr/bin/Trainingjob-Operator"]), ("AITrainingJob",)),
        (deployment("a", "registry.example/paddleflow/paddle-operator:v0.4"), ("PaddleJob",)),
        (deployment("genericjob-controller"), ("GenericJob",)),
    ],
)
def test_a_deployment_is_known_by_its_name_its_image_or_its_program(one: Body, kinds: tuple[str, ...]) -> None:
    (sign,) = found(deployments=[one])

    assert (sign.object, sign.kinds, sign.active) == (f"Deployment ml/{one['metadata']['name']}", kinds, True)


def test_one_that_is_scaled_to_nothing_does_not_work() -> None:
    (sign,) = found(deployments=[deployment("training-operator", replicas=0)])

    assert not sign.active
    assert sign.detail == "x, 0 replicas"


@pytest.mark.parametrize("name", ["web", "volcano-scheduler", "mpi-operator"])
def test_others_are_none_of_our_business(name: str) -> None:
    assert found(deployments=[deployment(name)]) == []


def test_our_own_are_told_apart() -> None:
    every = manifests(InstallOptions(image="registry.example/trainwright:1", namespace="home"))
    by = {kind: [one for one in every if one["kind"].endswith(kind)] for kind in ("Deployment", "Role", "Binding")}

    assert found(deployments=by["Deployment"], roles=by["Role"], bindings=by["Binding"]) == []
    assert own_operators(by["Deployment"]) == ("home/trainwright-operator (registry.example/trainwright:1)",)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({}, True),
        ({"verbs": ["*"]}, True),
        ({"resources": ["*"], "verbs": ["update"]}, True),
        ({"resources": ["tfjobs"]}, False),
        ({"verbs": ["get", "watch"]}, False),
        ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, False),
        ({"apiGroups": ["batch"]}, False),
    ],
    ids=["status", "any verb", "all of the group", "no status", "only looks", "an administrator", "another group"],
)
@pytest.mark.parametrize(
    ("of", "by"), [("ClusterRole", "ClusterRoleBinding"), ("ClusterRole", "RoleBinding"), ("Role", "RoleBinding")]
)
def test_who_may_write_a_status_is_a_controller(rule: Body, told: bool, of: str, by: str) -> None:
    held = {"roles": [role(of, **rule)], "bindings": [binding(by, of)]}
    kinds = KUBEFLOW if rule.get("resources") == ["*"] else ("TFJob",)
    loose = found(**held)
    at_work = found(**held, deployments=[deployment("odd", account="robot"), deployment("web")])

    assert [(one.object, one.kinds, one.active) for one in loose] == [("ServiceAccount ml/robot", kinds, False)] * told
    assert [(one.object, one.kinds, one.active) for one in at_work] == [("Deployment ml/odd", kinds, True)] * told


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_webhook_that_is_asked_about_our_jobs(policy: str) -> None:
    rules = [{"apiGroups": ["kubeflow.org"], "resources": ["tfjobs", "tfjobs/status"]}]
    other = [{"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"]}, {"apiGroups": ["*"], "resources": ["*"]}]
    hooks = [{"name": "tf.example", "rules": rules, "failurePolicy": policy}, {"name": "py.example", "rules": other}]
    body = {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "v"}, "webhooks": hooks}
    (sign,) = found(webhooks=[body])

    assert (sign.object, sign.kinds) == ("ValidatingWebhookConfiguration v", ("TFJob",))
    assert (sign.active, f"failurePolicy {policy}" in sign.detail) == (policy == "Fail", True)


@pytest.mark.parametrize(
    ("one", "active"),
    [
        (lease("1ca428e5.training-operator.kubeflow.org", "2026-11-16T11:59:50.000000Z"), [True]),
        (lease("b2a304f2.batch.paddlepaddle.org", "2026-11-16T11:00:00.000000Z"), [False]),
        (lease("trainingjob-operator", ""), [False]),
        (lease("trainingjob-operator", "2026-11-16T11:59:50Z", holder=""), []),
        (lease("operator", "2026-11-16T11:59:50.000000Z"), []),
    ],
    ids=["held", "long ago", "never renewed", "given back", "ours"],
)
def test_a_lease_that_somebody_holds(one: Body, active: list[bool]) -> None:
    assert [sign.active for sign in found(leases=[one])] == active


@pytest.mark.parametrize(
    ("namespace", "renewed", "holder", "leads"),
    [
        pytest.param("trainwright", "2026-11-16T11:59:50.000000Z", "laptop_1", True, id="on a laptop"),
        pytest.param("ml-system", "2026-11-16T11:59:50.000000Z", "pod_1", True, id="beside an installed operator"),
        pytest.param("ml", "2026-11-16T11:59:50.000000Z", "pod_1", False, id="of somebody else"),
        pytest.param("trainwright", "2026-11-16T11:00:00.000000Z", "laptop_1", False, id="that is not renewed"),
        pytest.param("trainwright", "2026-11-16T11:59:50.000000Z", "", False, id="that was given back"),
    ],
)
def test_an_operator_of_ours_that_leads(namespace: str, renewed: str, holder: str, leads: bool) -> None:
    one = lease("operator", renewed, holder)
    one["metadata"]["namespace"] = namespace
    installed = manifests(InstallOptions(image="x", namespace="ml-system", definitions=False))
    deployments = [body for body in installed if body["kind"] == "Deployment"]

    expected = (f"Lease {namespace}/operator, held by {holder}",) if leads else ()
    assert held_leases([one], deployments, NOW) == expected
