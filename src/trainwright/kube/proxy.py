# SPDX-License-Identifier: Apache-2.0
"""Which proxy the environment asks for. `config` calls it where a kubeconfig names none.

As Go's clients read HTTPS_PROXY, HTTP_PROXY and NO_PROXY, so that whatever works for kubectl works here.
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, urlsplit


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
