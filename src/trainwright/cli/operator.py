# SPDX-License-Identifier: Apache-2.0
"""`trainwright operator`: the controller on a Kubernetes cluster. Loaded by `cli.main`; `kube.operator` works."""

import asyncio
import logging
import os
import signal
import socket
from math import isfinite
from secrets import token_hex
from typing import Any

import click

from trainwright.cli.flags import (
    Conditions,
    Duration,
    GoCommand,
    PortRange,
    Servers,
    Words,
    ZapLevel,
    from_file,
    switch,
)
from trainwright.cli.logformat import open_journal
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.model.site import CreationRules, DeviceRules, Site, SizingRules
from trainwright.runtime.telemetry import LogMessage

_NAMES = {kind.singular: kind.name for kind in KINDS}
_DEVICES = DeviceRules()
_ENV = "TRAINWRIGHT_OPERATOR"
_LOG = logging.getLogger(__name__)
_INTERRUPTED = 130
#: The --v from which on every write is logged.
_EVERY_WRITE = 4
#: Seconds: `kube.operator` writes nothing while less of the lease is left.
_LEAST_LEASE = 5.0
_TIME: dict[str, Any] = {"type": Duration(), "metavar": "TIME", "show_default": True}
_OLD: dict[str, Any] = {"hidden": True, "expose_value": False}


