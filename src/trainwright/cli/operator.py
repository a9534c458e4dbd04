# SPDX-License-Identifier: Apache-2.0
"""`trainwright operator`: the options of the operator on a Kubernetes cluster."""

import asyncio
import logging
import os
import signal
import socket
from math import isfinite
from secrets import token_hex
from typing import Any

import click

from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.flags import (
    Conditions,
    GoCommand,
    PortRange,
    Servers,
    Words,
    ZapLevel,
    choice_option,
    duration_option,
    from_file,
    kubeconfig_options,
    repeated_option,
    switch,
    text_option,
)
from trainwright.cli.logformat import configure_logging
from trainwright.cli.wait_containers import wait_rules
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS
from trainwright.model.meta import Key
from trainwright.model.problem import nearest
from trainwright.model.site import CreationRules, DeviceRules, Site, SizingRules, WaitRules
from trainwright.runtime.telemetry import LogMessage

_NAMES = {kind.id: kind.title for kind in KINDS}
_DEVICES = DeviceRules()
_WAITING = WaitRules()
_ENV = "TRAINWRIGHT_OPERATOR"
_LOG = logging.getLogger(__name__)
_INTERRUPTED = 130
#: If --v has this value or a higher value, every write is logged.
_LOG_WRITES = 4
#: The leader sends no write if its leader lease ends within this time, the request timeout of `kube.operator`.
_WRITE_MARGIN_SECONDS = 5.0
#: Arguments of `click` for hidden options. The original controllers have these options; here they have no effect.
_IGNORED: dict[str, Any] = {"hidden": True, "expose_value": False}


