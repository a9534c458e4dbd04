# SPDX-License-Identifier: Apache-2.0
"""The Secrets, ConfigMaps and claims that a container needs: which they are, and getting them. `worker` calls it.

A simple container needs none, and costs no request.
"""

import asyncio
from collections.abc import Iterator, Mapping

from trainwright.errors import NotFoundError
from trainwright.local.agent.refusals import Unconfigured
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import Cluster, Scope
from trainwright.runtime.resources import CLAIMS, CONFIG_MAPS, SECRETS

SECRET, CONFIG_MAP, CLAIM = "Secret", "ConfigMap", "PersistentVolumeClaim"
_RESOURCES = {SECRET: SECRETS.whole(), CONFIG_MAP: CONFIG_MAPS.whole(), CLAIM: CLAIMS.whole()}

Source = tuple[str, str]
#: None: it does not exist.
Sources = Mapping[Source, Body | None]


def named(pod: Body, container: Body) -> set[Source]:
    """Kind and name of everything that the container's environment and volumes refer to."""
    return {*_in_environment(container), *_in_volumes(pod, container)}


def _in_environment(container: Body) -> Iterator[Source]:
    for source in container.get("envFrom") or ():
        for kind, word in ((CONFIG_MAP, "configMapRef"), (SECRET, "secretRef")):
            if source.get(word):
                yield kind, str(source[word].get("name", ""))
    for entry in container.get("env") or ():
        source = entry.get("valueFrom") or {}
        for kind, word in ((CONFIG_MAP, "configMapKeyRef"), (SECRET, "secretKeyRef")):
            if source.get(word):
                yield kind, str(source[word].get("name", ""))


def _in_volumes(pod: Body, container: Body) -> Iterator[Source]:
    mounted = {mount.get("name") for mount in container.get("volumeMounts") or ()}
    for volume in (pod["spec"].get("volumes") or ()) if mounted else ():
        if volume.get("name") not in mounted:
            continue
        match volume:
            case {"configMap": {"name": name}}:
                yield CONFIG_MAP, str(name)
            case {"secret": {"secretName": name}}:
                yield SECRET, str(name)
            case {"persistentVolumeClaim": {"claimName": name}}:
                yield CLAIM, str(name)


async def fetch(cluster: Cluster, namespace: str, wanted: set[Source]) -> Sources:
    """What is there of them."""
    ordered = sorted(wanted)
    found = await asyncio.gather(*(_one(cluster, namespace, source) for source in ordered))
    return dict(zip(ordered, found, strict=True))


async def _one(cluster: Cluster, namespace: str, source: Source) -> Body | None:
    kind, name = source
    try:
        body: Body = await cluster.get(_RESOURCES[kind], Key(namespace, name))
    except NotFoundError:
        return None
    return body


async def advise(cluster: Cluster, namespace: str, problem: Unconfigured) -> None:
    """Add to an object that is missing the name of one that was probably meant."""
    if problem.kind not in _RESOURCES:
        return
    page = await cluster.list(_RESOURCES[problem.kind], Scope(namespace))
    problem.suggest(nearest(problem.name, [str(item["metadata"]["name"]) for item in page.items]))
