# SPDX-License-Identifier: Apache-2.0
"""The life of `trainwright node`: what this machine offers, the agent of `local.node`, the API server of `kube`.

`local` and `kube` do not know each other; here they meet.
"""

import asyncio
import hashlib
import ipaddress
import logging
import os
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

from msgspec import Struct
from msgspec.structs import replace

from trainwright.cli.state import home
from trainwright.errors import EngineError, ForbiddenError, UsageError
from trainwright.kube.config import Access, Asked, load
from trainwright.kube.http import Http
from trainwright.kube.kubelet import certificates
from trainwright.kube.kubelet.cluster import NodeCluster
from trainwright.kube.kubelet.identity import NodeIdentity
from trainwright.kube.kubelet.server import Server
from trainwright.kube.session import Session
from trainwright.local import machine
from trainwright.local.agent.environment import passed
from trainwright.local.agent.settings import Settings
from trainwright.local.node import Node
from trainwright.runtime.clock import WallClock

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
        node = Node(settings, _LOG.info)
        try:
            session = await stack.enter_async_context(_identified(entry, given["approval"]))
            cluster = NodeCluster(Http(session))
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
    asked = Asked(
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
    bootstrap = load(Asked(kubeconfig=given["bootstrap"], context=given["context"], server=given["master"]))
    if kept and identity.belongs_to(bootstrap):
        return _Entry(identity, identity.access(), ours=True, bootstrap=bootstrap)
    return _Entry(identity, bootstrap, ours=True, bootstrap=bootstrap, request=True)


@asynccontextmanager
async def _identified(entry: _Entry, timeout: float) -> AsyncIterator[Session]:
    """A session as the user that is meant, whose certificate is renewed until the end of the block if it is ours."""
    identity, access = entry.identity, entry.access
    if entry.bootstrap is not None and (entry.request or not await _known(access)):
        access = await identity.obtain(entry.bootstrap, timeout)
    session = Session(access)
    renewing: asyncio.Task[None] | None = None
    try:
        await _check_user(NodeCluster(Http(session)), identity)
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
    session = Session(access)
    try:
        await NodeCluster(Http(session)).user()
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
    if user.startswith(certificates.user_of("")):
        raise UsageError(f"--name {identity.node}: the kubeconfig is that of {user}; a node may only be itself")
    _LOG.warning(
        "this agent is %s to the API server, and whoever can read its kubeconfig has all rights of that user;"
        " with --bootstrap-kubeconfig it becomes %s, which sees the secrets of its own pods only",
        user,
        identity.user,
    )


@asynccontextmanager
async def _logs(cluster: NodeCluster, node: Node, settings: Settings, given: dict[str, Any]) -> AsyncIterator[int]:
    """Serve logs until the end of the block, where there is a certificate for it; the port, or 0."""
    pair: tuple[Path, Path] | None = (Path(given["certificate"]), Path(given["key"]))
    if not given["certificate"]:
        folder = Path(settings.folder, "tls")
        pair = await asyncio.to_thread(certificates.made, folder, settings.node, settings.address)
    if pair is None:
        _LOG.warning(_NO_CERTIFICATE)
        yield 0
        return
    authority = _read(given["authority"]) if given["authority"] else await cluster.authority()
    if not authority:
        _LOG.warning(_NO_AUTHORITY)
    server = Server(node.log, partial(cluster.allowed, node=settings.node), WallClock())
    async with server.serving(settings.address, given["port"], certificates.context(*pair, authority)) as port:
        yield port


def _settings(given: dict[str, Any], folder: Path, access: Access) -> Settings:
    working = Path(given["working"] or ".").absolute()
    if not working.is_dir():
        raise UsageError(f"--working-dir: {working} is not a folder")
    share = _share(given)
    storage = {"ephemeral-storage": f"{shutil.disk_usage(folder).total // 1024}Ki"}
    visible = dict.fromkeys(str(path) for path in (working, sys.prefix, sys.base_prefix))
    return Settings(
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


def _share(given: dict[str, Any]) -> machine.Share:
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
