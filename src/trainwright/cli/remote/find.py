# SPDX-License-Identifier: Apache-2.0
"""Find a job of a cluster by its name. The kind is not needed: the search asks for the name in every kind."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from trainwright.errors import ApiError, NotFoundError, UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kube.blocking_http import BlockingHttpClient, together
from trainwright.kube.codec import Request, decode, object_path
from trainwright.kube.config import Access
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.runtime.ports import Selection, jobs_of

#: Maximum number of names that an error lists.
_MAX_LISTED = 8


class _JobMetadata(Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    creation_timestamp: str


class _Job(Struct, frozen=True):
    """What every job in a server's answer has."""

    metadata: _JobMetadata


class _Version(Struct, frozen=True):
    version: str


class _Group(Struct, frozen=True, rename="camel"):
    name: str
    preferred_version: _Version


class _Groups(Struct, frozen=True):
    groups: tuple[_Group, ...]


class NamedJob(Struct, frozen=True):
    """The job that the user names, and the kinds that it can have."""

    key: Key
    kinds: tuple[Kind, ...] = KINDS


def place_of(access: Access) -> str:
    """The cluster as a user calls it."""
    return f"cluster {access.context or access.server}"


def parse_name(word: str, namespace: str, default_namespace: str) -> NamedJob:
    """The job that `word` means. `namespace` is the option, `default_namespace` is from the kubeconfig."""
    first, slash, name = word.rpartition("/")
    kind = _kind(first)
    if not name or "/" in first or (slash and not first):
        raise UsageError(f"JOB: {word!r}; expected NAME, NAMESPACE/NAME or KIND/NAME")
    for option, text in (("JOB", word), ("--namespace", namespace)):
        if not text.isascii():
            raise UsageError(f"{option}: {text!r}; expected only ASCII characters, as in all names of Kubernetes")
    if not slash or kind is not None:
        return NamedJob(Key(namespace or default_namespace, name), KINDS if kind is None else (kind,))
    if namespace not in ("", first):
        raise UsageError(f"JOB: {word!r} names the namespace {first!r}, but --namespace is {namespace!r}")
    return NamedJob(Key(first, name))


def _kind(word: str) -> Kind | None:
    return next((kind for kind in KINDS if word.lower() in (name.lower() for name in kind.spellings)), None)


class JobFinder:
    """Finds the one job that the user names. `place` is the cluster as a user calls it."""

    def __init__(self, cluster: BlockingHttpClient, name: NamedJob, place: str) -> None:
        self.cluster, self.name, self.place = cluster, name, place
        self._namespace = name.key.namespace

    def find(self) -> tuple[Kind, Body]:
        """The job. Raises UsageError if there is none or several, or the ApiError of the server."""
        return self.choose(together([partial(self.get, kind) for kind in self.name.kinds]))

    def get(self, kind: Kind) -> Body | ApiError:
        """The job of this kind with all `managedFields`, which say who suspended it; or why it cannot be read."""
        resource = jobs_of(kind)
        request = Request("get", resource.id, object_path(resource, self.name.key), idempotent=True)
        try:
            data = self.cluster.send(request)
            decode(_Job, data)
            body: Body = decode(dict, data)
        except ApiError as error:
            return error
        return body

    def api_groups(self) -> dict[str, str] | ApiError:
        """The API groups of the cluster, each with its preferred version."""
        try:
            listed = decode(_Groups, self.cluster.send(Request("get", "apis", "/apis", idempotent=True)))
        except ApiError as error:
            return error
        return {one.name: one.preferred_version.version for one in listed.groups}

    def choose(self, found: Sequence[Body | ApiError]) -> tuple[Kind, Body]:
        """The only job of that name. Raises UsageError if there is none or several, or the ApiError of the server."""
        kinds, name = self.name.kinds, self.name.key.name
        jobs = [(kind, one) for kind, one in zip(kinds, found, strict=True) if not isinstance(one, ApiError)]
        if len(jobs) == 1:
            return jobs[0]
        if jobs:
            words = " or ".join(f"{kind.id}/{name}" for kind, _ in jobs)
            raise UsageError(
                f"{name!r} can mean {words} in namespace {self._namespace!r} of {self.place}; give KIND/NAME"
            )
        errors = [one for one in found if isinstance(one, ApiError) and not isinstance(one, NotFoundError)]
        if errors:
            raise errors[0]
        self.check_installed()
        raise UsageError(self._unknown())

    def check_installed(self) -> None:
        """Raise UsageError if the cluster has none of the kinds."""
        groups, kinds = self.api_groups(), self.name.kinds
        if not isinstance(groups, ApiError) and not any(kind.group in groups for kind in kinds):
            names = ", ".join(f"{kind.plural}.{kind.group}" for kind in kinds)
            raise UsageError(f"{self.place} has no CRD of {names}; `trainwright manifests` prints what to install")

    def _unknown(self) -> str:
        """An error text about a job that does not exist, with the jobs that the user may have meant."""
        kinds, name = self.name.kinds, self.name.key.name
        scopes = Selection(namespace=self._namespace), Selection(fields=f"metadata.name={name}")
        here, elsewhere = together([partial(self._keys, scope) for scope in scopes])
        what = kinds[0].name if len(kinds) == 1 else "job"
        text = f"there is no {what} {name!r} in namespace {self._namespace!r} of {self.place}"
        if elsewhere:
            return f"{text}; did you mean {' or '.join(f'`{key}`' for key in elsewhere[:_MAX_LISTED])}?"
        names = sorted({key.name for key in here})
        if close := nearest(name, names):
            return f"{text}; did you mean `{close}`?"
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        return f"{text}; " + (f"jobs there: {', '.join(names[:_MAX_LISTED])}{more}" if names else "it has no jobs")

    def _keys(self, scope: Selection) -> list[Key]:
        """The jobs that `scope` selects, as far as the caller may list them."""
        lists = together([partial(self._listed, kind, scope) for kind in self.name.kinds])
        found = [item["metadata"] for listed in lists for item in listed]
        return sorted({Key(meta["namespace"], meta["name"]) for meta in found})

    def _listed(self, kind: Kind, scope: Selection) -> tuple[Body, ...]:
        try:
            return self.cluster.list(jobs_of(kind), scope)
        except ApiError:
            return ()
