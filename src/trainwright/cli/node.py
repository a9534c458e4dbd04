# SPDX-License-Identifier: Apache-2.0
"""`trainwright node`: this machine as a node of a Kubernetes cluster.

The options and what they mean; nothing heavy is imported before they have been read.

The life of `trainwright node`: what this machine offers, the agent of `node.node`, the API server of `kube`.

`local` and `kube` do not know each other; here they meet.
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

from trainwright.cli.devices import declared, device_options
from trainwright.cli.flags import Duration
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

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@click.command("node", context_settings={"auto_envvar_prefix": "TRAINWRIGHT_NODE"})
@click.option("--name", metavar="NAME", default="", help="The node's.  [default: this machine's]")
@click.option("--kubeconfig", metavar="FILE", default="", help="Instead of $KUBECONFIG, ~/.kube/config, the pod's.")
@click.option("--context", metavar="NAME", default="", help="Of the kubeconfig.  [default: its current one]")
@click.option("--master", metavar="HOST:PORT", default="", help="The API server, instead of the kubeconfig's.")
@click.option("--run-in-cluster", is_flag=True, help="Use the pod's service account and nothing else.")
@click.option(
    "--bootstrap-kubeconfig",
    "bootstrap",
    metavar="FILE",
    default="",
    help="Request a client certificate for this node with the user of FILE, and renew it from then on.",
)
@click.option(
    "--approval-timeout",
    "approval",
    type=Duration(),
    default="15m",
    show_default=True,
    metavar="TIME",
    help="Give up if that certificate is not approved and issued within TIME. 0 waits for ever.",
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "sandbox", "process"]),
    default="auto",
    show_default=True,
    help="Pods with a network, processes and mounts of their own (sandbox, Linux), or as plain processes; auto takes "
    "the first that works here.",
)
@click.option("--cpus", type=click.FloatRange(0.001), metavar="N", help="Offer so many.  [default: the machine's]")
@click.option("--memory", metavar="SIZE", default="", help="Offer so much: 8Gi.  [default: the machine's]")
@device_options
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Of the node; may be given again.")
@click.option("--taint", "taints", metavar="KEY=VALUE:EFFECT", multiple=True, help="Of a new node; likewise.")
@click.option("--address", metavar="IP", default="", help="Of this machine.  [default: by which it reaches others]")
@click.option("--port", type=click.IntRange(0, 65535), default=10250, show_default=True, help="For logs; 0: any.")
@click.option("--tls-cert-file", "certificate", metavar="FILE", default="", help="Of the port.  [default: self-signed]")
@click.option("--tls-private-key-file", "key", metavar="FILE", default="", help="Its key.")
@click.option("--client-ca-file", "authority", metavar="FILE", default="", help="Who may connect.  [default: ask]")
@click.option("--folder", metavar="DIR", default="", help="For logs and volumes.  [default: in the state folder]")
@click.option("--working-dir", "working", metavar="DIR", default="", help="Of containers that name none.  [default: .]")
@click.option(
    "--network", metavar="NAME", default="", help="Agents that say the same share one.  [default: by cluster]"
)
@click.option("--heartbeat", type=Duration(), default="10s", show_default=True, metavar="TIME", help="Renew the lease.")
@click.option("--grace", type=Duration(), metavar="TIME", help="For pods at the end.  [default: what they ask for]")
@click.option("--remove", is_flag=True, help="Delete the Node at the end, if the user may: a node's own may not.")
@click.option("--v", "verbosity", type=click.IntRange(0, 10), default=0, help="From 4 on, every detail.")
def command(**given: Any) -> int:
    """Be a node of a Kubernetes cluster: run the pods that are put on it, until SIGTERM.

    No image is used: commands must be installed on this machine. SIGTERM gives pods their time to end, tells how they
    ended, and leaves the node NotReady; a second one ends everything at once. Pods that ran when an agent was killed
    have ended with it: the next one says so, or starts them again as their restartPolicy wishes. Several agents on one
    machine, each with a name and a port of its own, share one network between their pods.
    With --bootstrap-kubeconfig the node gets an identity of its own: it may read the secrets of its own pods and change
    its own Node, and nothing of other nodes. The certificate is kept; later starts need neither option nor file.
    Every option can be an environment variable, TRAINWRIGHT_NODE_KUBECONFIG and so on.

    \b
    Examples:
      trainwright node --name gpu-0 --bootstrap-kubeconfig bootstrap.kubeconfig
      trainwright node --name gpu-0 --label pool=training --taint dedicated=training:NoSchedule
      trainwright node --name half --cpus 4 --memory 16Gi --port 0 --remove
    """
    level = logging.DEBUG if given.pop("verbosity") >= 4 else logging.INFO
    logging.basicConfig(format=_FORMAT, level=level)
    given |= {
        "name": node_name(given["name"] or socket.gethostname().lower()),
        "labels": dict(label(text) for text in given["labels"]),
        "taints": tuple(taint(text) for text in given["taints"]),
        "memory": memory(given["memory"]),
        "devices": declared(given.pop("gpus"), given.pop("device"), given.pop("device_config")),
    }
    if bool(given["certificate"]) != bool(given["key"]):
        raise UsageError("--tls-cert-file and --tls-private-key-file belong together: one of them is missing")

    return asyncio.run(work(given))


def node_name(text: str) -> str:
    """A name that Kubernetes takes."""
    if not _NAME.fullmatch(text):
        raise UsageError(f"--name: {text!r}; expected lower case letters, digits, `-` and `.`, such as node-1")
    return text


def label(text: str) -> tuple[str, str]:
    """`KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--label: {text!r}; expected KEY=VALUE")
    return key, value


def taint(text: str) -> dict[str, str]:
    """`KEY=VALUE:EFFECT`, or without a value."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not key or effect not in _EFFECTS:
        hint = nearest(effect, _EFFECTS)
        meant = f"; did you mean `{hint}`?" if hint else ""
        raise UsageError(f"--taint: {text!r}; expected KEY=VALUE:EFFECT with one of {', '.join(_EFFECTS)}{meant}")
    return {"key": key, "value": value, "effect": effect}


def memory(text: str) -> int | None:
    """Bytes."""
    amount = quantity(text) if text else None
    if text and (amount is None or amount < 1):
        raise UsageError(f"--memory: {text!r}; expected a size such as 8Gi or 512Mi")
    return None if amount is None else int(amount)


_LOG = logging.getLogger("trainwright.node")
#: In the state folder, where hidden folders are not looked into for runs.
_NODES = ".nodes"
#: Fewer than an agent has addresses for: one that is given back comes round again late.
_MOST_PODS = "512"
_NO_CERTIFICATE = (
    "logs are not served (`kubectl logs` will not work): there is no `openssl` to make a certificate with; "
    "--tls-cert-file and --tls-private-key-file name one"
)
_NO_AUTHORITY = (
    "nobody can read logs (`kubectl logs` will not work): the cluster does not tell whose client certificates it"
    " trusts; --client-ca-file names a file"
)


async def work(given: dict[str, Any]) -> int:
    """Be a node until a signal comes. Raises TrainwrightError."""
    working = asyncio.ensure_future(_serve(given))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return 0
    raise EngineError("nothing can be run here any more, as was said above; start it again")


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
            await node.prepare(given["runtime"], given["network"] or _named(entry.access.server))
            port = await stack.enter_async_context(_logs(cluster, node, settings, given))
            await node.start(cluster, port, cluster.token)
            _LOG.info("node %s is ready at %s, port %d", settings.node, settings.address, port)
            await node.broken.wait()
        finally:
            await node.leave(given["grace"], remove=given["remove"])


class _Entry(Struct, frozen=True):
    """How this node comes to the cluster."""

    identity: NodeIdentity
    #: The user of this one talks to the API server, unless a certificate is to be requested first.
    access: Access
    #: Whether the certificate is one that we requested, and renew.
    ours: bool = False
    #: Who may request a certificate; None: nobody.
    bootstrap: Access | None = None
    #: Whether one has to be requested before anything else.
    request: bool = False


def _entry(given: dict[str, Any], identity: NodeIdentity) -> _Entry:
    """Which user is meant: the node itself if it has a certificate or can request one, else the kubeconfig's."""
    named = given["kubeconfig"] or given["run_in_cluster"]
    if given["bootstrap"] and named:
        raise UsageError(
            "--bootstrap-kubeconfig goes without --kubeconfig and --run-in-cluster: the node gets a user of its own,"
            f" and keeps its kubeconfig as {identity.kubeconfig}"
        )
    if given["bootstrap"]:
        return _bootstrapped(given, identity)
    if identity.kubeconfig.exists() and not (named or given["context"] or given["master"]):
        if identity.kept() is None:
            raise UsageError(
                f"the certificate that {identity.kubeconfig} names has ended, or is not one of node {given['name']};"
                " --bootstrap-kubeconfig FILE requests a new one, --kubeconfig FILE names another user"
            )
        return _Entry(identity, identity.access(), ours=True)
    asked = ConnectionOptions(
        kubeconfig=given["kubeconfig"],
        context=given["context"],
        server=given["master"],
        in_cluster=given["run_in_cluster"],
    )
    return _Entry(identity, load(asked))


def _bootstrapped(given: dict[str, Any], identity: NodeIdentity) -> _Entry:
    """The node itself. A certificate that is kept is used, unless the file leads to another cluster."""
    kept = identity.kept()
    if kept and not Path(given["bootstrap"]).expanduser().exists():
        return _Entry(identity, identity.access(), ours=True)
    bootstrap = load(ConnectionOptions(kubeconfig=given["bootstrap"], context=given["context"], server=given["master"]))
    if kept and identity.belongs_to(bootstrap):
        return _Entry(identity, identity.access(), ours=True, bootstrap=bootstrap)
    return _Entry(identity, bootstrap, ours=True, bootstrap=bootstrap, request=True)


@asynccontextmanager
async def _identified(entry: _Entry, timeout: float) -> AsyncIterator[ApiSession]:
    """A session as the user that is meant, whose certificate is renewed until the end of the block if it is ours."""
    identity, access = entry.identity, entry.access
    if entry.bootstrap is not None and (entry.request or not await _known(access)):
        access = await identity.obtain(entry.bootstrap, timeout)
    session = ApiSession(access)
    renewing: asyncio.Task[None] | None = None
    try:
        await _check_user(NodeCluster(HttpClient(session)), identity)
        if entry.ours:
            renewing = asyncio.create_task(identity.keep_renewed(session, entry.bootstrap))
        yield session
    finally:
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await session.close()


async def _known(access: Access) -> bool:
    """Whether the API server accepts the certificate that is kept. Its CA may have been replaced."""
    session = ApiSession(access)
    try:
        await NodeCluster(HttpClient(session)).user()
    except ForbiddenError as error:
        _LOG.warning("the certificate that this node has is refused, a new one is requested: %s", error)
        return False
    finally:
        await session.close()
    return True


async def _check_user(cluster: NodeCluster, identity: NodeIdentity) -> None:
    """The API server refuses every request of another node's user; a user with more rights is a risk."""
    user = await cluster.user()
    if user == identity.user or not user:
        return
    if user.startswith(credentials.user_of("")):
        raise UsageError(f"--name {identity.node}: the kubeconfig is that of {user}; a node may only be itself")
    _LOG.warning(
        "this agent is %s to the API server, and whoever can read its kubeconfig has all rights of that user;"
        " with --bootstrap-kubeconfig it becomes %s, which sees the secrets of its own pods only",
        user,
        identity.user,
    )


@asynccontextmanager
async def _logs(
    cluster: NodeCluster, node: LocalNode, settings: AgentSettings, given: dict[str, Any]
) -> AsyncIterator[int]:
    """Serve logs until the end of the block, where there is a certificate for it; the port, or 0."""
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
    share = _share(given)
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
        capacity=share.capacity() | storage | {"pods": _MOST_PODS},
        devices=share.devices,
        passed=passed(os.environ) | _api(access.server),
        visible=tuple(visible),
        heartbeat=given["heartbeat"],
        kubelet=True,
        user=os.geteuid(),
        taints=given["taints"],
    )


def _share(given: dict[str, Any]) -> machine.NodeCapacity:
    share = machine.machine(given["devices"])
    share = replace(share, cpu=int(given["cpus"] * 1000)) if given["cpus"] else share
    return replace(share, memory=given["memory"]) if given["memory"] else share


def _api(server: str) -> dict[str, str]:
    """Where pods find the API server, as every pod of a cluster is told; its service has an address only there."""
    place = urlsplit(server)
    if place.scheme != "https" or _loopback(place.hostname or ""):
        return {}
    return {"KUBERNETES_SERVICE_HOST": place.hostname or "", "KUBERNETES_SERVICE_PORT": str(place.port or 443)}


def _named(server: str) -> str:
    """One network for the agents of one cluster on this machine."""
    return hashlib.sha256(server.encode()).hexdigest()[:12]


def _address(given: str, server: str) -> str:
    """This machine's: by which it would reach the API server; if that is itself, anybody else. Nothing is sent."""
    if given:
        try:
            return str(ipaddress.ip_address(given))
        except ValueError:
            raise UsageError(f"--address: {given!r}; expected an address such as 192.0.2.7") from None
    for place in (urlsplit(server).hostname or "", "198.51.100.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            try:
                one.connect((place, 9))
                found = str(one.getsockname()[0])
            except OSError:
                continue
        if not _loopback(found):
            return found
    return "127.0.0.1"


def _loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--client-ca-file: {path}: {getattr(error, 'strerror', None) or error}") from None
