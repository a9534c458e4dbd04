# SPDX-License-Identifier: Apache-2.0
"""Which API server to use, and as which user: from kubeconfig files, from the pod's service account, or from options.

`load` looks in this order: the file of `--kubeconfig`, the files of KUBECONFIG, ~/.kube/config, the service account of
the pod. Several files are merged as in kubectl: if several files contain an entry of the same name, the whole entry of
the first file is used. Relative paths start at the folder of their file. Every entry stores its file and field for
error messages. If a kubeconfig sets no proxy, HTTPS_PROXY, HTTP_PROXY and NO_PROXY are used as in Go.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.model.problem import nearest

T = TypeVar("T")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: The fields of an entry that contain a path.
_PATH_FIELDS = ("certificate_authority", "client_certificate", "client_key", "token_file")


class ClusterEntry(Struct, frozen=True, rename="kebab"):
    """The `cluster` of a kubeconfig entry: how to reach a server, and how to verify it."""

    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class PluginVariable(Struct, frozen=True):
    """One environment variable of a plug-in."""

    name: str
    value: str = ""


class ExecPlugin(Struct, frozen=True, rename="camel"):
    """An exec plug-in: a program that prints credentials."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[PluginVariable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class UserEntry(Struct, frozen=True, rename="kebab"):
    """The `user` of a kubeconfig entry: its credentials."""

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
    """A context: a cluster, a user of this cluster, and the default namespace."""

    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class Located(Struct, Generic[T], frozen=True):
    """An entry of a kubeconfig, with its file and its field path in this file."""

    file: str
    path: str
    value: T

    def error(self, name: str, text: str) -> UsageError:
        """An error about one field of the entry."""
        return UsageError(f"{self.file}: {self.path}{'.' if self.path and name else ''}{name}: {text}")


class Kubeconfig(Struct, frozen=True):
    """The merged content of several files."""

    files: tuple[str, ...] = ()
    current: str = ""
    clusters: dict[str, Located[ClusterEntry]] = {}
    users: dict[str, Located[UserEntry]] = {}
    contexts: dict[str, Located[ContextEntry]] = {}


class ConnectionOptions(Struct, frozen=True):
    """The connection options of the command line. For an empty option, the value of the kubeconfig is used."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    #: A URL or `host:port` that replaces the server of the kubeconfig.
    server: str = ""
    #: Whether to use only the service account of this pod.
    in_cluster: bool = False


class Access(Struct, frozen=True):
    """Everything that a session needs to connect."""

    #: A URL without a slash at its end.
    server: str
    cluster: Located[ClusterEntry]
    user: Located[UserEntry]
    namespace: str = "default"
    #: The URL of the proxy; empty: no proxy is used.
    proxy: str = ""
    #: The source of the server's address, for example `context 'lab' of /home/me/.kube/config`; can be empty.
    origin: str = ""
    #: The name of the context; empty if no kubeconfig was used.
    context: str = ""
    #: The Unix socket of an engine on this machine, which is used instead of `server`. No kubeconfig can set it.
    socket: Path | None = None


def load(
    options: ConnectionOptions | None = None, environ: Mapping[str, str] | None = None, account: Path = SERVICE_ACCOUNT
) -> Access:
    """Find cluster and user. Raises UsageError if no cluster is known. `account` is the service account's folder."""
    options, environ = options or ConnectionOptions(), os.environ if environ is None else environ
    if options.in_cluster:
        return _in_cluster(options, environ, account)
    files = _files(options, environ)
    if files:
        return _from_files(options, environ, read(files))
    if options.server:
        return _access(options, environ, Located("--master", "", ClusterEntry()), Located("--master", "", UserEntry()))
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(options, environ, account)
    given = environ.get("KUBECONFIG", "")
    text = f"names no file that exists ({given})" if given else "is not set"
    raise UsageError(
        f"no cluster is known: there is no {_home(environ)}, KUBECONFIG {text}, and this is no pod of a cluster;"
        " name a file with --kubeconfig"
    )


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home()) / ".kube" / "config"


