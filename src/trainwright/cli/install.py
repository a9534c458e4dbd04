# SPDX-License-Identifier: Apache-2.0
"""`trainwright crds` and `trainwright manifests`: print the objects to install on a cluster."""

from collections.abc import Iterable
from typing import Any, Literal

import click

from trainwright import __version__
from trainwright.cli.flags import check_namespace, output_option
from trainwright.cli.output import as_json, as_yaml
from trainwright.crd.install import InstallOptions, manifests
from trainwright.crd.schema import crds
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.problem import nearest

_IMAGE = f"trainwright:{__version__}"
#: The first line of the YAML output.
_HEADER = "# Run `trainwright preflight` first: it shows what this would replace on your cluster.\n"
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
    names = [_kind_name(word) for word in words]
    return tuple(each for each in KINDS if not names or each.name in names)


def _kind_name(word: str) -> str:
    """The name of a kind from any spelling that kubectl accepts."""
    known = {spelling.lower(): each.name for each in KINDS for spelling in _spellings(each)}
    name = known.get(word.lower())
    if name is None:
        close = known.get(nearest(word, known))
        hint = f"did you mean `{close}`?" if close else f"known are {', '.join(dict.fromkeys(known.values()))}"
        raise UsageError(f"there is no kind `{word}`; {hint}")
    return name


def _spellings(kind: Kind) -> tuple[str, ...]:
    return kind.name, kind.plural, f"{kind.plural}.{kind.group}", *kind.short_names


def _print(bodies: tuple[Body, ...], form: Literal["yaml", "json"]) -> None:
    whole = {"apiVersion": "v1", "kind": "List", "items": bodies}
    click.echo(as_json(whole) if form == "json" else _HEADER + as_yaml(bodies), nl=False)


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
    wanted = kinds_named(word.strip() for word in kinds.split(",") if word.strip())
    _print(manifests(InstallOptions(watch=watch or "", kinds=wanted, **given)), form)


def _check_namespace(option: str, namespace: str) -> None:
    if not namespace:
        raise UsageError(f"{option}: expected the name of a namespace, found ''")
    check_namespace(namespace)


def _check_image(image: str) -> None:
    if not image or any(letter.isspace() for letter in image):
        raise UsageError(f"--image: expected a name such as registry.example/{_IMAGE}, found {image!r}")
