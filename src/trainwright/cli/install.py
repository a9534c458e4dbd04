# SPDX-License-Identifier: Apache-2.0
"""`trainwright crds`, `manifests`, `preflight`: print what to install, and what an install replaces on a cluster."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from trainwright import __version__
from trainwright.cli.flags import check_namespace, kubeconfig_options, output_option
from trainwright.cli.output import as_json, as_yaml, columns
from trainwright.crd.compare import worded
from trainwright.crd.hold import hold as hold_manifests
from trainwright.crd.hold import is_held
from trainwright.crd.install import InstallOptions, manifests
from trainwright.crd.schema import crds
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.problem import nearest

if TYPE_CHECKING:
    from trainwright.kube.migration import MigrationStep
    from trainwright.kube.survey import JobCounts, Survey

_PLACES = ("NAMESPACE", "KIND", "OF ANOTHER", "SUSPENDED", "NEW", "OURS", "FINISHED")
_IMAGE = f"trainwright:{__version__}"
#: The first line of the YAML output.
_HEADER = "# Run `trainwright preflight` first: it shows what this would replace on your cluster.\n"
#: The exit code of `preflight` if the user must decide something before the installation.
_DECISION_NEEDED = 1
_OUTPUT = output_option(choices=("yaml", "json"), help="Print YAML documents, or one JSON List.")


@click.command("crds")
@click.argument("kind", nargs=-1)
@_OUTPUT
def crds_command(kind: tuple[str, ...], form: Literal["yaml", "json"]) -> None:
    """Print the CustomResourceDefinitions of all kinds, or of each KIND (GenericJob, genericjobs, gj).

    `trainwright preflight` shows what they would replace on a cluster.

    \b
    Example:
      trainwright crds | kubectl apply --server-side -f -
    """
    _print(crds(kinds_named(kind)), form)


def kinds_named(words: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds with these names, in the order of the registry; all kinds if there are no names."""
    wanted = {_kind_id(word) for word in words}
    return tuple(each for each in KINDS if not wanted or each.id in wanted)


def _kind_id(word: str) -> str:
    """The id of a kind. `word` is any spelling that kubectl accepts, for example `gj`."""
    known = {spelling.lower(): each for each in KINDS for spelling in each.spellings}
    kind = known.get(word.lower())
    if kind is None:
        close = known.get(nearest(word, known))
        hint = f"did you mean `{close.title}`?" if close else f"known are {', '.join(each.title for each in KINDS)}"
        raise UsageError(f"there is no kind `{word}`; {hint}")
    return kind.id


def _print(bodies: tuple[Body, ...], form: Literal["yaml", "json"], header: str = _HEADER) -> None:
    whole = {"apiVersion": "v1", "kind": "List", "items": bodies}
    click.echo(as_json(whole) if form == "json" else header + as_yaml(bodies), nl=False)


@click.command("manifests")
@click.option(
    "--image", default=_IMAGE, show_default=True, help="Run the operator from this image, which Containerfile builds."
)
@click.option(
    "-n",
    "--namespace",
    metavar="NS",
    default="trainwright",
    show_default=True,
    help="Install the operator in this namespace.",
)
@click.option(
    "--watch-namespace", "watch", metavar="NS", help="Manage the jobs of this namespace only.  [default: all]"
)
@click.option("--kinds", metavar="KIND,…", default="", help="Manage these kinds only.  [default: all]")
@click.option("--crds/--no-crds", "definitions", default=True, show_default=True, help="Print the CRDs as well.")
@click.option(
    "--nodes",
    is_flag=True,
    help="Also print what `trainwright node` needs: an account that requests certificates, and rights for nodes.",
)
@_OUTPUT
def manifests_command(watch: str | None, kinds: str, form: Literal["yaml", "json"], **given: Any) -> None:
    """Print the CRDs, namespace, RBAC rules, Deployment, metrics Service and disruption budget of the operator.

    Run `trainwright preflight` first: it shows what an install would replace on your cluster.

    With --watch-namespace the operator has rights on jobs and pods in that namespace only; it reads only nodes and its
    CRDs in the whole cluster. If both namespaces are the same, this namespace must exist and is not printed.

    \b
    Examples:
      trainwright manifests --image registry.example/trainwright:0.1.0 | kubectl apply --server-side -f -
      trainwright manifests -n research --watch-namespace research --no-crds | kubectl apply --server-side -f -
      trainwright manifests --nodes --no-crds | kubectl apply --server-side -f -
    """
    _check_namespace("--namespace", given["namespace"])
    if watch is not None:
        _check_namespace("--watch-namespace", watch)
    _check_image(given["image"])
    wanted = kinds_named(_words(kinds))
    _print(manifests(InstallOptions(watch=watch or "", kinds=wanted, **given)), form)


def _check_namespace(option: str, namespace: str) -> None:
    if not namespace:
        raise UsageError(f"{option}: expected the name of a namespace, found ''")
    check_namespace(namespace)


def _check_image(image: str) -> None:
    if not image or any(letter.isspace() for letter in image):
        raise UsageError(f"--image: expected a name such as registry.example/{_IMAGE}, found {image!r}")


