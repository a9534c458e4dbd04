# SPDX-License-Identifier: Apache-2.0
"""Kubeconfig files: what is in them, read and merged the way kubectl does. `config` chooses from the result.

The first file that names a cluster, a user or a context wins, whole; relative paths are beside the file they stand in.
Everything that is read remembers its file and field, for whoever finds it wrong later.

Which proxy the environment asks for. `config` calls it where a kubeconfig names none.

As Go's clients read HTTPS_PROXY, HTTP_PROXY and NO_PROXY, so that whatever works for kubectl works here.

Which API server, and who we are: from a kubeconfig, from the pod we run in, or as the command line says.

`load` is for commands and for the operator; `session` connects with what it returns. Looked at in this order: the file
that was asked for, the files of KUBECONFIG, ~/.kube/config, the service account of a pod.
"""

import os
from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.manifest.documents import Document
from trainwright.manifest.documents import read as read_documents
from trainwright.model.problem import nearest

T = TypeVar("T")


class ClusterEntry(Struct, frozen=True, rename="kebab"):
    """How a server is reached and known."""

    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class PluginVariable(Struct, frozen=True):
    """One variable of a plug-in's environment."""

    name: str
    value: str = ""


class ExecPlugin(Struct, frozen=True, rename="camel"):
    """A plug-in that says who we are."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[PluginVariable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class UserEntry(Struct, frozen=True, rename="kebab"):
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
    exec: ExecPlugin | None = None


class ContextEntry(Struct, frozen=True):
    """A server, a user of it, and the namespace that is meant where none is said."""

    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class Located(Struct, Generic[T], frozen=True):
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
    clusters: dict[str, Located[ClusterEntry]] = {}
    users: dict[str, Located[UserEntry]] = {}
    contexts: dict[str, Located[ContextEntry]] = {}


class _Named(Struct, frozen=True):
    name: str
    cluster: ClusterEntry | None = None
    user: UserEntry | None = None
    context: ContextEntry | None = None


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
        {one.name: _beside(path, entry) for one, entry in _entries(path, "cluster", said.clusters, ClusterEntry())},
        {one.name: _beside(path, entry) for one, entry in _entries(path, "user", said.users, UserEntry())},
        {one.name: entry for one, entry in _entries(path, "context", said.contexts, ContextEntry())},
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


def _entries(path: Path, what: str, named: list[_Named] | None, nothing: T) -> list[tuple[_Named, Located[T]]]:
    found: dict[str, tuple[_Named, Located[T]]] = {}
    for index, one in enumerate(named or ()):
        entry = Located(str(path), f"{what}s[{index}].{what}", getattr(one, what) or nothing)
        if one.name in found:
            raise UsageError(f"{path}: {what}s[{index}].name: a second {what} is called {one.name!r}")
        found[one.name] = (one, entry)
    return list(found.values())


_PATHS = ("certificate_authority", "client_certificate", "client_key", "token_file")


def _beside(path: Path, entry: Located[Any]) -> Located[Any]:
    """The same, with the paths in it complete; a plug-in's too, unless it is looked for in PATH."""
    value = entry.value
    changes: dict[str, Any] = {
        name: str(path.parent / given) for name in _PATHS if (given := getattr(value, name, None))
    }
    plugin = getattr(value, "exec", None)
    if plugin is not None and "/" in plugin.command:
        changes["exec"] = replace(plugin, command=str(path.parent / plugin.command))
    return replace(entry, value=replace(value, **changes))


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """The URL of the proxy to a server, or nothing."""
    parts = urlsplit(server)
    proxy = _either(environ, f"{parts.scheme}_proxy")
    if not proxy or _spared(parts, _either(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _either(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _spared(server: SplitResult, listed: str) -> bool:
    host = (server.hostname or "").lower()
    if host == "localhost" or (_is_address(host) and ip_address(host).is_loopback):
        return True
    port = server.port or (443 if server.scheme == "https" else 80)
    return any(_matches(entry.strip().lower(), host, port) for entry in listed.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int) -> bool:
    """`*`, an address, a range of them, a domain with all below it, or `.domain` with only those; each with a port."""
    if entry == "*":
        return True
    if _is_address(host):
        return _covers(entry, host) or (entry.endswith(f":{port}") and _covers(entry.rpartition(":")[0], host))
    name, _, wanted = entry.partition(":")
    name = name.removeprefix("*")
    return wanted in ("", str(port)) and (host == name or host.endswith(f".{name.removeprefix('.')}"))


def _covers(entry: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConnectionOptions(Struct, frozen=True):
    """What the command line says; empty: whatever is found."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    #: A URL, or `host:port`; instead of the one in the kubeconfig.
    server: str = ""
    #: The pod's service account and nothing else.
    in_cluster: bool = False


class Access(Struct, frozen=True):
    """Everything that a connection needs."""

    #: Without a slash at its end.
    server: str
    cluster: Located[ClusterEntry]
    user: Located[UserEntry]
    namespace: str = "default"
    #: A URL; empty: none.
    proxy: str = ""
    #: Where the server's address is from: `context 'lab' of /home/me/.kube/config`; empty: not told.
    origin: str = ""


def load(
    asked: ConnectionOptions | None = None, environ: Mapping[str, str] | None = None, account: Path = SERVICE_ACCOUNT
) -> Access:
    """How to reach the cluster that is meant; UsageError if that cannot be told."""
    asked, environ = asked or ConnectionOptions(), os.environ if environ is None else environ
    inside = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    if asked.in_cluster:
        return _in_cluster(asked, environ, account)
    files = _files(asked, environ)
    if files:
        return _from_files(asked, environ, read(files))
    if asked.server:
        return _access(asked, environ, Located("--master", "", ClusterEntry()), Located("--master", "", UserEntry()))
    if inside:
        return _in_cluster(asked, environ, account)
    raise UsageError(
        f"no cluster is known: there is no {_home(environ)}, KUBECONFIG {_listed(environ)}, and this is no pod of a"
        " cluster; name a file with --kubeconfig"
    )


def _listed(environ: Mapping[str, str]) -> str:
    given = environ.get("KUBECONFIG", "")
    return f"names no file that exists ({given})" if given else "is not set"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home()) / ".kube" / "config"


def _files(asked: ConnectionOptions, environ: Mapping[str, str]) -> list[Path]:
    """As with kubectl: a file that was asked for must exist, those of KUBECONFIG need not."""
    if asked.kubeconfig:
        return [Path(asked.kubeconfig).expanduser()]
    given = [Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return [path for path in given or [_home(environ)] if path.exists()]


def _from_files(asked: ConnectionOptions, environ: Mapping[str, str], config: Kubeconfig) -> Access:
    files, name = ", ".join(config.files), asked.context or config.current
    if not name:
        raise UsageError(f"{files}: current-context: not set; choose one with --context{_known(config.contexts)}")
    context = config.contexts.get(name)
    if context is None:
        field = "--context" if asked.context else "current-context"
        raise UsageError(f"{files}: {field}: there is no context {name!r}{_meant(name, config.contexts)}")
    cluster = _named(context, "cluster", config.clusters)
    user = _named(context, "user", config.users) if context.value.user else Located(context.file, "", UserEntry())
    found = _access(asked, environ, cluster, user, context.value.namespace or "")
    return found if asked.server else replace(found, origin=f"context {name!r} of {cluster.file}")


def _named(
    context: Located[ContextEntry],
    what: str,
    known: Mapping[str, Located[ClusterEntry]] | Mapping[str, Located[UserEntry]],
) -> Located:  # type: ignore[type-arg]
    name = getattr(context.value, what) or ""
    if name not in known:
        raise context.wrong(what, f"there is no {what} {name!r}{_meant(name, known)}")
    return known[name]


def _meant(name: str, known: Mapping[str, object]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close!r}?" if close else _known(known)


def _known(known: Mapping[str, object]) -> str:
    return f"; known are {', '.join(sorted(known))}" if known else "; the file has none"


def _in_cluster(asked: ConnectionOptions, environ: Mapping[str, str], account: Path) -> Access:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        missing = f"there is no {account / 'token'}" if host else "KUBERNETES_SERVICE_HOST is not set"
        raise UsageError(f"this does not run in a pod with a service account: {missing}")
    file, place = "the pod's service account", f"[{host}]" if ":" in host else host
    cluster = ClusterEntry(server=f"https://{place}:{port}", certificate_authority=str(account / "ca.crt"))
    user, space = UserEntry(token_file=str(account / "token")), account / "namespace"
    namespace = space.read_text().strip() if space.exists() else ""
    return _access(asked, environ, Located(file, "", cluster), Located(file, "", user), namespace)


def _access(
    asked: ConnectionOptions,
    environ: Mapping[str, str],
    cluster: Located[ClusterEntry],
    user: Located[UserEntry],
    namespace: str = "",
) -> Access:
    server = _server(asked.server or cluster.value.server or "", cluster)
    proxy = cluster.value.proxy_url or proxy_for(server, environ)
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        scheme = urlsplit(proxy).scheme  # the rest may hold a password
        raise cluster.wrong("proxy-url", f"'{scheme}://…'; expected an http:// or https:// proxy")
    origin = "--master" if asked.server else cluster.file
    return Access(server, cluster, user, asked.namespace or namespace or "default", proxy, origin)


def _server(given: str, cluster: Located[ClusterEntry]) -> str:
    """A complete URL. Without a scheme it is as with kubectl: TLS if anything is said about it."""
    value = cluster.value
    secure = value.certificate_authority or value.certificate_authority_data or value.insecure_skip_tls_verify
    url = given if "://" in given else f"{'https' if secure else 'http'}://{given}"
    parts = urlsplit(url)
    if not given or parts.scheme not in ("http", "https") or not parts.hostname:
        raise cluster.wrong("server", f"{given!r}; expected a URL like https://host:6443")
    if "@" in parts.netloc:
        raise cluster.wrong("server", "has a name or a password in it, which logs would show; write it under the user")
    return url.rstrip("/")
