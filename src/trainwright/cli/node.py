# SPDX-License-Identifier: Apache-2.0
"""`trainwright node`: makes this machine a node of a Kubernetes cluster.

This module starts the agent of the package `node` with a client of the package `kube`.
"""

import asyncio
import hashlib
import ipaddress
import logging
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.devices import declared, device_options
from trainwright.cli.flags import choice_option, duration_option, kubeconfig_options, repeated_option, text_option
from trainwright.cli.state import home
from trainwright.errors import EngineError, ForbiddenError, UsageError
from trainwright.kube.config import Access, ConnectionOptions, load
from trainwright.kube.http import HttpClient
from trainwright.kube.session import ApiSession
from trainwright.model.problem import nearest
from trainwright.model.units import quantity
from trainwright.node import credentials, machine
from trainwright.node.credentials import NodeIdentity
from trainwright.node.environment import passed
from trainwright.node.kubelet_api import NodeCluster
from trainwright.node.log_server import NodeServer
from trainwright.node.node import LocalNode
from trainwright.node.settings import AgentSettings
from trainwright.runtime.ports import WallClock

_LOG = logging.getLogger("trainwright.node")
#: The folder of the nodes in the state folder. It is hidden, because visible folders there are namespaces of jobs.
_NODES = ".nodes"
#: The pod capacity of a node. It is less than the number of addresses, so that an address is not reused at once.
_MAX_PODS = "512"
_NO_CERTIFICATE = (
    "logs are not served (`kubectl logs` will not work): there is no `openssl` command to make a certificate; name a"
    " certificate with --tls-cert-file and --tls-private-key-file"
)
_NO_AUTHORITY = (
    "nobody can read logs (`kubectl logs` will not work): the cluster does not say which client CA it trusts; name the"
    " file of that CA with --client-ca-file"
)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@click.command("node", context_settings={"auto_envvar_prefix": "TRAINWRIGHT_NODE"})
@text_option("--name", metavar="NAME", help="Give the node this name.  [default: the host name]")
@kubeconfig_options
@text_option("--master", metavar="HOST:PORT", help="Use this API server instead of the kubeconfig's.")
@click.option("--run-in-cluster", is_flag=True, help="Use only the service account of the pod.")
@text_option(
    "--bootstrap-kubeconfig",
    "bootstrap",
    metavar="FILE",
    help="Request a client certificate for this node with the user of FILE, and renew it from then on.",
)
@duration_option(
    "--approval-timeout",
    "approval",
    default="15m",
    help="Give up if that certificate is not approved and issued within TIME. 0 waits for ever.",
)
@choice_option(
    "--runtime",
    choices=("auto", "sandbox", "process"),
    help="Run pods with their own network, processes and mounts (sandbox, Linux only), or as plain processes. "
    "auto takes sandbox if it works here.",
)
@click.option("--cpus", type=click.FloatRange(0.001), metavar="N", help="Offer N CPUs to pods.  [default: all]")
@text_option("--memory", metavar="SIZE", help="Offer SIZE to pods, such as 8Gi.  [default: all]")
@device_options
@repeated_option("--label", "labels", metavar="KEY=VALUE", help="Label the node. Repeat it for more labels.")
@repeated_option("--taint", "taints", metavar="KEY=VALUE:EFFECT", help="Taint a new node. Repeat it for more taints.")
@text_option("--address", metavar="IP", help="The address of this machine.  [default: that of its outgoing traffic]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=10250,
    show_default=True,
    help="Serve logs there; 0 takes any port.",
)
@text_option(
    "--tls-cert-file", "certificate", metavar="FILE", help="Use this certificate for the port.  [default: self-signed]"
)
@text_option("--tls-private-key-file", "key", metavar="FILE", help="The key of that certificate.")
@text_option(
    "--client-ca-file",
    "authority",
    metavar="FILE",
    help="Accept clients with a certificate of this CA.  [default: the CA of the cluster]",
)
@text_option("--folder", metavar="DIR", help="Keep logs and volumes in DIR.  [default: in the state folder]")
@text_option(
    "--working-dir",
    "working",
    metavar="DIR",
    help="Run containers without a workingDir in DIR.  [default: the current folder]",
)
@text_option(
    "--network",
    metavar="NAME",
    help="Share one pod network with the agents that use the same NAME.  [default: one per cluster]",
)
@duration_option("--heartbeat", default="10s", help="Renew the node's lease every TIME.")
@duration_option("--grace", help="Give pods TIME to end when the agent stops.  [default: their own grace period]")
@click.option("--remove", is_flag=True, help="Delete the Node at the end. The user of a node itself may not do that.")
@click.option("--v", "verbosity", type=click.IntRange(0, 10), default=0, help="Log every detail from 4 on.")
def command(**given: Any) -> int:
    """Make this machine a node of a Kubernetes cluster: run the pods that are bound to it, until SIGTERM.

    The agent uses no images: the programs must be installed on this machine. On SIGTERM it stops the pods within their
    grace periods, reports how they ended, and leaves the node NotReady; a second SIGTERM stops everything at once. If
    the agent is killed, its pods end too: the next agent reports that, or restarts them if their restartPolicy says so.
    Several agents can run on one machine, each with its own name and port; their pods share one network.
    With --bootstrap-kubeconfig the node gets its own identity: it may read only the secrets of its own pods, and change
    only its own Node. The agent keeps the certificate; later starts need neither the option nor the file.
    Every option can also be an environment variable, such as TRAINWRIGHT_NODE_KUBECONFIG.

    \b
    Examples:
      trainwright node --name gpu-0 --bootstrap-kubeconfig bootstrap.kubeconfig
      trainwright node --name gpu-0 --label pool=training --taint dedicated=training:NoSchedule
      trainwright node --name half --cpus 4 --memory 16Gi --port 0 --remove
    """
    level = logging.DEBUG if given.pop("verbosity") >= 4 else logging.INFO
    logging.basicConfig(format=_LOG_FORMAT, level=level)
    given |= {
        "name": node_name(given["name"] or socket.gethostname().lower()),
        "labels": dict(label(text) for text in given["labels"]),
        "taints": tuple(taint(text) for text in given["taints"]),
        "memory": memory(given["memory"]),
        "devices": declared(given.pop("gpus"), given.pop("device"), given.pop("device_config")),
    }
    if bool(given["certificate"]) != bool(given["key"]):
        raise UsageError("--tls-cert-file and --tls-private-key-file belong together: one of them is missing")
    return run_coroutine(_run, given)