def _files(options: ConnectionOptions, environ: Mapping[str, str]) -> list[Path]:
    """The files to read. As in kubectl, the file of --kubeconfig must exist, but files of KUBECONFIG can be missing."""
    if options.kubeconfig:
        return [Path(options.kubeconfig).expanduser()]
    given = [Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return [path for path in given or [_home(environ)] if path.exists()]


def _from_files(options: ConnectionOptions, environ: Mapping[str, str], config: Kubeconfig) -> Access:
    files, name = ", ".join(config.files), options.context or config.current
    if not name:
        raise UsageError(f"{files}: current-context: not set; choose one with --context{_choices(config.contexts)}")
    context = config.contexts.get(name)
    if context is None:
        field = "--context" if options.context else "current-context"
        raise UsageError(f"{files}: {field}: there is no context {name!r}{_suggestion(name, config.contexts)}")
    cluster = _referenced(context, "cluster", config.clusters)
    user = _referenced(context, "user", config.users) if context.value.user else Located(context.file, "", UserEntry())
    found = _access(options, environ, cluster, user, context.value.namespace or "")
    found = replace(found, context=name)
    return found if options.server else replace(found, origin=f"context {name!r} of {cluster.file}")


def _referenced(
    context: Located[ContextEntry],
    field: str,
    known: Mapping[str, Located[ClusterEntry]] | Mapping[str, Located[UserEntry]],
) -> Located:  # type: ignore[type-arg]
    name = getattr(context.value, field) or ""
    if name not in known:
        raise context.error(field, f"there is no {field} {name!r}{_suggestion(name, known)}")
    return known[name]


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close!r}?" if close else _choices(known)


def _choices(known: Mapping[str, object]) -> str:
    return f"; known are {', '.join(sorted(known))}" if known else "; the file has none"


def _in_cluster(options: ConnectionOptions, environ: Mapping[str, str], account: Path) -> Access:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        missing = f"there is no {account / 'token'}" if host else "KUBERNETES_SERVICE_HOST is not set"
        raise UsageError(f"this does not run in a pod with a service account: {missing}")
    file, url_host = "the pod's service account", f"[{host}]" if ":" in host else host
    cluster = ClusterEntry(server=f"https://{url_host}:{port}", certificate_authority=str(account / "ca.crt"))
    user, file_of_namespace = UserEntry(token_file=str(account / "token")), account / "namespace"
    namespace = file_of_namespace.read_text().strip() if file_of_namespace.exists() else ""
    return _access(options, environ, Located(file, "", cluster), Located(file, "", user), namespace)


def _access(
    options: ConnectionOptions,
    environ: Mapping[str, str],
    cluster: Located[ClusterEntry],
    user: Located[UserEntry],
    namespace: str = "",
) -> Access:
    server = _server(options.server or cluster.value.server or "", cluster)
    proxy = cluster.value.proxy_url or proxy_for(server, environ)
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        scheme = urlsplit(proxy).scheme  # only the scheme, because the rest of the URL can contain a password
        raise cluster.error("proxy-url", f"'{scheme}://…'; expected an http:// or https:// proxy")
    origin = "--master" if options.server else cluster.file
    return Access(server, cluster, user, options.namespace or namespace or "default", proxy, origin)


def _server(given: str, cluster: Located[ClusterEntry]) -> str:
    """The complete URL. As in kubectl, a missing scheme is https if the entry has TLS settings, otherwise http."""
    value = cluster.value
    secure = value.certificate_authority or value.certificate_authority_data or value.insecure_skip_tls_verify
    given = given.strip()
    url = given if "://" in given else f"{'https' if secure else 'http'}://{given}"
    parts = _parts(url)
    if "@" in (given if parts is None else parts.netloc):
        raise cluster.error("server", "has a name or a password in it, which logs would show; write it under the user")
    if parts is None:
        raise cluster.error("server", f"{given!r}; expected a URL like https://host:6443")
    return url.rstrip("/")


