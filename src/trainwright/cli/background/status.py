# SPDX-License-Identifier: Apache-2.0
"""`trainwright status`: show the background engine: process, nodes, devices and jobs by phase."""

from collections.abc import Iterator
from typing import Any, Literal

import click

from trainwright.cli.background.place import connect
from trainwright.cli.background.protocol import EngineStatus
from trainwright.cli.flags import age, output_option
from trainwright.cli.output import as_json, columns
from trainwright.cli.show.text import line as clean
from trainwright.model.units import parse_time
from trainwright.runtime.ports import WallClock

_MAX_NOTICES = 5


@click.command("status")
@output_option(choices=("text", "json"), help="Print a page for people, or JSON.")
def command(form: Literal["text", "json"]) -> None:
    """Show the background engine: its process, socket, version, nodes, devices, and its jobs by phase.

    \b
    Examples:
      trainwright status
      trainwright status -o json | jq .jobs

    \b
    Exit codes:
      0  the engine is up          3  no engine runs, or it does not answer
    """
    with connect() as client:
        status: EngineStatus = client.call("status", {})
    click.echo(as_json(status), nl=False) if form == "json" else click.echo("\n".join(_page(status)))


def _page(status: EngineStatus) -> Iterator[str]:
    since = parse_time(status["since"])
    up = f", up for {age((WallClock().now() - since).total_seconds())}" if since is not None else ""
    yield f"engine    process {status['pid']}, version {status['version']}{up}"
    yield f"runtime   {status['runtime']}: {clean(status['choice'])}"
    yield f"socket    {status['socket']}"
    if status["api"]:
        yield f"API       {status['api']}, kubectl --kubeconfig {status['kubeconfig']}"
    counts = ", ".join(f"{number} {phase}" for phase, number in status["jobs"].items())
    yield f"jobs      {counts or 'none'}"
    if pods := status.get("pods"):
        yield f"pods      {pods} without a job"
    for text in status["problems"]:
        yield f"problem   {clean(text)}"
    for text in status["notices"][-_MAX_NOTICES:]:
        yield f"notice    {clean(text)}"
    yield ""
    yield from columns([["NODE", "READY", "PODS", "CPU", "MEMORY", "DEVICES"], *_nodes(status)])
    for node in status["nodes"]:
        if node["reason"]:
            yield f"{node['name']}: {clean(node['reason'])}"


def _nodes(status: EngineStatus) -> Iterator[list[str]]:
    for node in status["nodes"]:
        own = [one for one in status["devices"] if one["node"] == node["name"]]
        devices = ", ".join(f"{one['resource']} {one['used']}/{one['total']}" for one in own)
        ready = "yes" if node["ready"] else "no"
        row = [node["name"], ready, str(node["pods"]), _used(node, "cpu"), _used(node, "memory"), devices or "-"]
        yield row


def _used(node: Any, resource: str) -> str:
    return f"{node['requested'].get(resource, '0')}/{node['allocatable'].get(resource, '?')}"