@click.command("operator", cls=GoCommand, context_settings={"auto_envvar_prefix": _ENV})
@text_option(
    "--config",
    metavar="FILE",
    is_eager=True,
    callback=from_file,
    help="Read options from FILE, in YAML with one key per option.",
)
@kubeconfig_options
@text_option("--master", metavar="HOST:PORT", help="Use this API server instead of the kubeconfig's.")
@switch("--run-in-cluster", help="Use only the service account of the pod.")
@duration_option(
    "--connect-timeout",
    default="0",
    help="Give up if the API server does not answer within TIME at the start; 0 waits for ever.",
)
@text_option("-n", "--namespace", metavar="NS", help="Manage the jobs of one namespace.  [default: all]")
@repeated_option(
    "--kinds", "--enable-scheme", metavar="KIND,…", help=f"Manage only these kinds: {', '.join(_NAMES.values())}."
)
@switch("--leader-elect", "elect", default=True, show_default=True, help="Work only while holding the lease.")
@click.option(
    "--no-leader-elect", "no_elect", is_flag=True, help="Work without a lease, because no other operator runs."
)
@click.option(
    "--lease", metavar="NS/NAME", default="trainwright/operator", show_default=True, help="Use this Lease object."
)
@duration_option(
    "--lease-duration",
    "--leader-elect-lease-duration",
    default="15s",
    help="Take over a lease that was not renewed for TIME.",
)
@duration_option(
    "--renew-deadline",
    "--leader-elect-renew-deadline",
    default="10s",
    help="Stop leading if the lease could not be renewed for TIME.",
)
@duration_option(
    "--retry-period", "--leader-elect-retry-period", default="2s", help="Try to get or renew the lease every TIME."
)
@duration_option(
    "--resync-period",
    "resync",
    default="15s",
    help="Reconcile each unfinished job at least every TIME; 0 turns this off.",
)
@click.option(
    "--thread-num",
    "--controller-threads",
    "workers",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=16,
    help="Reconcile at most N jobs at the same time.  [default: 16]",
)
@click.option(
    "--qps",
    "--kube-api-qps",
    metavar="N",
    type=click.FloatRange(0),
    default=0.0,
    help="Send at most N requests per second.  [default: no limit]",
)
@click.option(
    "--burst",
    "--kube-api-burst",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Send up to N requests at once after a pause.  [default: as --qps]",
)
@text_option("--address", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics there.")
@text_option("--metrics-bind-address", "metrics", metavar="HOST:PORT", help="Serve only /metrics there.")
@text_option(
    "--health-probe-bind-address", "probes", metavar="HOST:PORT", help="Serve only /healthz and /readyz there."
)
@switch("--child-events", help="Record an event for each child that the operator creates or deletes.")
@duration_option(
    "--orphan-period", default="5m", help="Search for children whose job is gone every TIME; 0 turns this off."
)
@duration_option("--node-grace", default="60s", help="Replace the pods of a node that is not ready for TIME.")
@duration_option(
    "--avoid-node-period",
    "distrust",
    default="2m",
    help="Keep a job off a node that failed one of its replicas until the node has been healthy for TIME.",
)
@click.option(
    "--gpu-resources",
    type=Words(_DEVICES.resources),
    default="default",
    metavar="NAME,…",
    help=f"Count these resources as GPUs.  [default: {','.join(sorted(_DEVICES.resources))}]",
)
@click.option(
    "--gpu-failure-conditions",
    type=Conditions(_DEVICES.conditions),
    default="default",
    metavar="TYPE[=STATUS],…",
    help="Treat the GPUs of a node with one of these conditions as failed.  [default: those of the usual detectors]",
)
@click.option(
    "--gpu-failure-taints",
    type=Words(_DEVICES.taints),
    default="default",
    metavar="KEY,…",
    help="Treat the GPUs of a node with one of these taints as failed.  [default: those of the usual detectors]",
)
@duration_option("--gpu-grace", default="60s", help="Replace the pods whose GPUs have failed for TIME.")
@duration_option(
    "--elastic-patience", default="30s", help="Shrink an elastic role if some of its pods cannot be scheduled for TIME."
)
@duration_option(
    "--elastic-cooldown", default="60s", help="Let an elastic role grow again TIME after its last change of size."
)
@text_option(
    "--cluster-domain",
    "domain",
    metavar="NAME",
    envvar="CUSTOM_CLUSTER_DOMAIN",
    help="Append NAME to host names where a kind writes full ones.",
)
@switch("--enable-creating-failed", "creating_failed", help="Fail a replica whose containers cannot be created.")
@duration_option(
    "--creating-restart-period",
    default="30m",
    help="Fail such a replica when its containers could not be created for TIME.",
)
@duration_option(
    "--creating-duration-period", default="15m", help="Replace a pod whose containers cannot be created after TIME."
)
@text_option(
    "--gang-scheduler-name", "gang", metavar="NAME", help="Use this scheduler for jobs that ask for gang scheduling."
)
@text_option("--scheduling", metavar="NAME", help="The same as --gang-scheduler-name.")
@text_option(
    "--etcd-server",
    type=Servers(),
    metavar="HOST:PORT,…",
    help="Let elastic jobs agree on their members through this etcd server.",
)
@click.option(
    "--port-range",
    type=PortRange(),
    default="35000,65000",
    metavar="A,B",
    show_default=True,
    help="Assign ports from A to B to replicas that use the network of their node.",
)
@text_option(
    "--pytorch-init-container-image",
    "init_image_torch",
    metavar="IMAGE",
    default=_WAITING.image,
    show_default=True,
    help="Let workers of a PyTorchJob wait for their master in this image; empty: create them after the master runs.",
)
@click.option(
    "--pytorch-init-container-max-tries",
    "init_tries",
    metavar="N",
    type=click.IntRange(1),
    default=_WAITING.tries,
    show_default=True,
    help="Let them look for the name of the master N times.",
)
@text_option(
    "--pytorch-init-container-template-file",
    "init_template",
    metavar="FILE",
    help="Let them wait in the containers of FILE, a YAML list in which {{.MasterAddr}} is the name of the master.",
)
@choice_option("--log-format", choices=("text", "json"), help="Write the log as key=value pairs, or as JSON.")
@click.option(
    "--v", "verbosity", metavar="N", type=click.IntRange(0, 10), default=0, help="Log every write if N is at least 4."
)
@click.option(
    "--zap-log-level",
    "zap_level",
    metavar="LEVEL",
    type=ZapLevel(),
    help="Log from LEVEL on: debug, info, warn, error, panic, or a number from 1 on, which means debug.",
)
@click.option("--zap-encoder", type=click.Choice(["console", "json"]), hidden=True)
@click.option("--initImage", "--init-image", "init_image", hidden=True)
@switch("--zap-devel", **_IGNORED)
@click.option("--zap-stacktrace-level", **_IGNORED)
@click.option("--zap-time-encoding", **_IGNORED)
@switch("--logtostderr", **_IGNORED)
@switch("--alsologtostderr", **_IGNORED)
@click.option("--leader-elect-resource-lock", default="leases", **_IGNORED)
def command(**given: Any) -> int:
    """Manage jobs on a Kubernetes cluster, until SIGTERM.

    The CRDs of the kinds must be installed. Several operators may run: one leads, the others wait for its lease. Every
    option can also be an environment variable, such as TRAINWRIGHT_OPERATOR_KUBECONFIG, or a line of the --config file.

    \b
    Examples:
      trainwright crds | kubectl apply --server-side -f -
      trainwright operator
      trainwright operator --namespace research --kinds genericjob --address :8080
      trainwright operator --config operator.yaml --log-format json
    """
    log_format, encoder = given.pop("log_format"), given.pop("zap_encoder")
    level = _level(given.pop("verbosity"), given.pop("zap_level"))
    configure_logging("json" if encoder == "json" else log_format, level)
    if given.pop("init_image"):
        text = "--initImage has no effect: pods of a PaddleJob wait for their ConfigMap without an init container"
        _LOG.info(LogMessage(text))
    given.pop("config")
    return run_coroutine(_run, given)


def _level(verbosity: int, zap: int | None) -> int:
    """Python's log level: DEBUG if --v is high enough, else the level of zap's option, else INFO."""
    if verbosity >= _LOG_WRITES:
        return logging.DEBUG
    return logging.INFO if zap is None else zap


async def _run(given: dict[str, Any]) -> int:
    from trainwright.kube.config import ConnectionOptions, load  # noqa: PLC0415 - imports asyncio, which is slow
    from trainwright.kube.health import HealthAddresses  # noqa: PLC0415 - likewise
    from trainwright.kube.operator import OperatorOptions, operate  # noqa: PLC0415 - likewise

    connection = ConnectionOptions(
        kubeconfig=given.pop("kubeconfig"),
        context=given.pop("context"),
        server=given.pop("master"),
        in_cluster=given.pop("run_in_cluster"),
    )
    given["elect"] &= not given.pop("no_elect")
    _check_times(given)
    if not isfinite(given["qps"]):
        raise UsageError(f"--qps {given['qps']}: expected a number; without the option there is no limit")
    options = OperatorOptions(
        kinds=_kinds(given.pop("kinds")),
        lease=_lease(given.pop("lease")),
        # Host name and process id alone are not unique: containers can share a host name and often have process id 1.
        identity=f"{socket.gethostname()}_{token_hex(4)}-{os.getpid()}",
        addresses=HealthAddresses(given.pop("address"), given.pop("metrics"), given.pop("probes")),
        site=_site(given),
        **given,
    )
    stop = asyncio.Event()
    return await _until_stopped(asyncio.create_task(operate(load(connection), options, stop)), stop)


async def _until_stopped(working: "asyncio.Task[None]", stop: asyncio.Event) -> int:
    """Wait for the operator. The first signal asks the operator to stop, and the second signal cancels it."""

    def on_signal() -> None:
        if stop.is_set():
            working.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await working
    except asyncio.CancelledError:
        return _INTERRUPTED
    return 0


def _site(given: dict[str, Any]) -> Site:
    """The site: settings that are the same for all jobs."""
    creating = CreationRules(
        restart_period=given.pop("creating_restart_period"),
        duration_period=given.pop("creating_duration_period"),
        fail=given.pop("creating_failed"),
    )
    gang, scheduling = given.pop("gang"), given.pop("scheduling")
    if gang and scheduling and gang.lower() != scheduling.lower():
        raise UsageError(f"--gang-scheduler-name {gang} and --scheduling {scheduling} mean the same: give one")
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
        gang_scheduler=gang or scheduling,
        elastic_server=given.pop("etcd_server"),
        host_ports=given.pop("port_range"),
        waiting=wait_rules(given.pop("init_image_torch"), given.pop("init_tries"), given.pop("init_template")),
    )


def _check_times(given: dict[str, Any]) -> None:
    """Raise UsageError if the leader lease could end before its renewal, or if it would be too short for writes."""
    duration, deadline, period = (given[name] for name in ("lease_duration", "renew_deadline", "retry_period"))
    if not given["elect"]:
        return
    if not 0 < period < deadline < duration:
        raise UsageError(
            f"--lease-duration {duration:g}s must be longer than --renew-deadline {deadline:g}s, and that longer than"
            f" --retry-period {period:g}s"
        )
    if duration - period <= _WRITE_MARGIN_SECONDS:
        minimum = _WRITE_MARGIN_SECONDS + period
        raise UsageError(
            f"--lease-duration {duration:g}s: expected more than {minimum:g}s, or the operator could not write"
        )


def _kinds(given: tuple[str, ...]) -> frozenset[str] | None:
    words = [word.strip().lower() for text in given for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _NAMES:
            hint = nearest(word, _NAMES)
            raise UsageError(f"--kinds: {word!r} is not a kind" + (f"; did you mean `{hint}`?" if hint else ""))
    return frozenset(words) or None


def _lease(text: str) -> Key:
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise UsageError(f"--lease: expected NAMESPACE/NAME, found {text!r}")
    return Key(namespace, name)