@click.command("preflight")
@kubeconfig_options
@click.option("--kinds", metavar="KIND,…", default="", help="Check these kinds only.  [default: all]")
@click.option(
    "--hold",
    is_flag=True,
    help="Print a policy that keeps new jobs of Kubeflow's kinds from starting, and read no cluster.",
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    metavar="NS",
    multiple=True,
    help="With --hold: hold only the jobs of this namespace. Can be repeated.  [default: all]",
)
@output_option(choices=("text", "json"), help="Print a report for people, or one JSON object.")
def preflight_command(
    kubeconfig: str,
    context: str,
    kinds: str,
    form: Literal["text", "json"],
    *,
    hold: bool,
    namespaces: tuple[str, ...],
) -> int:
    """Show what an install of the operator would change on a cluster. Run it before you apply anything.

    It shows the CRDs that an install would replace and their owners, other operators for the same kinds, the jobs that
    exist, and the next steps of a migration from another operator. It changes nothing and uses your own rights. It
    lists what you may not read as not permitted.

    \b
    Examples:
      trainwright preflight
      trainwright preflight --context production -o json
      trainwright preflight --hold | kubectl apply -f -
      trainwright preflight --hold -n research | kubectl apply -f -

    \b
    Exit codes:
      0  it is safe to install     1  you must do or decide something first
      2  wrong usage, or no cluster is known     3  no answer from the cluster
    """
    if hold:
        _print_hold(kinds_named(_words(kinds)), namespaces, form, named=bool(kinds))
        return 0
    if namespaces:
        raise UsageError("--namespace: it applies to --hold; the report is about the whole cluster")
    from trainwright.cli.asynchronous import run_coroutine  # noqa: PLC0415 - asyncio takes 24 ms; two commands need none

    return run_coroutine(_preflight, kubeconfig, context, kinds, form)


async def _preflight(kubeconfig: str, context: str, kinds: str, form: str) -> int:
    from trainwright.kube.cluster import connected  # noqa: PLC0415 - imports asyncio, which is slow
    from trainwright.kube.config import ConnectionOptions, load  # noqa: PLC0415 - likewise
    from trainwright.kube.http import RequestPolicy  # noqa: PLC0415 - likewise
    from trainwright.kube.migration import migration_steps  # noqa: PLC0415 - likewise
    from trainwright.kube.survey import survey  # noqa: PLC0415 - likewise
    from trainwright.runtime.ports import WallClock  # noqa: PLC0415 - likewise

    wanted = kinds_named(_words(kinds))
    access = load(ConnectionOptions(kubeconfig=kubeconfig, context=context))
    async with connected(access, RequestPolicy(timeout=15.0, retry_seconds=5.0)) as cluster:
        found = await survey(cluster, access.server, access.namespace, wanted, WallClock().now())
    if form == "json":
        steps = [msgspec.to_builtins(step) for step in migration_steps(found)]
        whole = msgspec.to_builtins(found) | {"decisions": list(found.decisions), "steps": steps}
        click.echo(as_json(whole), nl=False)
    else:
        click.echo("\n".join(_lines(found, migration_steps(found))))
    return _DECISION_NEEDED if found.decisions else 0


def _print_hold(kinds: Sequence[Kind], namespaces: Sequence[str], form: str, *, named: bool) -> None:
    others = [kind.name for kind in kinds if not is_held(kind)]
    if named and others:
        raise UsageError(f"--hold: {', '.join(others)} is not a kind of Kubeflow v1, so there is no hold for it")
    _print(hold_manifests(kinds, namespaces), "json" if form == "json" else "yaml", header="")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _lines(found: "Survey", steps: Sequence["MigrationStep"]) -> Iterator[str]:
    """The report for people."""
    yield f"Cluster {found.server}"
    yield ""
    head = ("KIND", "JOBS", "UNFINISHED", "RUNNING", "DEFINITION")
    yield from columns([head, *((one.kind, *_counted(one.jobs), worded(one.definition)) for one in found.kinds)])
    for one in found.kinds:
        if one.jobs is not None and one.jobs.unfinished:
            managers = ", ".join(f"{number} of {name}" for name, number in one.jobs.unfinished_by.items())
            yield f"Unfinished {one.kind}s: {managers}"
    places = list(_places(found))
    yield from _section("Jobs by namespace:", list(columns([_PLACES, *places])) if places else [])
    if found.operators:
        yield f"Trainwright is installed: {', '.join(found.operators)}"
    yield from _section(
        "Other controllers of these kinds:",
        [f"{sign.object}: {', '.join(sign.kinds)}; {sign.detail}" for sign in found.controllers],
    )
    yield from _section("Not permitted (the report does not include these):", list(found.not_permitted))
    decisions = [f"{number}. {text}" for number, text in enumerate(found.decisions, 1)]
    yield from _section("Decide before you install:", decisions)
    plan = [f"{number}. {step.name}: {step.action or 'done'}" for number, step in enumerate(steps, 1)]
    yield from _section("From the other operator to Trainwright, in this order (docs/migrate.md):", plan)
    if not decisions:
        yield ""
        yield "Nothing that you may read prevents an install."


def _places(found: "Survey") -> Iterator[tuple[str, ...]]:
    """A row for each namespace and kind with jobs."""
    for one in found.kinds:
        for name, counts in (one.jobs.namespaces if one.jobs is not None else {}).items():
            numbers = (counts.foreign, counts.suspended, counts.new, counts.other, counts.finished)
            yield (name, one.kind, *map(str, numbers))


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _counted(jobs: "JobCounts | None") -> tuple[str, str, str]:
    return ("?", "?", "?") if jobs is None else (str(jobs.total), str(jobs.unfinished), str(jobs.running))
