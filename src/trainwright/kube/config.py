# SPDX-License-Identifier: Apache-2.0
"""Which API server, and who we are: from a kubeconfig, from the pod we run in, or as the command line says.

`load` is for commands and for the operator; `session` connects with what it returns. Looked at in this order: the file
that was asked for, the files of KUBECONFIG, ~/.kube/config, the service account of a pod.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from trainwright.errors import UsageError
from trainwright.kube.kubeconfig import Cluster, Context, Entry, Kubeconfig, User, read
from trainwright.kube.proxy import proxy_for
from trainwright.model.problem import nearest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Asked(Struct, frozen=True):
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
    cluster: Entry[Cluster]
    user: Entry[User]
    namespace: str = "default"
    #: A URL; empty: none.
    proxy: str = ""
    #: Where the server's address is from: `context 'lab' of /home/me/.kube/config`; empty: not told.
    origin: str = ""


def load(
    asked: Asked | None = None, environ: Mapping[str, str] | None = None, account: Path = SERVICE_ACCOUNT
) -> Access:
    """How to reach the cluster that is meant; UsageError if that cannot be told."""
    asked, environ = asked or Asked(), os.environ if environ is None else environ
    inside = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    if asked.in_cluster:
        return _in_cluster(asked, environ, account)
    files = _files(asked, environ)
    if files:
        return _from_files(asked, environ, read(files))
    if asked.server:
        return _access(asked, environ, Entry("--master", "", Cluster()), Entry("--master", "", User()))
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


def _files(asked: Asked, environ: Mapping[str, str]) -> list[Path]:
    """As with kubectl: a file that was asked for must exist, those of KUBECONFIG need not."""
    if asked.kubeconfig:
        return [Path(asked.kubeconfig).expanduser()]
    given = [Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return [path for path in given or [_home(environ)] if path.exists()]


def _from_files(asked: Asked, environ: Mapping[str, str], config: Kubeconfig) -> Access:
    files, name = ", ".join(config.files), asked.context or config.current
    if not name:
        raise UsageError(f"{files}: current-context: not set; choose one with --context{_known(config.contexts)}")
    context = config.contexts.get(name)
    if context is None:
        field = "--context" if asked.context else "current-context"
        raise UsageError(f"{files}: {field}: there is no context {name!r}{_meant(name, config.contexts)}")
    cluster = _named(context, "cluster", config.clusters)
    user = _named(context, "user", config.users) if context.value.user else Entry(context.file, "", User())
    found = _access(asked, environ, cluster, user, context.value.namespace or "")
    return found if asked.server else replace(found, origin=f"context {name!r} of {cluster.file}")


def _named(
    context: Entry[Context], what: str, known: Mapping[str, Entry[Cluster]] | Mapping[str, Entry[User]]
) -> Entry:  # type: ignore[type-arg]
    name = getattr(context.value, what) or ""
    if name not in known:
        raise context.wrong(what, f"there is no {what} {name!r}{_meant(name, known)}")
    return known[name]


def _meant(name: str, known: Mapping[str, object]) -> str:
    close = nearest(name, known)
    return f"; did you mean {close!r}?" if close else _known(known)


def _known(known: Mapping[str, object]) -> str:
    return f"; known are {', '.join(sorted(known))}" if known else "; the file has none"


def _in_cluster(asked: Asked, environ: Mapping[str, str], account: Path) -> Access:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        missing = f"there is no {account / 'token'}" if host else "KUBERNETES_SERVICE_HOST is not set"
        raise UsageError(f"this does not run in a pod with a service account: {missing}")
    file, place = "the pod's service account", f"[{host}]" if ":" in host else host
    cluster = Cluster(server=f"https://{place}:{port}", certificate_authority=str(account / "ca.crt"))
    user, space = User(token_file=str(account / "token")), account / "namespace"
    namespace = space.read_text().strip() if space.exists() else ""
    return _access(asked, environ, Entry(file, "", cluster), Entry(file, "", user), namespace)


def _access(
    asked: Asked, environ: Mapping[str, str], cluster: Entry[Cluster], user: Entry[User], namespace: str = ""
) -> Access:
    server = _server(asked.server or cluster.value.server or "", cluster)
    proxy = cluster.value.proxy_url or proxy_for(server, environ)
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        scheme = urlsplit(proxy).scheme  # the rest may hold a password
        raise cluster.wrong("proxy-url", f"'{scheme}://…'; expected an http:// or https:// proxy")
    origin = "--master" if asked.server else cluster.file
    return Access(server, cluster, user, asked.namespace or namespace or "default", proxy, origin)


def _server(given: str, cluster: Entry[Cluster]) -> str:
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
