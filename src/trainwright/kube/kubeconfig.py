# SPDX-License-Identifier: Apache-2.0
"""Kubeconfig files: what is in them, read and merged the way kubectl does. `config` chooses from the result.

The first file that names a cluster, a user or a context wins, whole; relative paths are beside the file they stand in.
Everything that is read remembers its file and field, for whoever finds it wrong later.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.manifest.documents import Document
from trainwright.manifest.documents import read as read_documents

T = TypeVar("T")


class Cluster(Struct, frozen=True, rename="kebab"):
    """How a server is reached and known."""

    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class Variable(Struct, frozen=True):
    """One variable of a plug-in's environment."""

    name: str
    value: str = ""


class Exec(Struct, frozen=True, rename="camel"):
    """A plug-in that says who we are."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class User(Struct, frozen=True, rename="kebab"):
    """Who we are."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    impersonate: str | None = field(name="as", default=None)
    impersonate_uid: str | None = field(name="as-uid", default=None)
    impersonate_groups: list[str] | None = field(name="as-groups", default=None)
    auth_provider: dict[str, Any] | None = None
    exec: Exec | None = None


class Context(Struct, frozen=True):
    """A server, a user of it, and the namespace that is meant where none is said."""

    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class Entry(Struct, Generic[T], frozen=True):
    """A part of a file, and where it stands."""

    file: str
    path: str
    value: T

    def wrong(self, name: str, what: str) -> UsageError:
        """The error about one of its fields."""
        return UsageError(f"{self.file}: {self.path}{'.' if self.path and name else ''}{name}: {what}")


class Kubeconfig(Struct, frozen=True):
    """What several files say together."""

    files: tuple[str, ...] = ()
    current: str = ""
    clusters: dict[str, Entry[Cluster]] = {}
    users: dict[str, Entry[User]] = {}
    contexts: dict[str, Entry[Context]] = {}


class _Named(Struct, frozen=True):
    name: str
    cluster: Cluster | None = None
    user: User | None = None
    context: Context | None = None


class _File(Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


def read(paths: Iterable[Path]) -> Kubeconfig:
    """These files as one; UsageError or ManifestError, with file and field, if one of them cannot be read."""
    merged = Kubeconfig()
    for path in paths:
        one = _read(path)
        merged = Kubeconfig(
            (*merged.files, *one.files),
            merged.current or one.current,
            one.clusters | merged.clusters,
            one.users | merged.users,
            one.contexts | merged.contexts,
        )
    return merged


def _read(path: Path) -> Kubeconfig:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read this kubeconfig: {error.strerror or error}") from None
    said = _parsed(str(path), data)
    return Kubeconfig(
        (str(path),),
        said.current_context or "",
        {one.name: _beside(path, entry) for one, entry in _entries(path, "cluster", said.clusters, Cluster())},
        {one.name: _beside(path, entry) for one, entry in _entries(path, "user", said.users, User())},
        {one.name: entry for one, entry in _entries(path, "context", said.contexts, Context())},
    )


def _parsed(file: str, data: bytes) -> _File:
    if not any(line.strip() and not line.lstrip().startswith((b"#", b"---")) for line in data.splitlines()):
        return _File()
    document = read_documents(file, data)[0]
    try:
        return msgspec.convert(document.body, _File)
    except msgspec.ValidationError as error:
        raise _unfit(document, str(error)) from None


def _unfit(document: Document, error: str) -> UsageError:
    what, _, path = error.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    return UsageError(f"{document.file}:{document.line(path)}: {path or '(document)'}: {what[:1].lower()}{what[1:]}")


def _entries(path: Path, what: str, named: list[_Named] | None, nothing: T) -> list[tuple[_Named, Entry[T]]]:
    found: dict[str, tuple[_Named, Entry[T]]] = {}
    for index, one in enumerate(named or ()):
        entry = Entry(str(path), f"{what}s[{index}].{what}", getattr(one, what) or nothing)
        if one.name in found:
            raise UsageError(f"{path}: {what}s[{index}].name: a second {what} is called {one.name!r}")
        found[one.name] = (one, entry)
    return list(found.values())


_PATHS = ("certificate_authority", "client_certificate", "client_key", "token_file")


def _beside(path: Path, entry: Entry[Any]) -> Entry[Any]:
    """The same, with the paths in it complete; a plug-in's too, unless it is looked for in PATH."""
    value = entry.value
    changes: dict[str, Any] = {
        name: str(path.parent / given) for name in _PATHS if (given := getattr(value, name, None))
    }
    plugin = getattr(value, "exec", None)
    if plugin is not None and "/" in plugin.command:
        changes["exec"] = replace(plugin, command=str(path.parent / plugin.command))
    return replace(entry, value=replace(value, **changes))
