# SPDX-License-Identifier: Apache-2.0
"""`trainwright node`: this machine as a node of a Kubernetes cluster. Loaded by `cli.main`; `cli.serve` does it.

The options and what they mean; nothing heavy is imported before they have been read.
"""

import asyncio
import logging
import re
import socket
from typing import Any

import click

from trainwright.cli.devices import declared, device_options
from trainwright.cli.duration import Duration
from trainwright.errors import UsageError
from trainwright.model.problem import nearest
from trainwright.model.units import quantity

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
    from trainwright.cli.serve import work  # noqa: PLC0415 - the engine, now that it is needed

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
