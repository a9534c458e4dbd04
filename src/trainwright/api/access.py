# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the three roles of the API, and the answers to the reviews with which clients ask for their rights.

    admin    everything
    user     reads and writes jobs, pods, services, ConfigMaps, Secrets and claims; reads everything else; logs and exec
    viewer   reads everything except Secrets, and logs; writes nothing, runs no commands in containers

As in the default roles of Kubernetes, only an admin writes a status, because the engine owns it. A role holds in every
namespace. The rules have the form of RBAC rules, so a client can list them with a SelfSubjectRulesReview.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from trainwright.errors import BadRequestError, ForbiddenError, InvalidError
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    SECRETS,
    SERVICES,
    Resource,
    jobs_of,
)

_ALL = "*"
_READ = ("get", "list", "watch")
_WRITE = (*_READ, "create", "update", "patch", "delete", "deletecollection")
#: A client opens a WebSocket with GET and a SPDY connection with POST. Both are one right, so rules have both verbs.
_CONNECT = ("get", "create")
_JOBS = tuple(jobs_of(kind) for kind in KINDS)
_OF_USERS = (*_JOBS, PODS, SERVICES, CONFIG_MAPS, SECRETS, CLAIMS)
#: The jobs with a scale subresource.
_SCALED = tuple(jobs_of(kind) for kind in KINDS if kind.scale_paths is not None)
_GANGS = (POD_GROUPS, QUEUES)
_SHOWN = (*_JOBS, PODS, SERVICES, CONFIG_MAPS, CLAIMS, EVENTS, NODES, NAMESPACES, LEASES, *_GANGS, DEFINITIONS)
#: The resources with a status subresource.
_WITH_STATUS = (*_JOBS, PODS, SERVICES, CLAIMS, NODES, NAMESPACES, *_GANGS, DEFINITIONS)
_PATHS = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/")
_HEALTH = ("/healthz", "/livez", "/readyz")


class AccessRole(StrEnum):
    """The rights of a client."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


class ApiIdentity(Struct, frozen=True):
    """An authenticated client."""

    name: str
    role: AccessRole

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of the client, as `kubectl auth whoami` shows them."""
        return f"trainwright:{self.role}", "system:authenticated"


