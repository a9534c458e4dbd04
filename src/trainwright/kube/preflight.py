# SPDX-License-Identifier: Apache-2.0
"""What the operator looks at before it begins: whether what it writes will be kept, and which gang APIs there are."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from trainwright.crd.pruning import unusable
from trainwright.errors import NotFoundError, UsageError
from trainwright.kinds.base import Kind
from trainwright.model.job import meant
from trainwright.model.meta import Key
from trainwright.runtime.ports import Cluster, Resource, Scope
from trainwright.runtime.resources import DEFINITIONS, groups_of

_INSTALL = "`trainwright crds | kubectl apply --server-side -f -`"


async def check(cluster: Cluster, kind: Kind) -> None:
    """A definition that does not know all of our durable state would drop it silently, and jobs would start anew."""
    name = f"{kind.plural}.{kind.group}"
    try:
        definition = await cluster.get(DEFINITIONS, Key("", name))
    except NotFoundError:
        raise UsageError(f"{name} is not installed; {_INSTALL} does that") from None
    if reason := unusable(kind, definition):
        raise UsageError(reason)


async def groups(cluster: Cluster, kinds: Iterable[Kind], namespace: str) -> tuple[Resource, ...]:
    """The pod groups of these kinds whose API is really there. One that is installed later is not seen."""
    found = []
    for resource in groups_of(kinds):
        with suppress(NotFoundError):
            await cluster.list(resource, Scope(namespace=namespace or "default"))
            found.append(resource)
    return tuple(found)


def check_gang(kinds: Iterable[Kind], word: str, found: Collection[str]) -> None:
    """The scheduler that the operator is told must be there: jobs that count on it would start pod by pod."""
    for kind in kinds:
        named = [gang for gang in kind.gangs if gang.word]
        for gang in meant(tuple(named), word) if word else ():
            if gang.api not in found:
                there = [f"{one.word} ({one.api})" for one in named if one.api in found and one.word != "*"]
                raise UsageError(
                    f"--gang-scheduler-name {word}: it needs PodGroups of {gang.api}, which are not installed"
                    + (f"; found {', '.join(there)}" if there else "")
                )
