# SPDX-License-Identifier: Apache-2.0
"""`trainwright crds`: what to install on a cluster before the operator. Loaded by `cli.main` when it is asked for.

`trainwright manifests`: everything to install on a cluster, the operator included. Loaded by `cli.main`.
"""

from collections.abc import Iterable
from typing import Any, Literal

import click
import msgspec

from trainwright import __version__
from trainwright.cli.documents import check_namespace
from trainwright.crd.install import InstallOptions, manifests
from trainwright.crd.schema import crds
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.problem import nearest

#: What everybody should read who applies what follows.
FIRST = "# Run `trainwright preflight` first: it shows what this would replace on your cluster.\n"
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="YAML documents, or one JSON List.",
)


@click.command("crds")
@click.argument("kind", nargs=-1)
@OUTPUT
def crds_command(kind: tuple[str, ...], output: Literal["yaml", "json"]) -> None:
    """Print the CustomResourceDefinitions of all kinds, or of each KIND (GenericJob, genericjobs, gj).

    `trainwright preflight` shows what they would replace on a cluster.

    \b
    Example:
      trainwright crds | kubectl apply --server-side -f -
    """
    bodies = crds(named(kind))
    click.echo(as_json(bodies) if output == "json" else FIRST + as_yaml(bodies), nl=False)


def named(words: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds that these words mean, in the order of the registry; all of them, if there are no words."""
    names = [_name(word) for word in words]
    return tuple(each for each in KINDS if not names or each.name in names)


def _name(word: str) -> str:
    """The kind that a word means, whichever way kubectl would let people write it."""
    known = {spelling.lower(): each.name for each in KINDS for spelling in _spellings(each)}
    name = known.get(word.lower())
    if name is None:
        meant = known.get(nearest(word, known))
        hint = f"did you mean `{meant}`?" if meant else f"known are {', '.join(dict.fromkeys(known.values()))}"
        raise UsageError(f"there is no kind `{word}`; {hint}")
    return name


def _spellings(kind: Kind) -> tuple[str, ...]:
    return kind.name, kind.plural, f"{kind.plural}.{kind.group}", *kind.short_names


def as_json(bodies: tuple[Body, ...]) -> str:
    """One List."""
    whole = {"apiVersion": "v1", "kind": "List", "items": bodies}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def as_yaml(bodies: tuple[Body, ...]) -> str:
    """Documents, each written out: what they share is no alias."""
    import yaml  # noqa: PLC0415 - a third of a command's start-up time

    class Plain(yaml.SafeDumper):
        """kubectl would take aliases, people would not."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of anything
            return True

    return yaml.dump_all(bodies, Dumper=Plain, sort_keys=False, allow_unicode=True, width=120)


_IMAGE = f"trainwright:{__version__}"


@click.command("manifests")
@click.option("--image", default=_IMAGE, show_default=True, help="The operator's, as Containerfile builds it.")
@click.option("-n", "--namespace", metavar="NS", default="trainwright", show_default=True, help="Where it runs.")
@click.option("--watch-namespace", "watch", metavar="NS", help="Look after jobs of this one alone.  [default: all]")
@click.option("--kinds", metavar="KIND,…", default="", help="Look after these only.  [default: all]")
@click.option("--crds/--no-crds", "definitions", default=True, show_default=True, help="Print the CRDs as well.")
@click.option(
    "--nodes",
    is_flag=True,
    help="Also what `trainwright node` needs: an account that requests certificates, and few rights for all nodes.",
)
@OUTPUT
def manifests_command(watch: str | None, kinds: str, output: Literal["yaml", "json"], **given: Any) -> None:
    """Print CRDs, namespace, RBAC rules, Deployment, metrics Service and disruption budget of the operator.

    Run `trainwright preflight` first: it shows what an install would replace on your cluster.

    With --watch-namespace its rights on jobs and pods are in a Role of that namespace; only nodes and its CRDs are
    looked at cluster-wide. If both namespaces are one, that one must exist and is left as it is.

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
    wanted = named(word.strip() for word in kinds.split(",") if word.strip())
    choice = InstallOptions(watch=watch or "", kinds=wanted, **given)
    bodies = manifests(choice)
    click.echo(as_json(bodies) if output == "json" else FIRST + as_yaml(bodies), nl=False)


def _check_namespace(option: str, namespace: str) -> None:
    if not namespace:
        raise UsageError(f"{option}: expected the name of a namespace, found ''")
    check_namespace(namespace)


def _check_image(image: str) -> None:
    if not image or any(letter.isspace() for letter in image):
        wanted = f"registry.example/{_IMAGE}"
        raise UsageError(f"--image: expected a name such as {wanted}, found {image!r}")
