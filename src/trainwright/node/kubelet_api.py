# SPDX-License-Identifier: Apache-2.0
"""`NodeCluster`: a `Cluster` for the node agent, with the requests to the API server that only nodes make.

Several programs write conditions into the status of a pod or a node. A merge patch would replace the whole list, so the
agent uses a strategic merge patch, as kubelets do: such a patch changes only the conditions that it contains.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kube import codec
from trainwright.kube.cluster import KubeCluster, pins
from trainwright.kube.codec import Request, collection_path, object_path
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, NODES, PODS, SECRETS, Resource

T = TypeVar("T")
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_SHARED_STATUS = frozenset({PODS.id, NODES.id})
#: Lists that the agent replaces as a whole. Merging would keep old entries, or mix up addresses of the same type.
_REPLACED_LISTS = frozenset({"addresses", "podIPs", "hostIPs"})
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_TOKENS = Resource("authentication.k8s.io", "v1", "tokenrequests", "TokenRequest")
_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")
_SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")
#: A node can read an object of these resources only if one of its pods refers to the object (rule of API servers).
_REFERENCED = frozenset({SECRETS.id, CONFIG_MAPS.id, CLAIMS.id, "persistentvolumes"})
#: Pauses before retries after a 403, in seconds: the Node authorizer may learn of a new pod later than the agent does.
_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
_AUTHENTICATION = Key("kube-system", "extension-apiserver-authentication")


class NodeCluster(KubeCluster):
    """The cluster as a node agent uses it."""

    async def get(self, resource: Resource, key: Key) -> Any:
        """Get one object. Retries after a 403: the API server may learn later that a pod refers to the object."""
        if resource.id not in _REFERENCED:
            return await super().get(resource, key)
        return await _retry_forbidden(lambda: super(NodeCluster, self).get(resource, key))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Patch an object. A patch of the status of a pod or node changes only the conditions that `body` contains."""
        if not status or resource.id not in _SHARED_STATUS:
            return await super().patch(resource, key, body, uid=uid, version=version, status=status)
        pinned, name = pins(uid, version), f"{resource.id}/status"
        data = codec.encode({"status": _strategic(body["status"]), **({"metadata": pinned} if pinned else {})})
        path = object_path(resource, key, "status")
        request = Request("patch", name, path, data, _STRATEGIC_PATCH, idempotent=True, pinned=bool(uid))
        return codec.decode_object(resource, await self.http.send(request))

    async def token(self, pod: Body, audience: str, seconds: int) -> str:
        """A token of the pod's service account. The token is valid only while the pod exists."""
        meta, spec = pod["metadata"], pod["spec"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        wanted = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound}
        account = Key(meta["namespace"], spec.get("serviceAccountName") or "default")
        path = object_path(_ACCOUNTS, account, "token")
        answer = await _retry_forbidden(lambda: self._ask(_TOKENS, wanted, "serviceaccounts/token", path))
        return str(answer["token"])

    async def allowed(self, user: str, groups: list[str], node: str) -> bool:
        """Whether a user may read the logs of the containers on this node."""
        attributes = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": node}
        answer = await self._ask(_ACCESS_REVIEWS, {"user": user, "groups": groups, "resourceAttributes": attributes})
        return bool(answer.get("allowed"))

    async def authority(self) -> str:
        """The CA, in PEM, that signs the client certificates of this cluster; empty if the agent cannot read the CA."""
        with suppress(NotFoundError, ForbiddenError):
            found = await super().get(CONFIG_MAPS, _AUTHENTICATION)
            return str((found.data or {}).get("client-ca-file") or "")
        return ""

    async def user(self) -> str:
        """Our user name as the API server sees it; empty if the server is older than Kubernetes 1.28."""
        with suppress(NotFoundError):
            return str((await self._ask(_SELF_REVIEWS))["userInfo"]["username"])
        return ""

    async def _ask(self, resource: Resource, spec: Body | None = None, name: str = "", path: str = "") -> Body:
        """Send an object that is a question and is not stored. Returns the answer, which is in the object's status."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **({"spec": spec} if spec else {})}
        path = path or collection_path(resource)
        data = await self.http.send(Request("create", name or resource.id, path, codec.encode(body), idempotent=True))
        answer: Body = codec.decode_object(resource, data)["status"]
        return answer


async def _retry_forbidden(request: Callable[[], Awaitable[T]]) -> T:
    for pause in _PAUSES_SECONDS:
        try:
            return await request()
        except ForbiddenError:
            await asyncio.sleep(pause)
    return await request()


def _strategic(status: Body) -> Body:
    """The status as a strategic merge patch."""
    found = {
        name: [{"$patch": "replace"}, *value] if name in _REPLACED_LISTS else value for name, value in status.items()
    }
    if "conditions" in found:
        # Without these nulls, a condition would keep an old reason or message that it no longer has.
        found["conditions"] = [{"reason": None, "message": None, **one} for one in found["conditions"]]
    return found
