# SPDX-License-Identifier: Apache-2.0
"""The Secrets, ConfigMaps, claims and tokens that a container refers to: find the references, and get the objects.

`ContainerConfigError` says why a container cannot be configured. The container then waits with the reason
CreateContainerConfigError, and the agent tries again, since a missing object may still be created.
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

CONFIG_ERROR = "CreateContainerConfigError"
CREATE_ERROR = "CreateContainerError"


class ContainerConfigError(Exception):
    """A field of the pod is wrong or refers to a missing object; `kind` and `name` identify the object."""

    def __init__(self, path: str, message: str, near: str = "", *, kind: str = "", name: str = "") -> None:
        self.problem = Problem(path, message, near)
        self.kind = kind
        self.name = name
        super().__init__(str(self.problem))

    def __str__(self) -> str:
        return str(self.problem)


SECRET, CONFIG_MAP, CLAIM, TOKEN = "Secret", "ConfigMap", "PersistentVolumeClaim", "Token"
#: References to objects: the field, the kind of the object, and the field that holds its name.
IN_VOLUME = (
    ("secret", SECRET, "secretName"),
    ("configMap", CONFIG_MAP, "name"),
    ("persistentVolumeClaim", CLAIM, "claimName"),
)
IN_PROJECTED = (("secret", SECRET, "name"), ("configMap", CONFIG_MAP, "name"))
#: References in `env` and in `envFrom`: the field and the kind of the object. The name is always in `name`.
IN_VARIABLE = (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP))
IN_ENVIRONMENT = (("secretRef", SECRET), ("configMapRef", CONFIG_MAP))
_PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
#: The lifetime of a token if the pod does not set a lifetime.
_DEFAULT_TOKEN_SECONDS = 3600
_RESOURCES = {SECRET: SECRETS.whole(), CONFIG_MAP: CONFIG_MAPS.whole(), CLAIM: CLAIMS.whole()}

#: The kind and the name of an object, or TOKEN and a text made by `token_source`.
Source = tuple[str, str]
#: Objects and tokens by source; None: the object does not exist.
Sources = Mapping[Source, Body | None]


def referenced(
    sources: Sources, kind: str, ref: Body, path: str, pod: Body, *, name_field: str = "name"
) -> Body | None:
    """The object to which a field of the pod refers; None if the object does not exist and is optional."""
    name = str(ref.get(name_field, ""))
    found = sources.get((kind, name))
    if found is None and not ref.get("optional"):
        namespace = str(pod["metadata"].get("namespace", ""))
        text = f"there is no {kind} {name!r} in namespace {namespace!r}"
        raise ContainerConfigError(f"{path}.{name_field}", text, kind=kind, name=name)
    return found


def referenced_by(pod: Body, container: Body, *, mounts: bool = True) -> set[Source]:
    """All sources that the container's environment and, with `mounts`, its volumes refer to."""
    return {*_in_environment(container), *(_in_volumes(pod, container) if mounts else ())}


def token_source(source: Body) -> Source:
    """The source for a serviceAccountToken: a token has no name, so its audience and lifetime identify it."""
    return TOKEN, f"{source.get('audience') or ''} {source.get('expirationSeconds') or _DEFAULT_TOKEN_SECONDS}"


def token_seconds(source: Source) -> float:
    """The requested lifetime of a token, in seconds."""
    return float(source[1].rpartition(" ")[2])


def in_projected_volumes(pod: Body) -> set[Source]:
    """All sources that the pod's projected volumes refer to."""
    return {source for volume in pod["spec"].get("volumes") or () for source in _projected(volume)}


def _in_environment(container: Body) -> Iterator[Source]:
    for source in container.get("envFrom") or ():
        yield from ((kind, str(source[field].get("name", ""))) for field, kind in IN_ENVIRONMENT if source.get(field))
    for entry in container.get("env") or ():
        source = entry.get("valueFrom") or {}
        yield from ((kind, str(source[field].get("name", ""))) for field, kind in IN_VARIABLE if source.get(field))


def _in_volumes(pod: Body, container: Body) -> Iterator[Source]:
    mounted = {mount.get("name") for mount in container.get("volumeMounts") or ()}
    for volume in (pod["spec"].get("volumes") or ()) if mounted else ():
        if volume.get("name") in mounted:
            yield from _references(volume, IN_VOLUME)
            yield from _projected(volume)


def _projected(volume: Body) -> Iterator[Source]:
    for part in (volume.get("projected") or {}).get("sources") or ():
        yield from _references(part, IN_PROJECTED)
        if "serviceAccountToken" in part:
            yield token_source(part["serviceAccountToken"])


def _references(body: Body, references: tuple[tuple[str, str, str], ...]) -> Iterator[Source]:
    for field, kind, name_field in references:
        if name_field in (body.get(field) or {}):
            yield kind, str(body[field][name_field])


async def fetch(context: AgentContext, pod: Body, wanted: set[Source]) -> Sources:
    """Get all wanted objects and tokens from the API at the same time."""
    ordered = sorted(wanted)
    found = await asyncio.gather(*(_fetch_one(context, pod, source) for source in ordered))
    return dict(zip(ordered, found, strict=True))


async def _fetch_one(context: AgentContext, pod: Body, source: Source) -> Body | None:
    kind, name = source
    if kind == TOKEN:
        audience, _, seconds = name.rpartition(" ")
        return {"token": await context.tokens(pod, audience, int(seconds))} if context.tokens is not None else None
    try:
        body: Body = await context.cluster.get(_RESOURCES[kind], Key(pod["metadata"].get("namespace", ""), name))
        if kind == CLAIM and context.settings.kubelet:
            volume = (body.get("spec") or {}).get("volumeName")
            bound = await context.cluster.get(_PERSISTENT_VOLUMES, Key("", volume)) if volume else None
            body = {**body, "volume": bound}
    except NotFoundError:
        return None
    return body


async def add_suggestion(cluster: Cluster, namespace: str, problem: ContainerConfigError) -> None:
    """Add the name of the most similar existing object to the error about a missing object."""
    page = await cluster.list(_RESOURCES[problem.kind], Selection(namespace))
    near = nearest(problem.name, [str(item["metadata"]["name"]) for item in page.items])
    problem.problem = replace(problem.problem, nearest=near)