@click.command("operator", cls=GoCommand, context_settings={"auto_envvar_prefix": _ENV})
@click.option("--config", metavar="FILE", default="", is_eager=True, callback=from_file, help="These options, as YAML.")
@click.option("--kubeconfig", metavar="FILE", default="", help="Instead of $KUBECONFIG, ~/.kube/config, the pod's.")
@click.option("--context", metavar="NAME", default="", help="Of the kubeconfig.  [default: its current one]")
@click.option("--master", metavar="HOST:PORT", default="", help="The API server, instead of the kubeconfig's.")
@switch("--run-in-cluster", help="Use the pod's service account and nothing else.")
@click.option(
    "--connect-timeout", "patience", default="0", help="Wait so long for an API server; 0: for ever.", **_TIME
)
@click.option("-n", "--namespace", metavar="NS", default="", help="Look after jobs of one namespace.  [default: all]")
@click.option(
    "--kinds", "--enable-scheme", metavar="KIND,…", multiple=True, help=f"Only these: {', '.join(_NAMES.values())}."
)
@switch("--leader-elect", "elect", default=True, show_default=True, help="Wait for the lease.")
@click.option("--no-leader-elect", "alone", is_flag=True, help="Do not: there is no other operator.")
@click.option("--lease", metavar="NS/NAME", default="trainwright/operator", show_default=True, help="Which lease.")
@click.option("--lease-duration", "--leader-elect-lease-duration", "lease_duration", default="15s", **_TIME)
@click.option("--renew-deadline", "--leader-elect-renew-deadline", "renew_deadline", default="10s", **_TIME)
@click.option("--retry-period", "--leader-elect-retry-period", "retry_period", default="2s", **_TIME)
@click.option(
    "--resync-period", "resync", default="15s", help="Look at unfinished jobs at least so often; 0: never.", **_TIME
)
@click.option(
    "--thread-num",
    "--controller-threads",
    "workers",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=16,
    help="So many jobs are looked at at once.  [default: 16]",
)
@click.option(
    "--qps",
    "--kube-api-qps",
    "qps",
    metavar="N",
    type=click.FloatRange(0),
    default=0.0,
    help="Most requests a second.  [default: no limit]",
)
@click.option(
    "--burst",
    "--kube-api-burst",
    "burst",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Requests at once after a rest.  [default: as --qps]",
)
@click.option("--address", metavar="HOST:PORT", default="", help="Where /healthz, /readyz, /metrics are served.")
@click.option("--metrics-bind-address", "metrics", metavar="HOST:PORT", default="", help="Only /metrics.")
@click.option("--health-probe-bind-address", "probes", metavar="HOST:PORT", default="", help="Only the other two.")
@switch("--child-events", help="An event for each child that is made or removed.")
@click.option("--orphan-period", "sweep", default="5m", help="Look for children whose job is gone; 0: never.", **_TIME)
@click.option("--node-grace", default="60s", help="Give up pods of a node that is silent for so long.", **_TIME)
@click.option(
    "--avoid-node-period",
    "distrust",
    default="2m",
    help="A node that failed a replica gets no other until it has been well for so long.",
    **_TIME,
)
@click.option(
    "--gpu-resources",
    type=Words(_DEVICES.resources),
    default="default",
    metavar="NAME,…",
    help=f"What counts as a GPU.  [default: {','.join(sorted(_DEVICES.resources))}]",
)
@click.option(
    "--gpu-failure-conditions",
    type=Conditions(_DEVICES.conditions),
    default="default",
    metavar="TYPE[=STATUS],…",
    help="Conditions of nodes whose GPUs have failed.  [default: those of the usual detectors]",
)
@click.option(
    "--gpu-failure-taints",
    type=Words(_DEVICES.taints),
    default="default",
    metavar="KEY,…",
    help="Taints of such nodes.  [default: likewise]",
)
@click.option("--gpu-grace", default="60s", help="Give up pods whose GPUs have failed for so long.", **_TIME)
@click.option(
    "--elastic-patience", default="30s", help="Elastic roles do without pods that found no place for so long.", **_TIME
)
@click.option(
    "--elastic-cooldown", default="60s", help="Elastic roles try to grow so long after a change of size.", **_TIME
)
@click.option(
    "--cluster-domain",
    "domain",
    metavar="NAME",
    default="",
    envvar="CUSTOM_CLUSTER_DOMAIN",
    help="Appended to host names where a kind writes full ones.",
)
@switch("--enable-creating-failed", "creating_failed", help="Fail replicas whose containers cannot be created.")
@click.option("--creating-restart-period", default="30m", help="After they were tried for so long.", **_TIME)
@click.option("--creating-duration-period", default="15m", help="One such pod is replaced after.", **_TIME)
@click.option("--gang-scheduler-name", "gang", metavar="NAME", default="", help="Starts gangs where kinds ask for one.")
@click.option("--scheduling", metavar="NAME", default="", help="The same.")
@click.option("--etcd-server", type=Servers(), metavar="HOST:PORT,…", default="", help="Where elastic jobs meet.")
@click.option(
    "--port-range",
    type=PortRange(),
    default="35000,65000",
    metavar="A,B",
    show_default=True,
    help="Of nodes, to hand out.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--v", "verbosity", metavar="N", type=click.IntRange(0, 10), default=0, help="From 4 on, every write is logged."
)
@click.option(
    "--zap-log-level",
    "zap_level",
    metavar="LEVEL",
    type=ZapLevel(),
    help="Log from LEVEL on: debug, info, warn, error, panic, or a number from 1 on, which is debug.",
)
@click.option("--zap-encoder", type=click.Choice(["console", "json"]), hidden=True)
@click.option("--initImage", "--init-image", "init_image", hidden=True)
@switch("--zap-devel", **_OLD)
@click.option("--zap-stacktrace-level", **_OLD)
@click.option("--zap-time-encoding", **_OLD)
@switch("--logtostderr", **_OLD)
@switch("--alsologtostderr", **_OLD)
@click.option("--leader-elect-resource-lock", default="leases", **_OLD)
def command(**given: Any) -> int:
    """Look after jobs on a Kubernetes cluster, until SIGTERM.

    The definitions of the kinds must be installed. Several operators may run: one leads, the others wait for its lease.
    Every option can be an environment variable, TRAINWRIGHT_OPERATOR_KUBECONFIG and so on, or a line of a file.

    \b
    Examples:
      trainwright crds | kubectl apply --server-side -f -
      trainwright operator
      trainwright operator --namespace research --kinds genericjob --address :8080
      trainwright operator --config operator.yaml --log-format json
    """
    encoder, form = given.pop("zap_encoder"), given.pop("log_format")
    open_journal("json" if encoder == "json" else form, _level(given.pop("verbosity"), given.pop("zap_level")))
    if given.pop("init_image"):
        _LOG.info(
            LogMessage("--initImage is ignored: pods of a PaddleJob wait for their ConfigMap, not in an init container")
        )
    given.pop("config")
    return asyncio.run(_run(given))


