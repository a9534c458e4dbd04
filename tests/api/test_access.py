# SPDX-License-Identifier: Apache-2.0
"""The roles of the API, and the answers to the reviews of `kubectl auth`."""

from typing import Any

import pytest

from trainwright.api.access import (
    AccessRole,
    ApiIdentity,
    allows,
    allows_path,
    check,
    review_access,
    review_rules,
    review_self,
)
from trainwright.errors import BadRequestError, ForbiddenError, InvalidError
from trainwright.kinds.registry import KINDS
from trainwright.runtime.ports import NODES, PODS, jobs_of

ADMIN, USER, VIEWER = (ApiIdentity(f"trainwright:{role}", role) for role in AccessRole)
JOBS = "genericjobs"
GROUP = "batch.tensorstack.dev"


@pytest.mark.parametrize(
    ("verb", "group", "resource", "sub", "user", "viewer"),
    [
        ("get", GROUP, JOBS, "", True, True),
        ("watch", GROUP, JOBS, "", True, True),
        ("create", GROUP, JOBS, "", True, False),
        ("deletecollection", GROUP, JOBS, "", True, False),
        ("get", GROUP, JOBS, "status", True, True),
        ("patch", GROUP, JOBS, "status", False, False),
        ("create", "", JOBS, "", False, False),
        ("list", "", "pods", "", True, True),
        ("delete", "", "pods", "", True, False),
        ("get", "", "pods", "log", True, True),
        ("get", "", "pods", "exec", True, False),
        ("create", "", "pods", "exec", True, False),
        ("create", "", "pods", "attach", True, False),
        ("get", "", "pods", "portforward", True, False),
        ("update", "", "configmaps", "", True, False),
        ("get", "", "configmaps", "", True, True),
        ("create", "", "secrets", "", True, False),
        ("get", "", "secrets", "", True, False),
        ("list", "", "secrets", "", True, False),
        ("watch", "", "secrets", "", True, False),
        ("patch", "", "services", "", True, False),
        ("delete", "", "persistentvolumeclaims", "", True, False),
        ("list", "", "events", "", True, True),
        ("create", "", "events", "", False, False),
        ("get", "", "nodes", "", True, True),
        ("patch", "", "nodes", "", False, False),
        ("create", "", "namespaces", "", False, False),
        ("list", "", "namespaces", "", True, True),
        ("get", "coordination.k8s.io", "leases", "", True, True),
        ("get", "scheduler.tensorstack.dev", "podgroups", "", True, True),
        ("list", "scheduler.tensorstack.dev", "queues", "", True, True),
        ("get", "scheduler.tensorstack.dev", "queues", "status", True, True),
        ("create", "scheduler.tensorstack.dev", "queues", "", False, False),
        ("patch", "scheduler.tensorstack.dev", "queues", "", False, False),
        ("get", "apiextensions.k8s.io", "customresourcedefinitions", "", True, True),
        ("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", True, True),
        ("create", "authentication.k8s.io", "selfsubjectreviews", "", True, True),
        ("get", "trainwright.dev", "addresses", "", False, False),
        ("*", "", "pods", "", False, False),
        ("get", "*", "*", "", False, False),
    ],
)
def test_roles(verb: str, group: str, resource: str, sub: str, user: bool, viewer: bool) -> None:
    found = [allows(identity, verb, group, resource, sub, "default") for identity in (ADMIN, USER, VIEWER)]
    assert found == [True, user, viewer]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_user_writes_jobs_of_every_kind(kind: Any) -> None:
    assert allows(USER, "create", kind.group, kind.plural)
    assert not allows(VIEWER, "create", kind.group, kind.plural)


@pytest.mark.parametrize(
    ("verb", "path", "others"),
    [
        ("get", "/version", True),
        ("get", "/apis", True),
        ("get", "/apis/kubeflow.org/v1", True),
        ("get", "/openapi/v3", True),
        ("get", "/readyz", True),
        ("post", "/version", False),
        ("get", "/metrics", False),
        ("get", "/versions", False),
    ],
)
def test_paths(verb: str, path: str, others: bool) -> None:
    assert [allows_path(one, verb, path) for one in (ADMIN, USER, VIEWER)] == [True, others, others]


@pytest.mark.parametrize(
    ("target", "where", "text"),
    [
        (
            PODS,
            {"sub": "exec", "scope": "lab", "name": "p"},
            'pods "p" is forbidden: User "trainwright:viewer" cannot create resource "pods/exec" in API group ""'
            ' in the namespace "lab"',
        ),
        (
            NODES,
            {},
            'nodes is forbidden: User "trainwright:viewer" cannot create resource "nodes" in API group ""'
            " at the cluster scope",
        ),
        (
            jobs_of(KINDS[0]),
            {"scope": "lab"},
            f'genericjobs.{GROUP} is forbidden: User "trainwright:viewer" cannot create resource "genericjobs"'
            f' in API group "{GROUP}" in the namespace "lab"',
        ),
    ],
)
def test_the_refusal_is_the_text_of_the_real_server(target: Any, where: dict[str, str], text: str) -> None:
    check(ADMIN, "create", target, **where)
    with pytest.raises(ForbiddenError) as found:
        check(VIEWER, "create", target, **where)
    assert str(found.value) == text


def review(**attributes: str) -> dict[str, Any]:
    return {"spec": {"resourceAttributes": attributes}}


@pytest.mark.parametrize(
    ("identity", "body", "allowed"),
    [
        (ADMIN, review(verb="*", group="*", resource="*"), True),
        (USER, review(verb="*", resource="pods"), False),
        (USER, review(verb="create", resource="pods", namespace="a"), True),
        (VIEWER, review(verb="create", resource="pods"), False),
        (VIEWER, review(verb="get", resource="pods", subresource="log"), True),
        (VIEWER, {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}}, True),
        (VIEWER, {"spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}}, False),
        (VIEWER, {"spec": {"resourceAttributes": {"verb": 7}}}, False),
    ],
)
def test_access_review(identity: ApiIdentity, body: dict[str, Any], allowed: bool) -> None:
    answer = review_access(identity, body)
    assert answer["status"]["allowed"] is allowed
    assert (answer["kind"], answer["apiVersion"]) == ("SelfSubjectAccessReview", "authorization.k8s.io/v1")
    assert answer["spec"] == body["spec"]


@pytest.mark.parametrize(
    "body", [{}, {"spec": None}, {"spec": {}}, {"spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}}]
)
def test_an_access_review_asks_one_question(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="exactly one of"):
        review_access(ADMIN, body)


def test_the_listed_rules_are_the_rules_that_hold() -> None:
    answer = review_rules(VIEWER, {"spec": {"namespace": "default"}})
    assert answer["status"]["incomplete"] is False
    for rule in answer["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            for name in rule["resources"]:
                resource, _, sub = name.partition("/")
                assert all(allows(VIEWER, verb, group, resource, sub) for verb in rule["verbs"])
                assert set(rule["verbs"]) <= {"get", "list", "watch"} or resource.startswith("selfsubject")
    assert not any("secrets" in rule["resources"] for rule in answer["status"]["resourceRules"])
    assert "/version" in answer["status"]["nonResourceRules"][0]["nonResourceURLs"]


def test_a_rules_review_needs_a_namespace() -> None:
    with pytest.raises(BadRequestError, match="no namespace on request"):
        review_rules(ADMIN, {"spec": {}})


def test_self_review() -> None:
    assert review_self(USER)["status"]["userInfo"] == {
        "username": "trainwright:user",
        "groups": ["trainwright:user", "system:authenticated"],
    }
