# SPDX-License-Identifier: Apache-2.0
"""The API server as a kubelet talks to it: a `Cluster` for the node agent, with the few requests only nodes make.

Several write the status of a pod and of a node. A merge patch replaces whole lists, so conditions are patched here as
kubelets do it, one by one ("strategic merge patch"): nobody else's is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from trainwright.errors import ForbiddenError, NotFoundError
from trainwright.kube import codec
from trainwright.kube.cluster import KubeCluster
from trainwright.kube.codec import Request, one_of
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, NODES, PODS, SECRETS, Resource

T = TypeVar("T")
_STRATEGIC = "application/strategic-merge-patch+json"
_OURS = frozenset({PODS.id, NODES.id})
#: Lists that the API would merge by address, where ours is the whole.
_WHOLE = frozenset({"addresses", "podIPs", "hostIPs"})
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#: What a node may read only because a pod of its own refers to it.
_REFERRED = frozenset({SECRETS.id, CONFIG_MAPS.id, CLAIMS.id, "persistentvolumes"})
#: Seconds between the attempts. The API server's Node authorizer learns of a pod a little later than the node may.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
_AUTHENTICATION = Key("kube-system", "extension-apiserver-authentication")


class NodeCluster(KubeCluster):
    """A `Cluster` for a node agent."""

    async def get(self, resource: Resource, key: Key) -> Any:
        """One object; asked for again where the API server may not know yet that a pod of this node refers to it."""
        if resource.id not in _REFERRED:
            return await super().get(resource, key)
        return await _allowed_soon(lambda: super(NodeCluster, self).get(resource, key))

    async def patch(
        self, resource: Resource, key: Key, body: Body, *, uid: str = "", version: str = "", status: bool = False
    ) -> Any:
        """As any cluster's; the status of pods and nodes is merged condition by condition."""
        if not status or resource.id not in _OURS:
            return await super().patch(resource, key, body, uid=uid, version=version, status=status)
        pins = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        patch = {"status": _strategic(body["status"]), **({"metadata": pins} if pins else {})}
        path = one_of(resource, key, "status")
        data = codec.encode(patch)
        call = Request("patch", f"{resource.id}/status", path, data, _STRATEGIC, repeatable=True, pinned=bool(uid))
        return codec.item(resource, await self.http.ask(call))

    async def token(self, pod: Body, audience: str, seconds: int) -> str:
        """A token of the pod's service account, good for as long as the pod is there."""
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
        path = one_of(_ACCOUNTS, account, "token")
        call = Request("create", "serviceaccounts/token", path, codec.encode(body), repeatable=True)
        answer = await _allowed_soon(lambda: self.http.ask(call))
        return str(codec.item(_TOKEN, answer)["status"]["token"])

    async def allowed(self, user: str, groups: list[str], node: str) -> bool:
        """Whether somebody may read what containers of this node wrote."""
        wanted = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": node}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes": wanted},
        }
        call = Request(
            "create", "subjectaccessreviews.authorization.k8s.io", _REVIEWS, codec.encode(body), repeatable=True
        )
        return bool(codec.item(_TOKEN, await self.http.ask(call))["status"].get("allowed"))

    async def authority(self) -> str:
        """Whose client certificates this cluster trusts; nothing if it does not say, or not to us."""
        with suppress(NotFoundError, ForbiddenError):
            found = await super().get(CONFIG_MAPS, _AUTHENTICATION)
            return str((found.data or {}).get("client-ca-file") or "")
        return ""

    async def user(self) -> str:
        """Who the API server says that we are; nothing if it is older than Kubernetes 1.28 and cannot say."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        call = Request("create", "selfsubjectreviews.authentication.k8s.io", _SELF, codec.encode(body), repeatable=True)
        with suppress(NotFoundError):
            return str(codec.item(_TOKEN, await self.http.ask(call))["status"]["userInfo"]["username"])
        return ""


#: Answers that are read whole, whatever they are.
_TOKEN = Resource("authentication.k8s.io", "v1", "", "")


async def _allowed_soon(ask: Callable[[], Awaitable[T]]) -> T:
    for pause in _PAUSES:
        try:
            return await ask()
        except ForbiddenError:
            await asyncio.sleep(pause)
    return await ask()


def _strategic(status: Body) -> Body:
    """The status as a strategic merge patch."""
    found = {name: [{"$patch": "replace"}, *value] if name in _WHOLE else value for name, value in status.items()}
    if "conditions" in found:
        # What a condition does not say must not be left from before.
        found["conditions"] = [{"reason": None, "message": None, **one} for one in found["conditions"]]
    return found