def _parts(url: str) -> SplitResult | None:
    """The parts of the URL of a server; None if a client cannot use it."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is no port
        (parts.hostname or "").encode("idna")  # the network functions do the same
    except ValueError:
        return None
    usable = parts.path.isascii() and url.isprintable() and " " not in url
    return parts if usable and parts.scheme in ("http", "https") and parts.hostname else None


# -- kubeconfig files --------------------------------------------------------------------------------------------------


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
    """Read and merge files. Raises UsageError or ManifestError, with file and field, if a file cannot be read."""
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
    content = _parse(str(path), data)
    return Kubeconfig(
        (str(path),),
        content.current_context or "",
        _entries(path, "cluster", content.clusters, ClusterEntry()),
        _entries(path, "user", content.users, UserEntry()),
        _entries(path, "context", content.contexts, ContextEntry()),
    )


def _parse(file: str, data: bytes) -> _File:
    if not any(line.strip() and not line.lstrip().startswith((b"#", b"---")) for line in data.splitlines()):
        return _File()
    if data.lstrip().startswith(b"{"):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(data, type=_File)
    from trainwright.manifest.documents import read as read_documents  # noqa: PLC0415 - slow, and JSON does not need it

    document = read_documents(file, data)[0]
    try:
        return msgspec.convert(document.body, _File)
    except msgspec.ValidationError as error:
        text, _, field = str(error).partition(" - at `$")
        field = field.rstrip("`").lstrip(".")
        where = f"{file}:{document.line(field)}: {field or '(document)'}"
        raise UsageError(f"{where}: {text[:1].lower()}{text[1:]}") from None


def _entries(path: Path, field: str, named: list[_Named] | None, default: T) -> dict[str, Located[T]]:
    found: dict[str, Located[T]] = {}
    for index, one in enumerate(named or ()):
        if one.name in found:
            raise UsageError(f"{path}: {field}s[{index}].name: a second {field} is called {one.name!r}")
        value = _with_full_paths(path.parent, getattr(one, field) or default)
        found[one.name] = Located(str(path), f"{field}s[{index}].{field}", value)
    return found


def _with_full_paths(folder: Path, value: Any) -> Any:
    """The entry with complete paths. A plug-in command without a slash stays as it is: the system finds it in PATH."""
    changes: dict[str, Any] = {
        name: str(folder / given) for name in _PATH_FIELDS if (given := getattr(value, name, None))
    }
    plugin = getattr(value, "exec", None)
    if plugin is not None and "/" in plugin.command:
        changes["exec"] = replace(plugin, command=str(folder / plugin.command))
    return replace(value, **changes)


# -- proxies -----------------------------------------------------------------------------------------------------------


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """The URL of the proxy for a server, from environment variables. Empty means that no proxy is used."""
    parts = urlsplit(server)
    proxy = _variable(environ, f"{parts.scheme}_proxy")
    if not proxy or _is_excluded(parts, _variable(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_excluded(server: SplitResult, no_proxy: str) -> bool:
    host = (server.hostname or "").lower()
    if host == "localhost" or (_is_address(host) and ip_address(host).is_loopback):
        return True
    port = server.port or (443 if server.scheme == "https" else 80)
    return any(_matches(entry.strip().lower(), host, port) for entry in no_proxy.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY matches: `*`, an address, a CIDR range, `domain` or `.domain`, also with `:port`.

    `domain` also matches its subdomains; `.domain` matches only the subdomains.
    """
    if entry == "*":
        return True
    if _is_address(host):
        return _contains(entry, host) or (entry.endswith(f":{port}") and _contains(entry.rpartition(":")[0], host))
    name, _, wanted_port = entry.partition(":")
    name = name.removeprefix("*")
    return wanted_port in ("", str(port)) and (host == name or host.endswith(f".{name.removeprefix('.')}"))


def _contains(entry: str, host: str) -> bool:
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
