# SPDX-License-Identifier: Apache-2.0
"""`trainwright manifests`: everything to install on a cluster, the operator included. Loaded by `cli.main`."""

from typing import Any, Literal

import click

from trainwright import __version__
from trainwright.cli.crds import FIRST, OUTPUT, as_json, as_yaml, named
from trainwright.cli.subject import check_namespace
from trainwright.crd.install import Choice, manifests
from trainwright.errors import UsageError

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
def command(watch: str | None, kinds: str, output: Literal["yaml", "json"], **given: Any) -> None:
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
    choice = Choice(watch=watch or "", kinds=wanted, **given)
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
