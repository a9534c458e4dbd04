# SPDX-License-Identifier: Apache-2.0
"""What the operator looks at before it begins: whether what it writes will be kept, and which gang APIs there are."""

from trainwright.errors import NotFoundError, UsageError
from trainwright.kinds.base import Kind
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import Cluster, Scope
from trainwright.runtime.resources import DEFINITIONS, POD_GROUPS

_INSTALL = "`trainwright crds | kubectl apply --server-side -f -`"


async def check(cluster: Cluster, kind: Kind) -> None:
    """A definition that does not know our durable state would drop it silently, and jobs would start anew."""
    name = f"{kind.plural}.{kind.group}"
    try:
        definition = await cluster.get(DEFINITIONS, Key("", name))
    except NotFoundError:
        raise UsageError(f"{name} is not installed; {_INSTALL} does that") from None
    if not _keeps(definition, kind.version):
        raise UsageError(
            f"{name} is another one's: its status has no `trainwright`, so nothing would be remembered; "
            f"{_INSTALL} brings ours"
        )


async def gangs(cluster: Cluster, namespace: str) -> frozenset[str]:
    """The gang APIs that are really there."""
    try:
        await cluster.list(POD_GROUPS, Scope(namespace=namespace or "default"))
    except NotFoundError:
        return frozenset()
    return frozenset({POD_GROUPS.api_version})


def _keeps(definition: Body, version: str) -> bool:
    """Whether a definition's status has room for `status.trainwright`."""
    for one in definition["spec"]["versions"]:
        if one["name"] == version:
            schema = one.get("schema", {}).get("openAPIV3Schema", {})
            status = schema.get("properties", {}).get("status", {}).get("properties", {})
            return "trainwright" in status
    return False
