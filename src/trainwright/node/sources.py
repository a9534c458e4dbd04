# SPDX-License-Identifier: Apache-2.0
"""Why a container cannot be started as its pod asks. `environment` and `volumes` raise it, `worker` shows it.

Such a container waits (CreateContainerConfigError) and is tried again: the Secret may still come.

The Secrets, ConfigMaps, claims and tokens that a container needs: which they are, and getting them, for `start`.

A simple container needs none, and costs no request.
"""

import asyncio
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from trainwright.errors import NotFoundError
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.problem import Problem, nearest
from trainwright.node.context import AgentContext
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, SECRETS, Cluster, Resource, Selection

CONFIG = "CreateContainerConfigError"
CREATE = "CreateContainerError"


class Unconfigured(Exception):  # noqa: N818 - what a container is, not a defect of ours
    """A field of the pod asks for what is not there or cannot be given; `kind` and `name` if it is an object."""

    def __init__(self, path: str, message: str, near: str = "", *, kind: str = "", name: str = "") -> None:
        self.problem = Problem(path, message, near)
        self.kind = kind
        self.name = name
        super().__init__(str(self.problem))

    def __str__(self) -> str:
        return str(self.problem)

    def suggest(self, near: str) -> None:
        """Name what was probably meant."""
        self.problem = replace(self.problem, nearest=near)


def missing(path: str, kind: str, name: str, namespace: str) -> Unconfigured:
    """An object that the pod names does not exist."""
    return Unconfigured(path, f"there is no {kind} {name!r} in namespace {namespace!r}", kind=kind, name=name)


SECRET, CONFIG_MAP, CLAIM, TOKEN = "Secret", "ConfigMap", "PersistentVolumeClaim", "Token"
#: What refers to an object: the field, the kind of the object, and the word that names it.
IN_VOLUME = (
    ("secret", SECRET, "secretName"),
    ("configMap", CONFIG_MAP, "name"),
    ("persistentVolumeClaim", CLAIM, "claimName"),
)
IN_PROJECTED = (("secret", SECRET, "name"), ("configMap", CONFIG_MAP, "name"))
#: The same of a variable, and of a whole environment; an object is always named by `name` there.
IN_VARIABLE = (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP))
IN_ENVIRONMENT = (("secretRef", SECRET), ("configMapRef", CONFIG_MAP))
_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
#: Seconds for which a token is asked for where the pod does not say.
_LASTS = 3600
_RESOURCES = {SECRET: SECRETS.whole(), CONFIG_MAP: CONFIG_MAPS.whole(), CLAIM: CLAIMS.whole()}

Source = tuple[str, str]
#: None: it does not exist.
Sources = Mapping[Source, Body | None]


def named(pod: Body, container: Body, *, mounts: bool = True) -> set[Source]:
    """Kind and name of everything that the container's environment and, where it can mount any, volumes refer to."""
    return {*_in_environment(container), *(_in_volumes(pod, container) if mounts else ())}


def token(source: Body) -> Source:
    """A token has no name: it is told apart by what is asked for."""
    return TOKEN, f"{source.get('audience') or ''} {source.get('expirationSeconds') or _LASTS}"


def lasts(source: Source) -> float:
    """For how many seconds a token is asked for."""
    return float(source[1].rpartition(" ")[2])


def renewable(pod: Body) -> set[Source]:
    """What the volumes with tokens are made of."""
    found: set[Source] = set()
    for volume in pod["spec"].get("volumes") or ():
        found |= {*_projected((volume.get("projected") or {}).get("sources") or [])}
    return found


def _in_environment(container: Body) -> Iterator[Source]:
    for source in container.get("envFrom") or ():
        yield from ((kind, str(source[word].get("name", ""))) for word, kind in IN_ENVIRONMENT if source.get(word))
    for entry in container.get("env") or ():
        source = entry.get("valueFrom") or {}
        yield from ((kind, str(source[word].get("name", ""))) for word, kind in IN_VARIABLE if source.get(word))


def _in_volumes(pod: Body, container: Body) -> Iterator[Source]:
    mounted = {mount.get("name") for mount in container.get("volumeMounts") or ()}
    for volume in (pod["spec"].get("volumes") or ()) if mounted else ():
        if volume.get("name") in mounted:
            yield from _of(volume, IN_VOLUME)
            yield from _projected((volume.get("projected") or {}).get("sources") or [])


def _projected(parts: list[Body]) -> Iterator[Source]:
    for part in parts:
        yield from _of(part, IN_PROJECTED)
        if "serviceAccountToken" in part:
            yield token(part["serviceAccountToken"])


def _of(body: Body, references: tuple[tuple[str, str, str], ...]) -> Iterator[Source]:
    for field, kind, word in references:
        if word in (body.get(field) or {}):
            yield kind, str(body[field][word])


async def fetch(means: AgentContext, pod: Body, wanted: set[Source]) -> Sources:
    """What is there of them."""
    ordered = sorted(wanted)
    found = await asyncio.gather(*(_one(means, pod, source) for source in ordered))
    return dict(zip(ordered, found, strict=True))


async def _one(means: AgentContext, pod: Body, source: Source) -> Body | None:
    kind, name = source
    if kind == TOKEN:
        return await _token(means, pod, name)
    try:
        body: Body = await means.cluster.get(_RESOURCES[kind], Key(pod["metadata"].get("namespace", ""), name))
        if kind == CLAIM and means.settings.kubelet:
            body = {**body, "volume": await _volume(means.cluster, body)}
    except NotFoundError:
        return None
    return body


async def _token(means: AgentContext, pod: Body, name: str) -> Body | None:
    if means.tokens is None:
        return None
    audience, _, seconds = name.rpartition(" ")
    return {"token": await means.tokens(pod, audience, int(seconds))}


async def _volume(cluster: Cluster, claim: Body) -> Body | None:
    """The volume that a claim is bound to, on a cluster that has volumes."""
    name = (claim.get("spec") or {}).get("volumeName")
    body: Body | None = await cluster.get(_VOLUMES, Key("", name)) if name else None
    return body


async def advise(cluster: Cluster, namespace: str, problem: Unconfigured) -> None:
    """Add to an object that is missing the name of one that was probably meant."""
    if problem.kind not in _RESOURCES:
        return
    page = await cluster.list(_RESOURCES[problem.kind], Selection(namespace))
    problem.suggest(nearest(problem.name, [str(item["metadata"]["name"]) for item in page.items]))