def _level(verbosity: int, zap: int | None) -> int:
    """Python's level for both options; the one that asks for more wins."""
    if verbosity >= _EVERY_WRITE:
        return logging.DEBUG
    return logging.INFO if zap is None else zap


async def _run(given: dict[str, Any]) -> int:
    from trainwright.kube.config import ConnectionOptions, load  # noqa: PLC0415 - aiohttp takes longer than `--help`
    from trainwright.kube.operator import (  # noqa: PLC0415 - likewise
        HealthAddresses,
        OperatorOptions,
        operate,
    )

    asked = ConnectionOptions(
        kubeconfig=given.pop("kubeconfig"),
        context=given.pop("context"),
        server=given.pop("master"),
        in_cluster=given.pop("run_in_cluster"),
    )
    given["elect"] &= not given.pop("alone")
    _check_times(given)
    if not isfinite(given["qps"]):
        raise UsageError(f"--qps {given['qps']}: expected a number; without the option there is no limit")
    options = OperatorOptions(
        kinds=_kinds(given.pop("kinds")),
        lease=_lease(given.pop("lease")),
        # Containers may share a host's name, and each has a first process.
        identity=f"{socket.gethostname()}_{token_hex(4)}-{os.getpid()}",
        places=HealthAddresses(given.pop("address"), given.pop("metrics"), given.pop("probes")),
        site=_site(given),
        **given,
    )
    stop = asyncio.Event()
    return await _until_told(asyncio.create_task(operate(load(asked), options, stop)), stop)


async def _until_told(working: "asyncio.Task[None]", stop: asyncio.Event) -> int:
    """The first signal asks for an end, the second one makes it."""

    def told() -> None:
        if stop.is_set():
            working.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
    try:
        await working
    except asyncio.CancelledError:
        return _INTERRUPTED
    return 0


def _site(given: dict[str, Any]) -> Site:
    """What is set for all jobs alike."""
    creating = CreationRules(
        restart_period=given.pop("creating_restart_period"),
        duration_period=given.pop("creating_duration_period"),
        fail=given.pop("creating_failed"),
    )
    one, other = given.pop("gang"), given.pop("scheduling")
    if one and other and one.lower() != other.lower():
        raise UsageError(f"--gang-scheduler-name {one} and --scheduling {other} say the same thing: give one")
    return Site(
        domain=given.pop("domain"),
        node_grace=given.pop("node_grace"),
        node_quarantine=given.pop("distrust"),
        devices=DeviceRules(
            resources=given.pop("gpu_resources"),
            conditions=given.pop("gpu_failure_conditions"),
            taints=given.pop("gpu_failure_taints"),
            grace=given.pop("gpu_grace"),
        ),
        sizing=SizingRules(given.pop("elastic_patience"), given.pop("elastic_cooldown")),
        creating=creating,
        gang_scheduler=one or other,
        elastic_server=given.pop("etcd_server"),
        host_ports=given.pop("port_range"),
    )


def _check_times(given: dict[str, Any]) -> None:
    """A lease must outlast the tries to renew it, and a request that stands on it."""
    duration, deadline, period = (given[name] for name in ("lease_duration", "renew_deadline", "retry_period"))
    if not given["elect"]:
        return
    if not 0 < period < deadline < duration:
        raise UsageError(
            f"--lease-duration {duration:g}s must be longer than --renew-deadline {deadline:g}s, and that longer than"
            f" --retry-period {period:g}s"
        )
    if duration - period <= _LEAST_LEASE:
        least = _LEAST_LEASE + period
        raise UsageError(f"--lease-duration {duration:g}s: expected more than {least:g}s, or nothing could be written")


def _kinds(given: tuple[str, ...]) -> frozenset[str] | None:
    words = [word.strip().lower() for text in given for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _NAMES:
            hint = nearest(word, _NAMES)
            raise UsageError(f"--kinds: {word!r} is not known" + (f"; did you mean `{hint}`?" if hint else ""))
    return frozenset(words) or None


def _lease(text: str) -> Key:
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise UsageError(f"--lease: expected NAMESPACE/NAME, found {text!r}")
    return Key(namespace, name)