class AccessRule(Struct, frozen=True):
    """Verbs on resources. A subresource is written as in RBAC: `pods/log`. The word `*` means all."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...]
    resources: tuple[str, ...]

    def covers(self, verb: str, group: str, resource: str) -> bool:
        """Whether the rule allows this verb. A question about all verbs (`*`) needs a rule for all verbs."""
        return all(
            word in words or _ALL in words
            for word, words in ((verb, self.verbs), (group, self.groups), (resource, self.resources))
        )

    def document(self) -> Body:
        """The rule in the form of a SelfSubjectRulesReview."""
        return {"verbs": [*self.verbs], "apiGroups": [*self.groups], "resources": [*self.resources]}


class PathRule(Struct, frozen=True):
    """Verbs on paths that are no resources. A `*` at the end of a path stands for any rest."""

    verbs: tuple[str, ...]
    paths: tuple[str, ...]

    def covers(self, verb: str, path: str) -> bool:
        """Whether the rule allows this verb on this path."""
        fits = any(path == one or (one.endswith(_ALL) and path.startswith(one[:-1])) for one in self.paths)
        return fits and (verb in self.verbs or _ALL in self.verbs)

    def document(self) -> Body:
        """The rule in the form of a SelfSubjectRulesReview."""
        return {"verbs": [*self.verbs], "nonResourceURLs": [*self.paths]}


def _by_group(verbs: tuple[str, ...], resources: Iterable[Resource], subresource: str = "") -> list[AccessRule]:
    """One rule for each API group of these resources."""
    names: dict[str, list[str]] = {}
    for resource in resources:
        names.setdefault(resource.group, []).append(_joined(resource.plural, subresource))
    return [AccessRule(verbs, (group,), tuple(dict.fromkeys(found))) for group, found in names.items()]


def _joined(resource: str, subresource: str) -> str:
    return f"{resource}/{subresource}" if subresource else resource


_REVIEWS = [
    AccessRule(("create",), ("authorization.k8s.io",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
    AccessRule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
]
_VIEW = [
    *_by_group(_READ, _SHOWN),
    *_by_group(("get",), _WITH_STATUS, "status"),
    *_by_group(("get",), _SCALED, "scale"),
    AccessRule(("get",), ("",), ("pods/log",)),
    *_REVIEWS,
]
_RULES: dict[AccessRole, list[AccessRule]] = {
    AccessRole.ADMIN: [AccessRule((_ALL,), (_ALL,), (_ALL,))],
    AccessRole.USER: [
        *_by_group(_WRITE, _OF_USERS),
        *_by_group(("get", "update", "patch"), _SCALED, "scale"),
        AccessRule(_CONNECT, ("",), ("pods/exec", "pods/attach", "pods/portforward")),
        *_VIEW,
    ],
    AccessRole.VIEWER: _VIEW,
}
_SEEN_PATHS = [PathRule(("get", "head"), (*_PATHS, *_HEALTH))]
_PATH_RULES: dict[AccessRole, list[PathRule]] = {
    AccessRole.ADMIN: [PathRule((_ALL,), (_ALL,))],
    AccessRole.USER: _SEEN_PATHS,
    AccessRole.VIEWER: _SEEN_PATHS,
}


def allows(
    identity: ApiIdentity,
    verb: str,
    group: str,
    resource: str,
    subresource: str = "",
    namespace: str = "",  # noqa: ARG001 - a role holds in every namespace
) -> bool:
    """Whether the client may do this. `resource` is the plural, `group` is empty for the core group."""
    name = _joined(resource, subresource)
    return any(rule.covers(verb, group, name) for rule in _RULES[identity.role])


def allows_path(identity: ApiIdentity, verb: str, path: str) -> bool:
    """Whether the client may send a request for a path that is no resource, such as /version. `verb` is lower case."""
    return any(rule.covers(verb, path) for rule in _PATH_RULES[identity.role])


def refusal(
    identity: ApiIdentity, verb: str, target: Resource, *, sub: str = "", scope: str = "", name: str = ""
) -> str:
    """The message for a request that is not allowed. `scope` is the namespace, `sub` the subresource."""
    resource = _joined(target.plural, sub)
    where = f'in the namespace "{scope}"' if scope else "at the cluster scope"
    qualified = f"{target.plural}.{target.group}" if target.group else target.plural
    which = f'{qualified} "{name}"' if name else qualified
    return (
        f'{which} is forbidden: User "{identity.name}" cannot {verb} resource "{resource}"'
        f' in API group "{target.group}" {where}'
    )


def check(
    identity: ApiIdentity, verb: str, target: Resource, *, sub: str = "", scope: str = "", name: str = ""
) -> None:
    """Raise ForbiddenError, with the message of `refusal`, if the client may not do this."""
    if not allows(identity, verb, target.group, target.plural, sub, scope):
        raise ForbiddenError(refusal(identity, verb, target, sub=sub, scope=scope, name=name))


# -- reviews ----------------------------------------------------------------------------------------------------------


def review_access(identity: ApiIdentity, body: Body) -> Body:
    """The answer to a SelfSubjectAccessReview (`kubectl auth can-i`). Raises InvalidError."""
    spec = _spec(body)
    wanted, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if isinstance(wanted, dict) == isinstance(path, dict):
        raise InvalidError(
            'SelfSubjectAccessReview.authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: '
            "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        )
    if isinstance(wanted, dict):
        words = (_text(wanted, name) for name in ("verb", "group", "resource", "subresource", "namespace"))
        allowed = allows(identity, *words)
    else:
        assert isinstance(path, dict)  # noqa: S101 - exactly one of both is a dict
        allowed = allows_path(identity, _text(path, "verb"), _text(path, "path"))
    reason = f"the role {identity.role} {'allows' if allowed else 'does not allow'} this"
    return _answer("authorization.k8s.io/v1", "SelfSubjectAccessReview", spec, {"allowed": allowed, "reason": reason})


def review_rules(identity: ApiIdentity, body: Body) -> Body:
    """The answer to a SelfSubjectRulesReview (`kubectl auth can-i --list`). Raises BadRequestError."""
    spec = _spec(body)
    if not _text(spec, "namespace"):
        raise BadRequestError("no namespace on request")  # as the real server, though our rules hold in every namespace
    status: Body = {
        "resourceRules": [rule.document() for rule in _RULES[identity.role]],
        "nonResourceRules": [rule.document() for rule in _PATH_RULES[identity.role]],
        "incomplete": False,
    }
    return _answer("authorization.k8s.io/v1", "SelfSubjectRulesReview", spec, status)


def review_self(identity: ApiIdentity) -> Body:
    """The answer to a SelfSubjectReview (`kubectl auth whoami`)."""
    user = {"username": identity.name, "groups": [*identity.groups]}
    return _answer("authentication.k8s.io/v1", "SelfSubjectReview", None, {"userInfo": user})


def _answer(api_version: str, kind: str, spec: Body | None, status: Body) -> Body:
    given = {} if spec is None else {"spec": spec}
    return {"apiVersion": api_version, "kind": kind, "metadata": {}, **given, "status": status}


def _spec(body: Body) -> Body:
    spec = body.get("spec")
    return spec if isinstance(spec, dict) else {}


def _text(fields: Body, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
