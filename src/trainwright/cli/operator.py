# SPDX-License-Identifier: Apache-2.0
"""`trainwright operator`: the controller on a Kubernetes cluster. Loaded by `cli.main`; `kube.operator` works."""

import asyncio
import logging
import os
import signal
import socket
from typing import Any

import click

from trainwright.cli.duration import Duration
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS
from trainwright.model.meta import Key
from trainwright.model.problem import nearest

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_NAMES = {kind.singular: kind.name for kind in KINDS}


@click.command("operator", context_settings={"auto_envvar_prefix": "TRAINWRIGHT_OPERATOR"})
@click.option("--kubeconfig", metavar="FILE", default="", help="Instead of $KUBECONFIG, ~/.kube/config, the pod's.")
@click.option("--context", metavar="NAME", default="", help="Of the kubeconfig.  [default: its current one]")
@click.option("--master", metavar="HOST:PORT", default="", help="The API server, instead of the kubeconfig's.")
@click.option("--run-in-cluster", is_flag=True, help="Use the pod's service account and nothing else.")
@click.option("-n", "--namespace", metavar="NS", default="", help="Look after jobs of one namespace.  [default: all]")
@click.option("--kinds", metavar="KIND,…", default="", help=f"Look after these only: {', '.join(_NAMES.values())}.")
@click.option("--leader-elect/--no-leader-elect", "elect", default=True, show_default=True, help="Wait for the lease.")
@click.option("--lease", metavar="NS/NAME", default="trainwright/operator", show_default=True, help="Which lease.")
@click.option("--lease-duration", type=Duration(), default="15s", show_default=True, metavar="TIME")
@click.option("--renew-deadline", type=Duration(), default="10s", show_default=True, metavar="TIME")
@click.option("--retry-period", type=Duration(), default="2s", show_default=True, metavar="TIME")
@click.option("--resync-period", "resync", type=Duration(), default="15s", show_default=True, metavar="TIME")
@click.option("--thread-num", "workers", type=click.IntRange(1, 256), default=16, help="Jobs looked at at once.")
@click.option("--qps", type=click.FloatRange(0), default=0.0, help="Most requests a second.  [default: no limit]")
@click.option("--burst", type=click.IntRange(0), default=0, help="Requests at once after a rest.  [default: as --qps]")
@click.option("--address", metavar="HOST:PORT", default="", help="Where /healthz, /readyz, /metrics are served.")
@click.option("--v", "verbosity", type=click.IntRange(0, 10), default=0, help="From 4 on, every detail.")
@click.option("--logtostderr", is_flag=True, hidden=True, help="Always so.")
def command(**given: Any) -> int:
    """Look after jobs on a Kubernetes cluster, until SIGTERM.

    The definitions of the kinds must be installed. Several operators may run: one leads, the others wait for its lease.
    Every option can be an environment variable, TRAINWRIGHT_OPERATOR_KUBECONFIG and so on.

    \b
    Examples:
      trainwright crds | kubectl apply --server-side -f -
      trainwright operator
      trainwright operator --namespace research --kinds genericjob --address :8080
    """
    level = logging.DEBUG if given.pop("verbosity") >= 4 else logging.INFO
    logging.basicConfig(format=_FORMAT, level=level)
    given.pop("logtostderr")
    return asyncio.run(_run(given))


async def _run(given: dict[str, Any]) -> int:
    from trainwright.kube.config import Asked, load  # noqa: PLC0415 - aiohttp takes longer than `--help`
    from trainwright.kube.operator import Options, operate  # noqa: PLC0415 - likewise

    asked = Asked(
        kubeconfig=given.pop("kubeconfig"),
        context=given.pop("context"),
        server=given.pop("master"),
        in_cluster=given.pop("run_in_cluster"),
    )
    kinds, lease = _kinds(given.pop("kinds")), _lease(given.pop("lease"))
    options = Options(lease=lease, identity=f"{socket.gethostname()}-{os.getpid()}", kinds=kinds, **given)
    working = asyncio.ensure_future(operate(load(asked), options))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return 0
    raise UsageError("the lease is lost: another operator leads now")


def _kinds(text: str) -> frozenset[str] | None:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
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
