# SPDX-License-Identifier: Apache-2.0
"""`trainwright preflight`: report what an install would replace or disturb on a cluster."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from trainwright.cli.flags import kubeconfig_options, output_option
from trainwright.cli.install import kinds_named
from trainwright.cli.output import as_json, columns
from trainwright.crd.compare import worded

if TYPE_CHECKING:
    from trainwright.kube.survey import JobCounts, Survey

#: The exit code if the user must decide something first.
_DECISION_NEEDED = 1


@click.command("preflight")
@kubeconfig_options
@click.option("--kinds", metavar="KIND,…", default="", help="Check these kinds only.  [default: all]")
@output_option(choices=("text", "json"), help="Print a report for people, or one JSON object.")
def command(kubeconfig: str, context: str, kinds: str, form: Literal["text", "json"]) -> int:
    """Show what an install of the operator would change on a cluster. Run it before you apply anything.

    It shows the CRDs that an install would replace and their owners, other operators for the same kinds, and the jobs
    that exist. It changes nothing and uses your own rights. It lists what you may not read as not permitted.

    \b
    Examples:
      trainwright preflight
      trainwright preflight --context production -o json

    \b
    Exit codes:
      0  no problem was found     1  you must decide something first
      2  wrong usage, or no cluster is known     3  no answer from the cluster
    """
    return asyncio.run(_run(kubeconfig, context, kinds, form))


async def _run(kubeconfig: str, context: str, kinds: str, form: str) -> int:
    from trainwright.kube.cluster import connected  # noqa: PLC0415 - aiohttp takes longer than `--help`
    from trainwright.kube.config import ConnectionOptions, load  # noqa: PLC0415 - likewise
    from trainwright.kube.http import RequestPolicy  # noqa: PLC0415 - likewise
    from trainwright.kube.survey import survey  # noqa: PLC0415 - likewise
    from trainwright.runtime.ports import WallClock  # noqa: PLC0415 - likewise

    wanted = kinds_named(word.strip() for word in kinds.split(",") if word.strip())
    access = load(ConnectionOptions(kubeconfig=kubeconfig, context=context))
    async with connected(access, RequestPolicy(timeout=15.0, retry_seconds=5.0)) as cluster:
        found = await survey(cluster, access.server, access.namespace, wanted, WallClock().now())
    if form == "json":
        whole = msgspec.to_builtins(found) | {"decisions": list(found.decisions)}
        click.echo(as_json(whole), nl=False)
    else:
        click.echo("\n".join(_lines(found)))
    return _DECISION_NEEDED if found.decisions else 0


def _lines(found: "Survey") -> Iterator[str]:
    """The report for people."""
    yield f"Cluster {found.server}"
    yield ""
    head = ("KIND", "JOBS", "UNFINISHED", "RUNNING", "DEFINITION")
    yield from columns([head, *((one.kind, *_counted(one.jobs), worded(one.definition)) for one in found.kinds)])
    for one in found.kinds:
        if one.jobs is not None and one.jobs.unfinished:
            managers = ", ".join(f"{number} of {name}" for name, number in one.jobs.unfinished_by.items())
            yield f"Unfinished {one.kind}s: {managers}"
    if found.operators:
        yield f"Trainwright is installed: {', '.join(found.operators)}"
    yield from _section(
        "Other controllers of these kinds:",
        [f"{sign.object}: {', '.join(sign.kinds)}; {sign.detail}" for sign in found.controllers],
    )
    yield from _section("Not permitted (the report does not include these):", list(found.not_permitted))
    decisions = [f"{number}. {text}" for number, text in enumerate(found.decisions, 1)]
    yield from _section("Decide before you install:", decisions)
    if not decisions:
        yield ""
        yield "Nothing that you may read prevents an install."


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _counted(jobs: "JobCounts | None") -> tuple[str, str, str]:
    return ("?", "?", "?") if jobs is None else (str(jobs.total), str(jobs.unfinished), str(jobs.running))