def node_name(text: str) -> str:
    """Check the name of the node."""
    if not _NAME.fullmatch(text):
        raise UsageError(f"--name: {text!r}; expected lower case letters, digits, `-` and `.`, such as node-1")
    return text


def label(text: str) -> tuple[str, str]:
    """Parse `KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--label: {text!r}; expected KEY=VALUE")
    return key, value


def taint(text: str) -> dict[str, str]:
    """Parse `KEY=VALUE:EFFECT` or `KEY:EFFECT`."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not key or effect not in _EFFECTS:
        hint = nearest(effect, _EFFECTS)
        suggestion = f"; did you mean `{hint}`?" if hint else ""
        raise UsageError(f"--taint: {text!r}; expected KEY=VALUE:EFFECT with one of {', '.join(_EFFECTS)}{suggestion}")
    return {"key": key, "value": value, "effect": effect}


def memory(text: str) -> int | None:
    """Convert a size such as `8Gi` to bytes; None for an empty text."""
    amount = quantity(text) if text else None
    if text and (amount is None or amount < 1):
        raise UsageError(f"--memory: {text!r}; expected a size such as 8Gi or 512Mi")
    return None if amount is None else int(amount)


async def _run(given: dict[str, Any]) -> int:
    """Run the node until a signal arrives. Raises TrainwrightError."""
    working = asyncio.ensure_future(_serve(given))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return 0
    raise EngineError("the agent can run no more pods, for the reason in the log above; restart it")


