# SPDX-License-Identifier: Apache-2.0
"""`NodeCluster`: a `Cluster` for the node agent, with the requests to the API server that only nodes make.

Several programs write conditions into the status of a pod or a node. A merge patch would replace the whole list, so the
agent uses a strategic merge patch, as kubelets do: it changes only the conditions that it names.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kube import codec
from trainwright.kube.cluster import KubeCluster, pins
from trainwright.kube.codec import Request, object_path
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, NODES, PODS, SECRETS, Resource

T = TypeVar("T")
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_SHARED_STATUS = frozenset({PODS.id, NODES.id})
#: Lists that the agent replaces as a whole. A strategic merge patch would merge them by address.
_REPLACED_LISTS = frozenset({"addresses", "podIPs", "hostIPs"})
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SELF_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#: A node may read these objects only if one of its pods refers to them.
_REFERENCED = frozenset({SECRETS.id, CONFIG_MAPS.id, CLAIMS.id, "persistentvolumes"})
#: Pauses between attempts. The Node authorizer of the API server may see a new pod later than the agent does.
_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
_AUTHENTICATION = Key("kube-system", "extension-apiserver-authentication")


class NodeCluster(KubeCluster):
    """The cluster as a node agent uses it."""

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object. The agent retries where the API server may not know yet that a pod of this node refers to it."""
        if resource.id not in _REFERENCED:
            return await super().get(resource, key)
        return await _retry_forbidden(lambda: super(NodeCluster, self).get(resource, key))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """Patch an object. The status of pods and nodes is patched condition by condition."""
        if not status or resource.id not in _SHARED_STATUS:
            return await super().patch(resource, key, body, uid=uid, version=version, status=status)
        pinned = pins(uid, version)
        patch = {"status": _strategic(body["status"]), **({"metadata": pinned} if pinned else {})}
        path = object_path(resource, key, "status")
        data = codec.encode(patch)
        request = Request(
            "patch", f"{resource.id}/status", path, data, _STRATEGIC_PATCH, idempotent=True, pinned=bool(uid)
        )
        return codec.decode_object(resource, await self.http.send(request))

    async def token(self, pod: Body, audience: str, seconds: int) -> str:
        """A token of the pod's service account. It is valid only while the pod exists."""
        meta, spec = pod["metadata"], pod["spec"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": bound,
            },
        }
        account = Key(meta["namespace"], spec.get("serviceAccountName") or "default")
        path = object_path(_ACCOUNTS, account, "token")
        request = Request("create", "serviceaccounts/token", path, codec.encode(body), idempotent=True)
        answer = await _retry_forbidden(lambda: self.http.send(request))
        return str(codec.decode_object(_ANY, answer)["status"]["token"])

    async def allowed(self, user: str, groups: list[str], node: str) -> bool:
        """Whether a user may read the logs of the containers on this node."""
        attributes = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": node}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
        }
        request = Request(
            "create", "subjectaccessreviews.authorization.k8s.io", _ACCESS_REVIEWS, codec.encode(body), idempotent=True
        )
        return bool(codec.decode_object(_ANY, await self.http.send(request))["status"].get("allowed"))

    async def authority(self) -> str:
        """The CA of the client certificates that this cluster trusts, in PEM; empty if we may not read it."""
        with suppress(NotFoundError, ForbiddenError):
            found = await super().get(CONFIG_MAPS, _AUTHENTICATION)
            return str((found.data or {}).get("client-ca-file") or "")
        return ""

    async def user(self) -> str:
        """Our user name as the API server sees it; empty if the server is older than Kubernetes 1.28."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        request = Request(
            "create", "selfsubjectreviews.authentication.k8s.io", _SELF_REVIEWS, codec.encode(body), idempotent=True
        )
        with suppress(NotFoundError):
            return str(codec.decode_object(_ANY, await self.http.send(request))["status"]["userInfo"]["username"])
        return ""


#: Decodes any answer as a whole.
_ANY = Resource("authentication.k8s.io", "v1", "", "")


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
