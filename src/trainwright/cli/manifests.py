# SPDX-License-Identifier: Apache-2.0
"""`trainwright manifests`: everything to install on a cluster, the operator included. Loaded by `cli.main`."""

from typing import Literal

import click

from trainwright.cli.crds import as_json, as_yaml
from trainwright.cli.subject import check_namespace
from trainwright.crd.install import manifests
from trainwright.kinds.registry import KINDS


@click.command("manifests")
@click.option("--image", metavar="IMAGE", required=True, help="The operator's; its entrypoint is `trainwright`.")
@click.option("-n", "--namespace", metavar="NS", default="trainwright", show_default=True, help="Where it runs.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="YAML documents, or one JSON List.",
)
def command(image: str, namespace: str, output: Literal["yaml", "json"]) -> None:
    """Print CRDs, namespace, RBAC rules, Deployment and disruption budget of the operator.

    \b
    Example:
      trainwright manifests --image registry.example/trainwright:0.1 | kubectl apply --server-side -f -
    """
    check_namespace(namespace)
    bodies = manifests(KINDS, image, namespace)
    click.echo(as_json(bodies) if output == "json" else as_yaml(bodies), nl=False)