async def _serve(given: dict[str, Any]) -> None:
    folder = Path(given["folder"] or home() / _NODES / given["name"]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    entry = _entry(given, NodeIdentity(folder, given["name"], WallClock()))
    settings = _settings(given, folder, entry.access)
    async with AsyncExitStack() as stack:
        node = LocalNode(settings, _LOG.info)
        try:
            session = await stack.enter_async_context(_identified(entry, given["approval"]))
            cluster = NodeCluster(HttpClient(session))
            await node.prepare(given["runtime"], given["network"] or _network_name(entry.access.server))
            port = await stack.enter_async_context(_serve_logs(cluster, node, settings, given))
            await node.start(cluster, port, cluster.token)
            _LOG.info("node %s is ready at %s, port %d", settings.node, settings.address, port)
            await node.broken.wait()
        finally:
            await node.leave(given["grace"], remove=given["remove"])


class _Entry(Struct, frozen=True):
    """How this node connects to the cluster: the server, the user, and the certificate of the user."""

    identity: NodeIdentity
    #: The server and the user. If `request` is true, this user only requests the certificate of the node.
    access: Access
    #: Whether the agent itself requests and renews the certificate.
    renewed: bool = False
    #: The user with the permission to request a certificate; None without a bootstrap file.
    bootstrap: Access | None = None
    #: Whether the agent must request a certificate first.
    request: bool = False


def _entry(given: dict[str, Any], identity: NodeIdentity) -> _Entry:
    """Choose the user: the node itself if it has or can request a certificate, else the user of the kubeconfig."""
    named = given["kubeconfig"] or given["run_in_cluster"]
    if given["bootstrap"] and named:
        raise UsageError(
            "--bootstrap-kubeconfig cannot be used with --kubeconfig or --run-in-cluster: the node gets its own user,"
            f" and keeps its kubeconfig as {identity.kubeconfig}"
        )
    if given["bootstrap"]:
        return _bootstrapped(given, identity)
    if identity.kubeconfig.exists() and not (named or given["context"] or given["master"]):
        if identity.stored() is None:
            raise UsageError(
                f"the certificate that {identity.kubeconfig} names has expired, or is not one of node {given['name']};"
                " request a new one with --bootstrap-kubeconfig FILE, or name another user with --kubeconfig FILE"
            )
        return _Entry(identity, identity.access(), renewed=True)
    connection = ConnectionOptions(
        kubeconfig=given["kubeconfig"],
        context=given["context"],
        server=given["master"],
        in_cluster=given["run_in_cluster"],
    )
    return _Entry(identity, load(connection))


def _bootstrapped(given: dict[str, Any], identity: NodeIdentity) -> _Entry:
    """Connect as the node itself. Request a certificate if none is stored for the bootstrap file's cluster."""
    stored = identity.stored()
    if stored and not Path(given["bootstrap"]).expanduser().exists():
        return _Entry(identity, identity.access(), renewed=True)
    bootstrap = load(ConnectionOptions(kubeconfig=given["bootstrap"], context=given["context"], server=given["master"]))
    if stored and identity.belongs_to(bootstrap):
        return _Entry(identity, identity.access(), renewed=True, bootstrap=bootstrap)
    return _Entry(identity, bootstrap, renewed=True, bootstrap=bootstrap, request=True)


@asynccontextmanager
async def _identified(entry: _Entry, timeout: float) -> AsyncIterator[ApiSession]:
    """Open a session. Request a certificate first if needed. Renew it during the block if `entry.renewed` is true."""
    identity, access = entry.identity, entry.access
    if entry.bootstrap is not None and (entry.request or not await _is_accepted(access)):
        access = await identity.obtain(entry.bootstrap, timeout)
    session = ApiSession(access)
    renewing: asyncio.Task[None] | None = None
    try:
        await _check_user(NodeCluster(HttpClient(session)), identity)
        if entry.renewed:
            renewing = asyncio.create_task(identity.keep_renewed(session, entry.bootstrap))
        yield session
    finally:
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await session.close()


async def _is_accepted(access: Access) -> bool:
    """Whether the API server accepts the stored certificate. It refuses a certificate of an old CA."""
    session = ApiSession(access)
    try:
        await NodeCluster(HttpClient(session)).user()
    except ForbiddenError as error:
        _LOG.warning("the API server refuses the certificate of this node; the agent requests a new one: %s", error)
        return False
    finally:
        await session.close()
    return True


async def _check_user(cluster: NodeCluster, identity: NodeIdentity) -> None:
    """Refuse the user of another node: it has no rights on this node. Warn about a user that is not a node's user."""
    user = await cluster.user()
    if user == identity.user or not user:
        return
    if user.startswith(credentials.user_of("")):
        raise UsageError(f"--name {identity.node}: the kubeconfig is that of {user}; a node can only use its own user")
    _LOG.warning(
        "this agent connects as the user %s, and everyone who can read its kubeconfig has all rights of that user;"
        " with --bootstrap-kubeconfig it connects as %s, which can read only the secrets of its own pods",
        user,
        identity.user,
    )


@asynccontextmanager
async def _serve_logs(
    cluster: NodeCluster, node: LocalNode, settings: AgentSettings, given: dict[str, Any]
) -> AsyncIterator[int]:
    """Serve logs until the end of the block. Yields the port, or 0 if there is no certificate for the server."""
    pair: tuple[Path, Path] | None = (Path(given["certificate"]), Path(given["key"]))
    if not given["certificate"]:
        folder = Path(settings.folder, "tls")
        pair = await asyncio.to_thread(credentials.self_signed, folder, settings.node, settings.address)
    if pair is None:
        _LOG.warning(_NO_CERTIFICATE)
        yield 0
        return
    authority = _read(given["authority"]) if given["authority"] else await cluster.authority()
    if not authority:
        _LOG.warning(_NO_AUTHORITY)
    server = NodeServer(node.log, partial(cluster.allowed, node=settings.node), WallClock())
    async with server.serving(settings.address, given["port"], credentials.tls_context(*pair, authority)) as port:
        yield port


def _settings(given: dict[str, Any], folder: Path, access: Access) -> AgentSettings:
    working = Path(given["working"] or ".").absolute()
    if not working.is_dir():
        raise UsageError(f"--working-dir: {working} is not a folder")
    capacity = _capacity(given)
    storage = {"ephemeral-storage": f"{shutil.disk_usage(folder).total // 1024}Ki"}
    visible = dict.fromkeys(str(path) for path in (working, sys.prefix, sys.base_prefix))
    return AgentSettings(
        node=given["name"],
        runtime="process",
        folder=str(folder),
        volumes=str(folder / "volumes"),
        cwd=str(working),
        address=_address(given["address"], access.server),
        labels=given["labels"],
        capacity=capacity.capacity() | storage | {"pods": _MAX_PODS},
        devices=capacity.devices,
        passed=passed(os.environ) | _api_variables(access.server),
        visible=tuple(visible),
        heartbeat=given["heartbeat"],
        kubelet=True,
        user=os.geteuid(),
        taints=given["taints"],
    )


def _capacity(given: dict[str, Any]) -> machine.NodeCapacity:
    capacity = machine.machine(given["devices"])
    capacity = replace(capacity, cpu=int(given["cpus"] * 1000)) if given["cpus"] else capacity
    return replace(capacity, memory=given["memory"]) if given["memory"] else capacity


def _api_variables(server: str) -> dict[str, str]:
    """Variables with the API server's address, because pods here cannot reach the Service `kubernetes`."""
    url = urlsplit(server)
    if url.scheme != "https" or _is_loopback(url.hostname or ""):
        return {}
    return {"KUBERNETES_SERVICE_HOST": url.hostname or "", "KUBERNETES_SERVICE_PORT": str(url.port or 443)}


def _network_name(server: str) -> str:
    """The name of the default network, which all agents of the same cluster on this machine share."""
    return hashlib.sha256(server.encode()).hexdigest()[:12]


def _address(given: str, server: str) -> str:
    """The given address, or the address from which this machine would reach the API server. Sends no packet."""
    if given:
        try:
            return str(ipaddress.ip_address(given))
        except ValueError:
            raise UsageError(f"--address: {given!r}; expected an address such as 192.0.2.7") from None
    for host in (urlsplit(server).hostname or "", "198.51.100.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))
                found = str(probe.getsockname()[0])
            except OSError:
                continue
        if not _is_loopback(found):
            return found
    return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--client-ca-file: {path}: {getattr(error, 'strerror', None) or error}") from None
