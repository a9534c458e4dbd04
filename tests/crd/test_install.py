# SPDX-License-Identifier: Apache-2.0
"""What is installed: in an order that can be applied, with rights that are counted out."""

from typing import Any

import pytest

from trainwright.cli.operator import command as operator
from trainwright.crd.install import InstallOptions, manifests
from trainwright.crd.rbac import NAME, RBAC, cluster_role, lease_role, people
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

ALL = manifests(InstallOptions(image="example/trainwright:1", namespace="tools"))
SCOPED = manifests(InstallOptions(image="example/trainwright:1", namespace="tools", watch="research"))
BESIDE = manifests(InstallOptions(image="example/trainwright:1", namespace="research", watch="research"))


def one(kind: str, among: tuple[Body, ...] = ALL) -> dict[str, Any]:
    (found,) = [body for body in among if body["kind"] == kind]
    return found


def grants(role: Body) -> set[tuple[str, str, str]]:
    """Group, resource and verb of everything that a role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def operators_roles(bodies: tuple[Body, ...]) -> list[Body]:
    """All but those for people."""
    roles = [body for body in bodies if body["kind"] in ("Role", "ClusterRole")]
    return [role for role in roles if "labels" not in role["metadata"]]


def test_everything_is_there_before_it_is_needed() -> None:
    kinds = [body["kind"] for body in ALL]

    assert kinds == [
        *["CustomResourceDefinition"] * len(KINDS),
        *["Namespace"] * 2,
        "ServiceAccount",
        *["ClusterRole"] * 3,
        "Role",
        "ClusterRoleBinding",
        "RoleBinding",
        "Service",
        "Deployment",
        "PodDisruptionBudget",
    ]
    placed = {body["metadata"]["namespace"] for body in ALL if "namespace" in body["metadata"]}
    assert placed == {"tools", "trainwright"}


def test_operators_of_a_cluster_share_one_lease_wherever_they_run() -> None:
    shared = [body for body in ALL if body["metadata"].get("namespace") == "trainwright"]
    names = [body["metadata"]["name"] for body in ALL if body["kind"] == "Namespace"]

    assert names == ["tools", "trainwright"]
    assert [body["kind"] for body in shared] == ["Role", "RoleBinding"]
    assert shared[0] == lease_role("trainwright")
    assert shared[1]["subjects"][0]["namespace"] == "tools"


def test_without_definitions_the_rest_is_the_same() -> None:
    rest = manifests(InstallOptions(image="example/trainwright:1", namespace="tools", definitions=False))

    assert rest == ALL[len(KINDS) :]


@pytest.mark.parametrize("bodies", [ALL, SCOPED, BESIDE], ids=["all", "scoped", "beside its jobs"])
def test_nothing_has_the_name_of_another(bodies: tuple[Body, ...]) -> None:
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in bodies]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bodies", [ALL, SCOPED, BESIDE], ids=["all", "scoped", "beside its jobs"])
def test_no_right_is_a_wildcard_and_secrets_are_nobodys_business(bodies: tuple[Body, ...]) -> None:
    rules = [rule for body in bodies if body["kind"] in ("Role", "ClusterRole") for rule in body["rules"]]
    words = {word for rule in rules for part in ("apiGroups", "resources", "verbs") for word in rule[part]}

    assert not words & {"*", "secrets", "pods/exec", "bind", "escalate", "impersonate"}


def test_the_operator_may_not_read_logs_or_enter_containers() -> None:
    """The verdict in the status comes from termination messages; `explain` reads logs with the caller's rights."""
    of_pods = {resource for _, resource, _ in grants(cluster_role(KINDS)) if resource.startswith("pods")}

    assert of_pods == {"pods"}


def test_the_operator_updates_only_statuses_and_asks_leave_for_finalizers() -> None:
    updated = {resource for _, resource, verb in grants(cluster_role(KINDS)) if verb == "update"}

    assert updated == {f"{kind.plural}/{part}" for kind in KINDS for part in ("finalizers", "status")}


def test_a_lease_of_another_name_is_out_of_reach() -> None:
    rules = {tuple(rule["verbs"]): rule.get("resourceNames") for rule in lease_role("tools")["rules"]}

    assert rules == {("create",): None, ("get", "patch"): ["operator"]}


def test_for_one_namespace_the_same_rights_are_held_there_alone() -> None:
    roles = operators_roles(SCOPED)
    places = {role["metadata"].get("namespace", ""): role for role in roles}

    assert places.keys() == {"", "research", "tools"}
    assert grants(places[""]) | grants(places["research"]) == grants(cluster_role(KINDS))
    assert {resource for _, resource, _ in grants(places[""])} == {"nodes", "customresourcedefinitions"}
    assert places["tools"] == lease_role("tools")


@pytest.mark.parametrize("bodies", [ALL, SCOPED, BESIDE], ids=["all", "scoped", "beside its jobs"])
def test_every_role_of_the_operator_is_bound_to_its_account(bodies: tuple[Body, ...]) -> None:
    account = one("ServiceAccount", bodies)["metadata"]
    roles = operators_roles(bodies)
    bound = [body for body in bodies if body["kind"].endswith("Binding")]

    assert [(role["kind"], role["metadata"]) for role in roles] == [
        (binding["roleRef"]["kind"], binding["metadata"]) for binding in bound
    ]
    assert [binding["roleRef"]["name"] for binding in bound] == [role["metadata"]["name"] for role in roles]
    assert all(binding["subjects"] == [{"kind": "ServiceAccount", **account}] for binding in bound)


def test_operators_of_two_namespaces_share_nothing() -> None:
    """So that one can go, or come under another version, and the other stays."""
    red, blue = (
        {
            (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"])
            for body in manifests(InstallOptions(image="a", namespace=place, watch=place, definitions=False))
        }
        for place in ("red", "blue")
    )

    assert red & blue == set()
    assert ("ClusterRoleBinding", None, f"{NAME}-red") in red


def test_a_namespace_of_users_is_not_ours_to_make_label_or_delete() -> None:
    assert "Namespace" not in {body["kind"] for body in BESIDE}
    assert one("Namespace", SCOPED)["metadata"]["name"] == "tools"


def test_users_may_do_with_jobs_what_they_may_do_with_the_rest() -> None:
    view, edit = people(KINDS)

    assert [role["metadata"]["labels"] for role in (view, edit)] == [
        {f"{RBAC}/aggregate-to-view": "true"},
        {f"{RBAC}/aggregate-to-edit": "true"},
    ]
    assert {verb for _, _, verb in grants(view)} == {"get", "list", "watch"}
    scaled = {f"{kind.plural}/scale" for kind in KINDS if kind.scale_paths is not None}
    assert {resource for _, resource, _ in grants(edit)} == {kind.plural for kind in KINDS} | scaled
    assert {(resource, verb) for _, resource, verb in grants(edit) if "/" in resource} == {
        (resource, verb) for resource in scaled for verb in ("patch", "update")
    }
    assert {(one, "get") for one in scaled} <= {(resource, verb) for _, resource, verb in grants(view)}


def test_two_operators_run_as_nobody_in_particular() -> None:
    spec = one("Deployment")["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]

    assert (spec["replicas"], one("PodDisruptionBudget")["spec"]["maxUnavailable"]) == (2, 1)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == one("Service")["spec"]["selector"] == labels


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        (ALL, ("trainwright/operator", "")),
        (SCOPED, ("tools/operator", "research")),
        (BESIDE, ("tools/operator", "research")),
    ],
    ids=["all", "scoped", "beside its jobs"],
)
def test_the_operator_understands_what_it_is_told(bodies: tuple[Body, ...], expected: tuple[str, str]) -> None:
    container = one("Deployment", bodies)["spec"]["template"]["spec"]["containers"][0]
    name, *words = container["args"]

    given = operator.make_context(name, [word.replace("$(NAMESPACE)", "tools") for word in words]).params

    assert given["run_in_cluster"]
    assert (given["lease"], given["namespace"]) == expected
    assert given["address"] == f":{container['ports'][0]['containerPort']}"
    assert [entry["name"] for entry in container["env"]] == ["NAMESPACE"]


def test_nodes_get_no_right_to_secrets_tokens_or_pods() -> None:
    """The roles by name are Kubernetes' own: requests for certificates, their renewal, and one ConfigMap."""
    bodies = manifests(InstallOptions(image="x", namespace="home", nodes=True))
    ours = [body for body in bodies if body["metadata"]["name"].startswith("trainwright-node")]
    roles = [body for body in ours if body["kind"] in ("ClusterRole", "Role")]
    bound = {body["roleRef"]["name"]: body["subjects"] for body in ours if "roleRef" in body}
    nodes = [{"kind": "Group", "name": "system:nodes", "apiGroup": "rbac.authorization.k8s.io"}]
    account = [{"kind": "ServiceAccount", "name": "trainwright-node-bootstrap", "namespace": "home"}]

    assert [role["rules"] for role in roles] == [
        [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    ]
    assert bound == {
        "trainwright-node": nodes,
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": nodes,
        "extension-apiserver-authentication-reader": nodes,
        "system:node-bootstrapper": account,
    }
    accounts = [body["metadata"]["name"] for body in ours if body["kind"] == "ServiceAccount"]
    assert accounts == ["trainwright-node-bootstrap"]
